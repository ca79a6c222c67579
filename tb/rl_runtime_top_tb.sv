// Directed cases of the whole device, each named: what a host relies on from doorbell to completion. Each runs on a
// quiet memory and again under random latency and stalls.
module rl_runtime_top_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  task automatic expect_status(input logic [7:0] status, input logic [31:0] final_seq_len);
    expect_eq("status", bench.host.last_done.status, status);
    expect_eq("final_seq_len", bench.host.last_done.final_seq_len, final_seq_len);
  endtask

  task automatic case_basic_decode;
    bench.host.begin_case("basic decode");
    bench.host.enable;
    bench.host.make_decode(7, 20, 3, desc);
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_status(STATUS_DONE, 20);
    bench.host.end_case;
  endtask

  // R1: a sealed descriptor is nothing to the device before its doorbell. The scoreboard watches every read.
  task automatic case_doorbell_gating;
    logic got;
    bench.host.begin_case("doorbell gating");
    bench.host.enable;
    for (int k = 0; k < 6; k++) bench.host.put_decode(k, 3);
    repeat (300) @(posedge bench.clk);
    bench.host.poll(got);
    if (got || bench.host.u_score.requested != 0) fail("R1: a descriptor was read before the doorbell");
    bench.host.u_score.published = 2;
    bench.u_registers.write(REG_DOORBELL, 2);
    bench.host.await_completions(2, 3000);
    repeat (300) @(posedge bench.clk);
    bench.host.poll(got);
    if (got || bench.host.u_score.requested != 2) fail("R1: a descriptor was read before its doorbell");
    bench.host.ring;
    bench.host.ring;                         // the same tail again publishes nothing
    bench.host.await_completions(4, 3000);
    bench.host.end_case;
  endtask

  // R9: one rollout in pieces gives the tokens of the uncut one; the scoreboard compares them by position.
  task automatic case_reward_boundary;
    hw_desc_t next;
    int       left, step;
    bench.host.begin_case("reward boundary");
    bench.host.checkpoint_default = 7;
    bench.host.enable;
    for (int budget = 6; budget <= 22; budget++) begin
      bench.host.make_decode(budget, budget, 1, next);
      next.checkpoint = budget[0] ? 0 : 7;          // the register's, or its own
      left = budget;
      while (left > 0) begin
        step = left > 7 ? 7 : left;
        bench.host.put(next);
        bench.host.ring;
        bench.host.await_completions(1, 3000);
        // A budget that runs out at the checkpoint is DONE.
        expect_status(left > 7 ? STATUS_REWARD_NEEDED : STATUS_DONE, next.seq_len + step);
        left = left - step;
        next.seq_len      = bench.host.last_done.final_seq_len;
        next.max_tokens   = left;
        next.delta_offset = next.delta_offset + 4 * step;
      end
    end
    bench.host.end_case;
  endtask

  // The device's own scores: below the threshold it ends, else it goes on to the end.
  task automatic case_resident;
    int rejected;
    bench.host.begin_case("resident");
    bench.host.reward_threshold = 32'h0000_4000;
    bench.host.enable;
    rejected = 0;
    for (int k = 0; k < 24; k++) begin
      bench.host.make_decode(k, 30, 0, desc);
      desc.flags      = FLAG_RESIDENT;
      desc.checkpoint = 12;
      bench.host.put(desc);
    end
    bench.host.ring;
    repeat (24) begin
      bench.host.await_completions(1, 3000);
      if (bench.host.last_done.flags[CFLAG_REJECTED_BIT]) rejected = rejected + 1;
    end
    if (rejected == 0 || rejected == 24) fail($sformatf("%0d of 24 resident rollouts were rejected", rejected));
    bench.host.end_case;
  endtask

  // R4: the device stops at a full queue, back to the fetch, and loses nothing.
  task automatic case_completion_backpressure;
    logic got;
    int   seen;
    logic [63:0] stalled;
    bench.host.begin_case("completion backpressure");
    bench.host.cq_size = 4;
    bench.host.enable;
    for (int k = 0; k < 40; k++) bench.host.put_decode(k, 1 + k % 3);
    bench.host.ring;
    repeat (3000) @(posedge bench.clk);
    if (bench.host.u_score.cq_visible != 4) fail($sformatf("R4: %0d completions in a queue of 4", bench.host.u_score.cq_visible));
    seen = 0;
    while (seen < 40) begin
      bench.host.await_completion(3000);
      seen = seen + 1;
      if (chance(40)) bench.host.release_seen;
      if (bench.host.u_score.cq_seen - bench.host.cq_head == 4) bench.host.release_seen;
    end
    bench.u_registers.read64(CNT_STALL_CQ, stalled);
    if (stalled == 0) fail("STALL_CQ counts no stall");
    bench.host.end_case;
  endtask

  // A record may wait for a slot while any number of later lines of its queue pair is acknowledged.
  task automatic case_long_decode_behind_full_queue;
    bench.host.begin_case("long decode behind a full queue");
    bench.host.cq_size = 2;
    bench.host.workers = 1;
    bench.host.enable;
    repeat (4) bench.host.put(bench.host.blank(OP_NOP, 1));
    bench.host.put_decode(1, 9);
    bench.host.put_decode(2, drawn(1200, 5000));
    bench.host.ring;
    repeat (drawn(3000, 12000)) @(posedge bench.clk);
    bench.host.await_completions(6, 20000);
    expect_status(STATUS_DONE, drawn(1200, 5000));
    bench.host.end_case;
  endtask

  // R7, seen from outside: token writes and completions, by the scoreboard.
  task automatic case_fence;
    logic [63:0] held;
    bench.host.begin_case("fence");
    bench.host.enable;
    for (int k = 0; k < 24; k++) begin
      if (k % 6 == 5) bench.host.make_decode(k, 4, 0, desc);
      else            bench.host.make_decode(k, between(1, 40), 0, desc);
      if (k % 6 == 5) desc.flags = FLAG_FENCE;
      bench.host.put(desc);
    end
    desc       = bench.host.blank(OP_NOP, 99);
    desc.flags = FLAG_FENCE;
    bench.host.put(desc);
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(26, 5000);
    bench.u_registers.read64(CNT_STALL_FENCE, held);
    if (held == 0) fail("STALL_FENCE counts nothing");
    bench.host.end_case;
  endtask

  // R8
  task automatic case_stop;
    int waited;
    bench.host.begin_case("stop");
    bench.host.enable;
    // A running one, by a later doorbell.
    bench.host.put_decode(5, 4000);
    bench.host.put_decode(6, 50);
    bench.host.ring;
    waited = 0;
    while (!bench.host.u_score.wrote[0] || !bench.host.u_score.visible[1]) begin
      @(posedge bench.clk);
      waited = waited + 1;
      if (waited > 3000) $fatal(1, "hang: stop waits for descriptor 1");
    end
    bench.host.put(bench.host.blank(OP_STOP, 5));
    bench.host.ring;
    bench.host.await_completions(3, 3000);
    // Running and queued ones of one rollout, all stopped by one doorbell; others run on.
    bench.host.put_decode(7, 3000);
    bench.host.put_decode(7, 3000);
    bench.host.put_decode(8, 60);
    bench.host.put(bench.host.blank(OP_STOP, 7));
    bench.host.put_decode(7, 25);                  // uses the id anew: must run to its end
    bench.host.put(bench.host.blank(OP_STOP, 1234));   // nothing to stop
    bench.host.ring;
    repeat (6) begin
      bench.host.await_completions(1, 10000);
      case (bench.host.last_index)
        3, 4: if (bench.host.last_done.status != STATUS_STOPPED) fail("R8: a DECODE runs on behind its STOP");
        5:    expect_status(STATUS_DONE, 60);
        6, 8: expect_status(STATUS_STOPPED, 0);
        7:    expect_status(STATUS_DONE, 25);
        default: ;
      endcase
    end
    // One that ended by itself.
    bench.host.put_decode(9, 2);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    bench.host.put(bench.host.blank(OP_STOP, 9));
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_status(STATUS_STOPPED, 0);
    bench.host.end_case;
  endtask

  // R13: both indices across 2^32, rings of every small size.
  task automatic case_wrap;
    bench.host.begin_case("wrap");
    for (int log2 = 1; log2 < 4; log2++) begin
      bench.host.sq_size  = 1 << log2;
      bench.host.cq_size  = 1 << (4 - log2);
      bench.host.sq_start = -5;
      bench.host.cq_start = -6;
      bench.host.enable;
      repeat (15) begin
        bench.host.put_decode(below(3), between(1, 5));
        bench.host.ring;
        bench.host.await_completions(1, 3000);
      end
      bench.host.end_case;
    end
  endtask

  task automatic case_wait_states;
    logic [63:0] waited;
    bench.host.begin_case("wait states");
    bench.host.wait_states = 3;
    bench.host.workers     = 1;
    bench.host.enable;
    bench.host.put_decode(1, 10);
    bench.host.put(bench.host.blank(OP_NOP, 1));
    bench.host.put_decode(1, 7);
    bench.host.ring;
    bench.host.await_completions(3, 3000);
    bench.u_registers.read64(CNT_WAIT, waited);
    expect_eq("counter WAIT", waited, 3 * 17);
    bench.host.end_case;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) bench.random_memory;
      case_basic_decode;
      case_doorbell_gating;
      case_reward_boundary;
      case_resident;
      case_completion_backpressure;
      case_long_decode_behind_full_queue;
      case_fence;
      case_stop;
      case_wrap;
      case_wait_states;
    end
    finish_bench("rl_runtime_top_tb");
  end
endmodule
