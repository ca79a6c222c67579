// Random traffic for the whole device: random configuration, memory behaviour, descriptors good and bad, groups,
// continuations, ABORTs, doorbells that must be refused, slow hosts, interrupts, disables and resets in mid-run.
// Drives the queue_host 'host' that it stands in.
module random_host;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  int   pool;                           // rollout ids in use
  int   longest;                        // typical max_tokens
  int   bad_percent;                    // descriptors made malformed
  int   poll_percent, submit_percent, release_percent;
  logic faults;                         // the memory answers some beats with errors
  int   group_percent;                  // descriptors of groups
  int   prefixes, most_members;         // prefix ids in use; typical members
  logic patient;                        // opens no group that might be refused (R17)
  int   always_groups = 0;              // group_percent is at least this

  // ---------------------------------------------------------------- configuration
  function automatic logic [31:0] near_wrap();
    case (below(4))
      0: near_wrap = 32'd0;
      1: near_wrap = rnd();
      default: near_wrap = -between(1, 40);
    endcase
  endfunction

  task automatic random_config;
    host.default_config;
    host.sq_base    = host.Base + 64 * below(128);
    host.cq_base    = host.Base + 64 * between(300, 400);
    host.token_base = host.Base + 64 * between(600, 900);
    host.token_size = 64 * between(40, 1000);
    host.logp_size  = chance(70) ? host.token_size : 64 * below(int'(host.token_size / 64));
    host.kv_size    = chance(20) ? 64'd0 : {32'd0, rnd()} & ~64'd63;
    host.sq_size    = 32'd1 << between(1, 7);
    host.cq_size    = 32'd1 << between(1, 7);
    host.sq_start   = near_wrap();
    host.cq_start   = near_wrap();
    host.weight     = chance(50) ? 1 : between(1, 5);
    host.coalesce_count = chance(60) ? 0 : between(1, 6);
    host.coalesce_time  = chance(60) ? 0 : between(1, 300);
    if (host.own_function) random_function;
    else begin
      host.length_limit       = bench.limit_of[host.owner];
      host.checkpoint_default = bench.checkpoint_of[host.owner];
      host.reward_threshold   = bench.reward_of[host.owner];
      host.eos_threshold      = bench.eos_of[host.owner];
    end
    if (host.alone) host.wait_states = chance(70) ? 16'd0 : between(1, 4);
    pool            = chance(40) ? between(1, 4) : 1000;
    longest         = chance(30) ? between(1, 4) : between(5, 80);
    bad_percent     = chance(30) ? 0 : between(5, 30);
    poll_percent    = chance(30) ? between(2, 10) : 60;
    submit_percent  = chance(30) ? between(2, 10) : 60;
    release_percent = chance(30) ? 10 : 80;
    rewards         = chance(50) ? 0 : between(2, 20);
    logps           = chance(30) ? 0 : between(20, 100);
    policies        = (!host.alone || chance(50)) ? 0 : between(2, 20);
    scored_valid    = 1'b0;
    group_percent   = chance(35) ? 0 : between(20, 90);
    if (group_percent < always_groups) group_percent = always_groups;
    prefixes        = chance(50) ? between(1, 4) : between(9, Prefixes);
    most_members    = chance(70) ? between(1, 6) : 64;
    patient         = chance(50);
    focus           = 0;
    for (int k = 0; k < Prefixes; k++) begin
      group_of[k] = 0;
      member_of[k] = 0;
    end
  endtask

  task automatic random_function;
    host.length_limit       = chance(50) ? 32'h0010_0000 : between(300, 2000);
    host.checkpoint_default = chance(30) ? between(0, 12) : CHECKPOINT_NEVER;
    host.reward_threshold   = chance(10) ? 32'h8000_0000 | rnd() : below(65536);
    host.eos_threshold      = chance(50) ? 16'd0 : chance(90) ? between(1, 4000) : between(32000, 65535);
    for (int k = 0; k < 16; k++) if (chance(20)) host.range_of[k] = some_range();
    host.workers            = chance(50) ? host.Workers : between(1, host.Workers);
  endtask

  // Of tokens, of anything, of one, of none.
  function automatic logic [63:0] some_range();
    logic [31:0] lo, hi;
    lo = chance(80) ? rnd() & 32'h1_FFFF : rnd();
    hi = chance(20) ? lo : chance(80) ? lo + between(1, 20000) : rnd();
    some_range = {hi, lo};
  endfunction

  task automatic random_memory;
    if (host.alone) begin
      bench.random_memory;
      u_memory.error_r = faults ? between(1, 8) : 0;
      u_memory.error_w = faults ? between(1, 8) : 0;
      u_memory.error_resp = chance(50) ? 2'b10 : 2'b11;
    end
  endtask

  // ---------------------------------------------------------------- descriptors
  function automatic logic [31:0] some_rollout();
    some_rollout = 32'h0100_0000 + below(pool);
  endfunction

  task automatic make_random(output hw_desc_t desc);
    int n, kind;
    kind = below(100);
    n    = chance(80) ? between(1, longest) : chance(90) ? between(1, 40) : between(100, 500);
    if (kind < 72)      host.make_decode(some_rollout(), n, below(4), desc);
    else if (kind < 80) desc = host.blank(OP_NOP, some_rollout());
    else if (kind < 86) desc = host.blank(OP_PREFILL, some_rollout());
    else if (kind < 95) desc = host.blank(OP_STOP, some_rollout());
    else                desc = host.blank(rnd(), some_rollout());
    if (chance(group_percent)) begin
      if (desc.opcode != OP_DECODE) host.make_decode(some_rollout(), n, below(4), desc);
      desc.flags = rnd() & 8'h1A;
      desc.flags[FLAG_FENCE_BIT] = chance(4);
      desc.checkpoint = chance(40) ? between(1, 10) : CHECKPOINT_NEVER;
      make_group(desc);
      desc.policy_version = 16'd0;
      choose_version(desc);
      desc.seq_len    = below(1500);
      if (desc.opcode == OP_DECODE && desc.flags[FLAG_RESIDENT_BIT]) desc.reward_model_id = 16'd0;
    end else make_plain(n, desc);
  endtask

  task automatic make_plain(input int n, inout hw_desc_t desc);
    desc.flags           = rnd() & 8'h1E;
    desc.flags[FLAG_FENCE_BIT] = chance(8);
    desc.kv_arena_id     = rnd();
    desc.member          = rnd();
    desc.prefix_id       = rnd();
    desc.kv_offset       = (chance(50) || host.kv_size == 0) ? 64'd0 : {32'd0, rnd() % host.kv_size[31:0]};
    desc.seq_len         = chance(95) ? below(1500) : host.length_limit - n;
    desc.reward_model_id = (desc.flags[FLAG_RESIDENT_BIT] && desc.opcode == OP_DECODE) ? 16'd0 : rnd();
    desc.checkpoint      = chance(40) ? between(0, 10) : chance(50) ? CHECKPOINT_NEVER : between(11, 80);
    choose_version(desc);
    if (desc.opcode == OP_NOP || desc.opcode == OP_STOP) begin   // these look at nothing else
      desc.model_id     = rnd();
      desc.policy_version = rnd();
      desc.max_tokens   = rnd();
      desc.delta_offset = {rnd(), rnd()};
    end
  endtask

  // ---------------------------------------------------------------- REWARD and POLICY
  hw_desc_t    scored;                  // the DECODE that was submitted last
  logic        scored_valid = 1'b0;
  logic [15:0] next_version = 16'h5A01; // that is published next: a number that was never used

  // Of the tokens of a DECODE of its rollout, complete or not, or of any words that are nobody's, which it fills.
  task automatic make_reward(output hw_desc_t desc);
    int word, n, skipped;
    if (scored_valid && chance(60)) begin
      desc = host.blank(OP_REWARD, scored.rollout_id);
      skipped           = below(int'(scored.max_tokens));
      desc.delta_offset = scored.delta_offset + 4 * skipped;
      desc.max_tokens   = between(1, int'(scored.max_tokens) - skipped);
    end else begin
      desc = host.blank(OP_REWARD, some_rollout());
      n    = chance(20) ? 1 : between(1, 70);
      word = below(int'(host.token_size / 4) - n);
      desc.delta_offset = 4 * word;
      desc.max_tokens   = n;
      if (host.u_score.range_free(word, n))
        for (int k = word; k < word + n; k++)
          u_memory.poke(host.token_base + 4 * k, chance(70) ? rnd() & 32'h1_FFFF
                        : chance(50) ? rnd() : host.range_of[below(16)][32 * below(2) +: 32] + below(3) - 1);
    end
    desc.reward_model_id = below(2);
    desc.seq_len         = rnd();
    desc.policy_version  = rnd();
    desc.checkpoint      = rnd();
    desc.flags           = rnd() & 8'h1C;
    desc.flags[FLAG_FENCE_BIT] = chance(8);
  endtask

  // R19: a host that publishes alone, one at a time. It replaces a version when all that names it is complete, or tries to.
  task automatic put_policy(output logic done);
    hw_desc_t desc;
    logic     bad;
    int       word, kind;
    done = 1'b0;
    word = 16 * below(int'(host.token_size / 64));
    kind = below(100);
    if (!host.u_score.policy_pending && host.u_score.range_free(word, 16)) begin
      host.u_score.next_may_be_busy = host.u_score.in_use_yet(1 - host.u_score.slot_last);
      if (!host.u_score.next_may_be_busy || chance(20)) begin
        host.make_policy(some_rollout(), next_version, below(3), word, desc);
        desc.flags[FLAG_FENCE_BIT] = chance(10);
        host.u_score.next_policy_code  = ERR_NONE;
        host.u_score.next_policy_reads = 1'b1;
        if (kind < 8) begin             // the header does not fit
          bad = 1'b1;
          host.u_score.next_policy_code = ERR_BAD_POLICY;
          u_memory.poke(host.token_base + 4 * word + 4 * below(4), rnd());
        end else if (kind < 16) begin   // it is resident, or has no mode: nothing is read
          host.u_score.next_policy_code  = ERR_BAD_POLICY;
          host.u_score.next_policy_reads = 1'b0;
          host.u_score.next_may_be_busy  = 1'b0;
          if (chance(50)) desc.policy_version = host.u_score.slot_version[host.u_score.slot_last];
          else            desc.checkpoint     = chance(50) ? 3 : rnd() | 32'h100;
        end
        next_version = next_version + 1;
        host.put(desc);
        done = 1'b1;
      end
    end
  endtask

  // The version of a DECODE or PREFILL: the newest, the one before, one that is gone. Not one that may be replaced meanwhile.
  task automatic choose_version(inout hw_desc_t desc);
    int other;
    other = 1 - host.u_score.slot_last;
    desc.policy_version = host.u_score.slot_version[host.u_score.slot_last];
    if (chance(30) && !host.u_score.policy_pending && host.u_score.slot_state[other] != SLOT_EMPTY)
      desc.policy_version = host.u_score.slot_version[other];
    else if (chance(3) && next_version > 16'h5A04) desc.policy_version = next_version - 4;
    if (host.u_score.policy_pending && desc.policy_version == host.u_score.slot_version[other])
      desc.policy_version = host.u_score.slot_version[host.u_score.slot_last];
    // Whether it is still resident when it is read cannot be told.
    if (desc.opcode == OP_PREFILL && host.u_score.policy_pending) desc.opcode = OP_NOP;
  endtask

  // Something of a group (R17): a PREFILL that opens one, a DECODE or STOP of a member, now and then beyond the last or of
  // none, or a STOP of all. The same prefix ids in all queue pairs. Most members come in order; a group in focus is
  // preferred, so that many close.
  localparam int Prefixes = 12;
  int focus, group_of [0:Prefixes-1], member_of [0:Prefixes-1];   // members of the last PREFILL; the next of them

  task automatic make_group(inout hw_desc_t desc);
    int         p, kind;
    logic [7:0] flags;
    p    = chance(60) ? focus : below(prefixes);
    kind = (group_of[p] == 0 || member_of[p] >= group_of[p]) ? below(30) : 20 + below(80);
    flags = desc.flags;
    if (kind < 25) begin
      desc = host.blank(OP_PREFILL, some_rollout());
      desc.flags      = flags & ~FLAG_COW_PREFIX;
      desc.max_tokens = chance(80) ? between(1, most_members) : chance(50) ? 63 + below(2) : between(0, 3);
    end else if (kind < 90) desc.opcode = OP_DECODE;
    else begin
      desc = host.blank(OP_STOP, some_rollout());
      desc.flags = flags;
    end
    desc.prefix_id = (p == 0) ? 32'd0 : 32'hFFFF_FFF0 + p;
    if (desc.opcode == OP_PREFILL) begin
      if (patient && desc.max_tokens != 0
          && (host.u_score.could_be_open(desc.prefix_id) || host.u_score.could_be_taken() >= 8)) desc.opcode = OP_NOP;
      else if (desc.max_tokens != 0) begin
        group_of[p]  = desc.max_tokens;
        member_of[p] = 0;
        focus        = p;
      end
    end else begin
      desc.flags[FLAG_COW_PREFIX_BIT] = 1'b1;
      if (desc.opcode == OP_STOP && chance(50)) desc.member = MEMBER_NONE;
      else if (group_of[p] != 0 && chance(75)) begin
        desc.member  = member_of[p] % group_of[p];
        member_of[p] = member_of[p] + 1;
      end else desc.member = chance(50) ? below(group_of[p] + 1) : chance(50) ? MEMBER_NONE : group_of[p] + below(70);
      if (desc.opcode == OP_DECODE && chance(60)) desc.checkpoint = CHECKPOINT_NEVER;
    end
  endtask

  // One thing out of order. Whether it matters, the reference decides.
  task automatic spoil(inout hw_desc_t desc);
    case (below(15))
      14: desc.policy_version = chance(50) ? 16'd1 << below(16) : rnd();
      0: desc.opcode = rnd();
      1: begin                          // log-probabilities behind their region
        desc.flags[FLAG_LOGP_BIT] = 1'b1;
        desc.delta_offset = host.logp_size - 4 * desc.max_tokens + 4;
      end
      2: desc.flags = desc.flags | (8'h40 << below(2));
      3: desc.model_id = 16'd1 << below(16);
      4: begin
        desc.flags[FLAG_RESIDENT_BIT] = 1'b1;
        desc.reward_model_id = 16'd1 << below(16);
      end
      5: desc.max_tokens = 0;
      6: desc.seq_len = host.length_limit - desc.max_tokens + 1;
      7: desc.seq_len = 32'hFFFF_FFFF - below(3);
      8: desc.delta_offset = desc.delta_offset + between(1, 3);
      9: desc.delta_offset = chance(50) ? host.token_size - 4 * desc.max_tokens + 4
                                        : 64'hFFFF_FFFF_FFFF_FFFC;
      10: desc.kv_offset = host.kv_size + (host.kv_size == 0);
      11: desc.policy_version = 16'd1 << below(16);
      12: desc.max_tokens = 65;         // a PREFILL of too many members
      default: begin
        desc.flags[FLAG_COW_PREFIX_BIT] = 1'b1;
        desc.prefix_id = PREFIX_NONE;
      end
    endcase
  endtask

  // A spoiled or unlucky DECODE must not lay claim to tokens of another.
  function automatic logic fits(input logic [511:0] data);
    hw_desc_t desc;
    desc = data;
    fits = 1'b1;
    if (desc.opcode == OP_DECODE && host.u_score.classify(data, host.sq_tail) == ERR_NONE)
      fits = host.u_score.range_free(int'(desc.delta_offset / 4), int'(desc.max_tokens));
    if (desc.opcode == OP_REWARD && host.u_score.classify(data, host.sq_tail) == ERR_NONE) fits = host.u_score.may_score(desc);
    if (desc.opcode == OP_POLICY && host.u_score.classify(data, host.sq_tail) == ERR_NONE) fits = 1'b0;
    if (desc.opcode == OP_PREFILL && host.u_score.policy_pending) fits = 1'b0;
  endfunction

  task automatic put_random(output logic done);
    hw_desc_t     desc;
    logic [511:0] data;
    logic         spoiled;
    if (chance(rewards)) make_reward(desc);
    else                 make_random(desc);
    // Others than DECODEs have it as well, to no effect; not many reach beyond the region.
    desc.flags[FLAG_LOGP_BIT] = chance(logps)
      && (desc.opcode != OP_DECODE || chance(4) || desc.delta_offset + 4 * desc.max_tokens <= host.logp_size);
    spoiled = chance(bad_percent);
    if (spoiled) spoil(desc);
    data = host.seal(desc);
    // R2: a flipped bit, or a slot that was sealed for the pass before.
    if (spoiled && chance(20)) begin
      if (chance(50)) data = data ^ (512'd1 << between(0, 383));
      else            data = ref_seal(data, host.sq_key, host.sq_tail - host.sq_size);
      data[HW_DESC_USER_DATA_LSB +: 32] = host.sq_tail;
    end
    done = fits(data);
    if (done) host.put_slot(data);
    if (done && desc.opcode == OP_DECODE && host.u_score.classify(data, host.sq_tail - 1) == ERR_NONE) begin
      scored       = desc;
      scored_valid = 1'b1;
    end
  endtask
  int rewards, policies, logps;         // of 100 descriptors

  // R9: goes on where REWARD_NEEDED left off. The tokens behind must still be free.
  logic     go_on;
  hw_desc_t next;
  task automatic put_continuation;
    hw_desc_t desc;
    int       n;
    n = host.last_done.final_seq_len - host.last_desc.seq_len;
    desc = host.last_desc;
    if (host.last_done.status == STATUS_SUPERSEDED || chance(50)) choose_version(desc);
    // Its version may be on its way out: then under the newest.
    if (host.u_score.policy_pending) desc.policy_version = host.u_score.slot_version[host.u_score.slot_last];
    desc.seq_len      = host.last_done.final_seq_len;
    desc.max_tokens   = desc.max_tokens - n;
    desc.delta_offset = desc.delta_offset + 4 * n;
    if (fits(host.seal(desc))) host.put(desc);
  endtask

  // ---------------------------------------------------------------- doorbells that must be refused
  int refused;
  task automatic bad_doorbell;
    logic [31:0] value;
    if (chance(50)) begin
      value = chance(50) ? host.sq_tail + host.sq_size + 1 + below(100) : host.sq_tail - 1 - below(5);
      u_registers.refuse(host.at(REG_DOORBELL), value);
    end else begin
      value = chance(50) ? host.cq_head + host.cq_size + 1 + below(100) : host.cq_head - 1 - below(5);
      u_registers.refuse(host.at(REG_CQ_HEAD), value);
    end
    refused = refused + 1;
  endtask

  // R8: ends the DECODEs of a rollout that are published.
  task automatic abort;
    logic [31:0] state_now, rollout_id;
    rollout_id = some_rollout();
    u_registers.read(host.at(REG_STATE), state_now);
    if ((state_now & STATE_ABORTING) == 0) begin
      host.u_score.abort(rollout_id);
      host.write(REG_ABORT, rollout_id);
      host.expect_read(REG_ABORT, rollout_id);
    end
  endtask

  task automatic arm;
    logic [31:0] index;
    index = host.u_score.cq_seen;
    if (chance(30)) index = index + below(6) - 3;
    if (chance(3))  index = rnd();
    host.write(REG_ARM, index);
    host.expect_read(REG_ARM, index);
  endtask

  // ---------------------------------------------------------------- a run
  localparam int Budget = 3000;         // cycles after which a run submits nothing new

  // Until 'count' descriptors are submitted and complete, or stop_at cycles have passed (negative: never).
  task automatic traffic(input int count, input int stop_at);
    int   submitted, batch, started;
    logic got, ended;
    hw_desc_t desc;
    submitted = 0;
    started   = host.cycle_i;
    ended     = 1'b0;
    refused   = 0;
    while (!ended) begin
      if (host.cycle_i - started > Budget) begin
        submitted       = count;
        poll_percent    = 100;
        release_percent = 100;
      end
      waits_for = $sformatf("the random host waits for completion %0d; published %0d, read %0d, released %0d",
                            host.u_score.cq_seen, host.sq_tail, host.u_score.received, host.cq_head);
      if (submitted < count && chance(submit_percent)) begin
        batch = between(1, 12);
        while (batch > 0 && submitted < count && host.sq_space() > 0) begin
          if (chance(policies)) put_policy(got);
          else                  put_random(got);
          if (got) submitted = submitted + 1;
          batch = batch - 1;
        end
        if (host.sq_tail != host.u_score.published) host.ring;
      end
      if (chance(poll_percent)) begin
        got = 1'b1;
        while (got) begin
          host.poll(got);
          if (got && (host.last_done.status == STATUS_REWARD_NEEDED || host.last_done.status == STATUS_SUPERSEDED) && host.sq_space() > 0) put_continuation;
        end
        if (host.sq_tail != host.u_score.published) host.ring;
      end
      if (chance(release_percent)) host.release_seen;
      if (chance(2)) bad_doorbell;
      if (chance(3)) abort;
      if (chance(10)) arm;
      if (chance(2)) host.set_mask(chance(40));
      repeat (chance(50) ? 1 : between(1, 20)) @(posedge host.clk_i);
      ended = (submitted >= count && host.outstanding() == 0)
           || (stop_at >= 0 && host.cycle_i - started >= stop_at);
    end
  endtask

  task automatic run(input int count);
    random_config;
    random_memory;
    host.enable;
    traffic(count, -1);
    host.release_seen;
    host.expect_all_done;
    host.expect_read(REG_STATUS, {24'd0, 8'(refused > 255 ? 255 : refused)});
    host.fault_expected = faults && host.u_score.bad_beats != 0;
    host.disable_device;
    if (host.alone) host.check_counters;
    if (host.fault_expected) host.write(REG_ERROR, '1);
    host.fault_expected = 1'b0;
    $display("cycle %0d: %0d descriptors, %0d tokens, %0d versions; in all %0d armings, %0d fires, %0d of them by time, %0d messages, %0d groups opened, %0d closed, %0d stopped, %0d refused, %0d publishes refused as busy, %0d superseded, %0d scored, %0d log-probabilities",
             host.cycle_i, host.sq_tail - host.sq_start, host.u_score.tokens, host.u_score.published_versions, host.u_score.armings,
             host.u_score.fires, host.u_score.expired, host.u_score.messages, host.u_score.groups_opened,
             host.u_score.groups_closed, host.u_score.groups_stopped, host.u_score.groups_refused, host.u_score.busy_seen,
             host.u_score.superseded_seen, host.u_score.scored_seen, host.u_score.logps_seen);
  endtask

  // R12: ends in the middle, by a disable or a reset.
  task automatic run_cut(input int cycles);
    random_config;
    random_memory;
    host.enable;
    traffic(1000000, cycles);
    if (!host.alone || chance(70)) begin
      host.fault_expected = faults && host.u_score.bad_beats != 0;
      host.disable_device;
      if (host.fault_expected) host.write(REG_ERROR, '1);
      host.fault_expected = 1'b0;
    end else bench.reset;
  endtask

  // What the benches of 1, 4 and 16 workers do.
  task automatic all(input int runs, input int count);
    @(posedge host.rst_ni);
    @(posedge host.clk_i);
    for (int k = 0; k < runs; k++) begin
      faults = k % 4 == 3;
      if (k % 3 == 2) run_cut(between(1, 1500));
      run(count);
    end
  endtask

  // The same beside the hosts of other queue pairs.
  task automatic share(input int runs, input int count);
    host.alone        = 1'b0;
    host.own_device   = 1'b0;
    host.own_function = 1'b0;
    for (int k = 0; k < runs; k++) begin
      faults = bench.faults;
      if (chance(40)) run_cut(between(1, 1500));
      run(count);
    end
  endtask
endmodule
