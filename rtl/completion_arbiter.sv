// Round-robin completion arbiter: takes one item per cycle from the result buffer. A token line goes to the write
// port; the end of a descriptor goes to the completion ring, which has a record for it.
module completion_arbiter #(
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,

  // Result buffer.
  input  logic [Workers-1:0] valid_i,
  input  logic [Workers-1:0] has_line_i,
  input  logic [Workers-1:0] has_done_i,
  output logic [Workers-1:0] take_o,           // one-hot
  output logic               taken_o,          // it is not 0
  output logic [3:0]         worker_o,         // the same as a number
  output logic [Workers-1:0] delivered_o,      // one-hot: the end of a descriptor was taken

  // Write port.
  output logic               line_waits_o,     // some line could go but for the port
  input  logic [Workers-1:0] line_place_i,     // there is a place for a line of this worker
  input  logic               line_turn_i,      // nothing but a line goes
  output logic               line_valid_o,     // late: depends on the ready signals
  input  logic [Workers-1:0] line_ready_i,     // early: the port takes a line of this worker

  // Completion ring.
  output logic                       done_valid_o
);
  logic [Workers-1:0] eligible, grant;
  logic               taken;

  assign line_waits_o = (valid_i & has_line_i & line_place_i) != '0;
  assign taken        = grant != '0;
  assign take_o       = grant;
  assign taken_o      = taken;

  always_comb begin
    eligible = '0;
    if (valid_i != '0) eligible = valid_i & ((has_line_i & line_ready_i) | (~has_line_i & ~{Workers{line_turn_i}}));
  end

  round_robin #(.N(Workers)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (eligible),
    .grant_o   (grant),
    .number_o  (worker_o),
    .accept_i  (taken)
  );

  always_comb begin
    delivered_o  = '0;
    line_valid_o = 1'b0;
    done_valid_o = 1'b0;
    if (taken) begin
      delivered_o  = grant & has_done_i;
      line_valid_o = (grant & has_line_i) != '0;
      done_valid_o = (grant & has_done_i) != '0;
    end
  end
endmodule
