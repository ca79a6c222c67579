// dispatcher against four model workers: every descriptor goes out once and in order, to a worker in use that has
// room; R5: a rollout that is held goes to its holder and to no other, and only behind its own kind or when the holder
// asks; anything else goes to a worker that asks; R7: nothing passes a fence in either direction.
// Each worker slow or fast, completions visible at once or late.
module dispatcher_tb;
  import bench_pkg::*;
  localparam int Workers = 4;
  localparam int Depth   = 3;           // descriptors that a model worker holds

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic               clear = 1'b0, work_valid = 1'b0, fence = 1'b0, prefill = 1'b0;
  logic               work_ready, probe, prefix, idle, held_order, held_fence;
  logic [31:0]        rollout = '0, probe_rollout;
  logic [Workers-1:0] in_use = '1, holds, joins, room, wants, free, assign_to;
  logic [1:0]         visible = '0;
  logic [3:0]         assign_worker;

  dispatcher #(.Workers(Workers)) u_dispatcher (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .in_use_i(in_use), .work_valid_i(work_valid), .fence_i(fence),
    .prefill_i(prefill), .rollout_i(rollout), .work_ready_o(work_ready), .probe_o(probe),
    .probe_rollout_o(probe_rollout), .holds_i(holds), .joins_i(joins), .wants_i(wants), .free_i(free),
    .assign_o(assign_to), .assign_worker_o(assign_worker), .visible_i(visible), .prefix_o(prefix), .idle_o(idle),
    .held_order_o(held_order), .held_fence_o(held_fence)
  );

  // Model workers: the rollouts that each holds, oldest first; entry w * Depth + k.
  logic [31:0] held [0:Workers*Depth-1];
  int          count [0:Workers-1];
  logic [Workers-1:0] eager = '0;       // says that it will soon be free
  int          in_flight, undelivered, stall_in, stall_worker, stall_visible, pool, chosen, holder, sent, holders;
  logic        fenced;

  // The same as packed registers, for the wires.
  logic [Workers*Depth*32-1:0] held_q = '0;
  logic [Workers*4-1:0]        count_q = '0;
  for (genvar w = 0; w < Workers; w++) begin : gen_worker
    logic [Depth-1:0] match;
    for (genvar k = 0; k < Depth; k++) begin : gen_place
      assign match[k] = k < count_q[w*4 +: 4] && held_q[(w*Depth + k)*32 +: 32] == probe_rollout;
    end
    assign holds[w] = probe && match != 0;
    assign room[w]  = count_q[w*4 +: 4] < Depth;
    assign joins[w] = probe && room[w] && !free[w]
                   && held_q[(w*Depth + 32'(count_q[w*4 +: 4]) - 1)*32 +: 32] == probe_rollout;
    assign free[w]  = count_q[w*4 +: 4] == 0;
    assign wants[w] = free[w] || (eager[w] && room[w]);
  end

  initial for (int w = 0; w < Workers; w++) count[w] = 0;
  initial begin in_flight = 0; undelivered = 0; fenced = 1'b0; sent = 0; end

  int n;
  always @(posedge clk) if (rst_n) begin
    // What was decided in this cycle.
    chosen = -1;
    for (int w = 0; w < Workers; w++) if (assign_to[w]) begin
      if (chosen >= 0) fail($sformatf("assigned to two workers: %b", assign_to));
      chosen = w;
    end
    if (chosen >= 0 && assign_worker !== chosen) fail($sformatf("assigned to %0d, and its number is %0d", chosen, assign_worker));
    if ((chosen >= 0) !== (work_valid && work_ready)) fail("assign_o and work_ready_o disagree");
    holder  = -1;
    for (int w = 0; w < Workers; w++)
      for (int k = 0; k < Depth; k++) if (k < count[w] && held[w*Depth + k] == rollout) holder = w;
    if (idle !== (in_flight == 0)) fail($sformatf("idle is %b with %0d in flight", idle, in_flight));
    if (chosen >= 0) begin
      sent = sent + 1;
      if (count[chosen] == Depth) fail($sformatf("worker %0d has no room", chosen));
      if (holder >= 0 && chosen != holder) fail($sformatf("R5: rollout %h goes to %0d, held by %0d", rollout, chosen, holder));
      if (holder < 0 && !in_use[chosen]) fail($sformatf("worker %0d is not in use", chosen));
      if (!wants[chosen] && !(holder == chosen && held[chosen*Depth + count[chosen] - 1] == rollout))
        fail($sformatf("worker %0d did not ask", chosen));
      if (holder < 0 && !free[chosen] && (wants & free & in_use) != 0) fail("a worker that is free was passed over");
      if (fence && in_flight != 0) fail($sformatf("R7: a fence starts with %0d in flight", in_flight));
      if (fenced && in_flight != 0) fail("R7: a fence was passed");
      fenced = fence;
    end else if (work_valid && !clear && !(in_flight != 0 && (fence || fenced))
                 && ((holder >= 0) ? room[holder] && (wants[holder] || held[holder*Depth + count[holder] - 1] == rollout) : (wants & in_use) != 0))
      fail("nothing is in the way, and the descriptor stays");
    if (prefix !== (chosen >= 0 && prefill)) fail("prefix_o is wrong");
    if (held_fence !== (work_valid && in_flight != 0 && (fence || fenced) && chosen < 0)) fail("held_fence_o is wrong");
    if (held_order && holder < 0) fail("held_order_o without a holder");

    // Workers deliver from the front; visible later.
    in_flight = in_flight - int'(visible);
    for (int w = 0; w < Workers; w++) if (count[w] != 0 && !chance(stall_worker)) begin
      for (int k = 0; k + 1 < Depth; k++) held[w*Depth + k] = held[w*Depth + k + 1];
      count[w] = count[w] - 1;
      undelivered = undelivered + 1;
    end
    if (chosen >= 0) begin
      held[chosen*Depth + count[chosen]] = rollout;
      count[chosen] = count[chosen] + 1;
      in_flight = in_flight + 1;
    end
    for (int w = 0; w < Workers; w++) begin
      count_q[w*4 +: 4] <= 4'(count[w]);
      for (int k = 0; k < Depth; k++) held_q[(w*Depth + k)*32 +: 32] <= held[w*Depth + k];
    end
    eager <= rnd();
    n = (undelivered == 0 || chance(stall_visible)) ? 0 : (undelivered > 1 && chance(50)) ? 2 : 1;
    visible     <= 2'(n);
    undelivered = undelivered - n;

    if (!work_valid || work_ready) begin
      work_valid <= !chance(stall_in);
      rollout    <= below(pool);
      fence      <= chance(5);
      prefill    <= chance(10);
    end
  end

  initial begin
    stall_in = 0; stall_worker = 0; stall_visible = 0; pool = 1000;
    @(posedge rst_n);
    for (int k = 0; k < 16; k++) begin
      stall_in      = k[0] ? 50 : 0;
      stall_worker  = k[1] ? 80 : 10;
      stall_visible = k[2] ? 80 : 0;
      pool          = k[3] ? 3 : 1000;
      in_use       <= (Workers'(1) << between(1, Workers)) - 1;
      sent          = 0;
      waits_for     = "dispatcher_tb: a run";
      repeat (600) @(posedge clk);
      if (sent < 20) fail($sformatf("only %0d descriptors went out", sent));
    end
    finish_bench("dispatcher_tb");
  end
endmodule
