// readback and the arbiter of the read port against the reference: scores of both models for tokens that begin and end
// anywhere in a line (one, as many as LENGTH_LIMIT allows, across its edges), ranges of one token, of none and of anything,
// a score of model 1 that saturates; headers of policies, good and with each of their words wrong; what policy_slots says
// against them, before the header is read and after it; errors of either kind on each beat; a queue pair that is turned off
// at any moment. Versions of engine 1: each of their three lines read where it lies, and no more than the first that speaks against
// them. Descriptor fetch goes first on the bus, and the data of the two comes in any order.
module readback_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(3000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int          Queues = 2;
  localparam logic [63:0] Base   = 64'h3_0000_0FC0;
  localparam int          Words  = 4096;

  logic          start = 1'b0;
  logic [3:0]    start_queue = '0;
  queue_config_t start_config = '0;
  logic [Queues-1:0] on = '1;
  logic          idle, valid = 1'b0, publishes = 1'b0, model = 1'b0, done, done_taken = 1'b0;
  logic [Queues-1:0] dones;
  logic [3:0]    queue = '0;
  logic [31:0]   what = '0, result;
  logic [63:0]   addr = '0;
  logic [7:0]    error;
  logic          read_valid, read_ready, beat, beat_fault, fault, ask, ask_resident = 1'b0, ask_occupied = 1'b0, load;
  logic [63:0]   read_addr, range_now;
  logic [3:0]    read_queue, beat_queue, read_owner, fault_queue, range_owner, range_number, ask_queue;
  logic [15:0]   ask_version;
  logic [31:0]   load_salt;
  logic [1:0]    load_mode;
  logic          fetch_valid = 1'b0, fetch_ready, arvalid, arready = 1'b0, rvalid = 1'b0, bus_idle;
  logic [5:0]    fetch_id = '0;
  logic [63:0]   fetch_addr = '0, araddr;
  logic [7:0]    fetch_len = '0, arlen;
  logic [3:0]    aruser;
  logic [5:0]    arid, rid = '0;
  logic [511:0]  rdata = '0;
  logic [1:0]    rresp = '0;

  model_config_t start_models = '0;
  logic          load_engine;
  image_t        load_image;

  readback #(.Queues(Queues), .Engines(2)) u_readback (
    .start_models_i(start_models), .load_engine_o(load_engine), .load_image_o(load_image),
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .on_i(on),
    .valid_i(valid), .queue_i(queue), .publishes_i(publishes), .model_i(model), .what_i(what), .addr_i(addr),
    .done_o(dones), .done_queue_i(queue), .error_o(error), .result_o(result), .done_taken_i(done_taken), .idle_o(idle), .read_valid_o(read_valid),
    .read_queue_o(read_queue), .beat_queue_i(beat_queue),
    .read_addr_o(read_addr), .read_owner_o(read_owner), .read_ready_i(read_ready), .beat_i(beat), .beat_data_i(rdata),
    .beat_fault_i(rresp != 0), .fault_o(fault), .fault_queue_o(fault_queue), .range_owner_o(range_owner),
    .range_number_o(range_number), .range_i(range_now), .ask_o(ask), .ask_queue_o(ask_queue), .ask_version_o(ask_version),
    .ask_resident_i(ask_resident), .ask_occupied_i(ask_occupied), .load_o(load), .load_salt_o(load_salt), .load_mode_o(load_mode)
  );

  assign done = dones[queue];
  read_arbiter #(.Queues(Queues)) u_arbiter (
    .fetch_id_i(fetch_id), .read_queue_i(read_queue), .beat_queue_o(beat_queue),
    .clk_i(clk), .bus_rst_ni(rst_n), .fetch_valid_i(fetch_valid), .fetch_addr_i(fetch_addr), .fetch_len_i(fetch_len),
    .fetch_owner_i(4'd9), .fetch_ready_o(fetch_ready), .read_valid_i(read_valid), .read_addr_i(read_addr),
    .read_owner_i(read_owner), .read_ready_o(read_ready), .beat_o(beat), .idle_o(bus_idle), .m_axi_arid(arid),
    .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_aruser(aruser), .m_axi_arvalid(arvalid), .m_axi_arready(arready),
    .m_axi_rid(rid), .m_axi_rvalid(rvalid),
    .burst_valid_i(1'b0), .burst_addr_i(64'd0), .burst_len_i(8'd0), .burst_owner_i(4'd0)
  );

  // ---------------------------------------------------------------- ranges of two functions, tokens
  logic [63:0] ranges [0:31];
  logic [31:0] words [0:Words-1];
  assign range_now = ranges[{range_owner[0], range_number}];

  // ---------------------------------------------------------------- the bus
  logic [63:0] read_at [0:7];           // the first reads of a descriptor
  int   stall = 0, latency = 0, fail_beat = -1, reads = 0, fetches = 0, fetch_beats = 0, faults = 0;
  logic [1:0]  fail_resp;
  logic [63:0] waiting [0:15];
  int          due [0:15], head = 0, tail = 0, beats = 0, fetch_left = 0;
  logic        held = 1'b0, flood = 1'b0;
  logic [81:0] shown;

  always @(posedge clk) if (rst_n) begin
    if (held && (!arvalid || {arid, araddr, arlen, aruser} !== shown)) fail("AXI: AR changed before it was taken");
    held  = arvalid && !arready;
    shown = {arid, araddr, arlen, aruser};
    if (!held && fetch_valid && !arvalid) fail("descriptor fetch does not reach the bus");
    if (arvalid && arready) begin
      if (arid >= READBACK_AXI_ID) begin
        if (arid != READBACK_AXI_ID + 6'(queue)) fail($sformatf("ARID is %0d", arid));
        reads = reads + 1;
        if (aruser !== (queue == 1 ? 4'd3 : 4'd2)) fail($sformatf("ARUSER is %0d", aruser));
        if (arlen != 0) fail("a read of more than one beat");
        if (reads <= 8) read_at[reads - 1] = araddr;
        waiting[tail % 16] = araddr;
        due[tail % 16]     = cycle + latency;
        tail = tail + 1;
      end else begin
        if (araddr !== fetch_addr || arid !== fetch_id || arlen !== fetch_len || aruser !== 4'd9) fail("a fetch changes on its way");
        fetches    = fetches + 1;
        fetch_left = fetch_left + int'(arlen) + 1;
      end
    end
    if (fetch_ready && !(arready && !(arvalid && arid >= READBACK_AXI_ID))) fail("a fetch is taken that is not on the bus");
    if (below(300) == 0) flood = chance(50);
    if (fetch_valid && fetch_ready) begin
      // A flood: one follows the other, each of one slot.
      fetch_valid <= flood;
      fetch_addr  <= {rnd(), rnd()} & ~64'd63;
      fetch_len   <= '0;
      fetch_id    <= below(Queues);
    end
    else if (!fetch_valid && chance(stall)) begin
      fetch_valid <= 1'b1;
      fetch_addr  <= {rnd(), rnd()} & ~64'd63;
      fetch_len   <= below(16);
      fetch_id    <= below(Queues);
    end
    if (fault) begin
      faults = faults + 1;
      if (fault_queue !== queue) fail("R10: a fault of another queue pair");
    end
    // Data of either, in any order.
    rvalid <= 1'b0;
    rresp  <= '0;
    if (head != tail && due[head % 16] <= cycle && !chance(stall)) begin
      rvalid <= 1'b1;
      rid    <= READBACK_AXI_ID + 6'(queue);
      for (int k = 0; k < 16; k++) rdata[32*k +: 32] <= words[(waiting[head % 16] - (Base & ~64'd63)) / 4 % Words + k];
      if (beats == fail_beat) begin
        rresp <= fail_resp;
        for (int k = 0; k < 16; k++) rdata[32*k +: 32] <= rnd();
      end
      beats = beats + 1;
      head  = head + 1;
    end else if (fetch_left != 0 && chance(70)) begin
      rvalid <= 1'b1;
      rid    <= below(Queues);
      rdata  <= {16{rnd()}};
      rresp  <= 2'(below(4));
      fetch_left = fetch_left - 1;
    end
    arready <= !chance(stall);
  end

  // ---------------------------------------------------------------- policy_slots
  logic        loaded = 1'b0;
  int          asks = 0;
  logic [50:0] load_seen;
  image_t      image_seen;
  always @(posedge clk) if (rst_n) begin
    if (ask) begin
      asks = asks + 1;
      if (ask_queue !== queue || ask_version !== what[15:0]) fail("R19: another version is asked for");
    end
    if (load) begin
      if (loaded) fail("R19: a version is loaded twice");
      loaded    = 1'b1;
      load_seen = {load_engine, load_mode, ask_version, load_salt};
      image_seen = load_image;
    end
  end

  // ---------------------------------------------------------------- one descriptor
  task automatic begin_one(input int pair, input logic policy, input logic which, input logic [31:0] tokens, input int word);
    waits_for = "the bench waits for readback";
    while (!idle || dones != 0) @(posedge clk);
    reads = 0; beats = 0; asks = 0; loaded = 1'b0;
    faults = 0;
    queue     <= pair;
    publishes <= policy;
    model     <= which;
    what      <= tokens;
    addr      <= (Base & ~64'd63) + 4 * word;
    valid     <= 1'b1;
    @(posedge clk);
    valid <= 1'b0;
    @(posedge clk);
  endtask

  task automatic end_one;
    waits_for = "the bench waits for an answer";
    while (!done) @(posedge clk);
    repeat (below(3)) @(posedge clk);
    if (!done || head != tail || !bus_idle) fail("R12: an answer with a read in flight");
    done_taken <= 1'b1;
    @(posedge clk);
    done_taken <= 1'b0;
    @(posedge clk);
    if (done) fail("R3: an answer stays");
  endtask

  function automatic logic [31:0] score(input int pair, input logic which, input int n, input int word);
    logic [31:0] digest, w;
    int          hits;
    logic        hit;
    digest = 32'h811C9DC5;
    hits   = 0;
    for (int k = word; k < word + n; k++) begin
      w      = words[k % Words];
      digest = ref_digest(digest, w);
      hit    = 1'b0;
      for (int r = 0; r < 16; r++) if (w >= ranges[16*pair + r][31:0] && w <= ranges[16*pair + r][63:32]) hit = 1'b1;
      hits = hits + int'(hit);
    end
    score = !which ? ref_score(digest) : (hits > 32767) ? 32'h7FFF_FFFF : hits << 16;
  endfunction

  int scored = 0, failed = 0, abandoned = 0, published = 0, refused = 0;

  // A REWARD; with fail_beat one that fails, and with 'off_after' cycles its queue pair is turned off.
  task automatic reward(input int pair, input logic which, input int n, input int word, input int off_after);
    int lines;
    lines = (word % 16 + n + 15) / 16;
    begin_one(pair, 1'b0, which, n, word);
    if (off_after >= 0) begin
      repeat (off_after) @(posedge clk);
      on[pair] <= 1'b0;
    end
    waits_for = "the bench waits for an answer";
    while (!done) @(posedge clk);
    if (fail_beat >= 0 && fail_beat < beats) begin
      expect_eq("error of a faulty read", error, off_after >= 0 ? error : ERR_DMA_FAULT);
      if (faults != 1) fail($sformatf("R10: %0d faults are told of one", faults));
      failed = failed + 1;
    end else if (off_after < 0) begin
      expect_eq("error", error, ERR_NONE);
      expect_eq($sformatf("score of model %0d, %0d tokens at word %0d", which, n, word), result, score(pair, which, n, word));
      expect_eq("lines that were read", reads, lines);
      scored = scored + 1;
    end else abandoned = abandoned + 1;
    if (error != 0) expect_eq("result with an error", result, 0);
    end_one;
    on <= '1;
  endtask

  task automatic policy(input logic [15:0] version, input logic [1:0] mode, input int wrong, input logic is_resident,
                        input logic busy_before, input logic busy_after, input logic resident_after, input int off_after);
    logic [127:0] header;
    logic [31:0]  salt;
    logic [7:0]   want;
    int           word;
    word   = 16 * below(64);
    salt   = rnd();
    header = ref_policy(version, salt);
    case (wrong)
      1: header[15:0]   = version ^ (16'd1 << below(16));
      2: header[31:16]  = 16'd1 << below(16);
      3: header[63:32]  = salt ^ (32'd1 << below(32));
      4: header[95:64]  = 32'd1 << below(32);
      5: header[127:96] = header[127:96] ^ (32'd1 << below(32));
      // Sealed, and still not what the descriptor names.
      6: header = ref_policy(version + 1, salt);
      7: begin
        header = ref_policy(version, salt);
        header[31:16]  = 16'd3;
        header[127:96] = ref_mix(ref_mix(ref_mix(header[31:0] ^ 32'h9E3779B9) ^ salt));
      end
      8: begin
        header[95:64]  = 32'd64;
        header[127:96] = ref_mix(ref_mix(ref_mix(header[31:0] ^ 32'h9E3779B9) ^ salt) ^ 32'd64);
      end
      default: ;
    endcase
    for (int k = 0; k < 4; k++) words[word + k] = header[32*k +: 32];
    ask_resident = is_resident;
    ask_occupied = busy_before;
    begin_one(below(Queues), 1'b1, 1'b0, {14'd0, mode, version}, word);
    ask_occupied <= busy_before || busy_after;
    ask_resident <= is_resident || resident_after;
    if (off_after >= 0) begin
      repeat (off_after) @(posedge clk);
      on[queue[0]] <= 1'b0;
    end
    waits_for = "the bench waits for the answer to a POLICY";
    while (!done) @(posedge clk);
    want = (mode == 3 || is_resident) ? ERR_BAD_POLICY : busy_before ? ERR_POLICY_BUSY
         : (fail_beat == 0) ? ERR_DMA_FAULT : (wrong != 0 || resident_after) ? ERR_BAD_POLICY : busy_after ? ERR_POLICY_BUSY : ERR_NONE;
    expect_eq("result of a POLICY", result, 0);
    if (off_after < 0) begin
      expect_eq($sformatf("error of a POLICY, wrong %0d", wrong), error, want);
      expect_eq("reads of a POLICY", reads, mode != 3 && !is_resident && !busy_before ? 1 : 0);
      // policy_slots gets the load, and refuses it with the same objection.
      if (want == ERR_NONE || (!busy_before && !is_resident && mode != 3 && wrong == 0 && fail_beat != 0)) begin
        if (!loaded || load_seen !== {1'b0, mode, version, salt}) fail("R19: another version is loaded than was published");
      end else if (loaded) fail("R19: a version is loaded that has an error");
      if (want == ERR_NONE) published = published + 1;
      else refused = refused + 1;
    end else if (loaded && (wrong != 0 || fail_beat == 0 || mode == 3)) fail("R19: a version is loaded that has an error");
    end_one;
    on <= '1;
  endtask

  // The MODEL region of each queue pair's function: its first line is word 2048 of the memory, and so is each 16 KiB further.
  function automatic logic [63:0] model_base(input int pair);
    model_base = (Base & ~64'd63) + 64'h9_0000_2000 + 64'h10_0000_0000 * pair;
  endfunction
  function automatic logic [63:0] model_size(input int pair);
    model_size = (pair == 0) ? 64'h1_0000_0000 : 64'h2_0000_0000;
  endfunction

  int languages = 0, kinds [0:15];
  task automatic language(input logic [15:0] version, input logic [1:0] mode, input int wrong, input logic is_resident,
                          input logic busy_before, input logic busy_after, input logic resident_after, input int off_after);
    logic [511:0] header, record;
    hw_image_t    image;
    logic [127:0] policy_header;
    logic [7:0]   want;
    logic         passes;
    logic [63:0]  at;
    int           word, pair, lines, place;
    pair   = below(Queues);
    word   = 16 * below(64);
    at     = 64 * below(100) + 64'd16384 * below(1000);
    header = ref_random_model();
    record = ref_record_of(header, at);
    policy_header = ref_header(version, 16'd1, rnd(), 32'd64);
    case (wrong)
      1: policy_header = ref_header(version, 16'd1, rnd(), chance(50) ? 32'd0 : 32'd64 ^ (32'd1 << below(32)));
      2: policy_header = chance(50) ? ref_policy(version, rnd()) : ref_header(version, 16'd1 ^ (16'd1 << below(16)), rnd(), 32'd64);
      3: policy_header = policy_header ^ (128'd1 << below(128));
      4: record = record ^ (512'd1 << below(512));
      5: header = header ^ (512'd1 << below(480));
      6: begin
        record[HW_IMAGE_IMAGE_CHECK_LSB +: 32] = header[127:96] + 1;
        record = ref_fold_seal(record);
      end
      7: begin
        // It ends where the larger of the two regions ends.
        record[63:0] = 64'h2_0000_0000 - record[HW_IMAGE_LENGTH_LSB +: 64];
        record = ref_fold_seal(record);
        at     = record[63:0];
      end
      default: ;
    endcase
    place = int'((model_base(pair) - (Base & ~64'd63) + at) / 4 % Words);
    while (place + 16 > word && place < word + 32) word = 16 * below(64);
    for (int k = 0; k < 16; k++) words[place + k] = header[32*k +: 32];
    for (int k = 0; k < 16; k++) words[word + 16 + k] = record[32*k +: 32];
    for (int k = 0; k < 4; k++) words[word + k] = policy_header[32*k +: 32];
    ask_resident = is_resident;
    ask_occupied = busy_before;
    begin_one(pair, 1'b1, 1'b0, {13'd0, 1'b1, mode, version}, word);
    ask_occupied <= busy_before || busy_after;
    ask_resident <= is_resident || resident_after;
    if (off_after >= 0) begin
      repeat (off_after) @(posedge clk);
      on[pair] <= 1'b0;
    end
    waits_for = "the bench waits for the answer to a POLICY of engine 1";
    while (!done) @(posedge clk);
    want  = ERR_NONE;
    lines = 0;
    if (mode == 3 || is_resident)                              want = ERR_BAD_POLICY;
    else if (busy_before)                                      want = ERR_POLICY_BUSY;
    for (int k = 0; k < 3; k++) if (want == ERR_NONE) begin
      lines = lines + 1;
      if (fail_beat == k)                                      want = ERR_DMA_FAULT;
      else if (k == 0 && wrong >= 1 && wrong <= 3)             want = ERR_BAD_POLICY;
      else if (k == 1 && !ref_image_sound(record, model_size(pair))) want = ERR_BAD_POLICY;
      else if (k == 2 && !ref_model_sound(header, record))     want = ERR_BAD_POLICY;
    end
    passes = want == ERR_NONE;
    if (passes && resident_after)                              want = ERR_BAD_POLICY;
    else if (passes && busy_after)                             want = ERR_POLICY_BUSY;
    expect_eq("result of a POLICY", result, 0);
    if (off_after < 0) begin
      expect_eq($sformatf("error of a POLICY of engine 1, wrong %0d", wrong), error, want);
      expect_eq("reads of a POLICY of engine 1", reads, lines);
      for (int k = 0; k < lines; k++)
        expect_eq($sformatf("R11: read %0d of a POLICY of engine 1", k), read_at[k], k < 2 ? addr + 64 * k : model_base(pair) + record[63:0]);
      if (passes) begin
        image = record;
        if (!loaded || load_seen !== {1'b1, mode, version, 32'd0}) fail("R25: another version is loaded than was published");
        if (image_seen !== {image.offset, image.length, image.program_at, image.words, image.vocabulary, image.positions,
                            image.block_lines, image.end_0, image.end_1, image.end_2, image.end_3})
          fail("R25: another image is loaded than was published");
      end else if (loaded) fail("R25: a version is loaded that has an error");
      if (want == ERR_NONE) languages = languages + 1;
      kinds[4 * lines + (want == ERR_DMA_FAULT ? 1 : want == ERR_BAD_POLICY ? 2 : want == ERR_POLICY_BUSY ? 3 : 0)]++;
    // What was changed may be sound all the same: the reference says.
    end else if (loaded && !passes && want != ERR_POLICY_BUSY) fail("R25: a version is loaded that has an error");
    end_one;
    on <= '1;
  endtask

  task automatic draw;
    for (int k = 0; k < Words; k++) words[k] = chance(90) ? rnd() & 32'h1_FFFF : rnd();
    for (int r = 0; r < 32; r++) begin
      ranges[r] = 64'h0000_0000_FFFF_FFFF;
      case (below(6))
        0: ranges[r] = {words[r], words[r]};                              // one token
        1: ranges[r] = {words[r] - 32'd1, words[r]};                          // none
        2: ranges[r][63:0] = {32'h1_0000, 32'h0_F000};
        3: ranges[r] = {rnd(), rnd()};
        default: ;
      endcase
    end
  endtask

  task automatic weather(input int k);
    stall   = k % 3 == 0 ? 0 : between(1, 70);
    latency = k % 2 == 0 ? 0 : between(1, 60);
  endtask

  initial begin
    draw;
    @(posedge rst_n);
    for (int q = 0; q < Queues; q++) begin
      start              <= 1'b1;
      start_queue        <= q;
      start_config.owner <= 4'd2 + q;    // of which the lowest bit says whose ranges
      start_models.model_base <= model_base(q);
      start_models.model_size <= model_size(q);
      @(posedge clk);
    end
    start <= 1'b0;
    @(posedge clk);

    // First and last words of up to three lines, by both models; with +long every one.
    for (int first = 0; first < 16; first++) for (int n = 1; n < 36; n = n + 1 + below(n > 18 ? drawn(12, 5) : drawn(5, 1))) begin
      weather(first * n + first);
      reward(first % 2, 1'(n), n, 32 + first, -1);
      if (n % 4 == 1) reward(1 - first % 2, 1'(n + 1), n, 48 + first, -1);
    end
    // Ranges: one that holds all, the edges of the numbers, none.
    for (int r = 0; r < 32; r++) ranges[r] = 64'h0000_0000_FFFF_FFFF;
    reward(0, 1'b1, 50, 7, -1);
    ranges[15] = {32'hFFFF_FFFF, 32'h0};
    reward(0, 1'b1, 50, 7, -1);
    ranges[15] = {32'hFFFF_FFFF, 32'hFFFF_FFFF};
    words[20] = '1;
    words[21] = '1;
    reward(0, 1'b1, 50, 7, -1);
    ranges[15] = '0;
    ranges[3]  = '0;                     // in two at once: it counts once
    words[22]  = '0;
    reward(0, 1'b1, 50, 7, -1);
    // Model 1 saturates above 32767; a long one wraps over the bench's words.
    ranges[0] = {32'hFFFF_FFFF, 32'h0};
    stall = 0;
    latency = 3;
    reward(0, 1'b1, 32767, 5, -1);
    reward(0, 1'b1, 32768, 5, -1);
    if (drawn(0, 1) == 1) reward(0, 1'b1, 40000, 15, -1);
    reward(0, 1'b0, 5000, 3, -1);
    // R10: each beat of four lines, either kind of error; then all is well again.
    for (int k = 0; k < drawn(20, 40); k++) begin
      draw;
      weather(k);
      fail_beat = k % 5;
      fail_resp = k[0] ? 2'b10 : 2'b11;
      reward(k % 2, k[1], 49 + below(15), 16 * below(9), -1);
      fail_beat = -1;
      reward(k % 2, k[1], between(1, 60), below(200), -1);
    end
    // R12: off at any moment.
    for (int k = 0; k < drawn(32, 60); k++) begin
      weather(k);
      fail_beat = k % 4 == 3 ? below(3) : -1;
      reward(k % 2, k[1], between(1, 100), below(200), drawn(2 * k, k));
    end
    fail_beat = -1;
    // R19.
    for (int k = 0; k < drawn(140, 300); k++) begin
      weather(k);
      fail_beat = k % 23 == 0 ? 0 : -1;
      fail_resp = k[0] ? 2'b10 : 2'b11;
      policy(rnd(), (k % 11 == 0) ? 2'd3 : 2'(below(3)), k % 3 == 0 ? 0 : below(9), k % 13 == 0, k % 7 == 0, k % 5 == 0, k % 9 == 0,
             k % 17 == 0 ? below(20) : -1);
      if (k % 4 == 0) begin
        ask_occupied = 1'b0;
        ask_resident = 1'b0;
        fail_beat    = -1;
        reward(k % 2, k[2], between(1, 60), below(200), -1);
      end
    end
    // R25, with an engine 0's before and behind them.
    for (int k = 0; k < 16; k++) kinds[k] = 0;
    for (int k = 0; k < drawn(360, 700); k++) begin
      weather(k);
      fail_beat = k % 5 == 0 ? below(3) : -1;
      fail_resp = k[0] ? 2'b10 : 2'b11;
      language(rnd(), (k % 23 == 0) ? 2'd3 : 2'(below(3)), chance(50) ? 0 : below(8), k % 29 == 0, k % 13 == 0, k % 7 == 0, k % 9 == 0,
               k % 11 == 0 ? below(90) : -1);
      fail_beat = -1;
      if (k % 6 == 0) policy(rnd(), 2'(below(3)), 0, 1'b0, 1'b0, 1'b0, 1'b0, -1);
      if (k % 17 == 0) begin
        ask_occupied = 1'b0;
        reward(k % 2, k[2], between(1, 60), below(200), -1);
      end
    end
    for (int k = 0; k < 16; k++) if (kinds[k] < drawn(1, 5) && k != 0 && k != 1 && (k < 4 || k % 4 == 1 || k % 4 == 2 || k > 13))
      fail($sformatf("only %0d POLICYs of engine 1 with %0d reads and end %0d", kinds[k], k / 4, k % 4));
    if (languages < drawn(60, 100)) fail($sformatf("only %0d versions of engine 1", languages));
    if (failed < drawn(12, 30) || abandoned < drawn(15, 30) || published < 30 || refused < drawn(60, 100) || scored < drawn(150, 300) || fetches < 200)
      fail($sformatf("only %0d failed, %0d abandoned, %0d published, %0d refused, %0d scored, %0d fetches", failed, abandoned,
                     published, refused, scored, fetches));
    finish_bench("readback_tb");
  end
endmodule
