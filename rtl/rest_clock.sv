// The clock of a part that rests for long: it stands once nothing has moved for 64 cycles, and goes on with the edge of the first cycle in
// which something does. A cycle that it leaves out is one in which no register of the part would have changed, so the device is the same
// with it and without: its owner says with moves_i what may change one, and answers for it that whatever is under way without being told
// there has ended within 64 cycles.
//
// It spares a simulation the part's code. In hardware (SYNTHESIS) the clock goes through, and what works moves_i out falls away: there a
// second clock would cost its own skew and constraints. Who wants to spare power puts the library's clock gate here or, in an FPGA, a
// clock buffer with an enable; both open as this does.
module rest_clock (
  input  logic clk_i,
  /* verilator lint_off UNUSEDSIGNAL */  // in hardware
  input  logic rst_ni,                // the part's; it moves
  input  logic moves_i,               // may come late in the cycle; in a simulation best of registers alone
  /* verilator lint_on UNUSEDSIGNAL */
  output logic clk_o
);
`ifdef SYNTHESIS
  assign clk_o = clk_i;
`else
  localparam int Bits = 6;
  logic [Bits:0] still_q;             // cycles without a move; it may begin with any
  logic          open;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || moves_i) still_q <= '0;
    else if (!still_q[Bits]) still_q <= still_q + 1'b1;
  end

  // While the clock is low, so that none of its pulses is cut.
  always_latch begin
    if (!clk_i) open = !rst_ni || moves_i || !still_q[Bits];
  end
  assign clk_o = clk_i && open;
`endif
endmodule
