// The whole device with memory, register master, monitors and scoreboard around it, and the host as tasks:
// configuration, descriptors, doorbells, completions. A bench instantiates it and calls the tasks.
module top_bench #(
  parameter int Workers         = 4,
  parameter int FetchDepth      = 128,
  parameter int CompletionDepth = 128,
  parameter int Limit           = 400000,        // cycles before the bench hangs
  parameter int Lines           = 2048,          // of the memory, 64 bytes each
  parameter int TokenWords      = 16384          // largest token region
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam logic [63:0] Base  = 64'h0000_0012_3400_0000;

  logic clk, rst_n, irq;
  int   cycle;

  logic [17:0]  s_axil_awaddr, s_axil_araddr;
  logic         s_axil_awvalid, s_axil_awready, s_axil_wvalid, s_axil_wready, s_axil_bvalid, s_axil_bready;
  logic         s_axil_arvalid, s_axil_arready, s_axil_rvalid, s_axil_rready;
  logic [31:0]  s_axil_wdata, s_axil_rdata;
  logic [3:0]   s_axil_wstrb;
  logic [1:0]   s_axil_bresp, s_axil_rresp;
  logic [4:0]   m_axi_awid, m_axi_bid, m_axi_arid, m_axi_rid;
  logic [63:0]  m_axi_awaddr, m_axi_araddr, m_axi_wstrb;
  logic [7:0]   m_axi_awlen, m_axi_arlen;
  logic [2:0]   m_axi_awsize, m_axi_arsize;
  logic [1:0]   m_axi_awburst, m_axi_arburst, m_axi_bresp, m_axi_rresp;
  logic [3:0]   m_axi_awcache, m_axi_arcache;
  logic [2:0]   m_axi_awprot, m_axi_arprot;
  logic         m_axi_awvalid, m_axi_awready, m_axi_wlast, m_axi_wvalid, m_axi_wready, m_axi_bvalid, m_axi_bready;
  logic         m_axi_arvalid, m_axi_arready, m_axi_rlast, m_axi_rvalid, m_axi_rready;
  logic [511:0] m_axi_wdata, m_axi_rdata;
  logic         accept, effect, effect_error;
  logic [4:0]   accept_id, effect_id;
  logic [63:0]  accept_addr, effect_addr, accept_strb, effect_strb;
  logic [511:0] accept_data, effect_data;

  clock_reset #(.Limit(Limit)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  // The bus is reset with the device, or lives on.
  logic bus_lives = 1'b0, m_axi_rst_ni;
  assign m_axi_rst_ni = rst_n || bus_lives;

  rl_runtime_top #(.Workers(Workers), .FetchDepth(FetchDepth), .CompletionDepth(CompletionDepth)) u_device (
    .clk_i(clk), .rst_ni(rst_n), .irq_o(irq), .*
  );

  register_master u_registers (
    .clk_i(clk), .rst_ni(rst_n),
    .awaddr_o(s_axil_awaddr), .awvalid_o(s_axil_awvalid), .awready_i(s_axil_awready),
    .wdata_o(s_axil_wdata), .wstrb_o(s_axil_wstrb), .wvalid_o(s_axil_wvalid), .wready_i(s_axil_wready),
    .bresp_i(s_axil_bresp), .bvalid_i(s_axil_bvalid), .bready_o(s_axil_bready),
    .araddr_o(s_axil_araddr), .arvalid_o(s_axil_arvalid), .arready_i(s_axil_arready),
    .rdata_i(s_axil_rdata), .rresp_i(s_axil_rresp), .rvalid_i(s_axil_rvalid), .rready_o(s_axil_rready)
  );

  memory_model #(.Lines(Lines), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(m_axi_rst_ni),
    .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awvalid_i(m_axi_awvalid), .awready_o(m_axi_awready),
    .wdata_i(m_axi_wdata), .wstrb_i(m_axi_wstrb), .wvalid_i(m_axi_wvalid), .wready_o(m_axi_wready),
    .bid_o(m_axi_bid), .bresp_o(m_axi_bresp), .bvalid_o(m_axi_bvalid), .bready_i(m_axi_bready),
    .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arid_i(m_axi_arid), .arvalid_i(m_axi_arvalid),
    .arready_o(m_axi_arready), .rid_o(m_axi_rid), .rdata_o(m_axi_rdata), .rresp_o(m_axi_rresp),
    .rlast_o(m_axi_rlast), .rvalid_o(m_axi_rvalid), .rready_i(m_axi_rready),
    .accept_o(accept), .effect_o(effect), .effect_error_o(effect_error), .accept_id_o(accept_id),
    .effect_id_o(effect_id), .accept_addr_o(accept_addr), .effect_addr_o(effect_addr), .accept_strb_o(accept_strb),
    .effect_strb_o(effect_strb), .accept_data_o(accept_data), .effect_data_o(effect_data)
  );

  protocol_monitor u_protocol (
    .clk_i(clk), .rst_ni(m_axi_rst_ni),
    .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awlen_i(m_axi_awlen), .awsize_i(m_axi_awsize),
    .awburst_i(m_axi_awburst), .awvalid_i(m_axi_awvalid), .awready_i(m_axi_awready),
    .wdata_i(m_axi_wdata), .wstrb_i(m_axi_wstrb), .wlast_i(m_axi_wlast), .wvalid_i(m_axi_wvalid),
    .wready_i(m_axi_wready), .arid_i(m_axi_arid), .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen),
    .arsize_i(m_axi_arsize), .arburst_i(m_axi_arburst), .arvalid_i(m_axi_arvalid), .arready_i(m_axi_arready)
  );

  scoreboard #(.TokenWords(TokenWords)) u_score (
    .clk_i(clk), .rst_ni(rst_n),
    .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arvalid_i(m_axi_arvalid), .arready_i(m_axi_arready),
    .rresp_i(m_axi_rresp), .rvalid_i(m_axi_rvalid), .rready_i(m_axi_rready),
    .accept_i(accept), .accept_id_i(accept_id), .accept_addr_i(accept_addr), .accept_strb_i(accept_strb),
    .effect_i(effect), .effect_error_i(effect_error), .effect_id_i(effect_id), .effect_addr_i(effect_addr),
    .effect_strb_i(effect_strb), .effect_data_i(effect_data), .irq_i(irq)
  );

  // ---------------------------------------------------------------- configuration
  logic [63:0] sq_base, cq_base, token_base, token_size, kv_size;
  logic [31:0] sq_key, sq_size, cq_size, sq_start, cq_start, length_limit, checkpoint_default, reward_threshold;
  logic [15:0] eos_threshold, wait_states;
  int          workers;

  // A plain one, for directed cases to change. The bases are odd multiples of 64.
  task automatic default_config;
    sq_base            = Base + 64 * 3;
    cq_base            = Base + 64 * 301;
    token_base         = Base + 64 * 601;
    token_size         = 64'd65536;
    kv_size            = 64'd4096;
    sq_size            = 64;
    cq_size            = 64;
    sq_start           = 0;
    cq_start           = 0;
    length_limit       = 32'h0010_0000;
    checkpoint_default = CHECKPOINT_NEVER;
    reward_threshold   = 0;
    sq_key             = rnd();
    eos_threshold      = 0;
    wait_states     = 0;
    workers            = Workers;
  endtask

  function automatic int some(input int most);
    some = chance(50) ? 0 : between(0, most);
  endfunction

  // Latencies and stalls as chance will have them, no errors.
  task automatic random_memory;
    u_memory.read_latency  = some(64);
    u_memory.read_jitter   = some(40);
    u_memory.write_latency = some(64);
    u_memory.write_jitter  = some(100);
    u_memory.stall_ar      = some(70);
    u_memory.stall_r       = some(70);
    u_memory.stall_aw      = some(70);
    u_memory.stall_w       = some(70);
    u_memory.stall_b       = some(70);
    u_memory.early_effect  = chance(25);
    u_memory.error_r       = 0;
    u_memory.error_w       = 0;
    u_registers.delay      = some(60);
  endtask

  task automatic write64(input logic [17:0] addr, input logic [63:0] value);
    u_registers.write(addr, value[31:0]);
    u_registers.write(addr + 18'd4, value[63:32]);
  endtask

  task automatic write_config;
    write64(REG_SQ_BASE_LO, sq_base);
    write64(REG_CQ_BASE_LO, cq_base);
    write64(REG_TOKEN_BASE_LO, token_base);
    write64(REG_TOKEN_SIZE_LO, token_size);
    write64(REG_KV_SIZE_LO, kv_size);
    u_registers.write(REG_SQ_SIZE, sq_size);
    u_registers.write(REG_CQ_SIZE, cq_size);
    u_registers.write(REG_SQ_START, sq_start);
    u_registers.write(REG_CQ_START, cq_start);
    u_registers.write(REG_CHECKPOINT_DEFAULT, checkpoint_default);
    u_registers.write(REG_WAIT_STATES, {16'd0, wait_states});
    u_registers.write(REG_LENGTH_LIMIT, length_limit);
    u_registers.write(REG_EOS_THRESHOLD, {16'd0, eos_threshold});
    u_registers.write(REG_REWARD_THRESHOLD, reward_threshold);
    u_registers.write(REG_SQ_KEY, sq_key);
    u_registers.write(REG_FN_WORKERS, (64'd1 << workers) - 1);
  endtask

  // Fills the queues as a host does: a CQ slot must not look fresh, a SQ slot may hold anything.
  task automatic prepare_memory;
    for (int k = 0; k < Lines; k++) u_memory.line[k] = {16{rnd()}};
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
    u_registers.write(REG_CONTROL, CONTROL_ENABLE);
    await_state(STATE_ACTIVE, STATE_ACTIVE, "STATE.ACTIVE after an enable");
  endtask

  // All that comes before ENABLE.
  task automatic configure;
    prepare_memory;
    write_config;
    u_score.sq_base = sq_base;       u_score.sq_size = sq_size;
    u_score.cq_base = cq_base;       u_score.cq_size = cq_size;
    u_score.token_base = token_base; u_score.token_size = token_size;
    u_score.kv_size = kv_size;       u_score.length_limit = length_limit;
    u_score.checkpoint_default = checkpoint_default;
    u_score.eos_threshold = eos_threshold;
    u_score.reward_threshold = reward_threshold;
    u_score.sq_key           = sq_key;
    u_score.workers = workers;
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
    u_registers.read(REG_STATE, state_now);
    tries = 0;
    while ((state_now & mask) != value) begin
      tries = tries + 1;
      if (tries == 2000) $fatal(1, "hang: %0s", waits_for);
      u_registers.read(REG_STATE, state_now);
    end
  endtask

  // R12: once ACTIVE reads 0, nothing is in flight and nothing follows.
  task automatic disable_device;
    u_score.armed = 1'b0;               // no interrupt is owed for what is dropped
    u_registers.write(REG_CONTROL, 0);
    await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a disable");
    u_protocol.quiet = 1'b1;
    u_score.stop;
    if (u_memory.pending != 0) fail("R12: ACTIVE fell with writes in flight");
    u_protocol.expect_balanced;
    u_registers.expect_read(REG_STATE, fault_expected ? STATE_IDLE | STATE_FAULT : STATE_IDLE);
    repeat (20) @(posedge clk);
  endtask
  logic fault_expected = 1'b0;          // the memory answered something with an error

  // R12: reset at any moment.
  task automatic reset;
    u_protocol.quiet = 1'b1;
    u_score.stop;
    u_clock.reset(between(1, 4));
  endtask

  // R12: reset of the device alone. The bus gets what it was promised, and ACTIVE falls when nothing is left.
  task automatic reset_device;
    bus_lives = 1'b1;
    u_score.stop;
    u_clock.reset(between(1, 4));
    await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a reset of the device");
    u_protocol.quiet = 1'b1;
    if (u_memory.pending != 0) fail("R12: ACTIVE fell with writes in flight");
    if (u_memory.ar_head != u_memory.ar_tail || m_axi_rvalid) fail("R12: ACTIVE fell with reads in flight");
    u_protocol.expect_balanced;
    repeat (20) @(posedge clk);
    bus_lives = 1'b0;
  endtask

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
    u_registers.write(REG_DOORBELL, sq_tail);
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
      repeat (2) @(posedge clk);        // the scoreboard learns of a write one cycle after the memory
      u_score.cq_released = cq_head;
      u_registers.write(REG_CQ_HEAD, cq_head);
      u_score.cq_confirmed = cq_head;
    end
  endtask

  // Waits for the next completion; limit in cycles.
  task automatic await_completion(input int limit);
    logic got;
    int   waited;
    waited = 0;
    got    = 1'b0;
    while (!got) begin
      @(posedge clk);
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
    u_registers.expect_read(REG_DOORBELL, sq_tail);
    u_registers.expect_read(REG_CQ_HEAD, cq_head);
  endtask

  task automatic expect_counter(input logic [17:0] addr, input string name, input int expected);
    logic [63:0] value;
    u_registers.read64(addr, value);
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
