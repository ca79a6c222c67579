// Directed cases of the whole device: malformed descriptors, a memory that answers with errors, disable, reset,
// refused configurations, interrupts.
module rl_runtime_top_fault_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  task automatic end_case(input logic [31:0] fault);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.u_registers.expect_read(REG_ERROR, fault);
    bench.host.fault_expected = fault != 0;
    bench.host.disable_device;
    bench.host.check_counters;
    bench.u_registers.write(REG_ERROR, 32'hFFFF_FFFF);
    bench.u_registers.expect_read(REG_ERROR, 0);
    bench.u_registers.expect_read(REG_STATE, STATE_IDLE);
    bench.host.fault_expected = 1'b0;
  endtask

  // R10: each code in turn, with a good DECODE after it. The reference says which code; the case says it again.
  task automatic expect_code(input hw_desc_t bad, input logic [7:0] error);
    bench.host.put(bad);
    bench.host.put_decode(3, 5);
    bench.host.ring;
    repeat (2) begin
      bench.host.await_completions(1, 3000);
      if (bench.host.last_desc.rollout_id != 3) expect_eq("error", bench.host.last_done.error, error);
    end
  endtask

  task automatic case_error_codes;
    hw_desc_t good, bad;
    bench.host.begin_case("error codes");
    bench.host.length_limit = 1000;
    bench.host.logp_size    = 4096;
    bench.host.enable;
    good = bench.host.blank(OP_DECODE, 77);
    good.delta_offset = bench.host.token_size - 40;
    good.max_tokens   = 10;
    bad = good; bad.opcode = 8'h05;                                          expect_code(bad, ERR_BAD_OPCODE);
    bad = good; bad.opcode = OP_REWARD; bad.model_id = 9;                    expect_code(bad, ERR_NONE);
    bad = good; bad.opcode = OP_REWARD; bad.reward_model_id = 2;             expect_code(bad, ERR_BAD_MODEL);
    bad = good; bad.opcode = OP_REWARD; bad.max_tokens = 0;                  expect_code(bad, ERR_BAD_LENGTH);
    bad = good; bad.opcode = OP_REWARD; bad.max_tokens = 1001;               expect_code(bad, ERR_BAD_LENGTH);
    bad = good; bad.opcode = OP_REWARD; bad.seq_len = 32'hFFFF_FFFF;         expect_code(bad, ERR_NONE);
    bad = good; bad.opcode = OP_REWARD; bad.delta_offset = 6;                expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.opcode = OP_REWARD; bad.max_tokens = 11;                 expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.opcode = OP_POLICY; bad.model_id = 1;                    expect_code(bad, ERR_BAD_MODEL);
    bad = good; bad.opcode = OP_POLICY;                                      expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.opcode = OP_POLICY; bad.delta_offset = bench.host.token_size;  expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.policy_version = 1;                                      expect_code(bad, ERR_BAD_VERSION);
    bad = good; bad.policy_version = 16'h8000; bad.max_tokens = 11;          expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.opcode = 8'h7F; bad.flags = 8'h80;                        expect_code(bad, ERR_BAD_OPCODE);
    bad = good; bad.flags = 8'h80;                                           expect_code(bad, ERR_RESERVED_SET);
    bad = good; bad.flags = FLAG_LOGP;                                       expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.flags = FLAG_LOGP; bad.delta_offset = bench.host.logp_size - 36; expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.flags = FLAG_LOGP; bad.delta_offset = bench.host.logp_size - 40; expect_code(bad, ERR_NONE);
    bad = good; bad.flags = FLAG_LOGP; bad.delta_offset = 64'hFFFF_FFFF_FFFF_FFFC;   expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.flags = FLAG_LOGP; bad.opcode = OP_REWARD;               expect_code(bad, ERR_NONE);
    bad = good; bad.flags = 8'h40; bad.model_id = 1;                   expect_code(bad, ERR_RESERVED_SET);
    bad = good; bad.model_id = 1; bad.max_tokens = 0;                        expect_code(bad, ERR_BAD_MODEL);
    bad = good; bad.reward_model_id = 9;                                     expect_code(bad, ERR_NONE);
    bad = good; bad.reward_model_id = 9; bad.flags = FLAG_RESIDENT;          expect_code(bad, ERR_BAD_MODEL);
    bad = good; bad.max_tokens = 0;                                          expect_code(bad, ERR_BAD_LENGTH);
    bad = good; bad.seq_len = 990;                                           expect_code(bad, ERR_NONE);
    bad = good; bad.seq_len = 991;                                           expect_code(bad, ERR_BAD_LENGTH);
    bad = good; bad.seq_len = 32'hFFFF_FFF8;                                 expect_code(bad, ERR_BAD_LENGTH);
    bad = good; bad.delta_offset = 6;                                        expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.delta_offset = bench.host.token_size - 36;                    expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.delta_offset = 64'hFFFF_FFFF_FFFF_FFFC;                  expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.kv_offset = bench.host.kv_size;                               expect_code(bad, ERR_BAD_REGION);
    bad = good; bad.kv_offset = bench.host.kv_size - 1;                           expect_code(bad, ERR_NONE);
    bad = good; bad.flags = FLAG_COW_PREFIX;                                 expect_code(bad, ERR_BAD_PREFIX);
    bad = good; bad.flags = FLAG_COW_PREFIX; bad.prefix_id = 0;              expect_code(bad, ERR_NONE);
    bad = bench.host.blank(OP_PREFILL, 78);                                       expect_code(bad, ERR_BAD_PREFIX);
    bad.prefix_id = 0;                                                       expect_code(bad, ERR_NONE);
    bad.policy_version = 7;                                                  expect_code(bad, ERR_BAD_VERSION);
    bad.policy_version = 0;
    bad.seq_len = 1001;                                                      expect_code(bad, ERR_BAD_LENGTH);
    bad = bench.host.blank(OP_NOP, 79); bad.model_id = 5; bad.seq_len = 32'hFFFF_FFFF; expect_code(bad, ERR_NONE);
    bad = bench.host.blank(OP_STOP, 79); bad.flags = 8'h80;                        expect_code(bad, ERR_RESERVED_SET);
    end_case(0);
  endtask

  // R2: torn, stale and zeroed slots.
  task automatic case_bad_check;
    logic [511:0] slot;
    bench.host.begin_case("bad check");
    bench.host.enable;
    for (int k = 0; k < 15; k++) begin
      bench.host.make_decode(5, 4, 0, desc);
      slot = bench.host.seal(desc);
      if (k == 12) slot = ref_seal(slot, bench.host.sq_key, bench.host.sq_tail - bench.host.sq_size);     // of the pass before
      else         slot[32*k] = !slot[32*k];                                // one bit of each word
      bench.host.put_slot(slot);
    end
    bench.host.ring;
    repeat (15) begin
      bench.host.await_completions(1, 3000);
      expect_eq("error", bench.host.last_done.error, ERR_BAD_CHECK);
    end
    end_case(0);
  endtask

  task automatic case_read_fault;
    bench.host.begin_case("read fault");
    bench.host.enable;
    for (int k = 0; k < 8; k++) bench.host.put_decode(k, 6);
    bench.u_memory.fail_read = 5;
    bench.host.ring;
    repeat (8) begin
      bench.host.await_completions(1, 3000);
      if ((bench.host.last_done.error == ERR_DMA_FAULT) != (bench.host.last_index == 4)) fail("DMA_FAULT at the wrong descriptor");
    end
    end_case(FAULT_DMA_READ);
  endtask

  // The fault belongs to the descriptor of the faulty line, and to no other, wherever the line lies in it.
  task automatic case_write_fault;
    bench.host.begin_case("write fault");
    bench.host.workers = 1;
    bench.host.enable;
    bench.host.put_decode(1, 6);
    bench.host.put_decode(2, 6000);
    bench.host.put_decode(3, 6);
    bench.host.put(bench.host.blank(OP_NOP, 4));
    bench.u_memory.fail_line = 6;
    bench.host.ring;
    repeat (4) begin
      bench.host.await_completions(1, 20000);
      if ((bench.host.last_done.error == ERR_DMA_FAULT) != (bench.host.last_index == 1)) fail("DMA_FAULT at the wrong descriptor");
    end
    end_case(FAULT_DMA_WRITE);
    // With LOGP it may be the line of tokens, or that of log-probabilities: a middle one, or the last.
    for (int which = 2; which <= 6; which++) begin
      bench.host.default_config;
      bench.host.workers = 1;
      bench.host.enable;
      bench.host.put_decode(1, 6);
      bench.host.make_decode(2, 20, 10, desc);        // in two lines
      desc.flags = FLAG_LOGP;
      bench.host.put(desc);
      bench.host.put_decode(3, 16);
      bench.u_memory.fail_line = which;
      bench.host.ring;
      repeat (3) begin
        bench.host.await_completions(1, 3000);
        if ((bench.host.last_done.error == ERR_DMA_FAULT) != (bench.host.last_index == (which < 6 ? 1 : 2))) fail("DMA_FAULT at the wrong descriptor");
      end
      end_case(FAULT_DMA_WRITE);
    end
    // Two faults are two bits.
    bench.host.default_config;
    bench.host.enable;
    for (int k = 0; k < 4; k++) bench.host.put_decode(k, 1);
    bench.u_memory.fail_line = 1;
    bench.host.ring;
    bench.host.await_completions(4, 3000);
    bench.u_memory.fail_read = 1;
    bench.host.put_decode(9, 1);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    end_case(FAULT_DMA_WRITE | FAULT_DMA_READ);
  endtask

  // A lost completion is the host's to notice, by the ERROR register.
  task automatic case_completion_fault;
    bench.host.begin_case("completion fault");
    bench.host.enable;
    bench.host.put(bench.host.blank(OP_NOP, 1));
    bench.u_memory.fail_completion = 1;
    bench.host.ring;
    bench.host.await_state(STATE_FAULT, STATE_FAULT, "STATE.FAULT");
    bench.u_registers.expect_read(REG_ERROR, FAULT_COMPLETION_WRITE);
    bench.host.expect_counter(CNT_COMPLETIONS, "COMPLETIONS", 0);      // it has not become visible
    bench.host.fault_expected = 1'b1;
    bench.host.disable_device;
    bench.u_registers.write(REG_ERROR, '1);
    bench.host.fault_expected = 1'b0;
  endtask

  // R12: at any moment, the queues full or not; and a clean start after it.
  task automatic case_disable;
    int latency;
    bench.host.begin_case("disable");
    bench.host.cq_size = 2;
    for (int moment = 0; moment < 60; moment = moment + drawn(7, 3)) begin
      bench.host.enable;
      for (int k = 0; k < 12; k++) bench.host.put_decode(k, 1 + 7 * (k % 3));
      bench.host.ring;
      repeat (moment) @(posedge bench.clk);
      bench.host.disable_device;
    end
    bench.host.enable;
    for (int k = 0; k < 12; k++) bench.host.put_decode(k, 30);
    bench.host.ring;
    repeat (1000) @(posedge bench.clk);           // the completion queue is full
    bench.host.disable_device;
    // An enable behind a disable that is still draining.
    latency = bench.u_memory.write_latency;
    bench.u_memory.write_latency = 1000;
    bench.host.enable;
    bench.host.put_decode(1, 30);
    bench.host.ring;
    waits_for = "case disable waits for a write";
    while (bench.u_memory.pending == 0) @(posedge bench.clk);
    bench.u_registers.write(REG_CONTROL, 0);
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    bench.u_registers.refuse(REG_SQ_SIZE, 8);
    bench.u_registers.refuse(REG_DOORBELL, bench.host.sq_tail + 1);
    bench.host.disable_device;
    bench.u_memory.write_latency = latency;
    bench.host.enable;
    bench.host.put_decode(1, 30);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    end_case(0);
  endtask

  task automatic case_reset;
    bench.host.begin_case("reset");
    for (int moment = 1; moment < 60; moment = moment + drawn(9, 4)) begin
      bench.host.enable;
      for (int k = 0; k < 12; k++) bench.host.put_decode(k, 20);
      bench.host.ring;
      repeat (moment) @(posedge bench.clk);
      bench.reset;
      bench.u_registers.expect_read(REG_CONTROL, 0);
      bench.u_registers.expect_read(REG_STATE, STATE_IDLE);
      bench.u_registers.expect_read(REG_SQ_SIZE, 0);
    end
    bench.host.enable;
    bench.host.put_decode(1, 20);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    end_case(0);
  endtask

  // A configuration that no device can run.
  task automatic expect_bad_config(input logic [17:0] addr, input logic [31:0] bad, input logic [31:0] good);
    bench.u_registers.write(addr, bad);
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE);
    bench.u_registers.expect_read(REG_CONTROL, 0);
    bench.u_registers.expect_read(REG_STATE, STATE_IDLE | STATE_FAULT);
    bench.u_registers.expect_read(REG_ERROR, FAULT_BAD_CONFIG);
    bench.u_registers.write(REG_ERROR, '1);
    bench.u_registers.write(addr, good);
  endtask

  task automatic case_bad_config;
    bench.host.begin_case("bad config");
    bench.host.enable;
    bench.host.disable_device;
    expect_bad_config(REG_SQ_SIZE, 0, 64);
    expect_bad_config(REG_SQ_SIZE, 48, 64);
    expect_bad_config(REG_CQ_SIZE, 1, 64);
    expect_bad_config(REG_CQ_SIZE, 32'h0002_0000, 64);
    expect_bad_config(REG_SQ_BASE_LO, bench.host.sq_base[31:0] + 32, bench.host.sq_base[31:0]);
    expect_bad_config(REG_CQ_BASE_LO, bench.host.cq_base[31:0] + 4, bench.host.cq_base[31:0]);
    expect_bad_config(REG_TOKEN_BASE_LO, bench.host.token_base[31:0] + 16, bench.host.token_base[31:0]);
    expect_bad_config(REG_KV_BASE_LO, 8, 0);
    bench.host.enable;
    bench.host.disable_device;
  endtask

  // R14. The scoreboard checks 'at least one', 'at most one' and 'not before' throughout; here how many, and when.
  int messages_before;
  task automatic expect_messages(input string what, input int n, input logic armed);
    repeat (bench.u_memory.stall_aw != 0 || bench.u_memory.stall_w != 0 || bench.u_memory.write_latency != 0 || bench.u_memory.write_jitter != 0 ? 600 : 12) @(posedge bench.clk);
    if (bench.host.u_score.messages - messages_before != n)
      fail($sformatf("R14: %0s: %0d messages, expected %0d", what, bench.host.u_score.messages - messages_before, n));
    messages_before = bench.host.u_score.messages;
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE | (armed ? STATE_ARMED : 32'd0));
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 0);
  endtask

  task automatic arm(input logic [31:0] index);
    bench.u_registers.write(REG_ARM, index);
  endtask

  task automatic run_one(input logic [7:0] flags, input int error);
    desc       = bench.host.blank(OP_NOP, 1);
    desc.flags = flags;
    if (error != 0) desc.flags = 8'h80;
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completion(3000);
    bench.host.await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
  endtask

  // On a bus that is idle and takes a message at once: AWVALID in the third cycle behind the response.
  task automatic expect_latency;
    if (bench.u_memory.stall_aw == 0 && bench.u_memory.stall_w == 0) expect_eq("cycles from the response to AWVALID", bench.host.u_score.latency, 3);
  endtask

  task automatic case_interrupt;
    logic [31:0] next;
    bench.host.begin_case("interrupt");
    bench.host.cq_start = 32'hFFFF_FFFE;
    bench.host.enable;
    next = 32'hFFFF_FFFE;
    messages_before = bench.host.u_score.messages;
    run_one(FLAG_INTERRUPT, 0);         expect_messages("not armed", 0, 1'b0);
    arm(next);                          expect_messages("armed late", 1, 1'b0);
    run_one(FLAG_INTERRUPT, 0);         expect_messages("nothing new without an arming", 0, 1'b0);
    bench.host.release_seen;
    arm(next + 1);                      expect_messages("armed late, across 2^32, all released", 1, 1'b0);
    arm(next + 2);                      expect_messages("all are read: it waits", 0, 1'b1);
    run_one(0, 0);                      expect_messages("did not ask", 0, 1'b1);
    run_one(0, 1);                      expect_messages("an ERROR always asks", 1, 1'b0);
    expect_latency;
    bench.u_registers.write(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK);
    arm(next + 3);
    repeat (5) @(posedge bench.clk);
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 1);
    if (bench.host.u_score.messages != messages_before) fail("R14: a message of a masked vector");
    bench.u_registers.write(REG_MESSAGE_CONTROL, 0);
    expect_messages("unmasked", 1, 1'b0);
    // A message that is answered with an error is not sent again.
    bench.u_memory.fail_message = 1;
    arm(next + 4);
    run_one(FLAG_INTERRUPT, 0);
    repeat (600) @(posedge bench.clk);
    bench.u_registers.expect_read(REG_ERROR, FAULT_MESSAGE_WRITE);
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE | STATE_FAULT);
    bench.u_registers.write(REG_ERROR, FAULT_MESSAGE_WRITE);
    expect_messages("answered with an error", 1, 1'b0);
    // A completion that is lost counts.
    bench.u_memory.fail_completion = 1;
    arm(next + 5);
    desc       = bench.host.blank(OP_NOP, 1);
    desc.flags = FLAG_INTERRUPT;
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_state(STATE_FAULT, STATE_FAULT, "STATE.FAULT");
    bench.u_registers.write(REG_ERROR, '1);
    expect_messages("a lost completion", 1, 1'b0);
    arm(next + 6);
    bench.host.u_score.bad_beats = 0;
    bench.host.disable_device;          // takes the arming back
    bench.u_registers.expect_read(REG_ARM, next + 6);
    bench.u_registers.refuse(REG_ARM, next);
    bench.host.enable;
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    // What is armed and pending is dropped by a disable, masked or not; a message that was promised comes before its end.
    bench.u_registers.write(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK);
    bench.host.u_score.masked = 1'b1;
    messages_before = bench.host.u_score.messages;
    run_one(FLAG_INTERRUPT, 0);
    arm(next);
    bench.host.release_seen;
    bench.host.disable_device;
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 0);
    bench.u_registers.write(REG_MESSAGE_CONTROL, 0);
    repeat (50) @(posedge bench.clk);
    if (bench.host.u_score.messages != messages_before) fail("R12: a message behind a disable");
    for (int moment = 0; moment < 30; moment++) begin
      bench.host.enable;
      arm(next);
      desc       = bench.host.blank(OP_NOP, 1);
      desc.flags = FLAG_INTERRUPT;
      bench.host.put(desc);
      bench.host.ring;
      repeat (moment) @(posedge bench.clk);
      bench.host.disable_device;
    end
    // A drain ends once the last message is sent, however long the bus takes none.
    bench.host.default_config;
    bench.host.enable;
    messages_before = bench.host.u_score.messages;
    arm(0);
    desc       = bench.host.blank(OP_NOP, 1);
    desc.flags = FLAG_INTERRUPT;
    bench.host.put(desc);
    bench.host.put(desc);
    bench.host.ring;
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
    bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
    if (bench.host.u_score.messages - messages_before != 1) fail("R14: a drain has lost its message");
    repeat (2) bench.host.await_completion(3000);
    bench.host.disable_device;
    // … and behind one whose response has yet to come.
    bench.host.enable;
    messages_before = bench.host.u_score.messages;
    bench.u_memory.hold_id = 32;
    arm(0);
    run_one(FLAG_INTERRUPT, 0);
    arm(1);
    desc       = bench.host.blank(OP_NOP, 1);
    desc.flags = FLAG_INTERRUPT;
    bench.host.put(desc);
    bench.host.ring;
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
    bench.host.await_completion(3000);
    repeat (300) @(posedge bench.clk);
    bench.u_registers.expect_read(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
    bench.u_memory.hold_id = -1;
    bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
    if (bench.host.u_score.messages - messages_before != 2) fail("R14: a drain has lost its message behind another");
    bench.host.disable_device;
    // A disable waits for the response of a message, however long it takes (R12).
    bench.host.enable;
    messages_before = bench.host.u_score.messages;
    bench.u_memory.hold_id = 32;
    arm(0);
    run_one(FLAG_INTERRUPT, 0);
    repeat (300) @(posedge bench.clk);
    bench.u_registers.write(REG_CONTROL, 0);
    repeat (300) @(posedge bench.clk);
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    bench.u_memory.hold_id = -1;
    bench.host.disable_device;
    if (bench.host.u_score.messages - messages_before != 1) fail("R12: a message that was promised has not come");
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) bench.random_memory;
      case_error_codes;
      case_bad_check;
      case_read_fault;
      case_write_fault;
      case_completion_fault;
      case_disable;
      case_reset;
      case_bad_config;
      case_interrupt;
    end
    finish_bench("rl_runtime_top_fault_tb");
  end
endmodule
