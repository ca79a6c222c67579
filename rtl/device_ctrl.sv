// Life of the device: off, starting, on, draining (rule R12).
//
// While clear_o is high every queue, worker and index is held empty; only AXI transfers that were already promised
// are completed. ACTIVE falls when none is left.
module device_ctrl (
  input  logic clk_i,
  input  logic rst_ni,
  input  logic enabling_i,      // CONTROL.ENABLE is being set; only while inactive
  input  logic enable_i,        // CONTROL.ENABLE
  input  logic reads_idle_i,    // no read is promised or in flight
  input  logic writes_idle_i,   // no write is promised or in flight
  output logic clear_o,
  output logic start_o,         // one cycle: load the start indices, clear the counters
  output logic active_o         // STATE.ACTIVE
);
  localparam logic [1:0] StOff   = 2'd0;
  localparam logic [1:0] StStart = 2'd1;
  localparam logic [1:0] StRun   = 2'd2;
  localparam logic [1:0] StDrain = 2'd3;

  logic [1:0] state_d, state_q;

  always_comb begin
    state_d = state_q;
    case (state_q)
      // Straight from the write, so that the next one finds the queues open.
      StOff:   if (enabling_i) state_d = StStart;
      StStart: state_d = StRun;
      StRun:   if (!enable_i) state_d = StDrain;
      default: if (reads_idle_i && writes_idle_i) state_d = StOff;
    endcase
  end

  always_ff @(posedge clk_i) begin
    // A reset of the device alone leaves it with transfers that the bus still owes.
    if (!rst_ni) state_q <= (clear_o && reads_idle_i && writes_idle_i) ? StOff : StDrain;
    else         state_q <= state_d;
  end

  // Combinational in enable_i, so that nothing new starts in the cycle of a disable.
  assign clear_o  = state_q != StRun || !enable_i;
  assign start_o  = state_q == StStart;
  assign active_o = state_q != StOff;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && state_q == StOff && !(reads_idle_i && writes_idle_i))
      $fatal(1, "R12 device_ctrl: bus traffic while inactive");
  end
`endif
endmodule
