// readback and the arbiter of the read port with a context of each of three queue pairs at a time: REWARDs of up to thousands of tokens of
// both models, versions of both engines, sound and malformed, among reads with errors, data of different IDs in any order, and queue
// pairs that are turned off. Each result, version and address is that of the queue pair's own. The bus withholds the data of one from
// time to time: it holds up no other, nor does a long REWARD, but for a bounded number of cycles for each line (R16).
module readback_turns_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Queues = 3;
  localparam int Words  = 4096;         // of the token region of each
  localparam int Turn   = 110;          // cycles that another context may take, once for each line

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(2000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic          start = 1'b0;
  logic [3:0]    start_queue = '0;
  queue_config_t start_config = '0;
  model_config_t start_models = '0;
  logic [Queues-1:0] on = '1, dones;
  logic          valid = 1'b0, publishes = 1'b0, model = 1'b0, done_taken = 1'b0, idle;
  logic [3:0]    queue = '0, done_queue = '0, read_queue, beat_queue, read_owner, fault_queue, range_owner, range_number, ask_queue;
  logic [31:0]   what = '0, result, load_salt;
  logic [63:0]   addr = '0, read_addr, range_now;
  logic [7:0]    error;
  logic          read_valid, read_ready, beat, fault, ask, load, load_engine;
  logic [15:0]   ask_version;
  logic [1:0]    load_mode;
  image_t        load_image;
  logic          arvalid, arready = 1'b0, rvalid = 1'b0, bus_idle, fetch_ready;
  logic [63:0]   araddr;
  logic [7:0]    arlen;
  logic [3:0]    aruser;
  logic [5:0]    arid, rid = '0;
  logic [511:0]  rdata = '0;
  logic [1:0]    rresp = '0;

  readback #(.Queues(Queues), .Engines(2)) u_readback (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .start_models_i(start_models),
    .on_i(on), .valid_i(valid), .queue_i(queue), .publishes_i(publishes), .model_i(model), .what_i(what), .addr_i(addr),
    .done_o(dones), .done_queue_i(done_queue), .error_o(error), .result_o(result), .done_taken_i(done_taken), .idle_o(idle),
    .read_valid_o(read_valid), .read_queue_o(read_queue), .read_addr_o(read_addr), .read_owner_o(read_owner), .read_ready_i(read_ready),
    .beat_i(beat), .beat_queue_i(beat_queue), .beat_data_i(rdata), .beat_fault_i(rresp != 0), .fault_o(fault), .fault_queue_o(fault_queue),
    .range_owner_o(range_owner), .range_number_o(range_number), .range_i(range_now),
    .ask_o(ask), .ask_queue_o(ask_queue), .ask_version_o(ask_version), .ask_resident_i(1'b0), .ask_occupied_i(1'b0),
    .load_o(load), .load_salt_o(load_salt), .load_mode_o(load_mode), .load_engine_o(load_engine), .load_image_o(load_image)
  );

  read_arbiter #(.Queues(Queues)) u_arbiter (
    .clk_i(clk), .bus_rst_ni(rst_n), .fetch_valid_i(1'b0), .fetch_id_i(6'd0), .fetch_addr_i(64'd0), .fetch_len_i(8'd0), .fetch_owner_i(4'd0),
    .fetch_ready_o(fetch_ready), .read_valid_i(read_valid), .read_queue_i(read_queue), .read_addr_i(read_addr), .read_owner_i(read_owner),
    .read_ready_o(read_ready), .beat_o(beat), .beat_queue_o(beat_queue), .idle_o(bus_idle),
    .burst_valid_i(1'b0), .burst_addr_i(64'd0), .burst_len_i(8'd0), .burst_owner_i(4'd0),
    .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_aruser(aruser), .m_axi_arvalid(arvalid), .m_axi_arready(arready),
    .m_axi_rid(rid), .m_axi_rvalid(rvalid)
  );

  // ---------------------------------------------------------------- memory
  // The token region of each, and its MODEL region, of which the one line that a header lies in is known.
  logic [31:0]  words [0:Queues*Words-1];
  logic [511:0] model_line [0:Queues-1];
  logic [63:0]  ranges [0:16*Queues-1];
  int           range_at;
  assign range_at  = 16 * (int'(range_owner) - 5) + int'(range_number);
  assign range_now = ranges[range_at];

  function automatic logic [63:0] base_of(input int q);
    base_of = 64'h3_0000_0FC0 + 64'h1_0000_0000 * q;
  endfunction
  function automatic logic [63:0] model_base(input int q);
    model_base = 64'h9_0000_2000 + 64'h10_0000_0000 * q;
  endfunction

  // ---------------------------------------------------------------- the descriptor of each
  int          state [0:Queues-1];      // 0: none, 1: drawn, 2: here
  logic        is_policy [0:Queues-1], is_language [0:Queues-1], which [0:Queues-1], off [0:Queues-1], late [0:Queues-1], faulty [0:Queues-1];
  logic [31:0] count [0:Queues-1], salt [0:Queues-1], want_result [0:Queues-1];
  logic [15:0] version [0:Queues-1];
  logic [1:0]  mode [0:Queues-1];
  logic [63:0] model_at [0:Queues-1];
  logic [7:0]  want_error [0:Queues-1];
  image_t      want_image [0:Queues-1];
  int          word [0:Queues-1], lines [0:Queues-1], since [0:Queues-1], reads [0:Queues-1], loads [0:Queues-1];

  function automatic logic [31:0] score(input int q);
    logic [31:0] digest, w;
    int          hits;
    logic        hit;
    digest = 32'h811C9DC5;
    hits   = 0;
    for (int k = 0; k < int'(count[q]); k++) begin
      w      = words[q*Words + (word[q] + k) % Words];
      digest = ref_digest(digest, w);
      hit    = 1'b0;
      for (int r = 0; r < 16; r++) if (w >= ranges[16*q + r][31:0] && w <= ranges[16*q + r][63:32]) hit = 1'b1;
      hits = hits + int'(hit);
    end
    score = !which[q] ? ref_score(digest) : (hits > 32767) ? 32'h7FFF_FFFF : hits << 16;
  endfunction

  task automatic draw_one(input int q);
    logic [511:0] header, record;
    logic [127:0] policy_header;
    hw_image_t    image;
    int           wrong;
    is_policy[q]   = chance(50);
    is_language[q] = is_policy[q] && chance(60);
    which[q]       = chance(50);
    off[q]         = 1'b0;
    faulty[q]      = 1'b0;
    reads[q]       = 0;
    loads[q]       = 0;
    want_result[q] = '0;
    want_error[q]  = ERR_NONE;
    word[q]        = 16 * below(64);
    if (!is_policy[q]) begin
      word[q]  = word[q] + below(16);
      count[q] = (q == 0 && chance(20)) ? between(2000, 4000) : between(1, 60);
      lines[q] = (word[q] % 16 + int'(count[q]) + 15) / 16;
      for (int k = 0; k < 64; k++) words[q*Words + below(Words)] = chance(90) ? rnd() & 32'h1_FFFF : rnd();
      for (int r = 0; r < 16; r++) ranges[16*q + r] = chance(50) ? 64'h0000_0000_FFFF_FFFF : {32'h1_0000, 32'h0_F000 - 32'(below(4096))};
      want_result[q] = score(q);
    end else begin
      version[q] = rnd();
      salt[q]    = rnd();
      mode[q]    = below(3);
      wrong      = below(5);
      if (is_language[q]) begin
        header = ref_random_model();
        model_at[q] = 64 * below(1000);
        record = ref_record_of(header, model_at[q]);
        image  = record;
        policy_header = ref_header(version[q], 16'd1, salt[q], 32'd64);
        if (wrong == 1) header = header ^ (512'd1 << below(480));
        if (wrong == 2) record = record ^ (512'd1 << below(512));
        model_line[q] = header;
        for (int k = 0; k < 16; k++) words[q*Words + word[q] + 16 + k] = record[32*k +: 32];
        lines[q] = ref_image_sound(record, 64'h1_0000_0000) ? 3 : 2;
        if (lines[q] == 2 || !ref_model_sound(header, record)) want_error[q] = ERR_BAD_POLICY;
        want_image[q] = {image.offset, image.length, image.program_at, image.words, image.vocabulary, image.positions,
                         image.block_lines, image.end_0, image.end_1, image.end_2, image.end_3};
      end else begin
        policy_header = ref_policy(version[q], salt[q]);
        lines[q] = 1;
      end
      if (wrong == 3) begin
        policy_header = policy_header ^ (128'd1 << below(128));
        want_error[q] = ERR_BAD_POLICY;
        lines[q]      = 1;
      end
      for (int k = 0; k < 4; k++) words[q*Words + word[q] + k] = policy_header[32*k +: 32];
    end
  endtask

  // ---------------------------------------------------------------- the bus
  logic [Queues-1:0] held = '0;         // its data is withheld
  int   stall = 0, latency = 0, errors = 0, head [0:Queues-1], tail [0:Queues-1], due [0:16*Queues-1], q, at;
  logic [63:0] asked [0:16*Queues-1];
  logic [63:0] want_addr;
  int   ended = 0, scored = 0, published = 0, languages = 0, refused = 0, failed = 0, abandoned = 0, behind = 0;
  logic running = 1'b0;

  initial for (int k = 0; k < Queues; k++) begin
    state[k] = 0; head[k] = 0; tail[k] = 0; late[k] = 1'b0;
  end

  always @(posedge clk) if (rst_n && running) begin
    // What came in.
    if (arvalid && arready) begin
      q = int'(arid) - 16;
      if (q < 0 || q >= Queues) fail($sformatf("ARID is %0d", arid));
      if (aruser !== 4'd5 + q || arlen != 0) fail($sformatf("ARUSER is %0d", aruser));
      if (state[q] != 2) fail("R12: a read for what is over");
      want_addr = (is_language[q] && reads[q] == 2) ? model_base(q) + model_at[q] : (base_of(q) & ~64'd63) + 64 * (word[q] / 16 + reads[q]);
      if (araddr !== want_addr) fail($sformatf("R11: read %0d of queue pair %0d is at %h, expected %h", reads[q], q, araddr, want_addr));
      reads[q] = reads[q] + 1;
      if (reads[q] > lines[q]) fail($sformatf("R11: %0d reads for %0d lines", reads[q], lines[q]));
      if (tail[q] - head[q] >= 4) fail("five reads in flight");
      asked[16*q + tail[q] % 16] = araddr;
      due[16*q + tail[q] % 16]   = cycle + latency;
      tail[q] = tail[q] + 1;
    end
    if (rvalid && (fault !== (rresp != 0) || (fault && fault_queue !== 4'(rid - 16)))) fail("R10: a fault of another queue pair, or none");
    rvalid <= 1'b0;
    rresp  <= '0;
    q = below(Queues);
    if (head[q] != tail[q] && due[16*q + head[q] % 16] <= cycle && !held[q] && !chance(stall)) begin
      at = int'((asked[16*q + head[q] % 16] - (base_of(q) & ~64'd63)) / 4 % Words);
      rvalid <= 1'b1;
      rid    <= READBACK_AXI_ID + 6'(q);
      if (is_language[q] && asked[16*q + head[q] % 16] >= model_base(q)) rdata <= model_line[q];
      else for (int k = 0; k < 16; k++) rdata[32*k +: 32] <= words[q*Words + at + k];
      if (chance(errors) && below(10) == 0) begin
        rresp     <= 2'b10;
        rdata     <= {16{rnd()}};
        faulty[q] = 1'b1;
      end
      head[q] = head[q] + 1;
    end
    arready <= !chance(stall);

    // policy_slots.
    q = int'(ask_queue);
    if ((ask || load) && (state[q] != 2 || !is_policy[q] || ask_version !== version[q])) fail("R19: another version is asked for");
    if (load) begin
      loads[q] = loads[q] + 1;
      if (want_error[q] != ERR_NONE || faulty[q]) fail("R19: a version is loaded that has an error");
      if (load_mode !== mode[q] || load_engine !== is_language[q] || (!is_language[q] && load_salt !== salt[q])
          || (is_language[q] && load_image !== want_image[q])) fail("R19: another version is loaded than was published");
    end

    // What is over.
    if (done_taken) begin
      q = int'(done_queue);
      if (state[q] != 2) fail("R3: an answer to nothing");
      if (head[q] != tail[q] || (rvalid && rid == 16 + q)) fail("R12: an answer with a read in flight");
      if (!off[q]) begin
        expect_eq($sformatf("error, queue pair %0d", q), error, faulty[q] ? ERR_DMA_FAULT : want_error[q]);
        expect_eq("result", result, error == ERR_NONE ? want_result[q] : 0);
        expect_eq("versions loaded", loads[q], is_policy[q] && error == ERR_NONE);
        if (error == ERR_NONE) expect_eq("lines that were read", reads[q], lines[q]);
        if (error == ERR_DMA_FAULT)   failed = failed + 1;
        else if (error != ERR_NONE)   refused = refused + 1;
        else if (is_language[q])      languages = languages + 1;
        else if (is_policy[q])        published = published + 1;
        else                          scored = scored + 1;
        if ((held & ~(3'd1 << q)) != 0) behind = behind + 1;
      end else abandoned = abandoned + 1;
      state[q] = 0;
      on[q]   <= 1'b1;
      ended = ended + 1;
    end
    done_taken <= 1'b0;
    q = below(Queues);
    if (dones[q] && !(done_taken && done_queue == q)) begin
      done_taken <= 1'b1;
      done_queue <= q;
    end
    // R16.
    for (int k = 0; k < Queues; k++) begin
      if (held[k]) late[k] = 1'b1;
      if (state[k] == 2 && !late[k] && cycle - since[k] > (lines[k] + 4) * (17 + 2 * Turn + 2 * latency) * (stall > 50 ? 3 : 1))
        fail($sformatf("R16: %0d lines of queue pair %0d have taken %0d cycles", lines[k], k, cycle - since[k]));
    end

    // What comes.
    valid <= 1'b0;
    q = below(Queues);
    if (state[q] == 0 && on[q] && !(done_taken && done_queue == q) && chance(50)) begin
      draw_one(q);
      state[q] = 1;
    end else if (state[q] == 1) begin
      valid     <= 1'b1;
      queue     <= q;
      publishes <= is_policy[q];
      model     <= which[q];
      what      <= is_policy[q] ? {13'd0, is_language[q], mode[q], version[q]} : count[q];
      addr      <= (base_of(q) & ~64'd63) + 4 * word[q];
      state[q] = 2;
      since[q] = cycle;
      late[q]  = held[q];
    end else if (state[q] == 2 && on[q] && below(4000) == 0) begin
      on[q]  <= 1'b0;
      off[q] = 1'b1;
    end
  end

  // Whether something was seen too seldom.
  function automatic logic lacks();
    lacks = ended < 400 || scored < 100 || published < 30 || languages < 30 || refused < 30 || failed < 3 || abandoned < 3 || behind < 50;
  endfunction

  initial begin
    for (int k = 0; k < Queues * Words; k++) words[k] = rnd() & 32'h1_FFFF;
    @(posedge rst_n);
    for (int k = 0; k < Queues; k++) begin
      start       <= 1'b1;
      start_queue <= k;
      start_config.owner      <= 4'd5 + k;
      start_models.model_base <= model_base(k);
      start_models.model_size <= 64'h1_0000_0000;
      @(posedge clk);
    end
    start <= 1'b0;
    @(posedge clk);
    running = 1'b1;
    // Goes on until everything was seen often enough, for four times as many rounds at most.
    for (int k = 0; k < drawn(24, 60) || (k < 4 * drawn(24, 60) && lacks()); k++) begin
      stall   = k % 3 == 0 ? 0 : between(1, 60);
      latency = k % 2 == 0 ? 0 : between(1, 60);
      errors  = k % 4 == 3 ? 20 : 0;
      held    = (k % 3 == 1) ? 3'd1 << below(Queues) : '0;
      waits_for = "the bench waits for results";
      repeat (1500) @(posedge clk);
    end
    if (lacks())
      fail($sformatf("only %0d ended: %0d scored, %0d and %0d published, %0d refused, %0d failed, %0d abandoned, %0d while another was held",
                     ended, scored, published, languages, refused, failed, abandoned, behind));
    finish_bench("readback_turns_tb");
  end
endmodule
