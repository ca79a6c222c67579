// The counters that measure waiting, against what the contract says they count: a rate of one per cycle while the
// condition holds, none while any part of it is missing, and a total that follows the condition from its first cycle to
// its last. And the two halves of all counters. The same cases at every seed.
module rl_runtime_top_counters_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  // Cycles by which the device may see the ends of a condition later than the bus shows them.
  localparam int Slack = 8;

  hw_desc_t desc;

  // ---------------------------------------------------------------- the bus in time
  // Cycle of the last transfer of each kind.
  int read_at, ack_at;
  always @(posedge bench.clk) begin
    if (bench.m_axi_rvalid && bench.m_axi_rready) read_at <= bench.cycle;
    if (bench.m_axi_bvalid && bench.m_axi_bready && bench.m_axi_bid < 5'd16) ack_at <= bench.cycle;
  end

  task automatic await_read(input int beats);
    waits_for = $sformatf("the bench waits for read beat %0d", beats);
    while (bench.host.u_score.read_beats < beats) @(posedge bench.clk);
  endtask

  // ---------------------------------------------------------------- frame of a case
  task automatic begin_case(input string name);
    bench.host.begin_case(name);
    bench.u_memory.read_latency  = 0;
    bench.u_memory.write_latency = 0;
  endtask

  task automatic put_nop;
    bench.host.put(bench.host.blank(OP_NOP, 1000));
  endtask

  task automatic count(input logic [17:0] addr, output int value);
    logic [63:0] wide;
    bench.u_registers.read64(addr, wide);
    value = int'(wide);
  endtask

  // What a counter gains in so many cycles: one per cycle, or nothing. Both reads take the same time, so the distance
  // of their samples is exact.
  task automatic expect_gain(input string what, input logic [17:0] addr, input int cycles, input logic one_each);
    logic [31:0] earlier, later;
    int          from, to;
    from = bench.cycle;
    bench.u_registers.read(addr, earlier);
    repeat (cycles) @(posedge bench.clk);
    to = bench.cycle;
    bench.u_registers.read(addr, later);
    if (later - earlier !== (one_each ? to - from : 0))
      fail($sformatf("%0s: counter 0x%05h gained %0d in %0d cycles, expected %0d", what, addr, later - earlier, to - from,
                     one_each ? to - from : 0));
  endtask

  task automatic expect_count(input string what, input logic [17:0] addr, input int expected);
    int value;
    count(addr, value);
    if (value != expected) fail($sformatf("%0s: counter 0x%05h is %0d, expected %0d", what, addr, value, expected));
  endtask

  // The condition held from one cycle to another as the bus shows it; the device sees each end a fixed time later. So
  // the total may be off by a few cycles, and by the same in every run (first: the offset to hold the next runs to).
  int offset;
  task automatic expect_span(input string what, input logic [17:0] addr, input int from, input int to, input logic first);
    int value;
    count(addr, value);
    if (first) offset = value - (to - from);
    if (offset < -Slack || offset > Slack || value - (to - from) != offset)
      fail($sformatf("%0s: counter 0x%05h is %0d, the condition held for %0d cycles (the first run was off by %0d)", what,
                     addr, value, to - from, offset));
  endtask

  // ---------------------------------------------------------------- STALL_CQ
  // One slot of four is used by a completion that is not released, the others by DECODEs of one rollout at one worker.
  task automatic fill_slots(input logic [31:0] rollout_id, input int tokens);
    put_nop;
    bench.host.ring;
    bench.host.await_completion(3000);
    repeat (3) bench.host.put_decode(rollout_id, tokens);
    bench.host.ring;
    repeat (40) @(posedge bench.clk);
  endtask

  task automatic case_stall_cq;
    int released_at;
    begin_case("STALL_CQ");
    bench.host.cq_size = 2;
    for (int run = 0; run < 3; run++) begin
      bench.host.enable;
      repeat (50) @(posedge bench.clk);
      expect_count("nothing to do", CNT_STALL_CQ, 0);
      put_nop;
      put_nop;
      bench.host.ring;
      repeat (2) bench.host.await_completion(3000);
      expect_gain("a full queue, and nothing for it", CNT_STALL_CQ, 100, 1'b0);
      expect_count("a full queue, and nothing for it", CNT_STALL_CQ, 0);
      bench.host.put_decode(1, 5);
      bench.host.ring;
      await_read(3);
      repeat (Slack) @(posedge bench.clk);
      expect_gain("a full queue, and a descriptor ready for it", CNT_STALL_CQ, 60 + 77 * run, 1'b1);
      released_at = bench.cycle;
      bench.host.release_seen;
      expect_gain("the descriptor has its slot", CNT_STALL_CQ, 40, 1'b0);
      expect_span("STALL_CQ", CNT_STALL_CQ, read_at, released_at, run == 0);
      bench.host.await_completions(1, 3000);
      expect_gain("a queue with room", CNT_STALL_CQ, 40, 1'b0);
      bench.host.end_case;
    end

    // A descriptor that waits for something else too: for a worker, for its order, for a fence.
    bench.host.wait_states = 60;
    bench.host.cq_size     = 4;
    for (int other = 0; other < 3; other++) begin
      bench.host.workers = (other == 0) ? 1 : 4;
      bench.host.enable;
      fill_slots(7, 20);
      desc = bench.host.blank(OP_NOP, (other == 1) ? 7 : 8);
      if (other == 2) desc.flags = FLAG_FENCE;
      bench.host.put(desc);
      bench.host.ring;
      await_read(5);
      repeat (2 * Slack) @(posedge bench.clk);
      expect_gain("a full queue, and not only that", CNT_STALL_CQ, 100, 1'b0);
      expect_count("a full queue, and not only that", CNT_STALL_CQ, 0);
      repeat (3) bench.host.await_completion(5000);
      repeat (2 * Slack) @(posedge bench.clk);
      expect_gain("a full queue, and nothing else", CNT_STALL_CQ, 100, 1'b1);
      bench.host.release_seen;
      bench.host.await_completions(1, 3000);
      bench.host.end_case;
    end
    bench.host.wait_states = 0;
    bench.host.workers     = 4;
    bench.host.cq_size     = 64;
    // Completions that never meet a full queue.
    bench.host.enable;
    repeat (6) begin
      bench.host.put_decode(1, 20);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
    end
    bench.host.end_case;
    expect_count("completions that found room", CNT_STALL_CQ, 0);
  endtask

  // ---------------------------------------------------------------- STALL_FETCH
  task automatic case_stall_fetch;
    int rung_at, earlier;
    begin_case("STALL_FETCH");
    for (int run = 0; run < 3; run++) begin
      bench.u_memory.read_latency = 200 + 77 * run;
      bench.host.enable;
      expect_gain("nothing published", CNT_STALL_FETCH, 50, 1'b0);
      expect_count("nothing published", CNT_STALL_FETCH, 0);
      put_nop;
      rung_at = bench.cycle;
      bench.host.ring;
      repeat (Slack) @(posedge bench.clk);
      expect_gain("a descriptor under way, workers idle", CNT_STALL_FETCH, 100, 1'b1);
      bench.host.await_completions(1, 3000);
      expect_gain("nothing published any more", CNT_STALL_FETCH, 50, 1'b0);
      expect_span("STALL_FETCH", CNT_STALL_FETCH, rung_at, read_at, run == 0);
      bench.host.end_case;
    end

    // The only worker in use is busy; those that are not in use are not idle workers.
    bench.host.workers     = 1;
    bench.host.wait_states = 100;
    bench.u_memory.read_latency = 0;
    bench.host.enable;
    bench.host.put_decode(1, 10);
    bench.host.ring;
    await_read(1);
    repeat (2 * Slack) @(posedge bench.clk);
    count(CNT_STALL_FETCH, earlier);
    bench.u_memory.read_latency = 300;
    put_nop;
    bench.host.ring;
    expect_gain("a descriptor under way, no worker idle", CNT_STALL_FETCH, 200, 1'b0);
    expect_count("a descriptor under way, no worker idle", CNT_STALL_FETCH, earlier);
    bench.host.await_completions(2, 3000);
    bench.host.end_case;

    // Workers are idle, and one descriptor has arrived: it waits for its fence, not for the fetch.
    bench.host.workers = 4;
    bench.u_memory.read_latency = 0;
    bench.host.enable;
    bench.host.put_decode(1, 10);
    desc       = bench.host.blank(OP_NOP, 2);
    desc.flags = FLAG_FENCE;
    bench.host.put(desc);
    bench.host.ring;
    await_read(2);
    repeat (2 * Slack) @(posedge bench.clk);
    count(CNT_STALL_FETCH, earlier);
    bench.u_memory.read_latency = 300;
    put_nop;
    bench.host.ring;
    expect_gain("one has arrived, the next is under way", CNT_STALL_FETCH, 200, 1'b0);
    expect_count("one has arrived, the next is under way", CNT_STALL_FETCH, earlier);
    expect_gain("a fence waits", CNT_STALL_FENCE, 50, 1'b1);
    expect_count("a fence waits", CNT_STALL_ORDER, 0);
    bench.host.await_completions(3, 3000);
    bench.host.end_case;
  endtask

  // ---------------------------------------------------------------- STALL_ORDER
  task automatic case_stall_order;
    int earlier;
    begin_case("STALL_ORDER");
    bench.host.wait_states = 20;
    bench.host.enable;
    for (int k = 0; k < 6; k++) bench.host.put_decode(7, 20);
    bench.host.ring;
    await_read(6);
    repeat (2 * Slack) @(posedge bench.clk);
    expect_gain("the oldest waits for an earlier one of its rollout", CNT_STALL_ORDER, 300, 1'b1);
    expect_count("the oldest waits for an earlier one of its rollout", CNT_STALL_FENCE, 0);
    bench.host.await_completions(6, 5000);
    count(CNT_STALL_ORDER, earlier);
    expect_gain("nothing waits", CNT_STALL_ORDER, 50, 1'b0);
    bench.host.end_case;
    expect_count("nothing waits", CNT_STALL_ORDER, earlier);

    // Descriptors of other rollouts wait for a worker, not for order.
    bench.host.workers = 2;
    bench.host.enable;
    for (int k = 0; k < 10; k++) bench.host.put_decode(k, 20);
    bench.host.ring;
    bench.host.await_completions(10, 5000);
    expect_count("all rollouts differ", CNT_STALL_ORDER, 0);
    bench.host.end_case;

    // The worker that runs a rollout takes the next of it at once, and that one waits no cycle.
    bench.host.workers = 4;
    bench.host.enable;
    repeat (3) begin
      bench.host.put_decode(7, 20);
      bench.host.ring;
      repeat (40) @(posedge bench.clk);
    end
    expect_count("the next of a rollout that runs, handed over at once", CNT_STALL_ORDER, 0);
    bench.host.await_completions(3, 5000);
    expect_count("the next of a rollout that runs, handed over at once", CNT_STALL_ORDER, 0);
    bench.host.end_case;
  endtask

  // ---------------------------------------------------------------- by worker
  // Two workers run, one of them twice as long, and the write port holds results back: each counter, added up over all workers, is
  // the device's, and the workers' shares are those of their rollouts.
  task automatic case_workers;
    logic [17:0] own [0:2], sum [0:2];
    logic [31:0] data;
    logic        ok;
    int          tokens [0:3], busy [0:3], held [0:3], value, all, held_back, workers;
    own[0] = CNT_WORKER_TOKENS;      sum[0] = CNT_TOKENS;
    own[1] = CNT_WORKER_BUSY;        sum[1] = CNT_BUSY;
    own[2] = CNT_WORKER_STALL_WRITE; sum[2] = CNT_STALL_WRITE;
    begin_case("counters of each worker");
    bench.host.workers = 2;
    bench.host.enable;
    bench.u_memory.stall_w = 100;
    bench.host.put_decode(1, 120);
    bench.host.put_decode(2, 60);
    bench.host.ring;
    // A worker that is busy counts each cycle.
    repeat (40) @(posedge bench.clk);
    expect_gain("worker 0 runs", own[1], 50, 1'b1);
    expect_gain("worker 3 is not in use", 18'(own[1] + 3 * BLOCK_WORKER_PER_WORKER), 50, 1'b0);
    repeat (300) @(posedge bench.clk);
    bench.u_memory.stall_w = 0;
    bench.host.await_completions(2, 20000);
    for (int k = 0; k < 3; k++) begin
      all = 0;
      for (int w = 0; w < 4; w++) begin
        count(18'(own[k] + BLOCK_WORKER_PER_WORKER * w), value);
        case (k)
          0:       tokens[w] = value;
          1:       busy[w]   = value;
          default: held[w]   = value;
        endcase
        all = all + value;
      end
      expect_count("the sum over all workers", sum[k], all);
    end
    workers   = 0;
    held_back = 0;
    for (int w = 0; w < 4; w++) begin
      if (tokens[w] == 120 || tokens[w] == 60) workers = workers + 1;
      else if (tokens[w] != 0 || busy[w] != 0 || held[w] != 0) fail($sformatf("worker %0d counts %0d tokens", w, tokens[w]));
      if (busy[w] < tokens[w] + held[w]) fail($sformatf("worker %0d is busy for %0d cycles", w, busy[w]));
      held_back = held_back + held[w];
    end
    if (workers != 2) fail($sformatf("%0d workers count the tokens of 2 rollouts", workers));
    if (held_back == 0) fail("no result was held back");

    // There are 4 workers, each with 3 counters; nothing can be written.
    for (int w = 0; w < 16; w++) begin
      for (int k = 0; k < 4; k++) begin
        for (int by = 0; by < 8; by++) begin
          bench.u_registers.try_read(18'(CNT_WORKER_TOKENS + BLOCK_WORKER_PER_WORKER * w + 8 * k + by), data, ok);
          if (ok !== (w < 4 && k < 3 && by % 4 == 0)) fail($sformatf("worker %0d, counter %0d, byte %0d: ok is %b", w, k, by, ok));
          if (!ok && data !== 0) fail($sformatf("worker %0d, counter %0d, byte %0d: data %h", w, k, by, data));
        end
      end
    end
    bench.host.end_case;

    // A start clears them.
    bench.host.enable;
    for (int w = 0; w < 4; w++) for (int k = 0; k < 3; k++) expect_count("a fresh start", 18'(own[k] + BLOCK_WORKER_PER_WORKER * w), 0);
    bench.host.disable_device;
  endtask

  // ---------------------------------------------------------------- 64 bits in two reads
  // No run is long enough for a high half: the bench sets the counters themselves.
  task automatic set_counter(input logic [17:0] addr, input logic [63:0] value);
    @(negedge bench.clk);               // between the device's own writes
    case (addr)
      CNT_CYCLES: bench.u_device.u_perf_counters.cycles_q = value;
      CNT_TOKENS: bench.u_device.u_perf_counters.tokens_q = value;
      CNT_BUSY: bench.u_device.u_perf_counters.busy_q = value;
      CNT_IDLE: bench.u_device.u_perf_counters.idle_q = value;
      CNT_WAIT: bench.u_device.u_perf_counters.wait_q = value;
      CNT_STALL_WRITE: bench.u_device.u_perf_counters.stall_write_q = value;
      CNT_DESCRIPTORS: bench.u_device.u_perf_counters.descriptors_q = value;
      CNT_COMPLETIONS: bench.u_device.u_perf_counters.completions_q = value;
      CNT_STALL_CQ: bench.u_device.u_perf_counters.stall_cq_q = value;
      CNT_STALL_FETCH: bench.u_device.u_perf_counters.stall_fetch_q = value;
      CNT_STALL_ORDER: bench.u_device.u_perf_counters.stall_order_q = value;
      CNT_STALL_FENCE: bench.u_device.u_perf_counters.stall_fence_q = value;
      CNT_READ_BEATS: bench.u_device.u_perf_counters.read_beats_q = value;
      CNT_WRITE_BEATS: bench.u_device.u_perf_counters.write_beats_q = value;
      CNT_PREFIXES: bench.u_device.u_perf_counters.prefixes_q = value;
      CNT_ERRORS: bench.u_device.u_perf_counters.errors_q = value;
      default: fail($sformatf("no counter at %h", addr));
    endcase
    @(posedge bench.clk);
  endtask

  function automatic logic [63:0] mark(input int k);
    mark = {32'h4848_0000 + k, 32'h1010_0000 + k};
  endfunction

  // Neither half waits for the other; those of the queue pair are the device's, where there is one queue pair.
  task automatic case_halves;
    logic [31:0] low, data;
    logic        ok;
    logic [17:0] addr, own [0:4], sum [0:4];
    begin_case("64 bits in two reads");
    bench.host.enable;
    // The carry comes between the two reads.
    set_counter(CNT_CYCLES, 64'h0000_0006_FFFF_FF80);
    bench.u_registers.expect_read(CNT_CYCLES + 4, 6);
    bench.u_registers.read(CNT_CYCLES, low);
    if (low < 32'hFFFF_FF80) fail("the counter has carried too early");
    repeat (200) @(posedge bench.clk);
    bench.u_registers.expect_read(CNT_CYCLES + 4, 7);
    bench.u_registers.read(CNT_CYCLES, low);
    if (low > 32'h0000_1000) fail("the counter has not carried");
    bench.host.disable_device;

    for (int k = 0; k < 16; k++) set_counter(CNT_CYCLES + 8 * k, mark(k));
    for (int k = 0; k < 16; k++) begin
      addr = CNT_CYCLES + 8 * k;
      bench.u_registers.expect_read(addr, 32'(mark(k)));
      bench.u_registers.expect_read(addr + 4, 32'(mark(k) >> 32));
      bench.u_registers.expect_read(addr, 32'(mark(k)));
      set_counter(addr, mark(k + 100));
      bench.u_registers.expect_read(addr + 4, 32'(mark(k + 100) >> 32));
      bench.u_registers.expect_read(addr, 32'(mark(k + 100)));
      for (int by = 1; by < 4; by++) begin
        bench.u_registers.try_read(addr + by, data, ok);
        if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", addr + by, ok, data));
        bench.u_registers.try_read(addr + 4 + by, data, ok);
        if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", addr + 4 + by, ok, data));
      end
      bench.u_registers.try_read(18'h180 + 8 * k, data, ok);
      if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", 18'h180 + 8 * k, ok, data));
    end

    own[0] = CNT_QUEUE_DESCRIPTORS; sum[0] = CNT_DESCRIPTORS;
    own[1] = CNT_QUEUE_COMPLETIONS; sum[1] = CNT_COMPLETIONS;
    own[2] = CNT_QUEUE_TOKENS;      sum[2] = CNT_TOKENS;
    own[3] = CNT_QUEUE_STALL_CQ;    sum[3] = CNT_STALL_CQ;
    own[4] = CNT_QUEUE_ERRORS;      sum[4] = CNT_ERRORS;
    for (int k = 0; k < 5; k++) begin
      set_counter(sum[k], mark(k + 200));
      bench.u_registers.expect_read(own[k], 32'(mark(k + 200)));
      bench.u_registers.expect_read(own[k] + 4, 32'(mark(k + 200) >> 32));
      for (int by = 1; by < 4; by++) begin
        bench.u_registers.try_read(own[k] + by, data, ok);
        if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", own[k] + by, ok, data));
      end
      // Behind them there is nothing, and no other queue pair.
      bench.u_registers.try_read(CNT_QUEUE_ERRORS + 8 * (k + 1), data, ok);
      if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", CNT_QUEUE_ERRORS + 8 * (k + 1), ok, data));
      bench.u_registers.try_read(own[k] + BLOCK_QUEUE_PER_QUEUE, data, ok);
      if (ok || data !== 0) fail($sformatf("read of address 0x%05h: ok is %b, data %h", own[k] + BLOCK_QUEUE_PER_QUEUE, ok, data));
    end

    // A start clears both halves.
    bench.host.enable;
    for (int k = 1; k < 16; k++) if (8 * k != CNT_IDLE - CNT_CYCLES) expect_count("a fresh start", CNT_CYCLES + 8 * k, 0);
    bench.u_registers.read(CNT_CYCLES, low);
    bench.u_registers.expect_read(CNT_CYCLES + 4, 0);
    bench.host.disable_device;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_halves;
    case_stall_cq;
    case_stall_fetch;
    case_stall_order;
    case_workers;
    finish_bench("rl_runtime_top_counters_tb");
  end
endmodule
