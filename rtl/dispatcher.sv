// Hands the oldest descriptor to a worker, in order of the submission queue.
//
// R5: while a worker holds a descriptor of the same rollout, running, queued or not yet delivered, the next one goes
//     to no other worker. It goes there when the youngest one there is of this rollout, so that it waits for nothing
//     else, or when the worker asks; else it stays until nobody holds its rollout.
// Any other descriptor is bound late: to a worker that asks, which is idle or near its certain end.
// R7: a FENCE waits until nothing is in flight, and nothing passes it until it is complete.
module dispatcher
#(
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               clear_i,

  input  logic [Workers-1:0] in_use_i,     // workers that may be used
  input  logic               work_valid_i,
  input  logic               fence_i,
  input  logic               prefill_i,
  input  logic [31:0]        rollout_i,
  output logic               work_ready_o,

  // Worker side. probe_o asks which worker holds this rollout; the answer is combinational.
  output logic               probe_o,
  output logic [31:0]        probe_rollout_o,
  input  logic [Workers-1:0] holds_i,
  input  logic [Workers-1:0] joins_i,      // has room behind a descriptor of this rollout; combinational too
  input  logic [Workers-1:0] wants_i,      // asks: is idle, or will certainly be in a few cycles
  input  logic [Workers-1:0] free_i,       // has nothing to do
  output logic [Workers-1:0] assign_o,     // one-hot: takes the descriptor at the end of this cycle
  output logic [3:0]         assign_worker_o,   // the same as a number

  input  logic [1:0]         visible_i,    // completions that became visible in this cycle
  output logic               prefix_o,     // a PREFILL was handed out: its prefix is registered
  output logic               idle_o,       // nothing is in flight behind the dispatcher
  output logic               held_order_o,
  output logic               held_fence_o
);
  // Descriptors between here and their visible completion: bounded by the stores on the way, far below 2^16.
  logic [15:0] in_flight_q;
  logic        fenced_q;        // a FENCE is in flight
  // No worker holds the rollout of the oldest descriptor. That stays true until it goes, for nothing else goes
  // before it: so one probe is enough.
  logic        unheld_q;

  logic ready, held, fence_blocks, go;
  logic [Workers-1:0] wants, candidates, pick;

  assign idle_o          = in_flight_q == '0;
  assign fence_blocks    = !idle_o && (fenced_q || fence_i);
  assign ready           = work_valid_i && !fence_blocks;
  assign probe_o         = ready && !unheld_q;
  assign probe_rollout_o = rollout_i;
  assign held            = holds_i != '0;
  assign wants           = wants_i & in_use_i;

  always_comb begin
    candidates = '0;
    if (ready) begin
      candidates = held ? (holds_i & (joins_i | wants_i))
                 : ((wants & free_i) != '0) ? (wants & free_i) : wants;
    end
  end

  round_robin #(.N(Workers)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (candidates),
    .grant_o   (pick),
    .number_o  (assign_worker_o),
    .accept_i  (go)
  );

  assign go           = pick != '0 && !clear_i;
  assign assign_o     = clear_i ? '0 : pick;
  assign work_ready_o = go;
  assign prefix_o     = go && prefill_i;
  assign held_order_o = held && !go;
  assign held_fence_o = work_valid_i && fence_blocks;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      in_flight_q <= '0;
      fenced_q    <= 1'b0;
      unheld_q    <= 1'b0;
    end else begin
      if (go || visible_i != '0) in_flight_q <= in_flight_q + 16'(go) - 16'(visible_i);
      if (go) begin
        fenced_q <= fence_i;
        unheld_q <= 1'b0;
      end else if (probe_o) unheld_q <= !held;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (visible_i != '0) begin
      if (rst_ni && !clear_i && 16'(visible_i) > in_flight_q)
        $fatal(1, "R3 dispatcher: %0d completions became visible, %0d were due", visible_i, in_flight_q);
    end
    if (probe_o) begin
      if (rst_ni && !clear_i && (holds_i & (holds_i - 1'b1)) != '0)
        $fatal(1, "R5 dispatcher: rollout %0d is held by workers %b at once", probe_rollout_o, holds_i);
    end
    if (go) begin
      if (rst_ni && fence_i && !idle_o)
        $fatal(1, "R7 dispatcher: FENCE of rollout %0d starts with %0d in flight", rollout_i, in_flight_q);
    end
    if (free_i != '0) begin
      if (rst_ni && !clear_i && (free_i & ~wants_i) != '0)
        $fatal(1, "dispatcher: workers %b are idle and do not ask", free_i & ~wants_i);
    end
  end
`endif
endmodule
