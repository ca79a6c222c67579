// Places for the lines of tokens that a worker sends to memory: a DECODE begins only if all lines that it may send have one.
//
// A place is in one of three states: free, reserved for a line that the running DECODE may yet send, or in flight until memory has answered. One DECODE
// runs at a time. It has ended when it has sent its last line, or with a STOP.
module line_credits #(
  parameter int Places = 8
) (
  input  logic                      clk_i,
  input  logic                      rst_ni,

  input  logic [$clog2(Places):0]   lines_i,    // lines that the next DECODE may send, 1 to Places
  output logic                      ready_o,    // there is a place for each, and no DECODE runs
  input  logic                      start_i,    // it begins; only with ready_o, and not with stop_i

  input  logic                      line_i,     // the DECODE that runs sends a line
  input  logic                      stop_i,     // a STOP is there: whatever runs sends no line after this cycle
  input  logic                      answer_i    // memory has answered a line
);
  localparam int Bits = $clog2(Places) + 1;

  logic [Bits-1:0] free_q;              // places that are free
  logic [Bits-1:0] left_q;              // places that the running DECODE has reserved; 0: none runs

  assign ready_o = left_q == '0 && free_q >= lines_i;

  always_ff @(posedge clk_i) begin
    free_q <= free_q - (start_i ? lines_i : '0) + Bits'(answer_i);

    if (start_i)     left_q <= lines_i;
    else if (stop_i) left_q <= '0;
    else             left_q <= left_q - Bits'(line_i);

    if (!rst_ni) begin
      free_q <= Bits'(Places);
      left_q <= '0;
    end
  end
endmodule
