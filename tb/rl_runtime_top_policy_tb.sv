// Versions of the policy on the whole device: publishes under load, by one queue pair of a function of two, with a third of
// another function beside them (rl_runtime_top_publish_tb has a thousand with +long). Every token is of the version that its descriptor
// names (the scoreboard compares each), with KEEP no rollout is lost or ended, and behind a switch a worker adds one token at
// most under the version that was retired. Then POLICY and REWARD in directed cases: what is retired in each of its places, what is refused, errors of the memory, and a
// disable or a reset at any moment.
module rl_runtime_top_policy_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  top_bench #(.Queues(3), .Functions(2), .Workers(4), .FetchDepth(64), .Limit(2000000)) bench ();

  // ---------------------------------------------------------------- R20: tokens behind a switch
  logic [3:0]  counting = '0;            // workers, of what runs under a retired version
  logic        retired_slot;
  int          behind [0:3];
  int          most_behind = 0, switches = 0, cut = 0;
  logic        of_function;
  always @(posedge bench.clk) if (bench.rst_n) begin
    if (bench.u_device.switched) begin
      switches = switches + 1;
      if (bench.u_device.switch_keep || bench.u_device.switch_abort) begin
        retired_slot = !bench.u_device.switch_slot;
        for (int w = 0; w < 4; w++) begin
          behind[w]   = 0;
          counting[w] = 1'b1;
        end
      end else counting = '0;
    end
    if (bench.u_device.start) counting = '0;
    for (int w = 0; w < 4; w++) begin
      of_function = bench.u_device.u_rollout_worker_fsm.rollout_q[w*34 + 32 +: 2] != 2;
      if (counting[w] && bench.u_device.token[w] && of_function && bench.u_device.u_rollout_worker_fsm.slot_run_q[w] == retired_slot
          && !bench.u_device.u_rollout_worker_fsm.resident_q[w]) begin
        behind[w] = behind[w] + 1;
        cut       = cut + 1;
        if (behind[w] > most_behind) most_behind = behind[w];
        if (behind[w] > 1) fail($sformatf("R20: worker %0d adds %0d tokens under a version that was retired", w, behind[w]));
      end
    end
  end

  // ---------------------------------------------------------------- frame
  int waits = 0;
  logic [31:0] threshold = 32'hFFFF_0000;

  task automatic begin_case(input string name);
    $display("case %0s", name);
    bench.u_protocol.quiet = 1'b0;
    bench.u_registers.write(REG_WINDOW_2_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_registers.write(REG_WINDOW_2_SIZE_HI + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.host.default_config;             bench.gen_host[1].host.default_config;   bench.gen_host[2].host.default_config;
    bench.host.alone = 1'b0;               bench.gen_host[1].host.alone = 1'b0;     bench.gen_host[2].host.alone = 1'b0;
    bench.gen_host[1].host.own_device = 1'b0;   bench.gen_host[1].host.own_function = 1'b0;
    bench.gen_host[2].host.owner = 1;
    bench.u_registers.write(REG_QUEUE_FUNCTION + 2 * BLOCK_DEVICE_QUEUE_PER_QUEUE, 1);
  endtask

  task automatic enable_all;
    bench.u_registers.write(REG_WAIT_STATES, waits);
    bench.host.reward_threshold = threshold;
    bench.gen_host[1].host.reward_threshold = threshold;
    bench.host.enable;
    bench.gen_host[1].host.enable;
    bench.gen_host[2].host.enable;
    bench.gen_host[1].host.u_score.salt_key = bench.host.u_score.salt_key;
  endtask

  task automatic end_case;
    bench.host.release_seen;             bench.host.expect_all_done;             bench.host.disable_device;
    bench.gen_host[1].host.release_seen; bench.gen_host[1].host.expect_all_done; bench.gen_host[1].host.disable_device;
    bench.gen_host[2].host.release_seen; bench.gen_host[2].host.expect_all_done; bench.gen_host[2].host.disable_device;
  endtask

  // The second host of the function learns of a publish from the first one.
  task automatic tell;
    bench.gen_host[1].host.u_score.policy_pending = bench.host.u_score.policy_pending;
    bench.gen_host[1].host.u_score.retire_pending = bench.host.u_score.retire_pending;
    bench.gen_host[1].host.u_score.retire_version = bench.host.u_score.retire_version;
    bench.gen_host[1].host.u_score.retire_mode    = bench.host.u_score.retire_mode;
    for (int s = 0; s < 2; s++) begin
      bench.gen_host[1].host.u_score.slot_version[s] = bench.host.u_score.slot_version[s];
      bench.gen_host[1].host.u_score.slot_state[s]   = bench.host.u_score.slot_state[s];
    end
    bench.gen_host[1].host.u_score.slot_last = bench.host.u_score.slot_last;
  endtask

  task automatic step_all;
    bench.host.load.step;
    tell;
    bench.gen_host[1].host.load.step;
    bench.gen_host[2].host.load.step;
    repeat (6) @(posedge bench.clk);
  endtask

  task automatic expect_slots;
    logic [31:0] want;
    for (int s = 0; s < 2; s++) begin
      want = {7'd0, bench.host.u_score.slot_last == s, bench.host.u_score.slot_state[s], bench.host.u_score.slot_version[s]};
      bench.u_registers.expect_read(REG_POLICY_SLOT_0 + 4 * s, want);
    end
    bench.u_registers.expect_read(REG_POLICY_SLOT_0 + BLOCK_FUNCTION_PER_FUNCTION, RESET_POLICY_SLOT_0);
    bench.u_registers.expect_read(REG_POLICY_SLOT_1 + BLOCK_FUNCTION_PER_FUNCTION, 0);
  endtask

  // ---------------------------------------------------------------- publishes under load
  task automatic case_load(input int publishes, input int keep, input int abort);
    hw_desc_t    desc;
    logic [15:0] version;
    logic [7:0]  mode;
    int          aborts;
    begin_case($sformatf("%0d publishes under load, %0d percent KEEP, %0d percent ABORT", publishes, keep, abort));
    threshold = 32'h2000;
    enable_all;
    threshold = 32'hFFFF_0000;
    bench.host.load.start(5, 40);
    bench.gen_host[1].host.load.start(4, 60);
    bench.gen_host[2].host.load.start(2, 40);
    aborts  = bench.host.load.aborted + bench.gen_host[1].host.load.aborted;
    version = 16'hFFF0;                  // which wraps
    for (int n = 0; n < publishes; n++) begin
      waits_for = $sformatf("the bench waits for publish %0d", n);
      repeat (below(10)) step_all;
      // R19: what it replaces is complete.
      while (bench.host.u_score.in_use_yet(1 - bench.host.u_score.slot_last)
             || bench.gen_host[1].host.u_score.in_use_yet(1 - bench.host.u_score.slot_last)) step_all;
      version = version + 1;
      if (version == 0) version = 1;
      mode = chance(keep) ? POLICY_KEEP : chance(100 * abort / (100 - keep + (keep == 100))) ? POLICY_ABORT : POLICY_WAIT;
      bench.host.make_policy(32'h9000, version, mode, 0, desc);
      bench.host.put(desc);
      tell;
      bench.host.ring;
      while (bench.host.u_score.policy_pending) step_all;
      if (n % 100 == 0) expect_slots;
    end
    bench.host.load.draining = 1'b1;
    bench.gen_host[1].host.load.draining = 1'b1;
    bench.gen_host[2].host.load.draining = 1'b1;
    waits_for = "the bench waits for the last rollouts";
    while (bench.host.outstanding() != 0 || bench.gen_host[1].host.outstanding() != 0 || bench.gen_host[2].host.outstanding() != 0)
      step_all;
    if (keep + abort <= 100 && abort == 0 && bench.host.load.aborted + bench.gen_host[1].host.load.aborted != aborts)
      fail("R20: a rollout ends as STOPPED, with KEEP");
    if (bench.gen_host[2].host.load.superseded + bench.gen_host[2].host.load.aborted != 0)
      fail("R20: the other function's rollouts are cut");
    if (bench.host.u_score.published_versions != publishes) fail($sformatf("R19: %0d of %0d publishes", bench.host.u_score.published_versions, publishes));
    $display("cycle %0d: %0d rollouts whole, %0d cuts by KEEP, %0d by ABORT, %0d rejected, %0d tokens behind %0d switches, most of a worker %0d",
             bench.cycle, bench.host.load.finished + bench.gen_host[1].host.load.finished,
             bench.host.load.superseded + bench.gen_host[1].host.load.superseded,
             bench.host.load.aborted + bench.gen_host[1].host.load.aborted,
             bench.host.load.rejected + bench.gen_host[1].host.load.rejected, cut, switches, most_behind);
    end_case;
  endtask

  // ---------------------------------------------------------------- directed cases, by one queue pair
  task automatic publish(input logic [15:0] version, input logic [7:0] mode, input logic [7:0] code);
    hw_desc_t desc;
    bench.host.make_policy(32'h9000, version, mode, 0, desc);
    bench.host.u_score.next_policy_code = code;
    bench.host.u_score.next_policy_reads = code == ERR_NONE || code == ERR_DMA_FAULT;
    bench.host.put(desc);
    bench.host.u_score.next_policy_code  = ERR_NONE;
    bench.host.u_score.next_policy_reads = 1'b1;
    tell;
    bench.host.ring;
  endtask

  task automatic await_rollout(input logic [31:0] rollout, input logic [7:0] status, input logic [7:0] error);
    bench.host.await_completions(1, 6000);
    expect_eq("rollout", bench.host.last_done.rollout_id, rollout);
    expect_eq($sformatf("status of rollout %h", rollout), bench.host.last_done.status, status);
    expect_eq($sformatf("error of rollout %h", rollout), bench.host.last_done.error, error);
  endtask

  function automatic int added();
    added = int'(bench.host.last_done.final_seq_len - bench.host.last_desc.seq_len);
  endfunction

  // A version is refused while what it would replace is in use, and not a cycle longer; a version that is gone is none.
  task automatic case_refused;
    hw_desc_t desc;
    begin_case("refused");
    bench.host.wait_states = 0;
    waits = 3;
    enable_all;
    waits = 0;
    bench.host.token_next = 16;
    bench.host.put_decode(1, 400);
    publish(7, POLICY_WAIT, ERR_NONE);
    await_rollout(32'h9000, STATUS_DONE, ERR_NONE);
    expect_slots;
    publish(7, POLICY_WAIT, ERR_BAD_POLICY);               // resident, and its header would fit
    await_rollout(32'h9000, STATUS_ERROR, ERR_BAD_POLICY);
    publish(0, POLICY_WAIT, ERR_BAD_POLICY);
    await_rollout(32'h9000, STATUS_ERROR, ERR_BAD_POLICY);
    publish(8, 3, ERR_BAD_POLICY);
    await_rollout(32'h9000, STATUS_ERROR, ERR_BAD_POLICY);
    publish(8, POLICY_KEEP, ERR_POLICY_BUSY);              // version 0, of the DECODE, is where it would go
    await_rollout(32'h9000, STATUS_ERROR, ERR_POLICY_BUSY);
    expect_slots;
    bench.host.make_decode(2, 30, 0, desc);
    desc.policy_version = 7;
    bench.host.put(desc);
    bench.host.put(bench.host.blank(OP_STOP, 1));
    bench.host.ring;
    repeat (3) bench.host.await_completions(1, 6000);
    publish(8, POLICY_KEEP, ERR_NONE);
    await_rollout(32'h9000, STATUS_DONE, ERR_NONE);
    expect_slots;
    // 7 is retired, 0 is gone.
    bench.host.make_decode(3, 30, 0, desc);
    desc.policy_version = 7;
    bench.host.put(desc);
    bench.host.ring;
    await_rollout(3, STATUS_SUPERSEDED, ERR_NONE);
    expect_eq("tokens of what had not started", added(), 0);
    bench.host.put_decode(4, 5);
    bench.host.ring;
    await_rollout(4, STATUS_ERROR, ERR_BAD_VERSION);
    desc = bench.host.blank(OP_PREFILL, 5);
    desc.prefix_id = 1;
    desc.policy_version = 7;                               // retired is not resident
    bench.host.put(desc);
    desc.policy_version = 8;
    bench.host.put(desc);
    bench.host.ring;
    await_rollout(5, STATUS_ERROR, ERR_BAD_VERSION);
    await_rollout(5, STATUS_DONE, ERR_NONE);
    // A version that is retired may be published anew; its salt is another's then.
    publish(7, POLICY_ABORT, ERR_NONE);
    await_rollout(32'h9000, STATUS_DONE, ERR_NONE);
    expect_slots;
    bench.host.make_decode(6, 30, 0, desc);
    desc.policy_version = 8;
    bench.host.put(desc);
    desc.rollout_id = 7;
    desc.policy_version = 7;
    bench.host.make_decode(7, 30, 0, desc);
    desc.policy_version = 7;
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(2, 6000);
    // A header that does not fit, and one that cannot be read.
    for (int k = 0; k < 4; k++) begin
      bench.host.make_policy(32'h9000, 9, POLICY_KEEP, 0, desc);
      bench.u_memory.poke(bench.host.token_base + 4 * k, bench.u_memory.peek(bench.host.token_base + 4 * k) ^ (32'd1 << below(32)));
      bench.host.u_score.next_policy_code = ERR_BAD_POLICY;
      bench.host.put(desc);
      bench.host.u_score.next_policy_code = ERR_NONE;
      bench.host.ring;
      await_rollout(32'h9000, STATUS_ERROR, ERR_BAD_POLICY);
    end
    expect_slots;
    // The function's versions stay while a queue pair of it is active, and begin anew behind the last one.
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
    expect_slots;
    bench.gen_host[1].host.disable_device;
    bench.host.enable;
    bench.gen_host[1].host.u_score.salt_key = bench.host.u_score.salt_key;
    expect_slots;
    bench.host.disable_device;
    bench.gen_host[2].host.disable_device;
  endtask

  // R20, each place of a descriptor: running, queued behind its own rollout at a worker, not handed out; resident ones run
  // on to their checkpoint.
  task automatic case_places(input logic [7:0] mode, input int wait_states);
    hw_desc_t   desc;
    logic [7:0] status;
    int         n;
    bench.host.reward_threshold = 0;
    begin_case($sformatf("places, mode %0d, %0d wait states", mode, wait_states));
    waits = wait_states;
    enable_all;
    waits = 0;
    status = mode == POLICY_KEEP ? STATUS_SUPERSEDED : STATUS_STOPPED;
    bench.host.token_next = 16;
    for (int k = 0; k < 2; k++) bench.host.put_decode(k, 600);
    bench.host.make_decode(3, 600, 0, desc);
    desc.flags[FLAG_RESIDENT_BIT] = 1'b1;
    desc.checkpoint = 150;
    bench.host.put(desc);
    bench.host.make_decode(3, 50, 0, desc);
    desc.flags[FLAG_RESIDENT_BIT] = 1'b1;
    bench.host.put(desc);
    for (int k = 0; k < 4; k++) bench.host.put_decode(0, 50);
    bench.host.ring;
    waits_for = "the bench waits for three busy workers";
    while ((bench.u_device.free & (bench.u_device.free - 4'd1)) != 0) @(posedge bench.clk);
    repeat (30) @(posedge bench.clk);
    // By the other queue pair of the function: nothing of the first one's order holds it.
    bench.gen_host[1].host.make_policy(32'h9000, 5, mode, 0, desc);
    bench.gen_host[1].host.put(desc);
    bench.host.u_score.policy_pending = 1'b1;
    bench.host.u_score.retire_pending = 1'b1;
    bench.host.u_score.retire_version = 0;
    bench.host.u_score.retire_mode    = mode;
    bench.gen_host[1].host.ring;
    for (int k = 0; k < 8; k++) begin
      bench.host.await_completions(1, 6000);
      n = added();
      if (bench.host.last_desc.flags[FLAG_RESIDENT_BIT] && bench.host.last_desc.max_tokens == 600 && mode == POLICY_KEEP) begin
        expect_eq("tokens of the resident one behind its last checkpoint", n % 150, 0);
        expect_eq("its status", bench.host.last_done.status, STATUS_SUPERSEDED);
      end else expect_eq($sformatf("status of descriptor %0d", bench.host.last_index), bench.host.last_done.status, status);
      if (bench.host.last_desc.max_tokens == 600 && n == 0) fail("R20: one that has started adds no token");
      if (bench.host.last_desc.max_tokens == 50 && n != 0) fail("R20: one that has not started adds tokens");
    end
    bench.gen_host[1].host.await_completions(1, 3000);
    expect_eq("status of the POLICY", bench.gen_host[1].host.last_done.status, STATUS_DONE);
    end_case;
  endtask

  // REWARD behind the DECODE that it scores, of all of the region, of as much as LENGTH_LIMIT allows.
  task automatic case_reward;
    hw_desc_t desc;
    begin_case("reward");
    bench.host.length_limit = drawn(600, 2000);
    bench.host.range_of[0] = {32'h0000_FFFF, 32'd0};
    bench.host.range_of[7] = {32'h0001_2345, 32'h0001_0000};
    bench.host.range_of[15] = {32'h5, 32'h7};
    enable_all;
    bench.host.token_next = 3;
    for (int model = 0; model < 2; model++) begin
      for (int n = 1; n < 50; n = n + 1 + below(drawn(13, 6))) begin
        bench.host.put_decode(n, n);
        desc = bench.host.blank(OP_REWARD, n);
        desc.reward_model_id = model;
        desc.max_tokens      = n;
        desc.delta_offset    = 4 * (bench.host.token_next - n);
        desc.flags           = FLAG_INTERRUPT;
        bench.host.put(desc);
        bench.host.ring;
        await_rollout(n, STATUS_DONE, ERR_NONE);
        await_rollout(n, STATUS_SCORED, ERR_NONE);
      end
      desc = bench.host.blank(OP_REWARD, 999);
      desc.reward_model_id = model;
      desc.max_tokens      = drawn(600, 2000);
      desc.delta_offset    = bench.host.token_size - 4 * drawn(600, 2000);
      bench.host.put(desc);
      bench.host.put(bench.host.blank(OP_STOP, 999));      // which does not end it
      bench.host.put_decode(1, 30);
      bench.host.ring;
      repeat (3) bench.host.await_completions(1, 6000);
    end
    // Scores of several workers wait for one reader, and fences for them.
    for (int k = 0; k < 24; k++) begin
      desc = bench.host.blank(OP_REWARD, k % 7);
      desc.reward_model_id = k % 2;
      desc.max_tokens      = between(1, 40);
      desc.delta_offset    = 4 * between(4000, 8000);
      desc.flags           = k % 6 == 5 ? FLAG_FENCE : 8'd0;
      bench.host.put(desc);
      if (k % 3 == 0) bench.host.put_decode(k % 7, 20);
    end
    bench.host.ring;
    bench.host.await_completions(32, 6000);
    end_case;
  endtask

  // R10: each kind of error on each beat; what is behind it is well.
  task automatic case_faults;
    hw_desc_t desc;
    begin_case("faults");
    enable_all;
    bench.host.token_next = 16;
    for (int k = 0; k < 10; k++) begin
      bench.u_memory.error_resp = k[0] ? 2'b11 : 2'b10;
      desc = bench.host.blank(OP_REWARD, 1);
      desc.max_tokens   = 16 * 5;
      desc.delta_offset = 64 * 20;
      bench.host.put(desc);
      desc.rollout_id = 2;
      bench.u_memory.fail_back = 1 + k / 2;
      bench.host.put(desc);
      bench.host.ring;
      repeat (2) bench.host.await_completions(1, 3000);
      bench.u_registers.expect_read(REG_ERROR, FAULT_DMA_READ);
      bench.u_registers.write(REG_ERROR, '1);
      bench.u_memory.fail_back = -1;
      bench.u_memory.fail_back = 1;
      publish(16'd40 + k, POLICY_KEEP, ERR_NONE);          // the scoreboard knows that it was not read
      await_rollout(32'h9000, STATUS_ERROR, ERR_DMA_FAULT);
      bench.u_registers.expect_read(REG_ERROR, FAULT_DMA_READ);
      bench.u_registers.write(REG_ERROR, '1);
      expect_slots;
    end
    bench.u_memory.error_resp = 2'b10;
    bench.host.put_decode(3, 30);
    bench.host.ring;
    await_rollout(3, STATUS_DONE, ERR_NONE);
    bench.host.fault_expected = 1'b0;
    bench.host.u_score.bad_beats = 0;
    end_case;
  endtask

  // R12: a disable, or a reset of the device alone, with a read shown, in flight or half scored; a clean start behind it.
  task automatic case_ends(input logic resets);
    hw_desc_t desc;
    begin_case(resets ? "reset of the device" : "disable");
    bench.u_memory.read_latency = 7;
    for (int moment = 0; moment < 120; moment = moment + (resets ? drawn(34, 17) : drawn(13, 7))) begin
      if (resets) begin
        bench.u_registers.write(REG_WINDOW_2_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
        bench.u_registers.write(REG_WINDOW_2_SIZE_HI + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
      end
      bench.host.enable;
      bench.host.token_next = 16;
      for (int k = 0; k < 4; k++) begin
        desc = bench.host.blank(OP_REWARD, k);
        desc.max_tokens   = 60;
        desc.delta_offset = 4 * 5000;
        desc.reward_model_id = k % 2;
        bench.host.put(desc);
      end
      bench.host.put_decode(3, 20);
      publish(16'd80 + moment, POLICY_KEEP, ERR_NONE);
      repeat (moment) @(posedge bench.clk);
      if (resets) bench.reset_device;
      else begin
        bench.host.disable_device;
        bench.host.u_score.policy_pending = 1'b0;
      end
    end
    bench.u_memory.read_latency = 0;
    bench.host.enable;
    bench.host.token_next = 16;
    bench.u_registers.expect_read(REG_POLICY_SLOT_0, RESET_POLICY_SLOT_0);
    bench.u_registers.expect_read(REG_POLICY_SLOT_1, 0);
    desc = bench.host.blank(OP_REWARD, 1);
    desc.max_tokens   = 60;
    desc.delta_offset = 4 * 5001;
    bench.host.put(desc);
    publish(3, POLICY_KEEP, ERR_NONE);
    bench.host.await_completions(2, 3000);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_places(POLICY_KEEP, 0);
    case_places(POLICY_ABORT, 0);
    case_places(POLICY_KEEP, 5);
    case_places(POLICY_ABORT, 2);
    case_reward;
    case_faults;
    case_load(drawn(8, 25), 100, 0);
    case_load(drawn(8, 20), 40, 30);
    bench.u_memory.read_latency  = between(1, 30);
    bench.u_memory.read_jitter   = 10;
    bench.u_memory.write_latency = between(1, 40);
    bench.u_memory.write_jitter  = 60;
    bench.u_memory.stall_ar      = 30;
    bench.u_memory.stall_b       = 40;
    case_places(POLICY_KEEP, 1);
    case_reward;
    case_load(drawn(5, 15), 60, 20);
    case_refused;
    case_ends(1'b0);
    case_ends(1'b1);
    if (cut < drawn(15, 60)) fail($sformatf("only %0d tokens behind a switch", cut));
    finish_bench("rl_runtime_top_policy_tb");
  end
endmodule
