// Hands descriptors to the workers: in order within a queue pair, by weight among the queue pairs.
//
// A queue pair is *eligible* when its oldest descriptor can go now: no fence (R7) and no earlier descriptor of its
// rollout (R5) holds it, a slot of its completion queue and a record are free for it (R4, R28), and a worker of its function's mask asks.
// What must be known of all queue pairs at once is in single bits: there is a descriptor, nothing of the queue pair is in
// flight, there is a slot, and what a first look at the oldest one found. So the chosen one nearly always goes. If it does
// not, the finding is remembered, and the next cycle goes to another queue pair.
//
// Whose turn it is (R16): the queue pairs stand in a line. The first eligible one in it goes. It moves to the end of the line
// once WEIGHT of its descriptors have gone since it last moved. So an eligible one is passed over at most as often as the
// weights of the others add up to, however eligibility comes and goes. (With plain round robin, a queue pair could starve
// whose worker asks only when the turn is elsewhere, as masks of functions differ.) While all are eligible the shares are
// exactly the weights.
//
// R5: while a worker holds a descriptor of the same rollout, running, queued or not yet delivered, the next one goes
//     to no other worker. It goes there when the youngest one there is of this rollout, so that it waits for nothing
//     else, or when the worker asks; else it stays until something of that worker moves.
// Any other descriptor is bound late: to a worker that asks, which is idle or near its certain end.
// R7: a FENCE waits until nothing of its queue pair is in flight, and nothing of that passes it until it is complete.
// R17: what waits for its group (group_table) keeps its place as what waits for order does, and is looked at again when
//     something of a group of its queue pair has completed.
module dispatcher
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic               clk_i,
  input  logic               rst_ni,

  input  logic               start_i,      // a queue pair starts, with this configuration
  input  logic [3:0]         start_queue_i,
  input  queue_config_t      start_config_i,
  input  logic [Queues-1:0]  on_i,         // nothing of the others is handed out

  // The oldest descriptors.
  input  logic [Queues-1:0]  some_i,       // there is one; early
  output logic               read_o,       // a look at that of this queue pair; the answer is combinational
  output logic [3:0]         queue_o,
  input  logic               known_i,      // it may be taken
  input  logic               fence_i,
  input  logic               prefill_i,
  input  logic [31:0]        rollout_i,
  input  logic               grouped_i,    // R17: it waits for its group
  input  logic               refused_i,    // it goes out as an error
  input  logic [Queues-1:0]  stirs_i,      // something of a group has completed
  output logic               take_o,

  input  logic [Queues-1:0]  slot_i,       // a slot of the completion queue is free; early
  input  logic [Queues-1:0]  record_i,     // a record of completion_ring is; early

  // Worker side. probe_o asks which worker holds this rollout of queue_o; the answer is combinational.
  output logic               probe_o,
  output logic [31:0]        probe_rollout_o,
  input  logic [Workers-1:0] holds_i,
  input  logic [Workers-1:0] joins_i,      // has room behind a descriptor of this rollout; combinational too
  input  logic [Workers-1:0] wants_i,      // asks: is idle, or will certainly be in a few cycles
  input  logic [Workers-1:0] free_i,       // has nothing to do
  input  logic [Workers-1:0] moved_i,      // started a descriptor or delivered an end: what it holds may have changed
  output logic [Workers-1:0] assign_o,     // one-hot: takes the descriptor at the end of this cycle
  output logic [3:0]         assign_worker_o,   // the same as a number

  // Completions of this cycle, each pair of ports with its queue pair.
  input  logic [1:0]         answered_i,   // whose write was answered
  input  logic [3:0]         answered_queue_i,
  input  logic               dropped_i,    // that will not be written: their queue pair is being disabled
  input  logic [3:0]         dropped_queue_i,
  input  logic [1:0]         flushed_i,    // likewise, from the beat that was put together
  input  logic [3:0]         flushed_queue_i,

  output logic               prefix_o,     // a PREFILL was handed out, and not refused: its prefix is registered
  output logic [Queues-1:0]  idle_o,       // nothing is in flight behind the dispatcher
  output logic               held_order_o, // some queue pair waits for order, or for a group, …
  output logic               held_fence_o, // … for a fence, …
  output logic [Queues-1:0]  held_slot_o   // … for a slot of its completion queue alone, each
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  // Descriptors between here and their visible completion: bounded by the stores on the way, far below 2^14.
  localparam int CountBits = 14;

  logic [QueueBits-1:0] start_pair, pick_pair;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];

  // ---------------------------------------------------------------- what is known of each queue pair's oldest
  logic [Queues-1:0]         idle_q;        // nothing is in flight
  logic [Queues-1:0]         fenced_q;      // a FENCE was handed out last
  logic [Queues-1:0]         looked_q;      // the oldest was looked at: one look is enough, for nothing goes before it
  logic [Queues-1:0]         fence_q;       // it is a FENCE, and something was in flight
  logic [Queues-1:0]         grouped_q;     // it waits for its group
  logic [Queues-1:0]         held_q;        // an earlier one of its rollout was at this worker …
  logic [Queues-1:0][Workers-1:0]        holder_q;
  logic [Queues-1:0]         stirred_q;     // … where something has changed since
  logic [Queues-1:0][Workers-1:0]        mask_q;

  logic [Queues-1:0] room, ready, asked, yielding, able, eligible, fresh, candidates, chosen, blocked, went, more_waits, probed;
  logic              order_waits;

  assign blocked = ~idle_q & (fenced_q | fence_q);
  assign ready   = some_i & on_i & ~blocked & ~grouped_q;

  always_comb begin
    asked    = '0;
    yielding = '0;
    if (wants_i != '0) begin
      for (int q = 0; q < Queues; q++) asked[q] = (wants_i & mask_q[q]) != '0;
      if (held_q != '0) begin
        for (int q = 0; q < Queues; q++) yielding[q] = (wants_i & holder_q[q]) != '0;
      end
    end
  end
  assign able       = (held_q & (stirred_q | yielding)) | (~held_q & asked);
  assign room       = slot_i & record_i;
  assign eligible   = ready & room & able;
  assign fresh      = ready & ~looked_q;
  // A look costs nothing while nobody can go.
  assign candidates = (eligible != '0) ? eligible : fresh;

  // ---------------------------------------------------------------- whose turn it is
  logic [Queues-1:0][7:0]        weight_q;
  logic [Queues-1:0][7:0]        left_q;   // of its turn, less one
  logic [3:0]        pick;
  logic              turn_ends;

  if (Queues == 1) begin : gen_one
    assign chosen = candidates;
    assign pick   = '0;
    assign pick_pair = '0;
  end else begin : gen_many
    logic [Queues-1:0] first;
    logic [Queues-1:0][Queues-1:0] ahead_q;   // those that stand before it in the line
    always_comb begin
      first = '0;
      if (candidates != '0) begin
        for (int q = 0; q < Queues; q++) first[q] = candidates[q] && (candidates & ahead_q[q]) == '0;
      end
    end
    assign chosen = first & candidates;
    assign pick   = {(16'(chosen) & 16'hFF00) != '0, (16'(chosen) & 16'hF0F0) != '0,
                     (16'(chosen) & 16'hCCCC) != '0, (16'(chosen) & 16'hAAAA) != '0};
    assign pick_pair = pick[QueueBits-1:0];

    // The line: at reset in the order of the numbers.
    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        for (int q = 0; q < Queues; q++) ahead_q[q] <= Queues'((17'd1 << q) - 17'd1);
      end else if (go && turn_ends) begin
        for (int q = 0; q < Queues; q++) ahead_q[q] <= chosen[q] ? ~chosen : ahead_q[q] & ~chosen;
      end
    end
  end
  assign turn_ends = left_q[pick_pair] == '0;

  always_ff @(posedge clk_i) begin
    if (go) left_q[pick_pair] <= turn_ends ? weight_q[pick_pair] : left_q[pick_pair] - 8'd1;
    if (start_i) begin
      weight_q[start_pair] <= start_config_i.weight - 8'd1;
      left_q[start_pair]   <= start_config_i.weight - 8'd1;
      mask_q[start_pair]   <= start_config_i.workers[Workers-1:0];
    end
  end

  // ---------------------------------------------------------------- the chosen one
  logic               ripe, fence_waits, group_waits, held, go;
  logic [Workers-1:0] wants, workers, grant;

  assign read_o          = chosen != '0;
  assign queue_o         = pick;
  assign fence_waits     = read_o && fence_i && (chosen & idle_q) == '0;
  assign group_waits     = read_o && grouped_i;
  assign ripe            = read_o && known_i && !fence_waits && !group_waits;
  // What nobody held when it was looked at nobody holds until it goes.
  assign probe_o         = ripe && (chosen & looked_q & ~held_q) == '0;
  assign probe_rollout_o = rollout_i;
  assign held            = holds_i != '0;
  assign wants           = ripe ? wants_i & mask_q[pick_pair] : '0;

  always_comb begin
    workers = '0;
    if (ripe) begin
      workers = held ? (holds_i & (joins_i | wants_i))
              : ((wants & free_i) != '0) ? (wants & free_i) : wants;
    end
  end

  round_robin #(.N(Workers)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (workers),
    .grant_o   (grant),
    .number_o  (assign_worker_o),
    .accept_i  (go)
  );

  assign go       = workers != '0 && (chosen & room) != '0;
  assign assign_o = go ? grant : '0;
  assign take_o   = go;
  assign prefix_o = go && prefill_i && !refused_i;
  assign went     = go ? chosen : '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      looked_q  <= '0;
      fence_q   <= '0;
      fenced_q  <= '0;
      held_q    <= '0;
      stirred_q <= '0;
      grouped_q <= '0;
    end else begin
      if (group_waits || stirs_i != '0) grouped_q <= (grouped_q | (group_waits ? chosen : '0)) & ~stirs_i;
      if (held_q != '0 && moved_i != '0) begin
        for (int q = 0; q < Queues; q++) if ((moved_i & holder_q[q]) != '0) stirred_q[q] <= 1'b1;
      end
      if (go) begin
        looked_q  <= looked_q & ~chosen;
        fence_q   <= fence_q & ~chosen;
        held_q    <= held_q & ~chosen;
        fenced_q  <= (fenced_q & ~chosen) | (chosen & {Queues{fence_i}});
      end else if (ripe) begin
        looked_q  <= looked_q | chosen;
        held_q    <= (held_q & ~chosen) | (chosen & {Queues{held}});
        // What could go but for its slot or record is looked at again when there is one.
        for (int q = 0; q < Queues; q++)
          if (chosen[q] && held) stirred_q[q] <= workers != '0 || (moved_i & holds_i) != '0;
        if (held) holder_q[pick_pair] <= holds_i;
      end else if (fence_waits) begin
        fence_q   <= fence_q | chosen;
      end
      if (start_i) begin
        looked_q[start_pair]  <= 1'b0;
        fence_q[start_pair]   <= 1'b0;
        fenced_q[start_pair]  <= 1'b0;
        held_q[start_pair]    <= 1'b0;
        grouped_q[start_pair] <= 1'b0;
      end
    end
  end

  // ---------------------------------------------------------------- what is in flight
  logic [Queues-1:0][CountBits-1:0] in_flight_q;
  logic [Queues-1:0]    touched, answers, drops, flushes;
  logic                 counts;

  assign answers = (answered_i != '0) ? Queues'(16'd1 << answered_queue_i) : '0;
  assign drops   = dropped_i          ? Queues'(16'd1 << dropped_queue_i)  : '0;
  assign flushes = (flushed_i != '0)  ? Queues'(16'd1 << flushed_queue_i)  : '0;
  assign touched = went | answers | drops | flushes;
  assign counts  = touched != '0;

  // The number in flight after this cycle, without what goes out in it, which is known late. That does not complete in the same cycle.
  logic [Queues*CountBits-1:0] left_count;
  always_comb begin
    left_count = '0;
    if (counts) begin
      for (int q = 0; q < Queues; q++) begin
        if (touched[q])
          left_count[q*CountBits +: CountBits] = in_flight_q[q] - CountBits'(drops[q])
                                               - (answers[q] ? CountBits'(answered_i) : '0)
                                               - (flushes[q] ? CountBits'(flushed_i) : '0);
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) in_flight_q[q] <= '0;
      idle_q <= '1;
    end else if (counts) begin
      for (int q = 0; q < Queues; q++) begin
        if (touched[q]) begin
          in_flight_q[q] <= left_count[q*CountBits +: CountBits] + CountBits'(went[q]);
          idle_q[q]      <= !went[q] && left_count[q*CountBits +: CountBits] == '0;
        end
      end
    end
  end
  assign idle_o = idle_q;

  // ---------------------------------------------------------------- what is waited for
  assign probed       = ripe ? chosen : '0;
  assign held_fence_o = (some_i & on_i & blocked) != '0 || fence_waits;

  // What is looked at in this cycle and waits for something else too does not count.
  assign more_waits   = (fence_waits || group_waits || (ripe && workers == '0)) ? chosen : '0;

  // Each behind one test.
  always_comb begin
    held_slot_o = '0;
    if (slot_i != '1) held_slot_o = (ready & ~slot_i & record_i & able & ~more_waits);
  end

  always_comb begin
    order_waits  = 1'b0;
    held_order_o = 1'b0;
    if ((held_q | grouped_q) != '0 || group_waits || held) begin
      order_waits  = (ready & held_q & ~probed & (room | ~stirred_q)) != '0
                  || (some_i & on_i & ~blocked & grouped_q) != '0 || (group_waits && !fence_waits);
      held_order_o = order_waits || (ripe && held && !go && (chosen & room) != '0);
    end
  end

`ifndef SYNTHESIS
  initial if (Workers > MAX_WORKERS) $fatal(1, "dispatcher: %0d workers", Workers);
  always_ff @(posedge clk_i) begin
    if (rst_ni && counts) begin
      for (int q = 0; q < Queues; q++) begin
        if (in_flight_q[q] < CountBits'(drops[q]) + (answers[q] ? CountBits'(answered_i) : '0)
                           + (flushes[q] ? CountBits'(flushed_i) : '0))
          $fatal(1, "R3 dispatcher: more completions of queue pair %0d than descriptors went out", q);
      end
    end
    if (rst_ni && probe_o) begin
      if ((holds_i & (holds_i - 1'b1)) != '0)
        $fatal(1, "R5 dispatcher: rollout %0d is held by workers %b at once", probe_rollout_o, holds_i);
    end
    if (rst_ni && go) begin
      if (fence_i && (chosen & idle_q) == '0)
        $fatal(1, "R7 dispatcher: FENCE of rollout %0d starts with %0d in flight", rollout_i, in_flight_q[pick_pair]);
      if (grouped_i) $fatal(1, "R17 dispatcher: rollout %0d starts before what it waits for in its group", rollout_i);
      if ((chosen & (chosen - 1'b1)) != '0) $fatal(1, "dispatcher: queue pairs %b are chosen at once", chosen);
      if (held ? (grant & ~holds_i) != '0 : (grant & ~mask_q[pick_pair]) != '0)
        $fatal(1, "R5 dispatcher: a descriptor of queue pair %0d goes to worker %b", pick_pair, grant);
    end
    if (free_i != '0) begin
      if (rst_ni && (free_i & ~wants_i) != '0)
        $fatal(1, "dispatcher: workers %b are idle and do not ask", free_i & ~wants_i);
    end
  end
`endif
endmodule
