// desc_check against the reference: the error code, what is echoed, and what a worker needs, of random good and
// malformed descriptors of four queue pairs, each against what its queue pair was started with; in order, none lost, with
// and without gaps; of a queue pair that is off nothing comes out. Once without an engine 1, and once with it.
module desc_check_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  desc_check_run #(.Engines(1)) u_one (.clk(clk), .rst_n(rst_n), .cycle(cycle));
  desc_check_run #(.Engines(2)) u_two (.clk(clk), .rst_n(rst_n), .cycle(cycle));

  initial begin
    @(posedge rst_n);
    while (!(u_one.over && u_two.over)) @(posedge clk);
    finish_bench("desc_check_tb");
  end
endmodule

module desc_check_run #(
  parameter int Engines = 1
) (
  input logic clk,
  input logic rst_n,
  input int   cycle
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic over = 1'b0;

  localparam logic [63:0] TokenBase = 64'h7_8000_0FC0;
  localparam logic [63:0] TokenSize = 64'd4000;
  localparam logic [63:0] LogpSize  = 64'd3000;

  localparam int Queues = 4;
  logic [63:0]  kv_size_of [0:Queues-1];
  logic [31:0]  length_limit_of [0:Queues-1], checkpoint_default_of [0:Queues-1], sq_key_of [0:Queues-1];
  // Of the descriptor that is made or checked.
  logic [63:0]  kv_size;
  logic [31:0]  length_limit, checkpoint_default, sq_key;
  logic         clear = 1'b1, start = 1'b0;
  logic [3:0]   start_queue = '0, slot_queue = '0;
  queue_config_t start_config = '0;
  logic [Queues-1:0] on = '0, busy;

  task automatic look_at(input int queue);
    kv_size            = kv_size_of[queue];
    length_limit       = length_limit_of[queue];
    checkpoint_default = checkpoint_default_of[queue];
    sq_key             = sq_key_of[queue];
  endtask

  logic         slot_valid = 1'b0, slot_fault = 1'b0, work_valid;
  logic [511:0] slot_data = '0;
  logic [31:0]  slot_index = '0;
  work_t        work;
  echo_t        echo;
  logic         fence, prefill, stop, leave, leave_slot;
  logic [3:0]   leave_queue;
  logic [2:0]   version = '0;           // found, resident, slot: of a DECODE or PREFILL, as the device looks up no other
  logic         version_engine = 1'b0;  // and of engine 1, with so many positions
  logic [31:0]  version_positions = '0;
  logic [2:0]   in_version [0:7];
  logic [32:0]  in_engine [0:7];
  int           languages = 0, foreign = 0, too_long = 0;
  int           thrown = 0, read_backs = 0;

  desc_check #(.Queues(Queues), .Engines(Engines)) u_check (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .on_i(on),
    .slot_valid_i(slot_valid), .slot_data_i(slot_data), .slot_fault_i(slot_fault), .slot_index_i(slot_index),
    .slot_queue_i(slot_queue), .work_valid_o(work_valid), .work_o(work), .echo_o(echo), .fence_o(fence),
    .prefill_o(prefill), .stop_o(stop), .leave_o(leave), .leave_queue_o(leave_queue), .leave_slot_o(leave_slot), .busy_o(busy),
    .version_found_i(version[2]), .version_resident_i(version[1]), .version_slot_i(version[0]),
    .version_engine_i(version_engine), .version_positions_i(version_positions)
  );

  int stall_in, seen = 0;
  int codes [0:255];
  int seekers = 0;

  // What went in and has not come out.
  logic [511:0] in_data [0:7];
  logic [31:0]  in_index [0:7];
  logic         in_fault [0:7];
  int           in_cycle [0:7];
  int           in_queue [0:7];
  int           entered = 0, left = 0, held;

  function automatic logic [511:0] random_slot(input logic [31:0] index);
    hw_desc_t desc;
    desc = {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    case (below(6))
      0: desc.opcode = OP_NOP;
      1: desc.opcode = OP_STOP;
      2: desc.opcode = chance(50) ? OP_PREFILL : OP_POLICY;
      3: desc.opcode = chance(20) ? rnd() : chance(50) ? OP_REWARD : OP_DECODE;
      default: desc.opcode = OP_DECODE;
    endcase
    desc.flags           = desc.flags & (chance(90) ? 8'h3F : 8'hFF);
    desc.policy_version  = chance(92) ? 16'd0 : 16'd1 << below(16);
    desc.model_id        = chance(92) ? (Engines > 1 && chance(60)) : 16'd1 << below(16);
    desc.reward_model_id = chance(80) ? below(3) : rnd();
    if (desc.opcode == OP_DECODE && chance(80)) desc.reward_model_id = 16'd0;
    desc.member          = chance(70) ? below(70) : chance(50) ? MEMBER_NONE : rnd();
    desc.max_tokens      = (desc.opcode == OP_PREFILL && chance(70)) ? below(67) : chance(94) ? between(1, 100) : chance(50) ? 32'd0 : rnd();
    desc.seq_len         = chance(90) ? below(400) : chance(50) ? -below(60) : length_limit - desc.max_tokens + below(2);
    desc.delta_offset    = chance(85) ? 4 * below(1000) : chance(50) ? 4 * ((chance(50) ? 1000 : 750) - desc.max_tokens) + 4 * below(2)
                         : chance(50) ? -64'(4 * below(100)) : {rnd(), rnd()};
    if (chance(5)) desc.delta_offset = desc.delta_offset + between(1, 3);
    if (chance(5)) desc.delta_offset = '0;
    if (chance(5)) desc.seq_len = 32'd0;
    if (desc.opcode == OP_POLICY && chance(85)) desc.delta_offset = chance(30) ? (64'd3904 & ~64'd63) + 64 * (below(3) - 1) : 64 * below(62);
    desc.kv_offset       = chance(60) ? 64'd0 : chance(80) ? {32'd0, rnd()} & 64'hFFF : kv_size - below(2);
    if (Engines > 1 && chance(80)) desc.kv_offset = chance(70) ? 64 * below(64) : chance(70) ? (kv_size & ~64'd63) - 64 * below(3)
                                                  : chance(50) ? kv_size - 64 : 64'd1 << between(6, 63);
    if (chance(85)) desc.kv_arena_id = chance(90) ? below(4) : 16'd1 << below(16);
    desc.prefix_id       = chance(80) ? rnd() : chance(50) ? 32'd0 : PREFIX_NONE;
    desc.checkpoint      = chance(40) ? 32'd0 : chance(50) ? CHECKPOINT_NEVER : between(1, 20);
    if (desc.opcode == OP_POLICY && chance(80)) desc.checkpoint = below(4);
    random_slot = ref_seal(desc, sq_key, index);
    if (chance(4)) random_slot = random_slot ^ (512'd1 << below(512));
    if (chance(2)) random_slot = ref_seal(desc, sq_key, index - 64);
    if (chance(2)) random_slot = ref_seal(desc, sq_key ^ (32'd1 << below(32)), index);
    if (chance(2)) random_slot = '0;
  endfunction

  function automatic logic names_engine(input hw_desc_t desc);
    names_engine = desc.opcode == OP_DECODE || desc.opcode == OP_PREFILL;
  endfunction

  task automatic check_one(input int queue, input logic [511:0] data, input logic [31:0] index, input logic fault,
                           input logic [2:0] version, input logic [32:0] engine);
    hw_desc_t    desc;
    echo_t       want;
    logic [7:0]  code;
    logic [31:0] checkpoint;
    logic        good;
    look_at(queue);
    desc = data;
    code = fault ? ERR_DMA_FAULT : ref_error(desc, sq_key, index, TokenSize, queue == 1 ? 64'd0 : LogpSize, kv_size,
                                              length_limit, Engines);
    if (!fault && code == ERR_NONE && names_engine(desc) && version[2]) begin
      if (desc.model_id != engine[32]) foreign = foreign + 1;
      else if (ref_version(code, desc, version[2], version[1], engine[32], engine[31:0]) == ERR_BAD_LENGTH) too_long = too_long + 1;
    end
    if (!fault) code = ref_version(code, desc, version[2], version[1], engine[32], engine[31:0]);
    good = code == 0;
    codes[code] = codes[code] + 1;
    want             = '0;
    want.pair        = 4'(queue);
    want.irq         = !good || desc.flags[FLAG_INTERRUPT_BIT];
    want.adds_tokens = good && desc.opcode == OP_DECODE;
    want.error       = code;
    want.names       = good && (desc.opcode == OP_DECODE || desc.opcode == OP_PREFILL);
    want.status      = !good ? STATUS_ERROR : desc.opcode == OP_STOP ? STATUS_STOPPED
                     : desc.opcode == OP_REWARD ? STATUS_SCORED : STATUS_DONE;
    want.reads       = good && (desc.opcode == OP_REWARD || desc.opcode == OP_POLICY);
    want.publishes   = good && desc.opcode == OP_POLICY;
    if (good && desc.opcode == OP_REWARD) want.result = desc.max_tokens;
    if (want.publishes) want.result = {13'd0, desc.model_id == 1, desc.checkpoint > 2 ? 2'd3 : desc.checkpoint[1:0], desc.policy_version};
    if (want.reads) read_backs = read_backs + 1;
    if (code == ERR_DMA_FAULT || code == ERR_BAD_CHECK) want.result = index;
    else begin
      want.reward_model_id = desc.reward_model_id;
      want.seq_len         = desc.seq_len;
      want.rollout_id      = desc.rollout_id;
      want.user_data       = desc.user_data;
    end
    want.slot = (code == ERR_DMA_FAULT || code == ERR_BAD_CHECK) ? 1'b0 : version[0];
    if (leave !== (version[2] && !want.names)) fail($sformatf("R18: leave is %b of code %0d", leave, code));
    want.token_addr = (want.adds_tokens || want.reads) ? TokenBase + desc.delta_offset : echo.token_addr;   // else of no use
    if (echo !== want) fail($sformatf("index %h code %0d: echo %h, expected %h", index, code, echo, want));
    expect_eq("fence", fence, good && desc.flags[FLAG_FENCE_BIT]);
    expect_eq("prefill", prefill, good && desc.opcode == OP_PREFILL);
    expect_eq("adds_tokens", work.adds_tokens, want.adds_tokens);
    expect_eq("stop", stop, good && desc.opcode == OP_STOP && !desc.flags[FLAG_FENCE_BIT]);
    expect_eq("rollout", work.rollout_id, want.rollout_id);
    expect_eq("queue pair", work.pair, queue);
    expect_eq("R25: engine", work.engine, want.names && desc.model_id == 1);
    if (work.engine) languages = languages + 1;
    expect_eq("R17: seeks", work.seeks, good && (desc.opcode == OP_PREFILL || ref_names_member(desc, 64) || ref_stops_group(desc)));
    if (work.seeks) begin
      seekers = seekers + 1;
      expect_eq("R17: opens", work.opens, desc.opcode == OP_PREFILL && desc.max_tokens != 0);
      expect_eq("R17: is_stop", work.is_stop, desc.opcode == OP_STOP);
      expect_eq("R17: all", work.all, ref_stops_group(desc));
      if (work.opens) expect_eq("R17: last member", work.member, desc.max_tokens - 1);
      else if (desc.opcode != OP_PREFILL && !work.all) expect_eq("R17: member", work.member, desc.member);
    end
    if (work.seeks || work.adds_tokens) expect_eq("R17: prefix", work.prefix_id, desc.prefix_id);
    if (work.adds_tokens) expect_eq("R17: cow_prefix", work.cow_prefix, desc.flags[FLAG_COW_PREFIX_BIT]);
    if (stop) expect_eq("R8: a STOP of a group", work.all, ref_stops_group(desc));
    if (want.adds_tokens) begin
      checkpoint = desc.checkpoint != 0 ? desc.checkpoint : checkpoint_default != 0 ? checkpoint_default : CHECKPOINT_NEVER;
      expect_eq("eos_stops", work.eos_stops, desc.flags[FLAG_EOS_STOPS_BIT]);
      expect_eq("resident", work.resident, desc.flags[FLAG_RESIDENT_BIT]);
      expect_eq("R11: logp", work.logp, desc.flags[FLAG_LOGP_BIT]);
      expect_eq("start_word", work.start_word, (TokenBase + desc.delta_offset) / 4 % 16);
      expect_eq("max_tokens", work.max_tokens, desc.max_tokens);
      expect_eq("checkpoint", work.checkpoint, checkpoint);
      expect_eq("slot of the version", work.slot, version[0]);
    end
  endtask

  always @(posedge clk) begin
    if (!rst_n || clear) begin
      entered = 0;
      left    = 0;
      slot_valid <= 1'b0;
    end else begin
      held = entered - left;
      due  = held != 0 && in_cycle[left % 8] == cycle - 4;
      for (int q = 0; q < Queues; q++) begin
        inside_now = 1'b0;
        for (int k = left; k < entered; k++) if (in_queue[k % 8] == q) inside_now = 1'b1;
        if (busy[q] !== inside_now) fail($sformatf("queue pair %0d is busy: %b, expected %b", q, busy[q], inside_now));
      end
      if (work_valid !== (due && on[in_queue[left % 8]])) fail("a descriptor does not take four cycles");
      if (work_valid) begin
        if (entered == left) fail("work from nowhere");
        else check_one(in_queue[left % 8], in_data[left % 8], in_index[left % 8], in_fault[left % 8],
                       in_version[left % 8], in_engine[left % 8]);
        seen = seen + 1;
      end
      // R18: what comes out has a user, or says that it has none; of a queue pair that is off nothing comes out.
      if (due && !work_valid && leave !== in_version[left % 8][2]) fail("R18: a user of a queue pair that is off stays");
      if (leave) begin
        thrown = thrown + 1;
        if (!due || leave_queue != in_queue[left % 8] || leave_slot != in_version[left % 8][0]) fail("R18: a user leaves that was none");
      end
      if (due) left = left + 1;
      if (slot_valid) begin
        in_data[entered % 8]  = slot_data;
        in_index[entered % 8] = slot_index;
        in_fault[entered % 8] = slot_fault;
        in_version[entered % 8] = version;
        in_engine[entered % 8]  = {version_engine, version_positions};
        in_cycle[entered % 8] = cycle;
        in_queue[entered % 8] = int'(slot_queue);
        entered = entered + 1;
      end
      slot_valid <= !chance(stall_in);
      slot_fault <= chance(3);
      slot_index <= slot_index + 1;
      pair = below(Queues);
      slot_queue <= pair;
      look_at(pair);
      drawn_slot = random_slot(slot_index + 1);
      slot_data <= drawn_slot;
      version   <= (drawn_slot[7:0] != OP_DECODE && drawn_slot[7:0] != OP_PREFILL) || chance(6) ? 3'd0
                 : chance(10) ? {2'b10, 1'(rnd())} : {2'b11, 1'(rnd())};
      version_engine    <= Engines > 1 && (chance(90) ? drawn_slot[HW_DESC_MODEL_ID_LSB +: 16] == 16'd1 : chance(50));
      version_positions <= Engines < 2 ? 32'd0 : chance(60) ? between(300, 2000) : chance(30) ? rnd()
                         : drawn_slot[HW_DESC_SEQ_LEN_LSB +: 32] - below(2)
                           + (drawn_slot[7:0] == OP_DECODE ? drawn_slot[HW_DESC_MAX_TOKENS_LSB +: 32] : 32'd0);
    end
  end
  int   pair;
  logic [511:0] drawn_slot;
  logic due, inside_now;

  // Whether something was seen too seldom.
  function automatic logic lacks();
    lacks = read_backs < 50 || thrown < 50 || codes[ERR_BAD_VERSION] < 20 || seekers < 100;
    for (int k = 0; k <= int'(ERR_BAD_PREFIX); k++) lacks = lacks || codes[k] == 0;
    if (Engines > 1) lacks = lacks || languages < drawn(60, 150) || foreign < drawn(1, 20) || too_long < drawn(6, 20);
  endfunction

  initial begin
    for (int k = 0; k < 256; k++) codes[k] = 0;
    slot_index = -500;
    // Goes on until everything was seen often enough, for four times as many rounds at most.
    for (int k = 0; k < 8 || (k < 32 && lacks()); k++) begin
      stall_in           = k[0] ? 50 : 0;
      clear <= 1'b1;
      repeat (6) @(posedge clk);
      for (int q = 0; q < Queues; q++) begin
        kv_size_of[q]            = (q + k) % 2 ? 64'd4096 << q : (Engines > 1 && k % 8 < 6) ? 64'd4000 + 64'(below(200)) : 64'd0;
        length_limit_of[q]       = (q + k / 2) % 2 ? 32'd600 + 100 * q : LENGTH_LIMIT_MAX;
        sq_key_of[q]             = chance(80) ? rnd() : 32'd0;
        checkpoint_default_of[q] = chance(30) ? CHECKPOINT_NEVER : below(12);
        start        <= 1'b1;
        start_queue  <= q;
        start_config.sq_key             <= sq_key_of[q];
        start_config.token_base         <= TokenBase;
        start_config.token_size         <= TokenSize;
        start_config.logp_size          <= q == 1 ? 64'd0 : LogpSize;
        start_config.kv_size            <= kv_size_of[q];
        start_config.length_limit       <= length_limit_of[q];
        start_config.checkpoint_default <= checkpoint_default_of[q];
        @(posedge clk);
      end
      start <= 1'b0;
      on    <= '1;
      @(posedge clk);
      clear <= 1'b0;
      repeat (drawn(450, 1000)) @(posedge clk);
      on[below(Queues)] <= 1'b0;
      repeat (drawn(100, 200)) @(posedge clk);
    end
    if (read_backs < 50) fail($sformatf("only %0d of REWARD and POLICY", read_backs));
    if (thrown < 50) fail($sformatf("only %0d users are thrown out", thrown));
    if (codes[ERR_BAD_VERSION] < 20) fail("too few of BAD_VERSION");
    for (int k = 0; k <= int'(ERR_BAD_PREFIX); k++) if (codes[k] == 0) fail($sformatf("error code %0d never came up", k));
    if (codes[ERR_BAD_VERSION] == 0 || seekers < 100) fail($sformatf("%0d descriptors of groups", seekers));
    if (Engines == 1 && languages + foreign + too_long != 0) fail("R25: a descriptor of an engine that was not built");
    if (Engines > 1 && (languages < drawn(60, 150) || foreign < drawn(1, 20) || too_long < drawn(6, 20)))
      fail($sformatf("only %0d descriptors of engine 1, %0d of another engine's version, %0d longer than their model's", languages, foreign, too_long));
    over = 1'b1;
  end
endmodule
