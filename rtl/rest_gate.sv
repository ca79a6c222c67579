// The clock of a part that rests between moves: it has an edge in each cycle in which something moves, and none in all others. In a cycle that
// it leaves out no register of the part would have changed, or only one that nothing reads before the next move. So the device behaves the
// same with and without it. The instantiating module must set moves_i in every cycle in which a register may change.
//
// As rest_clock, which waits for 64 quiet cycles and is told less, it spares a simulation the part's code; in hardware (SYNTHESIS) the clock
// goes through, and what works moves_i out falls away.
module rest_gate (
  input  logic clk_i,
  /* verilator lint_off UNUSEDSIGNAL */  // in hardware
  input  logic rst_ni,                // the part's; it moves, and so does what it leaves behind, for a cycle
  input  logic moves_i,               // may come late in the cycle
  /* verilator lint_on UNUSEDSIGNAL */
  output logic clk_o
);
`ifdef SYNTHESIS
  assign clk_o = clk_i;
`else
  logic reset_q, open;

  always_ff @(posedge clk_i) reset_q <= !rst_ni;

  // While the clock is low, so that none of its pulses is cut.
  always_latch begin
    if (!clk_i) open = !rst_ni || reset_q || moves_i;
  end
  assign clk_o = clk_i && open;
`endif
endmodule
