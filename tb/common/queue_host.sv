// The host of one queue pair of top_bench, as tasks: configuration, descriptors, doorbells, completions; with a scoreboard
// that watches what the device does for it, and with random traffic. Each has a part of the memory for itself.
module queue_host #(
  parameter int Pair       = 0,
  parameter int Lines      = 3072,
  parameter int TokenWords = 16384,
  parameter int Workers    = 4
) (
  input logic         clk_i,
  input logic         rst_ni,
  input int           cycle_i,
  input logic [3:0]   aruser_i,
  input logic [63:0]  araddr_i,
  input logic [7:0]   arlen_i,
  input logic [5:0]   arid_i,
  input logic [5:0]   rid_i,
  input logic         arvalid_i,
  input logic         arready_i,
  input logic [1:0]   rresp_i,
  input logic         rlast_i,
  input logic         rvalid_i,
  input logic         rready_i,
  input logic         accept_i,
  input logic [5:0]   accept_id_i,
  input logic [63:0]  accept_addr_i,
  input logic [63:0]  accept_strb_i,
  input logic         effect_i,
  input logic         effect_error_i,
  input logic [5:0]   effect_id_i,
  input logic [63:0]  effect_addr_i,
  input logic [63:0]  effect_strb_i,
  input logic [511:0] effect_data_i,
  input logic [3:0]   awuser_i,
  input logic [5:0]   awid_i,
  input logic [63:0]  awaddr_i,
  input logic         awvalid_i
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam logic [63:0] Base = 64'h0000_0012_3400_0000 + 64 * Lines * Pair;

  scoreboard #(.Pair(Pair), .Base(Base), .Bytes(64 * Lines), .TokenWords(TokenWords)) u_score (.*);
  random_host traffic ();
  policy_load load ();

  // Random traffic beside that of other hosts, when the bench says so.
  initial begin
    while (bench.go[Pair] !== 1'b1) @(posedge clk_i);
    owner = bench.owner_of[Pair];
    mask  = bench.mask_of[owner];
    traffic.share(bench.runs, bench.count);
    bench.over[Pair] = 1'b1;
  end

  // ---------------------------------------------------------------- registers
  int   owner       = 0;                // function of the queue pair
  logic alone       = 1'b1;             // no other queue pair is enabled meanwhile
  logic own_device  = 1'b1;             // sets what the device's owner sets, …
  logic own_function = 1'b1;            // … and what its function sets

  // The address of a register for this queue pair and its function.
  function automatic logic [17:0] at(input logic [17:0] addr);
    if (addr[17:16] == 2'b10)      at = addr + BLOCK_QUEUE_PER_QUEUE * Pair;
    else if (addr[17:16] == 2'b01) at = addr + BLOCK_FUNCTION_PER_FUNCTION * owner
                                      + (addr[11] ? BLOCK_FUNCTION_QUEUE_PER_QUEUE * Pair : 18'd0);
    else if (addr[17:12] == 6'd1)  at = addr + BLOCK_DEVICE_MESSAGE_PER_QUEUE * Pair;
    else if (addr[11:10] == 2'b01) at = addr + BLOCK_DEVICE_FUNCTION_PER_FUNCTION * owner;
    else if (addr[11:10] == 2'b10) at = addr + BLOCK_DEVICE_QUEUE_PER_QUEUE * Pair;
    else                           at = addr;
  endfunction

  task automatic write(input logic [17:0] addr, input logic [31:0] data);
    u_registers.write(at(addr), data);
  endtask

  task automatic expect_read(input logic [17:0] addr, input logic [31:0] expected);
    u_registers.expect_read(at(addr), expected);
  endtask

  // ---------------------------------------------------------------- configuration
  logic [63:0] sq_base, cq_base, token_base, token_size, kv_base, kv_size, logp_base, logp_size;
  logic [63:0] model_base, model_size;  // with an engine 1
  logic [31:0] sq_key, sq_size, cq_size, sq_start, cq_start, length_limit, checkpoint_default, reward_threshold;
  logic [63:0] range_of [0:15];         // of reward model 1: last, first
  logic [15:0] eos_threshold, wait_states, coalesce_count;
  logic [31:0] coalesce_time;
  int          workers;                 // the first so many may be used; or, where it is not 0, …
  logic [15:0] mask;                    // … those of this mask
  int          weight;

  function automatic logic [15:0] in_use();
    in_use = (mask != 0) ? mask : 16'((17'd1 << workers) - 17'd1);
  endfunction

  // A plain one, for directed cases to change. The bases are odd multiples of 64.
  task automatic default_config;
    sq_base            = Base + 64 * 3;
    cq_base            = Base + 64 * 301;
    token_base         = Base + 64 * 601;
    token_size         = 64'd65536;
    kv_base            = Base + 64 * 1641;
    kv_size            = 64'd4096;
    model_base         = Base + 64 * 1721;
    model_size         = 64'd16384;
    logp_base          = Base + 64 * (Lines - 1025);
    logp_size          = 64'd65536;
    sq_size            = 64;
    cq_size            = 64;
    sq_start           = 0;
    cq_start           = 0;
    length_limit       = 32'h0010_0000;
    checkpoint_default = CHECKPOINT_NEVER;
    reward_threshold   = 0;
    for (int k = 0; k < 16; k++) range_of[k] = 64'h0000_0000_FFFF_FFFF;
    sq_key             = rnd();
    eos_threshold      = 0;
    wait_states     = 0;
    coalesce_count     = 0;
    coalesce_time      = 0;
    workers            = Workers;
    mask               = bench.go[Pair] ? bench.mask_of[owner] : 16'd0;
    weight             = 1;
  endtask

  logic [63:0] range_set [0:15];        // as they are in the device
  initial for (int k = 0; k < 16; k++) range_set[k] = 64'h0000_0000_FFFF_FFFF;
  always @(posedge clk_i) if (!rst_ni) for (int k = 0; k < 16; k++) range_set[k] = 64'h0000_0000_FFFF_FFFF;

  task automatic write64(input logic [17:0] addr, input logic [63:0] value);
    u_registers.write64(at(addr), value);
  endtask

  task automatic write_config;
    if (own_device) begin
      write(REG_QUEUE_FUNCTION, owner);
      write(REG_FN_WORKERS, in_use());
      if (alone) write(REG_WAIT_STATES, {16'd0, wait_states});
    end
    if (bench.Engines > 1) begin
      write64(REG_KV_BASE_LO, kv_base);
      if (own_function) write64(REG_MODEL_BASE_LO, model_base);
      if (own_function) write64(REG_MODEL_SIZE_LO, model_size);
    end
    if (own_function) begin
      write(REG_CHECKPOINT_DEFAULT, checkpoint_default);
      write(REG_LENGTH_LIMIT, length_limit);
      write(REG_EOS_THRESHOLD, {16'd0, eos_threshold});
      write(REG_REWARD_THRESHOLD, reward_threshold);
      // As few as there are: the others stay as they are.
      for (int k = 0; k < 16; k++) if (range_of[k] != range_set[k]) begin
        write64(REG_RANGE_0_LO + 8 * k, range_of[k]);
        range_set[k] = range_of[k];
      end
    end
    write64(REG_SQ_BASE_LO, sq_base);
    write64(REG_CQ_BASE_LO, cq_base);
    write64(REG_TOKEN_BASE_LO, token_base);
    write64(REG_TOKEN_SIZE_LO, token_size);
    write64(REG_KV_SIZE_LO, kv_size);
    write64(REG_LOGP_BASE_LO, logp_base);
    write64(REG_LOGP_SIZE_LO, logp_size);
    write(REG_SQ_SIZE, sq_size);
    write(REG_CQ_SIZE, cq_size);
    write(REG_SQ_START, sq_start);
    write(REG_CQ_START, cq_start);
    write(REG_SQ_KEY, sq_key);
    write(REG_COALESCE_COUNT, {rnd(), coalesce_count});
    write(REG_COALESCE_TIME, coalesce_time);
    write_message;
    write(REG_WEIGHT, weight);
  endtask

  // The entry of the table of messages: somewhere in a page that is no memory of any function, and not masked.
  localparam logic [63:0] Messages = 64'h0000_0012_3400_0000 - 64'd4096;
  task automatic write_message;
    u_score.message_addr = Messages + 4 * below(1024);
    u_score.message_data = rnd();
    write64(REG_MESSAGE_ADDRESS_LO, u_score.message_addr);
    write(REG_MESSAGE_DATA, u_score.message_data);
    set_mask(1'b0);
  endtask

  task automatic set_mask(input logic masked);
    if (masked) u_score.masked = 1'b1;
    write(REG_MESSAGE_CONTROL, {31'd0, masked});
    u_score.masked = masked;
  endtask

  // Fills the queues as a host does: a CQ slot must not look fresh, a SQ slot may hold anything.
  task automatic prepare_memory;
    for (int k = 0; k < Lines; k++) u_memory.line[Pair * Lines + k] = {16{rnd()}};
    for (int k = 0; k < int'(cq_size); k++)
      for (int half = 12; half < 32; half += 16)
        u_memory.poke(cq_base + 32 * ((cq_start + k) % cq_size) + half, {!phase_of(cq_start + k), 31'd0});
  endtask

  function automatic logic phase_of(input logic [31:0] index);
    phase_of = (index / cq_size) % 2 == 0;
  endfunction

  // Host's own indices.
  logic [31:0] sq_tail, sq_head, cq_head;

  task automatic enable;
    configure;
    write(REG_CONTROL, CONTROL_ENABLE);
    await_state(STATE_ACTIVE, STATE_ACTIVE, "STATE.ACTIVE after an enable");
  endtask

  // All that comes before ENABLE.
  task automatic configure;
    prepare_memory;
    write_config;
    u_score.sq_base = sq_base;       u_score.sq_size = sq_size;
    u_score.cq_base = cq_base;       u_score.cq_size = cq_size;
    u_score.token_base = token_base; u_score.token_size = token_size;
    u_score.logp_base = logp_base;   u_score.logp_size = logp_size;
    u_score.model_base = model_base; u_score.model_size = (bench.Engines > 1) ? model_size : 64'd0;
    u_score.kv_size = kv_size;       u_score.length_limit = length_limit;
    u_score.checkpoint_default = checkpoint_default;
    u_score.eos_threshold = eos_threshold;
    u_score.reward_threshold = reward_threshold;
    u_score.sq_key           = sq_key;
    u_score.coalesce_count   = coalesce_count;
    u_score.coalesce_time    = coalesce_time;
    for (int k = 0; k < 16; k++) u_score.range_of[k] = range_of[k];
    u_score.in_use = in_use();
    u_score.owner  = owner;
    u_score.start(sq_start, cq_start);
    sq_tail = sq_start;
    sq_head = sq_start;
    cq_head = cq_start;
    token_next = 0;
    u_protocol.quiet = 1'b0;
  endtask

  task automatic await_state(input logic [31:0] mask, input logic [31:0] value, input string what);
    logic [31:0] state_now;
    int tries;
    waits_for = {"the host waits for ", what};
    u_registers.read(at(REG_STATE), state_now);
    tries = 0;
    while ((state_now & mask) != value) begin
      tries = tries + 1;
      if (tries == 2000) $fatal(1, "hang: %0s", waits_for);
      u_registers.read(at(REG_STATE), state_now);
    end
  endtask

  // R12: once ACTIVE reads 0, nothing is in flight and nothing follows.
  task automatic disable_device;
    write(REG_CONTROL, 0);
    await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a disable");
    u_score.end_of_life;
    // The memory may have answered with an error while it drained.
    if (u_score.bad_beats != 0) fault_expected = 1'b1;
    if (alone) begin
      u_protocol.quiet = 1'b1;
      if (u_memory.pending != 0) fail("R12: ACTIVE fell with writes in flight");
      u_protocol.expect_balanced;
    end
    u_registers.expect_read(at(REG_STATE), fault_expected ? STATE_IDLE | STATE_FAULT : STATE_IDLE);
    repeat (20) @(posedge clk_i);
  endtask
  logic fault_expected = 1'b0;          // the memory answered something with an error

  // ---------------------------------------------------------------- descriptors
  int token_next;                       // where the next tokens may go, in words

  function automatic hw_desc_t blank(input logic [7:0] opcode, input logic [31:0] rollout_id);
    hw_desc_t desc;
    desc            = '0;
    desc.opcode     = opcode;
    desc.rollout_id = rollout_id;
    desc.prefix_id  = PREFIX_NONE;
    desc.checkpoint = CHECKPOINT_NEVER;
    desc.user_data  = {rnd(), 32'd0};
    desc.seed       = rnd();
    blank           = desc;
  endfunction

  // A DECODE whose tokens go behind those of the one before; gap words are left free.
  task automatic make_decode(input logic [31:0] rollout_id, input int max_tokens, input int gap, output hw_desc_t desc);
    if (token_next + gap + max_tokens > int'(token_size / 4)) token_next = 0;
    token_next        = token_next + gap;
    desc              = blank(OP_DECODE, rollout_id);
    desc.max_tokens   = max_tokens;
    desc.delta_offset = 4 * token_next;
    token_next        = token_next + max_tokens;
  endtask

  // A POLICY whose header lies at this word, which the bench has found free; the header goes there. Nothing is wrong with it.
  task automatic make_policy(input logic [31:0] rollout_id, input logic [15:0] version, input logic [7:0] mode, input int word,
                             output hw_desc_t desc);
    logic [127:0] header;
    desc                = blank(OP_POLICY, rollout_id);
    desc.policy_version = version;
    desc.checkpoint     = mode;
    desc.delta_offset   = 4 * word;
    header              = ref_policy(version, u_score.salt_of(version));
    for (int k = 0; k < 4; k++) u_memory.poke(token_base + 4 * (word + k), header[32*k +: 32]);
  endtask

  function automatic int sq_space();
    sq_space = int'(sq_size - (sq_tail - sq_head));
  endfunction

  // Writes a sealed descriptor into its slot; it is published by ring. user_data names the index.
  task automatic put_slot(input logic [511:0] data);
    if (sq_space() <= 0) $fatal(1, "top_bench: the bench overfills the submission queue");
    for (int k = 0; k < 16; k++) u_memory.poke(sq_base + 64 * (sq_tail % sq_size) + 4 * k, data[32*k +: 32]);
    u_score.publish(data);
    sq_tail = sq_tail + 1;
  endtask

  function automatic logic [511:0] seal(input hw_desc_t desc);
    desc.user_data[31:0] = sq_tail;
    seal = ref_seal(desc, sq_key, sq_tail);
  endfunction

  task automatic put(input hw_desc_t desc);
    put_slot(seal(desc));
  endtask

  task automatic ring;
    u_score.published = sq_tail;
    write(REG_DOORBELL, sq_tail);
  endtask

  // ---------------------------------------------------------------- completions
  hw_completion_t last_done;            // the newest that was read, and its descriptor
  hw_desc_t       last_desc;
  logic [31:0]    last_index;

  function automatic logic [255:0] cq_slot(input logic [31:0] index);
    for (int k = 0; k < 8; k++) cq_slot[32*k +: 32] = u_memory.peek(cq_base + 32 * (index % cq_size) + 4 * k);
  endfunction

  // Reads one completion, if both its phases are fresh, and puts the length in place of the first.
  task automatic poll(output logic got);
    hw_completion_t done;
    done = cq_slot(u_score.cq_seen);
    got  = done.phase === {phase_of(u_score.cq_seen), 7'd0} && done.final_seq_len[31] === done.phase[7]
        && u_score.cq_seen - cq_head < cq_size;
    if (got) begin
      done.final_seq_len[31] = 1'b0;
      u_score.check(done, last_index, last_desc);
      last_done = done;
      // What the device has consumed is the host's again: nothing of it may be read any more.
      while (sq_head != done.sq_head) begin
        for (int k = 0; k < 16; k++) u_memory.poke(sq_base + 64 * (sq_head % sq_size) + 4 * k, rnd());
        sq_head = sq_head + 1;
      end
    end
  endtask

  task automatic release_seen;
    if (cq_head != u_score.cq_seen) begin
      cq_head = u_score.cq_seen;
      repeat (2) @(posedge clk_i);        // the scoreboard learns of a write one cycle after the memory
      u_score.cq_released = cq_head;
      write(REG_CQ_HEAD, cq_head);
    end
  endtask

  // Waits for the next completion; limit in cycles.
  task automatic await_completion(input int limit);
    logic got;
    int   waited;
    waited = 0;
    got    = 1'b0;
    while (!got) begin
      @(posedge clk_i);
      poll(got);
      waited = waited + 1;
      if (!got && waited > limit)
        $fatal(1, "hang: the host waits for completion %0d, published %0d, read %0d", u_score.cq_seen, sq_tail,
               u_score.received);
    end
  endtask

  task automatic await_completions(input int count, input int limit);
    repeat (count) begin
      await_completion(limit);
      release_seen;
    end
  endtask

  function automatic int outstanding();
    outstanding = int'((sq_tail - sq_start) - (u_score.cq_seen - cq_start));
  endfunction

  // Everything is done: counters and state must say so.
  task automatic expect_all_done;
    waits_for = "the host waits for IDLE";
    if (outstanding() != 0) fail($sformatf("%0d descriptors without a completion", outstanding()));
    await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
    if (u_score.oldest != u_score.tail) fail("R3: a completion was read that was never acknowledged");
    u_registers.expect_read(at(REG_DOORBELL), sq_tail);
    u_registers.expect_read(at(REG_CQ_HEAD), cq_head);
    check_own_counters;
  endtask

  // Those of the queue pair, once nothing is outstanding.
  task automatic check_own_counters;
    expect_counter(CNT_QUEUE_DESCRIPTORS, "DESCRIPTORS of the queue pair", u_score.received - sq_start);
    expect_counter(CNT_QUEUE_COMPLETIONS, "COMPLETIONS of the queue pair", u_score.cq_visible - cq_start);
    expect_counter(CNT_QUEUE_TOKENS, "TOKENS of the queue pair", u_score.tokens);
    expect_counter(CNT_QUEUE_ERRORS, "ERRORS of the queue pair", u_score.errors_seen);
  endtask

  task automatic expect_counter(input logic [17:0] addr, input string name, input int expected);
    logic [63:0] value;
    u_registers.read64(at(addr), value);
    expect_eq({"counter ", name}, value, expected);
  endtask

  // After a disable: the counters stand still.
  task automatic check_counters;
    logic [63:0] cycles, busy, idle, waiting, stalled;
    expect_counter(CNT_DESCRIPTORS, "DESCRIPTORS", u_score.received - sq_start);
    expect_counter(CNT_COMPLETIONS, "COMPLETIONS", u_score.cq_visible - cq_start);
    expect_counter(CNT_TOKENS, "TOKENS", u_score.tokens);
    expect_counter(CNT_READ_BEATS, "READ_BEATS", u_score.read_beats);
    expect_counter(CNT_WRITE_BEATS, "WRITE_BEATS", u_score.write_beats);
    expect_counter(CNT_PREFIXES, "PREFIXES", u_score.prefixes);
    expect_counter(CNT_ERRORS, "ERRORS", u_score.errors_seen);
    u_registers.read64(CNT_CYCLES, cycles);
    u_registers.read64(CNT_BUSY, busy);
    u_registers.read64(CNT_IDLE, idle);
    u_registers.read64(CNT_WAIT, waiting);
    u_registers.read64(CNT_STALL_WRITE, stalled);
    expect_eq("BUSY + IDLE", busy + idle, cycles * workers);
    if (waiting + stalled + u_score.tokens > busy) fail("WAIT + STALL_WRITE + TOKENS exceed BUSY");
  endtask

  // ---------------------------------------------------------------- frame of a directed case
  task automatic begin_case(input string name);
    $display("case %0s", name);
    default_config;
  endtask

  task automatic end_case;
    release_seen;
    expect_all_done;
    disable_device;
    check_counters;
  endtask

  task automatic put_decode(input logic [31:0] rollout_id, input int max_tokens);
    hw_desc_t desc;
    make_decode(rollout_id, max_tokens, 0, desc);
    put(desc);
  endtask
endmodule
