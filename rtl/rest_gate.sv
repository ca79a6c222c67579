// The clock of a part that rests between moves: it goes on with the edge of each cycle in which something moves, and stands in all others. In
// a cycle that it leaves out no register of the part would have changed, or only one that nothing looks at before the next move. So the device
// is the same with it and without. Its owner answers for it that moves_i holds wherever one may change.
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
