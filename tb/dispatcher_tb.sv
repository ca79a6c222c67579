// dispatcher against model workers: every descriptor of a queue pair goes out once and in order, to a worker of its mask
// that has room; R5: a rollout that is held goes to its holder and to no other, and only behind its own kind or when the
// holder asks, and the same number in two queue pairs is two rollouts; anything else goes to a worker that asks; R7: nothing
// of a queue pair passes its fence in either direction, and no other queue pair waits for it; R17: nor does what waits for its
// group go, and nobody waits for that; R4: only with a slot.
// Whose turn it is: no queue pair that could go is passed over more often than the weights of the others allow, and while
// all can go the shares are exactly the weights.
// +steps=N random cycles of each of 16 runs with 1 and 4 queue pairs, and of the last 4 with 16 (default 700; 2900 with +long, 10^5 in all).
module dispatcher_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(3000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int stall_in, stall_worker, stall_visible, stall_slot, pool, steps;
  logic always_all = 1'b0;              // no fence, no order, all workers: every queue pair can always go

  dispatcher_run #(.Queues(1))  u_run_1  (.clk_i(clk), .rst_ni(rst_n));
  dispatcher_run #(.Queues(4))  u_run_4  (.clk_i(clk), .rst_ni(rst_n));
  dispatcher_run #(.Queues(16)) u_run_16 (.clk_i(clk), .rst_ni(rst_n));

  task automatic start_all;
    u_run_1.restart  = 1'b1;
    u_run_4.restart  = 1'b1;
    u_run_16.restart = !u_run_16.asleep;
    repeat (24) @(posedge clk);
    waits_for = "dispatcher_tb: a run";
  endtask

  initial begin
    if (!$value$plusargs("steps=%d", steps)) steps = drawn(700, 2900);
    stall_in = 0; stall_worker = 0; stall_visible = 0; pool = 1000; stall_slot = 0;
    @(posedge rst_n);
    for (int k = 0; k < 16; k++) begin
      stall_in      = k[0] ? 70 : 0;
      stall_worker  = k[1] ? 80 : 10;
      stall_visible = k[2] ? 80 : 0;
      stall_slot    = k[1:0] == 2'b01 ? 60 : 0;
      pool          = k[3] ? 3 : 1000;
      if (k == 12) u_run_16.asleep = 1'b0;
      start_all;
      repeat (steps) @(posedge clk);
      u_run_1.expect_progress;
      u_run_4.expect_progress;
      if (!u_run_16.asleep) u_run_16.expect_progress;
    end
    // With +long 10^4 descriptors and more of queue pairs that can always go: the shares are the weights, to the descriptor.
    always_all = 1'b1;
    stall_in = 0; stall_worker = 0; stall_visible = 0; stall_slot = 0; pool = 1000;
    start_all;
    repeat (drawn(3000, 13000)) @(posedge clk);
    u_run_4.expect_shares;
    u_run_16.expect_shares;
    if (u_run_4.longest_wait != u_run_4.bound_reached || u_run_16.longest_wait != u_run_16.bound_reached)
      fail("the bound on waiting was not reached");
    finish_bench("dispatcher_tb");
  end
endmodule

module dispatcher_run #(
  parameter int Queues = 1
) (
  input logic clk_i,
  input logic rst_ni
);
  import bench_pkg::*;
  import core_pkg::*;
  localparam int Workers = 4;
  localparam int Depth   = 3;           // descriptors that a model worker holds

  logic               start = 1'b0, read, take, probe, prefix, held_order, held_fence, held_slot, restart = 1'b0;
  logic [3:0]         start_queue = '0, queue, assign_worker, answered_queue = '0;
  queue_config_t      start_config = '0;
  logic [Queues-1:0]  on = '0, some = '0, slot = '0, record = '0, idle, held_slots;
  assign held_slot = held_slots != '0;
  logic [31:0]        probe_rollout;
  logic [Workers-1:0] holds, joins, room, wants, free, assign_to, moved = '0;
  logic [1:0]         answered = '0;

  // The oldest descriptor of each queue pair, as packed registers for the wires.
  logic [16*32-1:0]  rollout_q = '0;
  logic [15:0]       fence_q = '0, prefill_q = '0, refused_q = '0;
  logic [15:0]       gate_q = '0;       // it waits for its group
  logic [Queues-1:0] stirs = '0, opens = '0;   // something of a group completes, and with that the gate opens
  logic [31:0]       rollout;
  assign rollout = rollout_q[queue*32 +: 32];

  dispatcher #(.Queues(Queues), .Workers(Workers)) u_dispatcher (
    .clk_i, .rst_ni, .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .on_i(on), .some_i(some),
    .read_o(read), .queue_o(queue), .known_i(1'b1), .fence_i(fence_q[queue]), .prefill_i(prefill_q[queue]), .rollout_i(rollout),
    .grouped_i(read && gate_q[queue]), .refused_i(refused_q[queue]), .stirs_i(stirs), .take_o(take), .slot_i(slot), .record_i(record), .probe_o(probe), .probe_rollout_o(probe_rollout), .holds_i(holds), .joins_i(joins),
    .wants_i(wants), .free_i(free), .moved_i(moved), .assign_o(assign_to), .assign_worker_o(assign_worker),
    .answered_i(answered), .answered_queue_i(answered_queue), .dropped_i(1'b0), .dropped_queue_i(4'd0), .flushed_i(2'd0),
    .flushed_queue_i(4'd0), .prefix_o(prefix), .idle_o(idle), .held_order_o(held_order), .held_fence_o(held_fence),
    .held_slot_o(held_slots)
  );

  // Model workers: queue pair and rollout that each holds, oldest first; entry w * Depth + k.
  logic [39:0] held [0:Workers*Depth-1];
  int          count [0:Workers-1];
  logic [Workers-1:0] eager = '0;       // says that it will soon be free
  int          in_flight [0:Queues-1], undelivered [0:Queues-1], slots [0:Queues-1], sent [0:Queues-1], passed [0:Queues-1];
  int          weight [0:Queues-1], total, chosen, holder, q, n, free_slots, longest_wait = 0, bound_reached = 0, all_sent;
  logic [Workers-1:0] mask [0:Queues-1];
  logic        fenced [0:Queues-1];
  logic        could;
  logic        can [0:Queues-1];

  logic [Workers*Depth*40-1:0] held_q = '0;
  logic [Workers*4-1:0]        count_q = '0;
  for (genvar w = 0; w < Workers; w++) begin : gen_worker
    logic [Depth-1:0] match;
    for (genvar k = 0; k < Depth; k++) begin : gen_place
      assign match[k] = k < count_q[w*4 +: 4] && held_q[(w*Depth + k)*40 +: 40] == {4'd0, queue, probe_rollout};
    end
    assign holds[w] = probe && match != 0;
    assign room[w]  = count_q[w*4 +: 4] < Depth;
    assign joins[w] = probe && room[w] && !free[w]
                   && held_q[(w*Depth + 32'(count_q[w*4 +: 4]) - 1)*40 +: 40] == {4'd0, queue, probe_rollout};
    assign free[w]  = count_q[w*4 +: 4] == 0;
    assign wants[w] = free[w] || (eager[w] && room[w]);
  end

  initial begin
    for (int w = 0; w < Workers; w++) count[w] = 0;
    for (int k = 0; k < Queues; k++) begin
      in_flight[k] = 0; undelivered[k] = 0; slots[k] = 4; sent[k] = 0; passed[k] = 0; weight[k] = 1; mask[k] = '1;
      fenced[k] = 1'b0;
    end
  end

  // The worker that holds the oldest of a queue pair, or -1.
  function automatic int holder_of(input int pair);
    holder_of = -1;
    if (in_flight[pair] != 0) for (int w = 0; w < Workers; w++)
      for (int k = 0; k < count[w]; k++)
        if ( held[w*Depth + k] == {4'd0, 4'(pair), rollout_q[pair*32 +: 32]}) holder_of = w;
  endfunction

  function automatic logic fence_holds(input int pair);
    fence_holds = in_flight[pair] != 0 && (fence_q[pair] || fenced[pair]);
  endfunction

  // It could go in this cycle.
  function automatic logic can_go(input int pair);
    int w;
    can_go = some[pair] && on[pair] && slot[pair] && record[pair] && !fence_holds(pair) && !gate_q[pair];
    if (can_go) begin
      w = holder_of(pair);
      if (w >= 0) can_go = room[w] && (wants[w] || held[w*Depth + count[w] - 1] == {4'd0, 4'(pair), rollout_q[pair*32 +: 32]});
      else        can_go = (wants & mask[pair]) != 0;
    end
  endfunction

  task automatic new_head(input int pair);
    some[pair] <= !chance(dispatcher_tb.stall_in);
    rollout_q[pair*32 +: 32] <= below(dispatcher_tb.pool) + (dispatcher_tb.always_all ? 1000 * below(1000000) : 0);
    fence_q[pair]   <= !dispatcher_tb.always_all && chance(5);
    prefill_q[pair] <= chance(10);
    refused_q[pair] <= chance(30);
    gate_q[pair]    <= !dispatcher_tb.always_all && chance(15);
  endtask

  task automatic expect_progress;
    all_sent = 0;
    for (int k = 0; k < Queues; k++) all_sent = all_sent + sent[k];
    if (all_sent < 50) fail($sformatf("%0d queue pairs: only %0d descriptors went out", Queues, all_sent));
  endtask

  // Whole rounds, and less than one more.
  task automatic expect_shares;
    int rounds;
    all_sent = 0;
    for (int k = 0; k < Queues; k++) all_sent = all_sent + sent[k];
    rounds = all_sent / total;
    if (all_sent < drawn(2500, 10000)) fail($sformatf("only %0d descriptors went out", all_sent));
    for (int k = 0; k < Queues; k++)
      if (sent[k] < rounds * weight[k] || sent[k] > (rounds + 1) * weight[k])
        fail($sformatf("R16: queue pair %0d of weight %0d: %0d of %0d descriptors, %0d rounds", k, weight[k], sent[k], all_sent, rounds));
  endtask

  int starting = Queues, first_round = 0;
  logic asleep = Queues == 16;          // it takes part in the last runs only
  always @(posedge clk_i) if (rst_ni && !asleep) begin
    start <= 1'b0;
    if (restart) begin
      // Everything is done, then all start anew.
      on       <= '0;
      some     <= '0;
      if (on == '0) begin
        restart   = 1'b0;
        starting  = 0;
        total     = 0;
      end
    end else if (starting < Queues) begin
      q = starting;
      weight[q] = dispatcher_tb.always_all ? 1 + (q * 5) % 7 : chance(50) ? 1 : between(1, 6);
      total     = total + weight[q];
      mask[q]   = (dispatcher_tb.always_all || chance(50)) ? '1 : Workers'(between(1, (1 << Workers) - 1));
      sent[q] = 0; passed[q] = 0; slots[q] = 4; fenced[q] = 1'b0;
      start       <= 1'b1;
      start_queue <= q;
      start_config.weight  <= weight[q];
      start_config.workers <= mask[q];
      slot[q] <= 1'b1;
      starting = starting + 1;
      first_round = 0;
      longest_wait  = 0;
      bound_reached = 0;
      for (int k = 0; k < Queues; k++) if (total - weight[k] > bound_reached) bound_reached = total - weight[k];
      if (starting == Queues)
        for (int k = 0; k < Queues; k++) if (total - weight[k] > bound_reached) bound_reached = total - weight[k];
    end else if (starting == Queues) begin
      on <= '1;
      for (int k = 0; k < Queues; k++) new_head(k);
      starting = starting + 1;
    end

    // What was decided in this cycle.
    chosen = -1;
    for (int w = 0; w < Workers; w++) if (assign_to[w]) begin
      if (chosen >= 0) fail($sformatf("assigned to two workers: %b", assign_to));
      chosen = w;
    end
    if (chosen >= 0 && assign_worker !== chosen) fail($sformatf("assigned to %0d, and its number is %0d", chosen, assign_worker));
    if ((chosen >= 0) !== take) fail("assign_o and take_o disagree");
    q = int'(queue);
    for (int k = 0; k < Queues; k++) if (idle[k] !== (in_flight[k] == 0)) fail($sformatf("idle of %0d is %b with %0d in flight", k, idle[k], in_flight[k]));
    could = 1'b0;
    for (int k = 0; k < Queues; k++) begin
      can[k] = can_go(k);
      if (can[k]) could = 1'b1;
    end
    if (chosen >= 0) begin
      holder = holder_of(q);
      sent[q] = sent[q] + 1;
      if (!can[q]) fail($sformatf("queue pair %0d goes and cannot", q));
      if (holder >= 0 && chosen != holder) fail($sformatf("R5: rollout %h goes to %0d, held by %0d", rollout, chosen, holder));
      if (holder < 0 && !mask[q][chosen]) fail($sformatf("worker %0d is not in the mask", chosen));
      if (!wants[chosen] && !(holder == chosen && held[chosen*Depth + count[chosen] - 1] == {4'd0, queue, rollout}))
        fail($sformatf("worker %0d did not ask", chosen));
      if (holder < 0 && !free[chosen] && (wants & free & mask[q]) != 0) fail("a worker that is free was passed over");
      if (fence_q[q] && in_flight[q] != 0) fail($sformatf("R7: a fence starts with %0d in flight", in_flight[q]));
      if (fenced[q] && in_flight[q] != 0) fail("R7: a fence was passed");
      if (!slot[q]) fail("R4: a descriptor goes and there is no slot");
      if (!record[q]) fail("R28: a descriptor goes and there is no record");
      fenced[q] = fence_q[q];
      // Whoever could have gone was passed over. One that could only join its kind at a worker that does not ask is not
      // looked for.
      for (int k = 0; k < Queues; k++) if (k != q && can[k] && (wants & mask[k]) != 0) begin
        passed[k] = passed[k] + 1;
        if (passed[k] > longest_wait) longest_wait = passed[k];
        if (passed[k] > total - weight[k])
          fail($sformatf("R16: queue pair %0d was passed over %0d times, the other weights are %0d", k, passed[k], total - weight[k]));
      end
      passed[q] = 0;
    end
    // One look per queue pair may find that its oldest is held; then somebody goes who can.
    n = (could && chosen < 0) ? n + 1 : 0;
    if (n > 2 * Queues + 2) fail($sformatf("somebody could go for %0d cycles, and nobody does", n));
    if (Queues == 1 && could && chosen < 0) fail("nothing is in the way, and the descriptor stays");
    if (prefix !== (chosen >= 0 && prefill_q[q] && !refused_q[q])) fail("prefix_o is wrong");
    // What a group's completion opens, and what it does not.
    for (int k = 0; k < Queues; k++) if (stirs[k] && opens[k]) gate_q[k] <= 1'b0;
    stirs <= '0;
    if (chance(40)) stirs <= Queues'(1) << below(Queues);
    opens <= rnd();
    if (Queues == 1) begin
      if (held_fence !== (some[0] && on[0] && fence_holds(0))) fail("held_fence_o is wrong");
      if (some[0] && on[0] && gate_q[0] && !fence_holds(0) && !held_order) fail("held_order_o does not count a group");
      if (held_order && holder_of(0) < 0 && !gate_q[0]) fail("held_order_o without a holder");
// Of one that its order held when it was looked at, what has changed since is not known before there is a slot.
      if (held_slot && !(some[0] && on[0] && !slot[0] && record[0] && !fence_holds(0) && !gate_q[0])) fail("held_slot_o without a descriptor that waits");
      if (holder_of(0) < 0 && !held_slot && some[0] && on[0] && !slot[0] && record[0] && !fence_holds(0) && !gate_q[0] && (wants & mask[0]) != 0
          && !u_dispatcher.held_q[0]) fail("held_slot_o is wrong");
    end

    // Workers deliver from the front; visible later.
    if (answered != 0) in_flight[answered_queue] = in_flight[answered_queue] - int'(answered);
    for (int w = 0; w < Workers; w++) if (moved[w]) begin
      undelivered[held[w*Depth][32 +: 4]] = undelivered[held[w*Depth][32 +: 4]] + 1;
      for (int k = 0; k + 1 < Depth; k++) held[w*Depth + k] = held[w*Depth + k + 1];
      count[w] = count[w] - 1;
    end
    if (chosen >= 0) begin
      held[chosen*Depth + count[chosen]] = {4'd0, queue, rollout};
      count[chosen] = count[chosen] + 1;
      in_flight[q] = in_flight[q] + 1;
      slots[q]     = slots[q] - 1;
      if (!restart) new_head(q);
    end
    for (int w = 0; w < Workers; w++) begin
      count_q[w*4 +: 4] <= 4'(count[w]);
      for (int k = 0; k < Depth; k++) held_q[(w*Depth + k)*40 +: 40] <= held[w*Depth + k];
    end
    // What a worker is about to drop.
    for (int w = 0; w < Workers; w++) moved[w] <= count[w] != 0 && !chance(dispatcher_tb.stall_worker);
    eager <= dispatcher_tb.always_all ? '1 : rnd();
    q = below(Queues);
    for (int k = 0; k < Queues && undelivered[q] == 0; k++) q = (q + 1) % Queues;
    n_answered = (undelivered[q] == 0 || chance(dispatcher_tb.stall_visible)) ? 0 : (undelivered[q] > 1 && chance(50)) ? 2 : 1;
    answered       <= 2'(n_answered);
    answered_queue <= q;
    undelivered[q]  = undelivered[q] - n_answered;
    // The host reaps.
    for (int k = 0; k < Queues; k++) begin
      if (dispatcher_tb.always_all || (slots[k] < 4 && !chance(dispatcher_tb.stall_slot))) slots[k] = 4;
      slot[k] <= slots[k] > 0;
      record[k] <= dispatcher_tb.always_all || !chance(20);
    end
    for (int k = 0; k < Queues; k++) if (on[k] && !some[k] && !restart) begin
      if (!(chosen >= 0 && k == int'(queue))) new_head(k);
    end
  end
  int n_answered;
endmodule
