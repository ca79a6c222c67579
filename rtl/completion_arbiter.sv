// Round-robin completion arbiter: takes one item per cycle from the workers. A token line goes to the write port;
// the end of a descriptor goes to the completion ring, with the number of the worker's last line, which must be
// acknowledged before the completion may be seen.
module completion_arbiter
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic                          clk_i,
  input  logic                          rst_ni,
  input  logic                          clear_i,

  input  logic [Workers-1:0]            valid_i,
  input  logic [Workers-1:0]            has_line_i,
  input  logic [Workers*BEAT_BITS-1:0]  line_i,
  input  logic [Workers-1:0]            has_done_i,
  input  logic [Workers*DONE_BITS-1:0]  done_i,
  output logic [Workers-1:0]            take_o,

  output logic                          line_waits_o,   // a line wants the write port
  output logic                          line_valid_o,   // late: depends on the ready signals
  output logic [4:0]                    line_id_o,
  output beat_t                         line_o,
  input  logic                          line_ready_i,   // early

  output logic                          done_valid_o,
  output done_t                         done_o,
  output logic [LINE_COUNT_BITS-1:0]    done_after_o,   // lines of this worker up to and with the last one
  input  logic                          done_ready_i    // early
);
  logic [Workers-1:0] eligible, grant;
  logic               taken;

  assign line_waits_o = (valid_i & has_line_i) != '0;
  assign eligible     = clear_i ? '0
                      : valid_i & (line_ready_i ? '1 : ~has_line_i) & (done_ready_i ? '1 : ~has_done_i);
  assign taken        = grant != '0;
  assign take_o       = grant;

  round_robin #(.N(Workers)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (eligible),
    .grant_o   (grant),
    .accept_i  (taken)
  );

  // Lines issued so far per worker, modulo 2^LINE_COUNT_BITS.
  logic [LINE_COUNT_BITS-1:0] lines [0:MAX_WORKERS-1];
  logic [3:0]                 index;

  always_comb begin
    index = '0;
    for (int w = 0; w < Workers; w++) if (grant[w]) index = 4'(w);
  end

  assign line_valid_o = (grant & has_line_i) != '0;
  assign line_id_o    = {1'b0, index};
  assign line_o       = line_i[index*BEAT_BITS +: BEAT_BITS];
  assign done_valid_o = (grant & has_done_i) != '0;
  assign done_o       = done_i[index*DONE_BITS +: DONE_BITS];
  assign done_after_o = lines[index] + LINE_COUNT_BITS'(line_valid_o);

  always_ff @(posedge clk_i) begin
    if (!rst_ni)           for (int w = 0; w < MAX_WORKERS; w++) lines[w] <= '0;
    else if (clear_i)      for (int w = 0; w < MAX_WORKERS; w++) lines[w] <= '0;
    else if (line_valid_o) lines[index] <= done_after_o;
  end

`ifndef SYNTHESIS
  initial begin
    if ($bits(done_o) != DONE_BITS || $bits(line_o) != BEAT_BITS)
      $fatal(1, "core_pkg: DONE_BITS must be %0d and BEAT_BITS %0d", $bits(done_o), $bits(line_o));
  end
`endif
endmodule
