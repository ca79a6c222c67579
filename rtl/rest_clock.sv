// The clock of a part that rests for long: it stands once nothing has moved for 2^Bits cycles, and goes on with the edge of the first cycle
// in which something does. A cycle that it leaves out is one in which no register of the part would have changed, so it is the same
// device with it and without: the part's owner says with moves_i what may change one, and counts on what is under way to end, or to show
// there, within 2^Bits cycles.
//
// It spares a simulation the part's code in those cycles. In hardware (SYNTHESIS) the clock goes through: a second one would cost its own
// skew and constraints. Who wants to spare power puts the library's clock gate here, or, in an FPGA, a buffer with an enable.
module rest_clock #(
  parameter int Bits = 6
) (
  input  logic clk_i,
  /* verilator lint_off UNUSEDSIGNAL */  // in hardware
  input  logic moves_i,               // combinational, early in the cycle
  /* verilator lint_on UNUSEDSIGNAL */
  output logic clk_o
);
`ifdef SYNTHESIS
  assign clk_o = clk_i;
`else
  logic [Bits:0] still_q;             // cycles without a move
  logic          open;

  always_ff @(posedge clk_i) begin
    if (moves_i) still_q <= '0;
    else if (!still_q[Bits]) still_q <= still_q + 1'b1;
  end

  // While the clock is low, so that none of its pulses is cut.
  always_latch begin
    if (!clk_i) open = moves_i || !still_q[Bits];
  end
  assign clk_o = clk_i && open;
`endif
endmodule
