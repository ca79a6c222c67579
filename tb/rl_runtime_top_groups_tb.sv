// Groups and ABORT on the whole device (R17, R8), directed: what the numbers' edges do, what leaves a member as it is, STOPs of
// a member and of all, the entries, the end's interrupt, memory that answers with errors, a life that ends with open groups,
// ABORT of what runs, waits and is not read; then random traffic that is mostly of groups. The scoreboard predicts each
// GROUP_DONE; the cases say it again.
module rl_runtime_top_groups_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  // ---------------------------------------------------------------- descriptors of groups
  task automatic put_prefill(input logic [31:0] rollout, input logic [31:0] prefix, input int members);
    desc            = bench.host.blank(OP_PREFILL, rollout);
    desc.prefix_id  = prefix;
    desc.max_tokens = members;
    bench.host.put(desc);
  endtask

  task automatic put_member(input logic [31:0] rollout, input logic [31:0] prefix, input int member, input int tokens,
                            input logic [31:0] checkpoint);
    bench.host.make_decode(rollout, tokens, 0, desc);
    desc.flags      = FLAG_COW_PREFIX;
    desc.prefix_id  = prefix;
    desc.member     = member;
    desc.checkpoint = checkpoint;
    bench.host.put(desc);
  endtask

  task automatic put_stop(input logic [31:0] rollout, input logic [31:0] prefix, input logic [15:0] member);
    desc           = bench.host.blank(OP_STOP, rollout);
    desc.flags     = FLAG_COW_PREFIX;
    desc.prefix_id = prefix;
    desc.member    = member;
    bench.host.put(desc);
  endtask

  // Rings and reads all that is out; 'done' of them have GROUP_DONE, the last of those on the completion of 'closing' (an index).
  int          found;
  logic [31:0] closing;
  task automatic drain(input int done);
    if (bench.host.sq_tail != bench.host.u_score.published) bench.host.ring;
    found = 0;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      if (bench.host.last_done.flags[CFLAG_GROUP_DONE_BIT]) begin
        found   = found + 1;
        closing = bench.host.last_index;
      end
    end
    expect_eq("R17: completions with GROUP_DONE", found, done);
  endtask

  task automatic expect_last(input logic [7:0] status, input logic [7:0] error, input logic closes);
    expect_eq("status", bench.host.last_done.status, status);
    expect_eq("error", bench.host.last_done.error, error);
    expect_eq("R17: GROUP_DONE", bench.host.last_done.flags[CFLAG_GROUP_DONE_BIT], closes);
  endtask

  task automatic one(input logic [7:0] status, input logic [7:0] error, input logic closes);
    bench.host.ring;
    bench.host.await_completions(1, 20000);
    expect_last(status, error, closes);
  endtask

  // ---------------------------------------------------------------- cases
  // 1, 2, 63 and 64 members, and members that there are not: one more, 0xFFFF. 65 are too many.
  task automatic case_sizes;
    bench.host.begin_case("sizes");
    bench.host.cq_size = 128;
    bench.host.sq_size = 128;
    bench.host.enable;
    for (int n = 1; n <= 64; n = (n == 2) ? 63 : n + 1) begin
      put_prefill(n, n, n);
      for (int k = n - 1; k > 0; k--) put_member(100 + k, n, k, between(1, 20), CHECKPOINT_NEVER);
      put_member(300, n, n, 3, CHECKPOINT_NEVER);
      put_member(301, n, MEMBER_NONE, 3, CHECKPOINT_NEVER);
      put_member(302, n, 64, 3, CHECKPOINT_NEVER);
      put_stop(303, n, n);
      drain(0);
      put_member(100, n, 0, 4, CHECKPOINT_NEVER);
      one(STATUS_DONE, ERR_NONE, 1'b1);
    end
    put_prefill(1, 5, 65);
    one(STATUS_ERROR, ERR_BAD_LENGTH, 1'b0);
    put_prefill(1, 5, 0);                        // opens none
    put_member(2, 5, 0, 4, CHECKPOINT_NEVER);
    drain(0);
    put_stop(2, PREFIX_NONE, 0);
    one(STATUS_ERROR, ERR_BAD_PREFIX, 1'b0);
    bench.host.end_case;
  endtask

  // A member waits for its PREFILL, which waits for its rollout; so does all that is behind it. STALL_ORDER counts it.
  task automatic case_waits_for_its_prefill;
    logic [63:0] stalled;
    int          started;
    bench.host.begin_case("waits for its PREFILL");
    bench.host.enable;
    for (int k = 0; k < 3; k++) bench.host.put_decode(50 + k, 1);
    bench.host.put_decode(7, 300);
    put_prefill(7, 9, 2);
    put_member(8, 9, 0, 3, CHECKPOINT_NEVER);
    put_member(9, 9, 1, 3, CHECKPOINT_NEVER);
    started = bench.cycle;
    drain(1);
    if (bench.cycle - started < 300) fail("R17: members did not wait for their PREFILL");
    bench.u_registers.read64(CNT_STALL_ORDER, stalled);
    if (stalled < 200) fail($sformatf("STALL_ORDER counts %0d cycles of a wait for a group", stalled));
    bench.host.end_case;
  endtask

  // REWARD_NEEDED and ERROR leave a member as it is; once it has ended nothing more of it counts.
  task automatic case_what_ends_a_member;
    bench.host.begin_case("what ends a member");
    bench.host.enable;
    put_prefill(1, 3, 2);
    one(STATUS_DONE, ERR_NONE, 1'b0);
    put_member(2, 3, 0, 20, 5);
    one(STATUS_REWARD_NEEDED, ERR_NONE, 1'b0);
    put_member(2, 3, 0, 20, CHECKPOINT_NEVER);
    desc.flags = desc.flags | 8'h80;              // the copy of it is malformed
    bench.host.put(desc);
    drain(0);
    put_member(2, 3, 0, 9, CHECKPOINT_NEVER);
    drain(0);
    put_stop(2, 3, 0);
    drain(0);
    put_member(3, 3, 1, 20, 5);
    one(STATUS_REWARD_NEEDED, ERR_NONE, 1'b0);
    put_stop(3, 3, 1);                            // of a member with nothing to stop
    one(STATUS_STOPPED, ERR_NONE, 1'b1);
    put_member(3, 3, 1, 5, CHECKPOINT_NEVER);     // of none
    one(STATUS_DONE, ERR_NONE, 1'b0);
    bench.host.end_case;
  endtask

  // A STOP of all ends what runs, what waits and who never came; it completes last, and closes.
  task automatic case_stop_of_all;
    int tokens_then;
    bench.host.begin_case("STOP of all");
    bench.host.enable;
    put_prefill(1, 4, 10);
    for (int k = 0; k < 6; k++) put_member(10 + k, 4, k, 2000, CHECKPOINT_NEVER);
    bench.host.make_decode(30, 40, 0, desc);      // of another group, and of none: not ended
    desc.flags     = FLAG_COW_PREFIX;
    desc.prefix_id = 5;
    desc.member    = 1;
    bench.host.put(desc);
    bench.host.put_decode(31, 40);
    bench.host.ring;
    repeat (300) @(posedge bench.clk);
    put_stop(99, 4, MEMBER_NONE);
    drain(1);
    expect_eq("R8: who closes", closing, bench.host.sq_tail - 1);
    if (bench.host.u_score.tokens > 6 * 1000) fail($sformatf("R8: %0d tokens behind a STOP of all", bench.host.u_score.tokens));
    // The prefix anew, and a STOP of all where nobody came.
    put_prefill(1, 4, 64);
    put_stop(99, 4, MEMBER_NONE);
    drain(1);
    expect_eq("R17: who closes", closing, bench.host.sq_tail - 1);
    tokens_then = bench.host.u_score.tokens;
    // With FENCE it comes to its turn behind all that it could end.
    put_prefill(1, 4, 3);
    put_member(10, 4, 0, 50, CHECKPOINT_NEVER);
    desc           = bench.host.blank(OP_STOP, 99);
    desc.flags     = FLAG_COW_PREFIX | FLAG_FENCE;
    desc.prefix_id = 4;
    desc.member    = MEMBER_NONE;
    bench.host.put(desc);
    drain(1);
    expect_eq("R7: tokens of what it could end", bench.host.u_score.tokens - tokens_then, 50);
    // Two of them: the second finds no group.
    put_prefill(1, 4, 3);
    put_stop(98, 4, MEMBER_NONE);
    put_stop(99, 4, MEMBER_NONE);
    put_member(10, 4, 0, 50, CHECKPOINT_NEVER);
    drain(1);
    bench.host.end_case;
  endtask

  // Eight groups are open: a ninth is refused, and so is an open prefix; the refused ones register nothing.
  task automatic case_entries;
    bench.host.begin_case("entries");
    bench.host.enable;
    bench.u_registers.expect_read(REG_CAP_GROUPS, 32'd8);
    for (int k = 0; k < 8; k++) begin
      put_prefill(k, k, 1);
      one(STATUS_DONE, ERR_NONE, 1'b0);
    end
    put_prefill(20, 3, 1);
    one(STATUS_ERROR, ERR_PREFIX_BUSY, 1'b0);
    put_prefill(20, 8, 1);
    one(STATUS_ERROR, ERR_GROUP_FULL, 1'b0);
    put_prefill(20, 8, 0);
    one(STATUS_DONE, ERR_NONE, 1'b0);
    put_member(21, 5, 0, 3, CHECKPOINT_NEVER);
    one(STATUS_DONE, ERR_NONE, 1'b1);
    put_prefill(20, 8, 1);
    one(STATUS_DONE, ERR_NONE, 1'b0);
    bench.host.end_case;                         // counts PREFIXES and ERRORS

    // A life that ends with open groups leaves nothing to the next.
    bench.host.default_config;
    bench.host.enable;
    for (int k = 0; k < 8; k++) begin
      put_prefill(k, k, 1);
      one(STATUS_DONE, ERR_NONE, 1'b0);
    end
    put_member(21, 5, 0, 3000, CHECKPOINT_NEVER);
    bench.host.ring;
    repeat (60) @(posedge bench.clk);
    bench.host.disable_device;
    bench.host.default_config;
    bench.host.enable;
    for (int k = 0; k < 8; k++) begin
      put_prefill(k, k, 1);
      one(STATUS_DONE, ERR_NONE, 1'b0);
    end
    put_member(21, 5, 0, 3, CHECKPOINT_NEVER);
    one(STATUS_DONE, ERR_NONE, 1'b1);
    bench.host.end_case;
  endtask

  // R14: GROUP_DONE asks, and no other completion of the group: of a group of eight there is one message, behind the last member.
  task automatic case_interrupt;
    int before_it;
    bench.host.begin_case("interrupt");
    bench.host.enable;
    before_it = bench.host.u_score.messages;
    bench.u_registers.write(REG_ARM, 0);
    put_prefill(1, 6, 8);
    for (int member = 0; member < 7; member++) put_member(2 + member, 6, member, 3, CHECKPOINT_NEVER);
    drain(0);
    repeat (40) @(posedge bench.clk);
    if (bench.host.u_score.messages != before_it) fail("R14: a message, and no completion asked");
    put_member(9, 6, 7, 3, CHECKPOINT_NEVER);
    bench.host.ring;
    bench.host.await_completion(3000);
    expect_last(STATUS_DONE, ERR_NONE, 1'b1);
    repeat (500) @(posedge bench.clk);
    if (bench.host.u_score.messages != before_it + 1)
      fail($sformatf("R14: %0d messages of a group", bench.host.u_score.messages - before_it));
    if (bench.u_memory.stall_aw == 0 && bench.u_memory.stall_w == 0)
      expect_eq("R14: cycles from the response of GROUP_DONE to AWVALID", bench.host.u_score.latency, 3);
    $display("message %0d cycles behind the response of GROUP_DONE", bench.host.u_score.latency);
    bench.host.end_case;
  endtask

  // A line that fails leaves its member as it is; a completion that is lost counts, GROUP_DONE too.
  task automatic case_faults(input logic [1:0] response);
    bench.host.begin_case("faults");
    bench.u_memory.error_resp = response;
    bench.host.enable;
    put_prefill(1, 7, 2);
    drain(0);
    put_member(2, 7, 0, 20, CHECKPOINT_NEVER);
    bench.u_memory.fail_line = 1;
    one(STATUS_ERROR, ERR_DMA_FAULT, 1'b0);
    put_member(3, 7, 1, 20, CHECKPOINT_NEVER);
    one(STATUS_DONE, ERR_NONE, 1'b0);
    put_member(2, 7, 0, 20, CHECKPOINT_NEVER);
    one(STATUS_DONE, ERR_NONE, 1'b1);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.fault_expected = 1'b1;
    bench.host.disable_device;
    bench.u_registers.write(REG_ERROR, '1);
    bench.host.fault_expected = 1'b0;

    // The completion of the first of two members is lost, or that of the last, with GROUP_DONE.
    for (int lost = 0; lost < 2; lost++) begin
      bench.host.default_config;
      bench.host.enable;
      put_prefill(1, 7, 2);
      one(STATUS_DONE, ERR_NONE, 1'b0);
      if (lost == 1) begin
        put_member(2, 7, 0, 3, CHECKPOINT_NEVER);
        one(STATUS_DONE, ERR_NONE, 1'b0);
      end
      bench.u_memory.fail_completion = 1;
      put_member(2, 7, lost, 3, CHECKPOINT_NEVER);
      bench.host.ring;
      skip_lost;
      if (lost == 0) begin
        put_member(3, 7, 1, 3, CHECKPOINT_NEVER);
        bench.host.ring;
        take_raw;
        if (!raw.flags[CFLAG_GROUP_DONE_BIT]) fail("R17: a completion that is lost does not end its member");
      end
      put_prefill(1, 7, 1);                       // the prefix is free again
      bench.host.ring;
      take_raw;
      expect_eq("R17: error", raw.error, ERR_NONE);
      expect_eq("R17: status", raw.status, STATUS_DONE);
      bench.u_registers.write(REG_CONTROL, 0);
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a disable");
      bench.u_registers.write(REG_ERROR, '1);
      repeat (20) @(posedge bench.clk);
    end
  endtask

  // Behind a completion that is lost the scoreboard knows nothing more: the host reads the slots itself.
  hw_completion_t raw;
  task automatic skip_lost;
    waits_for = "the bench waits for IDLE behind a lost completion";
    bench.host.await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
    bench.host.u_score.stop;
    bench.u_memory.fail_completion = -1;
    bench.host.u_score.cq_seen = bench.host.u_score.cq_seen + 1;
  endtask

  task automatic take_raw;
    waits_for = "the bench waits for a completion behind a lost one";
    raw = bench.host.cq_slot(bench.host.u_score.cq_seen);
    while (raw.phase !== {bench.host.phase_of(bench.host.u_score.cq_seen), 7'd0}
           || raw.final_seq_len[31] !== raw.phase[7]) begin
      @(posedge bench.clk);
      raw = bench.host.cq_slot(bench.host.u_score.cq_seen);
    end
    bench.host.u_score.cq_seen = bench.host.u_score.cq_seen + 1;
  endtask

  // R8: ABORT ends the DECODEs of its rollout that are published, wherever they are, and no others, and has no completion.
  task automatic case_abort(input int behind);
    int stopped, tokens;
    bench.host.begin_case("ABORT");
    bench.host.sq_size = 128;
    bench.host.cq_size = 128;
    bench.host.enable;
    for (int k = 0; k < 3; k++) bench.host.put_decode(k, 700);
    bench.host.put_decode(9, 5000);               // runs
    bench.host.put_decode(9, 5000);               // at its worker
    for (int k = 0; k < 5; k++) bench.host.put_decode(9, 100);
    bench.host.put_decode(4, 10);
    bench.host.ring;
    repeat (behind) @(posedge bench.clk);         // … to the few that are on their way as it comes
    bench.host.u_score.abort(9);
    bench.u_registers.write(REG_ABORT, 9);
    bench.host.put_decode(9, 33);                 // the id anew: runs to its end
    bench.host.ring;
    stopped = 0;
    tokens  = 0;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      if (bench.host.last_done.status == STATUS_STOPPED) stopped = stopped + 1;
      if (bench.host.last_desc.rollout_id == 9) tokens = tokens + int'(bench.host.last_done.final_seq_len - bench.host.last_desc.seq_len);
    end
    expect_eq("R8: DECODEs that an ABORT ended", stopped, 7);
    if (tokens > behind + 80) fail($sformatf("R8: %0d tokens of a rollout that was aborted in cycle %0d", tokens, behind));
    bench.host.await_state(STATE_ABORTING, 0, "STATE.ABORTING = 0");
    bench.host.end_case;
    bench.u_registers.refuse(REG_ABORT, 9);       // inactive
  endtask

  // Of what is published more than fits in: ABORTING stays until all has been read, and no other ABORT is taken meanwhile.
  task automatic case_abort_of_much;
    int stopped;
    bench.host.begin_case("ABORT of much");
    bench.host.sq_size = 512;
    bench.host.cq_size = 512;
    bench.host.cq_base = bench.host.Base + 64 * 900;
    bench.host.token_base = bench.host.Base + 64 * 1200;
    bench.host.token_size = 64 * 800;
    bench.host.enable;
    for (int k = 0; k < 4; k++) bench.host.put_decode(k, 2000);
    for (int k = 0; k < 250; k++) bench.host.put_decode(9 + k % 2, 1);
    bench.host.ring;
    repeat (400) @(posedge bench.clk);
    bench.host.u_score.abort(9);
    bench.u_registers.write(REG_ABORT, 9);
    bench.u_registers.refuse(REG_ABORT, 10);
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_ABORTING);
    stopped = 0;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      if (bench.host.last_done.status == STATUS_STOPPED) stopped = stopped + 1;
    end
    expect_eq("R8: DECODEs that an ABORT ended", stopped, 125);
    bench.host.await_state(STATE_ABORTING, 0, "STATE.ABORTING = 0");
    bench.host.end_case;
  endtask

  // ABORT ends a member as a STOP does; a disable ends an ABORT that is under way.
  task automatic case_abort_and_groups;
    bench.host.begin_case("ABORT and groups");
    bench.host.enable;
    put_prefill(1, 2, 1);
    put_member(9, 2, 0, 5000, CHECKPOINT_NEVER);
    bench.host.ring;
    repeat (100) @(posedge bench.clk);
    bench.host.u_score.abort(9);
    bench.u_registers.write(REG_ABORT, 9);
    drain(1);
    bench.host.end_case;
    bench.host.default_config;
    bench.u_memory.read_latency = 200;
    bench.host.enable;
    bench.host.put_decode(9, 10);
    bench.host.ring;
    bench.host.u_score.abort(9);
    bench.u_registers.write(REG_ABORT, 9);
    bench.host.disable_device;
    bench.u_memory.read_latency = 0;
    bench.host.default_config;
    bench.host.enable;
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    bench.host.put_decode(9, 10);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_last(STATUS_DONE, ERR_NONE, 1'b0);
    bench.host.end_case;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) bench.random_memory;
      case_sizes;
      case_waits_for_its_prefill;
      case_what_ends_a_member;
      case_stop_of_all;
      case_entries;
      case_interrupt;
      case_abort_and_groups;
      if (round < drawn(1, 2)) case_abort_of_much;
      if (round == 0) for (int behind = 0; behind < 60; behind = behind + drawn(21, 8)) case_abort(behind);
    end
    bench.random_memory;
    bench.u_memory.early_effect = 1'b0;
    case_faults(2'b10);
    case_faults(2'b11);
    bench.host.traffic.always_groups = 70;
    found = bench.host.u_score.groups_closed;
    // Until enough were closed, for four times as long at most.
    for (int k = 0; k < drawn(4, 6) || (k < 4 * drawn(4, 6) && bench.host.u_score.groups_closed - found < 3); k++) begin
      bench.host.traffic.faults = k == 3;
      bench.host.traffic.run(drawn(90, 200));
    end
    if (bench.host.u_score.groups_closed - found < 3) fail("few random groups were closed");
    finish_bench("rl_runtime_top_groups_tb");
  end
endmodule
