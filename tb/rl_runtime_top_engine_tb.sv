// What stands around engine 1 on the whole device, with an engine 1 built: versions of it that are published, sound and malformed in
// every way, read with errors, refused while their slot is in use, in the place of those of engine 0 and the other way round, by two
// functions; descriptors that engine 1 refuses, each for its own reason, among DECODEs of engine 0 that run as ever; a disable or a
// reset while an image is judged. What a sound descriptor of engine 1 does is the engine's own bench's to say.
module rl_runtime_top_engine_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  top_bench #(.Queues(2), .Functions(2), .Workers(2), .FetchDepth(32), .CompletionDepth(16), .Engines(2), .Limit(2000000)) bench ();

  task automatic begin_case(input string name);
    $display("case %0s", name);
    bench.u_protocol.quiet = 1'b0;
    bench.u_registers.write(REG_WINDOW_2_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_registers.write(REG_WINDOW_2_SIZE_HI + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.host.default_config;
    bench.gen_host[1].host.default_config;
    bench.host.alone = 1'b0;
    bench.gen_host[1].host.alone      = 1'b0;
    bench.gen_host[1].host.own_device = 1'b0;
    bench.gen_host[1].host.owner      = 1;
    bench.u_registers.write(REG_QUEUE_FUNCTION + BLOCK_DEVICE_QUEUE_PER_QUEUE, 1);
  endtask

  task automatic end_case;
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
  endtask

  task automatic expect_slots;
    for (int s = 0; s < 2; s++)
      bench.u_registers.expect_read(REG_POLICY_SLOT_0 + 4 * s, {7'd0, bench.host.u_score.slot_last == s, bench.host.u_score.slot_state[s],
                                                                bench.host.u_score.slot_version[s]});
  endtask

  // ---------------------------------------------------------------- POLICY of engine 1
  // The block lies at the beginning of the token region.
  localparam int Wrongs = 26;
  int   published = 0, refused [0:3];            // by lines that were read
  logic [511:0] header, record;

  // Draws a model that fits the MODEL region, breaks it in one way (0: in none), lays it out, and says what becomes of it.
  task automatic draw_model(input logic [15:0] version, input int wrong, output logic [7:0] code, output int reads);
    logic [127:0] block;
    header = ref_random_model();
    header[191:128] = 64'(1000 + below(3000));
    record = ref_record_of(header, 64 * below(150));
    block  = ref_header(version, 16'd1, rnd(), 32'd64);
    case (wrong)
      1: block = ref_policy(version, rnd());
      2: block = ref_header(version + 16'd1, 16'd1, rnd(), 32'd64);
      3: block = ref_header(version, 16'd1, rnd(), 32'd128);
      4: block = block ^ (128'd1 << below(128));
      5: record = record ^ (512'd1 << below(512));
      6: record[HW_IMAGE_OFFSET_LSB +: 64] = record[HW_IMAGE_OFFSET_LSB +: 64] + 1;
      7: record[HW_IMAGE_LENGTH_LSB +: 64] = record[HW_IMAGE_LENGTH_LSB +: 64] + 32;
      8: record[HW_IMAGE_PROGRAM_AT_LSB +: 64] = record[HW_IMAGE_PROGRAM_AT_LSB +: 64] - 8;
      9: record[HW_IMAGE_OFFSET_LSB +: 64] = bench.host.model_size - record[HW_IMAGE_LENGTH_LSB +: 64] + 64;
      10: record[HW_IMAGE_OFFSET_LSB +: 64] = -64'd64;
      11: record[HW_IMAGE_WORDS_LSB +: 32] = 0;
      12: record[HW_IMAGE_WORDS_LSB +: 32] = 32'((record[HW_IMAGE_LENGTH_LSB +: 64] - record[HW_IMAGE_PROGRAM_AT_LSB +: 64]) / 8 + 1);
      13: record[HW_IMAGE_END_0_LSB + 32 * below(4) +: 32] = record[HW_IMAGE_VOCABULARY_LSB +: 32];
      14: record[HW_IMAGE_IMAGE_CHECK_LSB +: 32] = record[HW_IMAGE_IMAGE_CHECK_LSB +: 32] + 1;
      15: record[HW_IMAGE_VOCABULARY_LSB +: 32] = record[HW_IMAGE_VOCABULARY_LSB +: 32] + 1;
      16: record[HW_IMAGE_POSITIONS_LSB +: 32] = record[HW_IMAGE_POSITIONS_LSB +: 32] + 1;
      17: record[HW_IMAGE_BLOCK_LINES_LSB +: 32] = record[HW_IMAGE_BLOCK_LINES_LSB +: 32] + 1;
      18: header = header ^ (512'd1 << below(480));
      19: header[95:64] = 32'd2;
      20: header[191:128] = record[HW_IMAGE_PROGRAM_AT_LSB +: 64] + 1;
      21: header[256 +: 32] = header[256 +: 32] + 1;         // heads: mostly cannot share, and nothing else is
      22: header[224 +: 32] = 0;
      23: header[192 +: 32] = header[192 +: 32] + 16;
      24: header[448 +: 32] = 32'h10_0000;
      25: record[HW_IMAGE_OFFSET_LSB +: 64] = bench.host.model_size - record[HW_IMAGE_LENGTH_LSB +: 64];   // the last that fits
      default: ;
    endcase
    if (wrong > 5) record = ref_fold_seal(record);
    for (int k = 0; k < 16; k++) begin
      bench.u_memory.poke(bench.host.token_base + 4 * k, (k < 4) ? block[32*k +: 32] : rnd());
      bench.u_memory.poke(bench.host.token_base + 64 + 4 * k, record[32*k +: 32]);
      if (record[63:0] % 64 == 0 && record[63:0] < bench.host.model_size)
        bench.u_memory.poke(bench.host.model_base + record[63:0] + 4 * k, header[32*k +: 32]);
    end
    code  = ERR_BAD_POLICY;
    reads = 1;
    if (block == ref_header(version, 16'd1, block[63:32], 32'd64)) begin
      reads = 2;
      if (ref_image_sound(record, bench.host.model_size)) begin
        reads = 3;
        if (ref_model_sound(header, record)) code = ERR_NONE;
      end
    end
  endtask

  // As it is expected to end: 'fails' is the read of it that fails, counted from 1, or 0; 'busy' that its slot is in use.
  task automatic put_publish(input logic [15:0] version, input logic [7:0] mode, input int wrong, input int fails,
                             input logic [7:0] busy, output logic [7:0] code);
    hw_desc_t   desc;
    int         reads;
    logic [7:0] verdict;
    // What is broken by chance may be sound, and then it is resident from there on.
    verdict = (mode > 2 || bench.host.u_score.resident(version)) ? ERR_BAD_POLICY : busy;
    desc                = bench.host.blank(OP_POLICY, 32'h9000);
    desc.model_id       = 16'd1;
    desc.policy_version = version;
    desc.checkpoint     = mode;
    draw_model(version, wrong, code, reads);
    if (verdict != ERR_NONE) begin
      code  = verdict;
      reads = 0;
    end else if (fails != 0 && fails <= reads) begin
      code  = ERR_DMA_FAULT;
      reads = fails;
    end
    bench.host.u_score.next_policy_code      = (code == ERR_DMA_FAULT) ? ERR_NONE : code;    // the scoreboard sees the fault
    bench.host.u_score.next_policy_reads     = reads;
    bench.host.u_score.next_policy_image     = bench.host.model_base + record[63:0];
    bench.host.u_score.next_policy_positions = ref_shape(header, 7);
    bench.u_memory.fail_back = (fails == 0) ? -1 : fails;
    bench.host.put(desc);
    bench.host.u_score.next_policy_code  = ERR_NONE;
    bench.host.u_score.next_policy_reads = 1;
    bench.host.ring;
    if (code == ERR_NONE) published = published + 1;
    else refused[reads] = refused[reads] + 1;
  endtask

  task automatic publish(input logic [15:0] version, input logic [7:0] mode, input int wrong, input int fails, input logic [7:0] busy);
    logic [7:0] code;
    put_publish(version, mode, wrong, fails, busy, code);
    waits_for = $sformatf("the bench waits for a POLICY of engine 1, wrong %0d", wrong);
    bench.host.await_completions(1, 6000);
    expect_eq($sformatf("R25: error of a POLICY, wrong %0d, read %0d fails", wrong, fails), bench.host.last_done.error, code);
    expect_eq("its status", bench.host.last_done.status, code == ERR_NONE ? STATUS_DONE : STATUS_ERROR);
    bench.u_memory.fail_back = -1;
    if (code == ERR_DMA_FAULT) begin
      bench.u_registers.expect_read(REG_ERROR, FAULT_DMA_READ);
      bench.u_registers.write(REG_ERROR, '1);
    end else bench.u_registers.expect_read(REG_ERROR, 0);
    expect_slots;
  endtask

  // A version of engine 0, in the same place.
  task automatic publish_hash(input logic [15:0] version, input logic [7:0] mode);
    hw_desc_t desc;
    bench.host.make_policy(32'h9000, version, mode, 0, desc);
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(1, 6000);
    expect_eq("status of a POLICY of engine 0", bench.host.last_done.status, STATUS_DONE);
    expect_slots;
  endtask

  // A DECODE of engine 0 under this version, which is its own.
  task automatic run_hash(input logic [15:0] version);
    hw_desc_t desc;
    if (bench.host.token_next < 32) bench.host.token_next = 32;
    bench.host.make_decode(below(8), between(1, 40), 0, desc);
    desc.policy_version = version;
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(1, 6000);
    expect_eq("status of a DECODE of engine 0", bench.host.last_done.status, STATUS_DONE);
  endtask

  // ---------------------------------------------------------------- descriptors that engine 1 refuses
  int codes [0:2*256-1];                 // DECODE, PREFILL; by error, of model_id 1
  int others = 0;                        // of model_id 0, which name a version of engine 1

  // Near the edges; none of what would run.
  task automatic put_refused;
    hw_desc_t     desc;
    logic [511:0] data;
    logic [7:0]   code;
    logic [31:0]  positions;
    int           s;
    code = ERR_NONE;
    while (code == ERR_NONE) begin
      s                   = below(2);
      positions           = bench.host.u_score.slot_positions[s];
      desc                = bench.host.blank(chance(60) ? OP_DECODE : OP_PREFILL, below(8));
      desc.model_id       = chance(75) ? 16'd1 : chance(70) ? 16'd0 : chance(50) ? 16'd2 : 16'd1 << below(16);
      desc.policy_version = chance(80) ? bench.host.u_score.slot_version[s] : rnd();
      desc.flags          = chance(90) ? rnd() & (FLAG_FENCE | FLAG_EOS_STOPS | FLAG_INTERRUPT | FLAG_RESIDENT | FLAG_LOGP) : rnd();
      desc.reward_model_id = chance(95) ? 0 : 1;
      desc.prefix_id      = chance(90) ? below(5) : PREFIX_NONE;
      desc.max_tokens     = (desc.opcode == OP_PREFILL) ? (chance(90) ? 0 : 65) : chance(90) ? between(1, 50) : 0;
      desc.seq_len        = chance(20) ? 0 : chance(60) ? positions - desc.max_tokens * 32'(desc.opcode == OP_DECODE) + below(2)
                          : chance(50) ? between(1, 300) : bench.host.length_limit + below(2);
      desc.delta_offset   = chance(20) ? 64'd0 : chance(70) ? 4 * between(1, 4000) : rnd();
      desc.kv_offset      = chance(60) ? 64 * below(64) : chance(50) ? 64'd4096 - 32 * below(3) : chance(50) ? rnd() : 64'd1 << below(64);
      desc.kv_arena_id    = chance(80) ? below(4) : chance(50) ? 16'd4 : rnd();
      data = bench.host.seal(desc);
      if (chance(3)) data = data ^ (512'd1 << below(512));
      code = bench.host.u_score.classify(data, bench.host.sq_tail);
    end
    if (desc.model_id == 16'd1) codes[256 * (desc.opcode == OP_PREFILL) + code] = codes[256 * (desc.opcode == OP_PREFILL) + code] + 1;
    if (desc.model_id == 16'd0 && code == ERR_BAD_MODEL) others = others + 1;
    bench.host.put_slot(data);
  endtask

  task automatic refuse_some(input int count);
    repeat (count) put_refused;
    bench.host.ring;
    waits_for = "the bench waits for descriptors that engine 1 refuses";
    bench.host.await_completions(count, 6000);
    bench.u_registers.expect_read(REG_ERROR, 0);
  endtask

  // ---------------------------------------------------------------- cases
  task automatic case_publish(input int rounds);
    logic [15:0] version;
    begin_case("versions, sound and malformed");
    bench.host.enable;
    run_hash(0);
    refuse_some(20);
    version = 16'hFFF0;                  // which wraps
    for (int n = 0; n < rounds; n++) begin
      version = version + 1;
      if (version == 0) version = 1;
      if (chance(70)) publish(version + 16'd100, n % 3, 1 + n % (Wrongs - 2), 0, ERR_NONE);
      if (n % 4 == 3) begin
        publish_hash(version, POLICY_WAIT);
        run_hash(version);
      end else begin
        publish(version, chance(30) ? POLICY_KEEP : chance(30) ? POLICY_ABORT : POLICY_WAIT, chance(30) ? 25 : 0, 0, ERR_NONE);
        publish(version, POLICY_WAIT, 0, 0, ERR_NONE);              // it is resident
      end
      if (n % 5 == 0) publish(version + 16'd7, 8'd3, 0, 0, ERR_NONE);   // no mode
      refuse_some(between(drawn(12, 1), 20));
    end
    end_case;
    // A function that begins anew has the hash policy.
    bench.host.enable;
    run_hash(0);
    refuse_some(10);
    end_case;
  endtask

  task automatic case_malformed;
    begin_case("everything that can be wrong with an image");
    bench.host.enable;
    publish(1, POLICY_WAIT, 0, 0, ERR_NONE);
    for (int k = 1; k < Wrongs - 1; k++) for (int n = 0; n < drawn(1, 3); n++) publish(16'd10 * k + n, k % 3, k, 0, ERR_NONE);
    publish(3, POLICY_WAIT, Wrongs - 1, 0, ERR_NONE);
    refuse_some(30);
    end_case;
    // Without a MODEL region, or with one that is too short by a line, no image lies in it.
    bench.host.model_size = 64'd0;
    bench.host.enable;
    publish(1, POLICY_WAIT, 0, 0, ERR_NONE);
    end_case;
    bench.host.model_size = 64'd16320;
    bench.host.enable;
    publish(1, POLICY_WAIT, 25, 0, ERR_NONE);
    run_hash(0);
    end_case;
  endtask

  task automatic case_faults;
    begin_case("reads that fail");
    bench.host.enable;
    for (int k = 0; k < 12; k++) begin
      bench.u_memory.error_resp = k[0] ? 2'b11 : 2'b10;
      publish(16'd10 + k, POLICY_KEEP, 0, 1 + k % 3, ERR_NONE);
      if (k % 4 == 3) publish(16'd10 + k, POLICY_WAIT, 0, 0, ERR_NONE);
      if (k % 4 == 1) publish(16'd50, POLICY_WAIT, 6, 3, ERR_NONE);        // the third is not read, and does not fail
    end
    bench.u_memory.error_resp = 2'b10;
    bench.host.fault_expected = 1'b0;
    bench.host.u_score.bad_beats = 0;
    end_case;
  endtask

  // A slot that is in use is not loaded anew, whichever engine's.
  task automatic case_busy;
    hw_desc_t desc;
    begin_case("a slot that is in use");
    bench.host.wait_states = 3;
    bench.host.alone = 1'b1;
    bench.host.enable;
    bench.host.token_next = 32;
    bench.host.put_decode(1, 400);
    publish(7, POLICY_WAIT, 0, 0, ERR_NONE);
    publish(8, POLICY_WAIT, 0, 0, ERR_POLICY_BUSY);          // 0 is loaded first, and used by the DECODE
    bench.host.put(bench.host.blank(OP_STOP, 1));
    bench.host.ring;
    bench.host.await_completions(2, 6000);
    publish(8, POLICY_WAIT, 0, 0, ERR_NONE);
    bench.host.make_decode(3, 10, 0, desc);                  // of version 0, which is gone
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(1, 6000);
    expect_eq("R18: error of a DECODE of a version that is gone", bench.host.last_done.error, ERR_BAD_VERSION);
    refuse_some(20);
    end_case;
    bench.host.wait_states = 0;
  endtask

  // Another function has slots and a MODEL region of its own.
  task automatic case_functions;
    hw_desc_t desc;
    begin_case("two functions");
    bench.host.enable;
    bench.gen_host[1].host.model_size = 64'd0;
    bench.gen_host[1].host.enable;
    publish(1, POLICY_KEEP, 0, 0, ERR_NONE);
    // Function 1 has version 0 still, of engine 0; a POLICY of engine 1 finds no MODEL region.
    bench.gen_host[1].host.token_next = 32;
    bench.gen_host[1].host.put_decode(5, 30);
    desc                = bench.gen_host[1].host.blank(OP_POLICY, 6);
    desc.model_id       = 16'd1;
    desc.policy_version = 16'd1;
    desc.checkpoint     = POLICY_WAIT;
    for (int k = 0; k < 32; k++)
      bench.u_memory.poke(bench.gen_host[1].host.token_base + 4 * k, bench.u_memory.peek(bench.host.token_base + 4 * k));
    bench.gen_host[1].host.u_score.next_policy_code  = ERR_BAD_POLICY;
    bench.gen_host[1].host.u_score.next_policy_reads = 2;
    bench.gen_host[1].host.put(desc);
    bench.gen_host[1].host.ring;
    bench.gen_host[1].host.await_completions(2, 6000);
    bench.u_registers.expect_read(REG_POLICY_SLOT_0 + BLOCK_FUNCTION_PER_FUNCTION, RESET_POLICY_SLOT_0);
    bench.u_registers.expect_read(REG_POLICY_SLOT_1 + BLOCK_FUNCTION_PER_FUNCTION, 0);
    refuse_some(20);
    end_case;
    bench.gen_host[1].host.release_seen;
    bench.gen_host[1].host.expect_all_done;
    bench.gen_host[1].host.disable_device;
  endtask

  // R12: at any moment of a POLICY.
  task automatic case_ends(input logic resets);
    logic [7:0] code;
    begin_case(resets ? "reset of the device" : "disable");
    bench.u_memory.read_latency = 5;
    for (int moment = 0; moment < 150; moment = moment + (resets ? drawn(38, 19) : drawn(13, 5))) begin
      bench.host.enable;
      put_publish(16'd80 + moment, POLICY_KEEP, chance(20) ? 18 : 0, 0, ERR_NONE, code);
      repeat (moment) @(posedge bench.clk);
      if (resets) bench.reset_device;
      else begin
        bench.host.disable_device;
        bench.host.u_score.policy_pending = 1'b0;
      end
    end
    bench.u_memory.read_latency = 0;
    bench.host.enable;
    bench.u_registers.expect_read(REG_POLICY_SLOT_0, RESET_POLICY_SLOT_0);
    bench.u_registers.expect_read(REG_POLICY_SLOT_1, 0);
    publish(3, POLICY_KEEP, 0, 0, ERR_NONE);
    refuse_some(20);
    end_case;
  endtask

  initial begin
    for (int k = 0; k < 512; k++) codes[k] = 0;
    for (int k = 0; k < 4; k++) refused[k] = 0;
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.u_registers.expect_read(REG_CAP_ENGINES, 2);
    case_malformed;
    case_publish(drawn(16, 60));
    case_faults;
    case_busy;
    case_functions;
    bench.u_memory.read_latency  = between(1, 30);
    bench.u_memory.read_jitter   = 10;
    bench.u_memory.write_latency = between(1, 40);
    bench.u_memory.stall_ar      = 30;
    bench.u_memory.stall_r       = 30;
    case_publish(drawn(5, 25));
    case_faults;
    case_ends(1'b0);
    case_ends(1'b1);
    for (int k = 0; k < 2; k++) begin
      for (int e = int'(ERR_RESERVED_SET); e <= int'(ERR_BAD_MODEL); e++)
        if (codes[256 * k + e] < drawn(1, 3)) fail($sformatf("only %0d of %0s are refused with code %0d", codes[256 * k + e], k == 0 ? "DECODE" : "PREFILL", e));
      if (codes[256 * k + int'(ERR_BAD_VERSION)] < drawn(1, 3)) fail("too few of BAD_VERSION");
    end
    if (codes[256 + int'(ERR_BAD_PREFIX)] < drawn(1, 3)) fail("too few of BAD_PREFIX");
    if (published < drawn(18, 50) || others < drawn(6, 20) || refused[0] < 10 || refused[1] < drawn(7, 10) || refused[2] < drawn(11, 20)
        || refused[3] < drawn(10, 20))
      fail($sformatf("only %0d published, %0d, %0d, %0d, %0d refused by lines read, %0d of another engine's version", published, refused[0],
                     refused[1], refused[2], refused[3], others));
    finish_bench("rl_runtime_top_engine_tb");
  end
endmodule
