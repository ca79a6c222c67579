// R23 between functions: what floods the ring of one neither starves nor drops the events of another, each drop is counted once, where it
// becomes visible, and a FAULT goes into the ring of the function in which it was raised, wherever its queue pair went since. An event
// waits for a turn of each other queue pair at most, whatever those raise (R28).
module event_ring_apart_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Queues = 3;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(1_000_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic        start = 1'b0, ready = 1'b0, ack = 1'b0, posts = 1'b0;
  logic [3:0]  start_pair = '0, read_owner = '0, answered_pair = '0, posted_pair = '0;
  logic [31:0] answered_to = '0, posted_index = '0, head_now, tail_now, dropped_now;
  logic [1:0]  answered = '0, seen = '0;
  logic [5:0]  ack_id = '0;
  logic [6*Queues-1:0] raised = '0;
  logic [Queues-1:0]   on = '0, waits, busy;
  logic [Queues-1:0][3:0] owner = '0;
  queue_config_t config_now = '0;
  logic         valid, urgent;
  logic [3:0]   event_owner;
  logic [63:0]  addr;
  logic [255:0] data;
  hw_event_t    found;
  assign found = data;

  event_ring #(.Queues(Queues), .Functions(2), .Workers(1), .FetchDepth(32), .Depth(16)) u_dut (
    .held_i('0),
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_pair), .start_config_i(config_now), .on_i(on), .active_i(on),
    .owner_i(owner), .release_i(1'b0), .release_owner_i(4'd0), .release_head_i(32'd0), .release_ok_o(),
    .read_owner_i(read_owner), .head_o(head_now), .tail_o(tail_now), .dropped_o(dropped_now),
    .slot_i(1'b0), .slot_queue_i(4'd0), .taken_i(1'b0), .taken_queue_i(4'd0), .taken_worker_i(4'd0),
    .begun_i(1'b0), .token_i(1'b0), .done_i(1'b0), .delivered_i(1'b0), .delivered_worker_i(4'd0),
    .delivered_queue_i(4'd0), .delivered_reads_i(1'b0), .delivered_place_i(4'd0), .posted_i(posts),
    .posted_queue_i(posted_pair), .posted_place_i(4'd0), .posted_index_i(posted_index), .answered_i(answered),
    .answered_queue_i(answered_pair), .answered_to_i(answered_to), .visible_i(seen), .raised_i(raised),
    .event_valid_o(valid), .event_urgent_o(urgent), .event_owner_o(event_owner), .event_addr_o(addr), .event_data_o(data),
    .event_ready_i(ready), .ack_i(ack), .ack_id_i(ack_id), .ack_error_i(1'b0), .waits_o(waits), .busy_o(busy), .moves_o()
  );

  // ---------------------------------------------------------------- what comes to the port, and its answers, a cycle later or never
  int   lives [0:Queues-1], faults [0:1], owed [0:1], visible [0:Queues-1], next [0:Queues-1];
  logic withheld = 1'b0;
  logic [31:0] bits = '0;               // of FAULT events
  logic [31:0] fault_index = '0;        // of the last one
  initial for (int k = 0; k < Queues; k++) begin
    lives[k] = 0; visible[k] = 0; next[k] = 0;
    if (k < 2) begin faults[k] = 0; owed[k] = 0; end
  end
  always @(posedge clk) if (rst_n && valid && ready) begin
    if (found.kind == EVENT_LIFE) begin
      lives[found.queue_id] = lives[found.queue_id] + 1;
      if (int'(found.index) < next[found.queue_id] || int'(found.index) >= visible[found.queue_id])
        fail($sformatf("R23: LIFE of completion %0d of queue pair %0d, of %0d to %0d", found.index, found.queue_id, next[found.queue_id], visible[found.queue_id]));
      next[found.queue_id] = int'(found.index) + 1;
      if (event_owner !== owner[found.queue_id]) fail("R23: a LIFE event in another function's ring");
    end else begin
      faults[event_owner] = faults[event_owner] + 1;
      bits = bits | found.start;
      fault_index = found.index;
    end
    owed[event_owner] = owed[event_owner] + 1;
  end

  task automatic tick;
    @(negedge clk);
    {start, ack, posts} = '0;
    answered = '0;
    seen     = '0;
    raised   = '0;
    for (int f = 0; f < 2; f++) if (owed[f] != 0 && !withheld) begin
      ack     = 1'b1;
      ack_id  = 6'd48 + 6'(f);
    end
    if (ack) owed[ack_id - 48] = owed[ack_id - 48] - 1;
  endtask

  logic with_ring = 1'b1;
  task automatic begin_pair(input int q, input int f, input logic first);
    owner[q] = 4'(f);
    tick;
    start      = 1'b1;
    start_pair = 4'(q);
    config_now.owner     = 4'(f);
    config_now.eq_starts = first;
    config_now.eq_base   = 64'h1_0000_0000 * (f + 1);
    config_now.eq_size   = with_ring ? 17'd65536 : '0;
    config_now.eq_life   = with_ring;
    tick;
    on[q] = 1'b1;
    tick;
  endtask

  // Completions of a queue pair become visible, or are lost.
  task automatic answer(input int q, input int n, input logic lost);
    answered      = 2'(n);
    answered_pair = 4'(q);
    answered_to   = 32'(visible[q] + n);
    seen          = lost ? 2'd0 : 2'(n);
    visible[q]    = visible[q] + n;
  endtask

  task automatic expect_dropped(input string what, input int f, input int n);
    read_owner = 4'(f);
    tick;
    if (dropped_now !== 32'(n)) fail($sformatf("R23: %0s: function %0d has dropped %0d events, expected %0d", what, f, dropped_now, n));
  endtask

  int n_lost, n_faults, k, n;
  logic lost;

  // Queue pair 0 floods; queue pair 1, of another function, has a completion and a fault now and then. The port is always busy: it takes
  // an event once it is urgent.
  task automatic case_flood;
    n_lost   = 0;
    n_faults = 0;
    for (k = 0; k < 30000; k++) begin
      tick;
      ready = urgent;
      if (k % 400 == 399) answer(1, 1, 1'b0);
      else begin
        n    = (visible[0] % 2 == 1) ? 1 : between(1, 2);      // two share a line
        lost = chance(5);
        answer(0, n, lost);
        if (lost) n_lost = n_lost + n;
      end
      if (k % 400 == 200) begin
        raised[3*Queues + 1] = 1'b1;
        n_faults = n_faults + 1;
      end
    end
    ready = 1'b1;
    for (k = 0; k < 1000; k++) tick;
    if (waits != '0 || busy != '0) fail("R23: something is not told, and the port is free");
    if (lives[1] != visible[1]) fail($sformatf("R23: %0d LIFE events of function 1, of %0d completions", lives[1], visible[1]));
    if (faults[1] != n_faults) fail($sformatf("R23: %0d FAULT events of function 1, of %0d faults", faults[1], n_faults));
    expect_dropped("beside a flood", 1, 0);
    expect_dropped("a flood", 0, visible[0] - n_lost - lives[0]);
    if (lives[0] < 500 || n_lost == 0) fail($sformatf("not tried: %0d LIFE events, %0d lost", lives[0], n_lost));
    $display("function 0: %0d visible, %0d told; function 1: %0d and %0d faults, all told", visible[0] - n_lost, lives[0], lives[1], faults[1]);
  endtask

  // Queue pair 2 is inactive; function 0 has it while its faults are raised. Then function 1 gets it, and has it enabled.
  task automatic case_owner(input logic enables);
    int before_0, before_1;
    before_0 = faults[0];
    before_1 = faults[1];
    ready    = 1'b0;
    owner[2] = 4'd0;
    on[2]    = 1'b0;
    for (k = 0; k < 3; k++) begin         // in the port's register, behind it, in the latch
      tick;
      raised[2] = 1'b1;
      tick; tick; tick;
    end
    owner[2] = 4'd1;
    tick;
    if (enables) begin_pair(2, 1, 1'b0);
    withheld = 1'b1;
    ready    = 1'b1;
    for (k = 0; k < 20; k++) tick;
    if (faults[0] - before_0 != 3 || faults[1] != before_1)
      fail($sformatf("R23: %0d faults of function 0 are told there, %0d in the other ring", faults[0] - before_0, faults[1] - before_1));
    if (busy[1] || busy[2]) fail("R12: queue pairs of one function wait for events of another");
    if (!busy[0]) fail("R12: nobody waits for the events of function 0");
    withheld = 1'b0;
    for (k = 0; k < 20; k++) tick;
    if (busy != '0) fail("R12: busy once all is answered");
    on[2] = 1'b0;
    for (k = 0; k < 20; k++) tick;
  endtask

  // A fault in the new function, while one of the old function waits: there is no room for it, and the new function counts it.
  task automatic case_moved_twice;
    int before_0, before_1, dropped_0, dropped_1;
    ready = 1'b0;
    owner[2] = 4'd0;
    read_owner = 4'd0; tick; dropped_0 = int'(dropped_now);
    read_owner = 4'd1; tick; dropped_1 = int'(dropped_now);
    before_0 = faults[0];
    before_1 = faults[1];
    bits     = '0;
    for (k = 0; k < 3; k++) begin
      tick;
      raised[2] = 1'b1;
      tick; tick; tick;
    end
    owner[2] = 4'd1;
    tick;
    raised[Queues + 2] = 1'b1;
    tick;
    ready = 1'b1;
    for (k = 0; k < 20; k++) tick;
    if (faults[0] - before_0 != 3 || faults[1] != before_1 || bits != 32'd1) fail("R23: a fault of one function went with that of another");
    expect_dropped("a fault without room", 1, dropped_1 + 1);
    expect_dropped("beside a fault without room", 0, dropped_0);
  endtask

  // Queue pairs 0 and 2 have a LIFE event in each cycle, and faults in each, as a host raises them that clears ERROR at once. The port takes
  // an event once it is urgent. Queue pair 1 has a completion, and a fault shortly before or behind it, or none: the LIFE event waits for the
  // turns of two others, and what was chosen before counts as one. A turn is Patience, and a cycle to go or two.
  task automatic case_turns;
    int from, at_life, at_fault, worst, gap, lives_before, faults_before;
    worst = 0;
    begin_pair(2, 0, 1'b0);
    for (int round = 0; round < 400; round++) begin
      gap           = between(-12, 40);                     // of the fault behind the completion; 32 and more: none
      lives_before  = lives[1];
      faults_before = faults[1];
      from          = -1;
      at_life       = -1;
      at_fault      = -1;
      for (k = 0; k < 400; k++) begin
        tick;
        if (at_life < 0 && lives[1] != lives_before) at_life = k;
        if (at_fault < 0 && faults[1] != faults_before) at_fault = k;
        ready = urgent;
        if (k == 100 + round % 70) begin
          answer(1, 1, 1'b0);
          from = k;
        end else begin
          n = (k % 2 == 0) ? 0 : 2;
          answer(n, (visible[n] % 2 == 1) ? 1 : 2, 1'b0);
        end
        raised[0] = chance(60);
        raised[Queues + 2] = chance(60);
        if (gap < 32 && k == 100 + round % 70 + gap) raised[3*Queues + 1] = 1'b1;
      end
      if (at_life < 0 || (gap < 32 && at_fault < 0)) fail("R23: an event is not told beside a flood of faults");
      else begin
        if (at_life - from > worst) worst = at_life - from;
        if (gap < 32 && at_fault - from - gap > worst) worst = at_fault - from - gap;
        if (worst > (3 + 1) * (32 + 2) + 4) fail($sformatf("R28: an event of queue pair 1 waited for %0d cycles, its fault %0d behind it", worst, gap));
      end
    end
    raised = '0;
    ready  = 1'b1;
    for (k = 0; k < 1000; k++) tick;
    $display("beside two that flood: %0d cycles at most", worst);
    on[2] = 1'b0;
    for (k = 0; k < 20; k++) tick;
  endtask

  // Queue pair 2 has completions while no ring runs, and is disabled. Then queue pair 0 starts the ring, and an ENABLE of queue pair 2 is
  // refused: its FAULT names its first completion that is not answered, as CQ_TAIL does.
  task automatic case_index;
    with_ring = 1'b0;
    begin_pair(2, 0, 1'b1);
    for (k = 0; k < 7; k++) begin
      tick;
      answer(2, between(1, 2), 1'b0);
    end
    tick;
    on[2] = 1'b0;
    for (k = 0; k < 20; k++) tick;
    with_ring = 1'b1;
    begin_pair(0, 0, 1'b1);
    tick;
    raised[3*Queues + 2] = 1'b1;
    ready = 1'b1;
    for (k = 0; k < 20; k++) tick;
    if (faults[0] != 1 || fault_index !== 32'(visible[2]))
      fail($sformatf("R23: %0d FAULT events, the last with index %0d, of a queue pair with %0d completions", faults[0], fault_index, visible[2]));
    on[0] = 1'b0;
    for (k = 0; k < 20; k++) tick;
    faults[0]  = 0;
    visible[2] = 0;
  endtask

  initial begin
    @(posedge rst_n);
    tick;
    case_index;
    begin_pair(0, 0, 1'b1);
    begin_pair(1, 1, 1'b1);
    case_turns;
    on = '0;
    visible[1] = 0; visible[0] = 0; visible[2] = 0;
    for (k = 0; k < 3; k++) begin next[k] = 0; lives[k] = 0; end
    faults[0] = 0; faults[1] = 0;
    for (k = 0; k < 20; k++) tick;
    begin_pair(0, 0, 1'b1);
    begin_pair(1, 1, 1'b1);
    case_flood;
    case_owner(1'b0);
    case_owner(1'b1);
    case_moved_twice;
    finish_bench("event_ring_apart_tb");
  end
endmodule
