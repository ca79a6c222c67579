// Queue pairs of engine 1 that end while they run PREFILLs (R12, R24, R27). A disable, a reset of their function or a
// death comes at any moment; some PREFILLs are queued. Running PREFILLs end with the steps that the NPU has: no more
// positions begin than the NPU has places for, and no queued PREFILL begins. Within a bound ACTIVE falls, or after a
// death the workers are free, also if a program of the queue pair would run for years. Then the queue pair begins again,
// and a PREFILL completes. The bench drives the queue
// pair itself instead of using `top_bench`, because the scoreboard of `queue_host` does not model a PREFILL that engine
// 1 runs: it reports the NPU's reads of the queue pair's memory as errors (R24).
module rl_runtime_top_steps_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam int Queues = 2, Functions = 2, Workers = 2, FetchDepth = 32, CompletionDepth = 16, Engines = 2;
  localparam int Gangs = 2, Contexts = 4;
  localparam int Slow = 60;             // largest read latency, in cycles
  // Cycles for a step of a two-word program, or for what is under way of a word of the programs below, for the reads of its lines, and for
  // the transfers that the bus still owes.
  localparam int Bound = 2000;
  localparam logic [63:0] Base = 64'h0000_0012_3400_0000;

  logic clk, rst_n, m_axi_rst_ni;
  int   cycle;
  clock_reset #(.Limit(2_000_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));
  assign m_axi_rst_ni = rst_n;

  logic [17:0]  s_axil_awaddr, s_axil_araddr;
  logic         s_axil_awvalid, s_axil_awready, s_axil_wvalid, s_axil_wready, s_axil_bvalid, s_axil_bready;
  logic         s_axil_arvalid, s_axil_arready, s_axil_rvalid, s_axil_rready;
  logic [31:0]  s_axil_wdata, s_axil_rdata;
  logic [3:0]   s_axil_wstrb;
  logic [1:0]   s_axil_bresp, s_axil_rresp;
  logic [5:0]   m_axi_awid, m_axi_bid, m_axi_arid, m_axi_rid;
  logic [3:0]   m_axi_awuser, m_axi_aruser;
  logic [63:0]  m_axi_awaddr, m_axi_araddr, m_axi_wstrb;
  logic [7:0]   m_axi_awlen, m_axi_arlen;
  logic [2:0]   m_axi_awsize, m_axi_arsize;
  logic [1:0]   m_axi_awburst, m_axi_arburst, m_axi_bresp, m_axi_rresp;
  logic [3:0]   m_axi_awcache, m_axi_arcache;
  logic [2:0]   m_axi_awprot, m_axi_arprot;
  logic         m_axi_awvalid, m_axi_awready, m_axi_wlast, m_axi_wvalid, m_axi_wready, m_axi_bvalid, m_axi_bready;
  logic         m_axi_arvalid, m_axi_arready, m_axi_rlast, m_axi_rvalid, m_axi_rready;
  logic [511:0] m_axi_wdata, m_axi_rdata;

  rl_runtime_top #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .FetchDepth(FetchDepth),
                   .CompletionDepth(CompletionDepth), .Engines(Engines), .Gangs(Gangs), .Contexts(Contexts)) u_device (
    .clk_i(clk), .rst_ni(rst_n), .*
  );

  register_master u_registers (
    .clk_i(clk), .rst_ni(rst_n),
    .awaddr_o(s_axil_awaddr), .awvalid_o(s_axil_awvalid), .awready_i(s_axil_awready),
    .wdata_o(s_axil_wdata), .wstrb_o(s_axil_wstrb), .wvalid_o(s_axil_wvalid), .wready_i(s_axil_wready),
    .bresp_i(s_axil_bresp), .bvalid_i(s_axil_bvalid), .bready_o(s_axil_bready),
    .araddr_o(s_axil_araddr), .arvalid_o(s_axil_arvalid), .arready_i(s_axil_arready),
    .rdata_i(s_axil_rdata), .rresp_i(s_axil_rresp), .rvalid_i(s_axil_rvalid), .rready_o(s_axil_rready)
  );

  memory_model #(.Lines(16384), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(m_axi_rst_ni),
    .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awvalid_i(m_axi_awvalid), .awready_o(m_axi_awready),
    .wdata_i(m_axi_wdata), .wstrb_i(m_axi_wstrb), .wvalid_i(m_axi_wvalid), .wready_o(m_axi_wready),
    .bid_o(m_axi_bid), .bresp_o(m_axi_bresp), .bvalid_o(m_axi_bvalid), .bready_i(m_axi_bready),
    .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arid_i(m_axi_arid), .arvalid_i(m_axi_arvalid),
    .arready_o(m_axi_arready), .rid_o(m_axi_rid), .rdata_o(m_axi_rdata), .rresp_o(m_axi_rresp),
    .rlast_o(m_axi_rlast), .rvalid_o(m_axi_rvalid), .rready_i(m_axi_rready),
    .accept_o(), .effect_o(), .effect_error_o(), .accept_id_o(), .effect_id_o(), .accept_addr_o(), .effect_addr_o(),
    .accept_strb_o(), .effect_strb_o(), .accept_data_o(), .effect_data_o()
  );

  // ---------------------------------------------------------------- 256 KiB of memory for each queue pair
  localparam int Slots = 64;
  localparam logic [63:0] Cq = 64'h4000, Token = 64'h8000, Kv = 64'h18000, Model = 64'h28000, Arena = 64'h30000;
  localparam logic [63:0] Prompt = 64'h1000;     // in the token region, after the block of the POLICY
  localparam int Longest = 500;                  // largest number of tokens of a prompt
  int          owner [0:Queues-1];
  logic [31:0] tail  [0:Queues-1];
  initial for (int q = 0; q < Queues; q++) begin owner[q] = q; tail[q] = '0; end

  function automatic logic [63:0] place(input int q);
    place = Base + 64'h40000 * 64'(q);
  endfunction
  // A register of a queue pair in the page of its function, and in the page of the queue pair.
  function automatic logic [17:0] at_function(input logic [17:0] register, input int q);
    at_function = register + 18'(owner[q]) * BLOCK_FUNCTION_QUEUE_PER_FUNCTION
                + 18'(q) * BLOCK_FUNCTION_QUEUE_PER_QUEUE;
  endfunction
  function automatic logic [17:0] at_queue(input logic [17:0] register, input int q);
    at_queue = register + 18'(q) * BLOCK_QUEUE_PER_QUEUE;
  endfunction

  task automatic poke_line(input logic [63:0] address, input logic [511:0] data);
    for (int k = 0; k < 16; k++) u_memory.poke(address + 64'(4 * k), data[32*k +: 32]);
  endtask

  task automatic configure(input int q);
    if (owner[q] != 0) begin
      u_registers.write(REG_QUEUE_FUNCTION + 18'(q) * BLOCK_DEVICE_QUEUE_PER_QUEUE, 32'(owner[q]));
      u_registers.write64(REG_WINDOW_0_SIZE_LO + 18'(owner[q]) * BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    end
    u_registers.write64(at_function(REG_SQ_BASE_LO, q), place(q));
    u_registers.write64(at_function(REG_CQ_BASE_LO, q), place(q) + Cq);
    u_registers.write(at_function(REG_SQ_SIZE, q), Slots);
    u_registers.write(at_function(REG_CQ_SIZE, q), Slots);
    u_registers.write64(at_function(REG_TOKEN_BASE_LO, q), place(q) + Token);
    u_registers.write64(at_function(REG_TOKEN_SIZE_LO, q), 64'h10000);
    u_registers.write64(at_function(REG_KV_BASE_LO, q), place(q) + Kv);
    u_registers.write64(at_function(REG_KV_SIZE_LO, q), 64'h10000);
  endtask

  task automatic enable(input int q);
    for (int k = 0; k < Slots; k++) begin
      u_memory.poke(place(q) + 64'(64 * k + 60), 0);
      u_memory.poke(place(q) + Cq + 64'(32 * k + 12), 0);
      u_memory.poke(place(q) + Cq + 64'(32 * k + 28), 0);
    end
    tail[q] = '0;
    u_registers.write(at_function(REG_CONTROL, q), CONTROL_ENABLE);
  endtask

  function automatic hw_desc_t blank(input logic [7:0] opcode, input logic [31:0] rollout);
    hw_desc_t desc;
    desc            = '0;
    desc.opcode     = opcode;
    desc.rollout_id = rollout;
    desc.prefix_id  = PREFIX_NONE;
    desc.member     = MEMBER_NONE;
    desc.checkpoint = CHECKPOINT_NEVER;
    blank           = desc;
  endfunction

  task automatic put(input int q, input hw_desc_t desc);
    desc.user_data = 64'(tail[q]);
    poke_line(place(q) + 64'(64 * (tail[q] % Slots)), ref_seal(desc, 32'd0, tail[q]));
    tail[q] = tail[q] + 1;
  endtask

  task automatic ring(input int q);
    u_registers.write(at_queue(REG_DOORBELL, q), tail[q]);
  endtask

  task automatic expect_done(input int q, input int limit, input string what);
    hw_completion_t done;
    int             from;
    logic [31:0]    written;
    from    = cycle;
    written = '0;
    waits_for = what;
    while (written != tail[q]) begin
      u_registers.read(at_queue(REG_CQ_TAIL, q), written);
      if (cycle - from > limit) begin
        fail($sformatf("R28: %0s: %0d of %0d have completed after %0d cycles", what, written, tail[q], limit));
        written = tail[q];
      end
    end
    repeat (Slow) @(posedge clk);                // the slot may be assigned before the completion is visible
    for (int k = 0; k < 8; k++)
      done[32*k +: 32] = u_memory.peek(place(q) + Cq + 64'(32 * ((tail[q] - 1) % Slots) + 4 * k));
    expect_eq({"status: ", what}, 64'(done.status), 64'(STATUS_DONE));
  endtask

  // ---------------------------------------------------------------- engine 1: a model without weights
  logic [63:0] program_at;

  task automatic word(input int q, input int k, input logic [63:0] data);
    u_memory.poke(place(q) + Model + program_at + 64'(8 * k), data[31:0]);
    u_memory.poke(place(q) + Model + program_at + 64'(8 * k + 4), data[63:32]);
  endtask

  task automatic publish(input int q, input int words);
    logic [511:0] header, image;
    logic [127:0] block;
    hw_desc_t     desc;
    header          = ref_random_model();
    header[191:128] = 64'd1000;
    header[447:192] = {32'd65536, 32'd100, 32'd32, 32'd32, 32'd1, 32'd1, 16'd0, 16'd1, 32'd32};
    image           = ref_record_of(header, 64'd0);
    program_at      = image[HW_IMAGE_PROGRAM_AT_LSB +: 64];
    image[HW_IMAGE_WORDS_LSB +: 32]  = 32'(words);
    image[HW_IMAGE_LENGTH_LSB +: 64] = 64'h8000;
    block = ref_header(16'd1, 16'd1, 0, 32'd64);
    poke_line(place(q) + Token, {384'd0, block});
    poke_line(place(q) + Token + 64, ref_fold_seal(image));
    poke_line(place(q) + Model, header);
    desc                = blank(OP_POLICY, 1);
    desc.model_id       = 16'd1;
    desc.policy_version = 16'd1;
    desc.checkpoint     = '0;
    put(q, desc);
    ring(q);
    expect_done(q, 2000, "the POLICY");
  endtask

  // The program that follows starts here.
  int next_word;
  task automatic more(input int q, input logic [63:0] data);
    word(q, next_word, data);
    next_word = next_word + 1;
  endtask

  // Writes PREFILL k, which has an HwSequence of its own. All PREFILLs of a queue pair have the same prompt.
  task automatic put_prefill(input int q, input int k, input logic [31:0] rollout, input int first, input int length);
    logic [511:0] sequence_line;
    hw_desc_t     desc;
    sequence_line = '0;
    sequence_line[HW_SEQUENCE_START_LSB +: 32]   = 32'(first);
    sequence_line[HW_SEQUENCE_PROMPT_LSB +: 64]  = Prompt;
    sequence_line[HW_SEQUENCE_ENTRIES_LSB +: 32] = 32'd16;
    poke_line(place(q) + Kv + 64'(1024 * k), ref_fold_seal(sequence_line));
    poke_line(place(q) + Kv + 64'(1024 * k + 64), '0);        // its table: block 0 everywhere
    desc                = blank(OP_PREFILL, rollout);
    desc.model_id       = 16'd1;
    desc.policy_version = 16'd1;
    desc.prefix_id      = 32'(10 + k);
    desc.seq_len        = 32'(length);
    desc.kv_offset      = 64'(1024 * k);
    put(q, desc);
  endtask

  // Writes a DECODE of PREFILL k's sequence, from the first tokens of the prompt on. Its steps have no end.
  task automatic put_decode(input int k, input logic [31:0] rollout, input int length);
    hw_desc_t desc;
    put_prefill(0, k, rollout, 0, length);
    tail[0] = tail[0] - 1;
    desc                = blank(OP_DECODE, rollout);
    desc.model_id       = 16'd1;
    desc.policy_version = 16'd1;
    desc.seq_len        = 32'(length);
    desc.max_tokens     = 32'd20;
    desc.delta_offset   = Prompt + 64'(4 * length);
    desc.kv_offset      = 64'(1024 * k);
    put(0, desc);
  endtask

  // ---------------------------------------------------------------- observations
  // Positions that have begun, and reads of HwSequences.
  int positions = 0, sequences = 0;
  always @(posedge clk) if (rst_n) begin
    if (u_device.gen_npu.u_engine_npu.seats) positions = positions + 1;
    if (m_axi_arvalid && m_axi_arready && m_axi_araddr >= place(0) + Kv && m_axi_araddr < place(0) + Kv + 64'h10000)
      sequences = sequences + 1;
  end

  // ---------------------------------------------------------------- an end
  localparam int Disable = 0, Reset = 1, Death = 2, Abort = 3, Kinds = 4;   // Abort: of a rollout, then a disable
  int ends [0:Kinds-1], cut = 0, waiting = 0, longest = 0;

  task automatic begin_queue_pair(input int words);
    enable(0);
    publish(0, words);
  endtask

  task automatic end_queue_pair(input int kind, input string what);
    logic [31:0] state;
    int          from, positions_then, sequences_then;
    if (kind == Death) begin
      u_memory.hold_read = 0;                    // hold the data of its descriptors back
      put(0, blank(OP_NOP, 77));
      ring(0);
      waits_for = "the bench waits for a death";
      while (!u_device.dead[0]) @(posedge clk);
    end else if (kind == Reset) u_registers.write(REG_FN_CONTROL, FN_CONTROL_RESET);
    else begin
      if (kind == Abort) begin
        u_registers.write(at_queue(REG_ABORT, 0), 32'd2);
        state = STATE_ABORTING;
        from  = cycle;
        while (state[STATE_ABORTING_BIT]) begin
          u_registers.read(at_queue(REG_STATE, 0), state);
          if (cycle - from > Bound) begin
            fail($sformatf("R8: an ABORT of %0s has not ended after %0d cycles", what, Bound));
            $finish;
          end
        end
      end
      u_registers.write(at_function(REG_CONTROL, 0), 0);
    end
    from           = cycle;
    positions_then = positions;
    sequences_then = sequences;
    waits_for      = {"the bench waits for the end of ", what};
    state          = STATE_ACTIVE;
    while (kind == Death ? u_device.free != '1 : state[STATE_ACTIVE_BIT]) begin
      if (kind == Death) @(posedge clk);
      else u_registers.read(at_queue(REG_STATE, 0), state);
      if (cycle - from > Bound) begin
        fail($sformatf("%0s: %0s has not ended after %0d cycles", kind == Death ? "R24" : "R12", what, Bound));
        $finish;
      end
    end
    if (cycle - from > longest) longest = cycle - from;
    // The gangs that run or are open may begin these.
    if (positions - positions_then > Gangs * Contexts)
      fail($sformatf("R12: %0d positions of %0s are begun behind its end", positions - positions_then, what));
    if (sequences - sequences_then > 1)
      fail($sformatf("R12: %0d PREFILLs of %0s begin behind its end", sequences - sequences_then, what));
    if (kind == Death) begin
      u_memory.hold_read = -1;
      u_registers.write(at_function(REG_CONTROL, 0), 0);
      state = STATE_ACTIVE;
      while (state[STATE_ACTIVE_BIT]) u_registers.read(at_queue(REG_STATE, 0), state);
      u_registers.write(at_queue(REG_ERROR, 0), '1);
    end
    u_registers.expect_read(REG_FN_CONTROL, 0);
    ends[kind] = ends[kind] + 1;
  endtask

  task automatic short_program;
    word(0, 0, EndSilent);
    word(0, 1, End);
  endtask

  task automatic case_prefills(input int kind);
    int count, length, all;
    u_memory.read_latency = chance(50) ? 0 : below(Slow - 20);
    u_memory.read_jitter  = chance(50) ? 0 : 20;
    begin_queue_pair(2);
    short_program;
    count  = between(1, 5);
    length = between(Longest / 2, Longest);
    for (int k = 0; k < count; k++) put_prefill(0, k, chance(70) ? 32'd2 : 32'(3 + k), 0, length);
    all = positions + count * (length - 1);
    ring(0);
    repeat (below(1500)) @(posedge clk);
    if (u_device.free == '1) repeat (200) @(posedge clk);
    end_queue_pair(kind, "some PREFILLs");
    if (positions < all - Gangs * Contexts) cut = cut + 1;
    if (count > Workers) waiting = waiting + 1;
    // The queue pair begins again.
    begin_queue_pair(2);
    short_program;
    put_prefill(0, 0, 32'd2, 0, between(2, 60));
    ring(0);
    expect_done(0, 60 * 150, "a PREFILL behind the end");
    end_queue_pair(Disable, "nothing");
  endtask

  // ---------------------------------------------------------------- programs that do not end
  // docs/isa.md, "Words". Lines of model memory count from the model's first.
  localparam logic [63:0] EndSilent = 64'h8300_0000_0000_0000, End = 64'h8000_0000_0000_0000, Next = 64'h8200_0000_0000_0000;
  localparam int Programs = 6;

  function automatic logic [63:0] shape(input logic weight, input int index, input int m, input int n, input int k);
    shape = {4'd3, 1'b0, weight, 6'(index), 16'(m), 16'(n), 16'(k), 4'd0};
  endfunction
  function automatic logic [63:0] descriptor(input int index, input int base, input int aux);
    descriptor = {4'd3, 2'd2, 6'(index), 32'(base), 16'(aux), 4'd0};
  endfunction
  function automatic logic [63:0] layers(input int count);
    layers = {4'd8, 4'd1, 16'(count), 6'd0, 6'd0, 28'd0};
  endfunction
  // memcpy.in, of the lines of this shape from the first of the descriptor on, to line 0.
  function automatic logic [63:0] copy(input int index, input int of_shape);
    copy = {4'd2, 2'd2, 17'd0, 17'd0, 7'd0, 4'd0, 6'(index), 6'(of_shape), 1'b0};
  endfunction

  // Queue pair 0's program: loops of 65,535 rounds, each of which takes longer than the bench. A round is empty, or has slow words: a head of
  // 400 rows with softcap, a copy of 400 lines, an attention of 32 heads, a matrix that accumulates, or three of these.
  task automatic endless_program(input int which);
    next_word = 0;
    more(0, descriptor(0, 0, 0));
    more(0, shape(1'b0, 1, 1, 1, 1600));                 // 400 lines
    more(0, shape(1'b0, 2, 32, 1, 32));                  // queries: heads, those of keys, channels
    more(0, shape(1'b1, 3, 400, 1, 32));                 // a matrix of 400 rows
    more(0, shape(1'b1, 4, 352, 1, 32));
    more(0, descriptor(1, 40, 0));                       // its rows, their scales
    more(0, descriptor(2, 450, 0));
    more(0, descriptor(3, 60, 0));
    more(0, descriptor(4, 40, 34));                      // lines of a block, and of a layer in it
    more(0, {4'd3, 8'd193, 32'd1000, 20'd0});            // memset.factor
    more(0, {4'd3, 8'd195, 32'd0, 20'd0});               // memset.source
    more(0, shape(1'b0, 5, 1, 1, 80));                   // what the words below read: 20 lines
    more(0, copy(3, 5));
    for (int n = 0; n < 20; n++) begin
      more(0, layers(65535));
      case (which)
        1: more(0, {4'd7, 13'd0, 6'd1, 6'd3, 3'b111, 32'd0});                                 // head, with cap
        2: more(0, copy(3, 1));
        3: more(0, {4'd6, 13'd500, 13'd0, 6'd2, 6'd4, 3'b010, 19'd0});                        // attn source
        4: more(0, {4'd0, 17'd3600, 17'd0, 1'b0, 1'b1, 1'b1, 3'd0, 6'd1, 6'd4, 8'd0});       // gemv, accumulates
        5: begin
          more(0, {4'd6, 13'd500, 13'd0, 6'd2, 6'd4, 3'b010, 19'd0});
          more(0, {4'd7, 13'd0, 6'd1, 6'd3, 3'b110, 32'd0});
          more(0, copy(3, 1));
        end
        default: ;
      endcase
      more(0, Next);
    end
    more(0, EndSilent);
    more(0, End);
  endtask

  // Queue pair 0 runs such a program, and ends. Beside it, queue pair 1 of another function may run a program that ends; it completes.
  task automatic case_endless(input int kind, input int which, input logic beside);
    int count;
    u_memory.read_latency = chance(50) ? 0 : below(Slow - 20);
    u_memory.read_jitter  = chance(50) ? 0 : 20;
    begin_queue_pair(100);
    endless_program(which);
    count = beside ? 1 : between(1, 3);
    for (int k = 0; k < count; k++)
      if (kind == Abort || chance(50)) put_decode(k, 32'(2 + k), 480);
      else put_prefill(0, k, 32'(2 + k), 450, 500);
    if (beside) begin
      publish(1, 5);
      next_word = 0;
      more(1, descriptor(0, 0, 0));
      more(1, layers(between(150, 250)));
      more(1, Next);
      more(1, EndSilent);
      more(1, End);
      put_prefill(1, 0, 32'd9, 0, between(3, 6));
      ring(1);
    end
    ring(0);
    repeat (between(400, 1900)) @(posedge clk);
    if (u_device.free == '1) repeat (300) @(posedge clk);
    if (u_device.free == '1) fail("no worker runs a program without end");
    end_queue_pair(kind, $sformatf("program %0d", which));
    if (beside) expect_done(1, 20 * 1000, "a PREFILL beside the end");
    begin_queue_pair(2);
    short_program;
    put_prefill(0, 0, 32'd2, 0, between(2, 60));
    ring(0);
    expect_done(0, 60 * 150, "a PREFILL behind the end");
    end_queue_pair(Disable, "nothing");
    // Each POLICY publishes version 1 anew.
    u_registers.write(at_function(REG_CONTROL, 1), 0);
    u_registers.write(REG_FN_CONTROL + BLOCK_FUNCTION_PER_FUNCTION, FN_CONTROL_RESET);
    enable(1);
  endtask

  int first;
  initial begin
    for (int k = 0; k < Kinds; k++) ends[k] = 0;
    @(posedge rst_n);
    @(posedge clk);
    for (int q = 0; q < Queues; q++) configure(q);
    u_registers.write(REG_BUS_TIMEOUT, 300);
    for (int q = 0; q < Queues; q++) begin
      u_registers.write64(REG_MODEL_BASE_LO + 18'(owner[q]) * BLOCK_FUNCTION_PER_FUNCTION, place(q) + Model);
      u_registers.write64(REG_MODEL_SIZE_LO + 18'(owner[q]) * BLOCK_FUNCTION_PER_FUNCTION, 64'h8000);
      u_registers.write64(REG_ARENA_0_BASE_LO + 18'(owner[q]) * BLOCK_FUNCTION_PER_FUNCTION, place(q) + Arena);
      u_registers.write64(REG_ARENA_0_SIZE_LO + 18'(owner[q]) * BLOCK_FUNCTION_PER_FUNCTION, 64'h8000);
      for (int k = 0; k < Longest; k++) u_memory.poke(place(q) + Token + Prompt + 64'(4 * k), below(100));
      for (int k = 0; k < 512 * 16; k++) begin
        u_memory.poke(place(q) + Model + 64'(4 * k), rnd());
        u_memory.poke(place(q) + Arena + 64'(4 * k), rnd());
      end
    end
    enable(1);
    for (int k = 0; k < drawn(9, 60); k++) case_prefills(k % Abort);
    first = below(Kinds);
    for (int k = 0; k < drawn(Programs, 60); k++) case_endless((first + k) % Kinds, k % Programs, k % 2 == 1);
    if (cut < drawn(7, 50) || waiting < 1)
      fail($sformatf("only %0d ends cut a PREFILL off, %0d with some that are queued", cut, waiting));
    for (int k = 0; k < Kinds; k++) if (ends[k] == 0) fail($sformatf("end %0d was not tried", k));
    $display("the longest end took %0d cycles", longest);
    finish_bench("rl_runtime_top_steps_tb");
  end
endmodule
