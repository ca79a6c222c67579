// A device of several functions on a bus that serves each of them as the bench says: responses are withheld, late or erroneous by function and
// by what was accessed, which addresses tell, never by ID. What AXI orders by ID stays in order: behind a response that is withheld, whatever has
// its ID waits too. One queue pair is the victim, whose every wait is held to the bounds of R28; the others attack.
module tenants #(
  parameter int Queues    = 2,
  parameter int Functions = 2,
  parameter int Workers   = 4,
  parameter int Engines   = 1,          // 2: with engine 1, of one gang
  parameter int Limit     = 2_000_000
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  // What is shared (R28): what the attackers make the device do.
  localparam int Lines = 0, Completions = 1, Messages = 2, Events = 3, Fetch = 4, Readback = 5, Publishes = 6, Registers = 7, Groups = 8, Things = 9;
  localparam int Engine = 9;             // … where there is one
  // What happens to it.
  localparam int Withheld = 0, Late = 1, Erroneous = 2, Flooded = 3, Reset = 4, Disabled = 5, Reassigned = 6, Actions = 7;
  // What is accessed.
  localparam int ReadDesc = 0, ReadBack = 1, WriteLine = 2, WriteDone = 3, WriteEvent = 4, WriteMessage = 5, ReadEngine = 6, WriteStore = 7, Accesses = 8;
  // What the victim publishes: NOP, DECODE of two lines, REWARD of two lines, POLICY; POLICY of engine 1, and a DECODE of two tokens by it.
  localparam int Nop = 0, Decode = 1, Reward = 2, Policy = 3, Publish = 4, Language = 5;

  localparam int CompletionDepth = 128;
  localparam int FetchDepth = 128;
  localparam logic [5:0] EngineIds = 6'd32;      // ARID of engine 1, by function
  localparam int FetchPlaces = FetchDepth / ((Queues == 1) ? 1 : 1 << $clog2(Queues));

  function automatic string thing_name(input int k);
    case (k)
      Lines:       thing_name = "lines";
      Completions: thing_name = "completions";
      Messages:    thing_name = "messages";
      Events:      thing_name = "events";
      Fetch:       thing_name = "fetch";
      Readback:    thing_name = "readback";
      Publishes:   thing_name = "publishes";
      Registers:   thing_name = "registers";
      Groups:      thing_name = "groups";
      default:     thing_name = "engine 1";
    endcase
  endfunction

  function automatic string action_name(input int k);
    case (k)
      Withheld:  action_name = "withheld";
      Late:      action_name = "late";
      Erroneous: action_name = "erroneous";
      Flooded:   action_name = "flooded";
      Reset:     action_name = "reset";
      Disabled:  action_name = "disabled";
      default:   action_name = "reassigned";
    endcase
  endfunction

  // ---------------------------------------------------------------- the device
  logic clk, rst_n, m_axi_rst_ni;
  int   cycle;
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
  assign m_axi_rst_ni = rst_n;

  clock_reset #(.Limit(Limit)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  rl_runtime_top #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .FetchDepth(FetchDepth), .CompletionDepth(CompletionDepth), .Engines(Engines), .Gangs(1),
                   .Contexts(1)) u_device (
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

  // ---------------------------------------------------------------- what the bench says
  int            k_cycles = 1;          // AW, W and AR are taken within so many
  int            timeout = 0;           // BUS_TIMEOUT
  logic [16*Accesses-1:0] hold = '0;           // of a function, by what is accessed: responses are withheld, …
  int            late [0:16*Accesses-1];       // … or come so many cycles late at most
  int            bad  [0:16*Accesses-1];       // … or are errors, percent of them
  int            victim = Queues - 1;
  int            owner_of [0:15];       // function of each queue pair, as it was started
  int            load_of [0:15];        // Things: what each queue pair publishes
  int            action = Flooded, thing = Completions;
  initial for (int k = 0; k < 16 * Accesses; k++) begin late[k] = 0; bad[k] = 0; end

  // ---------------------------------------------------------------- addresses: queue pair (events, models and arenas: function), and what lies there
  localparam logic [63:0] Base = 64'h0000_0045_0000_0000;
  function automatic logic [63:0] place(input int number, input int region);
    place = Base | (64'(number) << 28) | (64'(region) << 24);
  endfunction
  localparam int Sq = 0, Cq = 1, Token = 2, Eq = 3, Message = 4, Kv = 5, Model = 6, Arena = 7;
  localparam logic [31:0] Key = 32'h5EED_0123;

  // Engine 1: a model of one layer with four heads of keys and values; 136 lines are a block. A step of its program reads an activation, multiplies it with
  // 512 rows of a line, which is four times what may be on its way, and gives a token. All other lines are 0.
  localparam int ProgramLine = 540, Words = 9, BlockLines = 136, PolicyLine = 32768;
  function automatic logic [511:0] model_line(input int line);
    model_line = '0;
    case (line)
      0: begin
        model_line[95:0]    = {32'd2, 8'd0, "M", "L", "b", "r", "o", "o", "D"};
        model_line[191:128] = 64'd64 * ProgramLine;
        model_line[447:192] = {32'd2048, 32'd32, 32'd64, 32'd32, 32'd4, 32'd4, 32'd1, 32'd64};
      end
      ProgramLine: model_line = {4'd7, 13'd0, 6'd1, 6'd1, 1'b1, 1'b1, 33'd0,                              // head: 32 rows
                                 4'd0, 17'd128, 17'd0, 3'd0, 3'd0, 6'd1, 6'd0, 5'd0, 3'd0,                // gemv: 512 rows, to line 32
                                 4'd2, 2'd2, 17'd0, 17'd0, 7'd0, 4'd0, 6'd1, 6'd0, 1'b0,                  // memcpy.in
                                 4'd3, 2'd2, 6'd2, 32'd520, 16'd0, 4'd0,                                  // memset.desc: scales,
                                 4'd3, 2'd2, 6'd1, 32'd8, 16'd0, 4'd0,                                    // rows
                                 4'd3, 2'd1, 6'd1, 16'd32, 16'd1, 16'd64, 4'd0,                           // memset.weight
                                 4'd3, 2'd1, 6'd0, 16'd512, 16'd1, 16'd64, 4'd0,
                                 4'd3, 2'd0, 6'd0, 16'd1, 16'd1, 16'd96, 4'd0};                           // memset.fmap: 96 words
      ProgramLine + 1: model_line[63:60] = 4'd8;                                                          // end
      default: ;
    endcase
  endfunction

  function automatic logic [511:0] image_line();
    logic [511:0] header;
    hw_image_t    image;
    header            = model_line(0);
    image             = '0;
    image.program_at  = 64'd64 * ProgramLine;
    image.words       = Words;
    image.length      = image.program_at + 128;
    image.vocabulary  = ref_shape(header, 6);
    image.positions   = ref_shape(header, 7);
    image.block_lines = 32'(ref_block_lines(header));
    {image.end_0, image.end_1, image.end_2, image.end_3} = '1;
    image_line        = ref_fold_seal(image);
  endfunction

  // HwSequences of one token that is there: the first one's step begins with the copy of a block. Behind each a table whose entries are all 2.
  localparam int Length = 40;
  function automatic logic [511:0] kv_line(input int line);
    kv_line = {16{32'd2}};
    if (line % 64 == 0) begin
      kv_line = '0;
      kv_line[HW_SEQUENCE_ENTRIES_LSB +: 32] = 32'd64;
      kv_line[HW_SEQUENCE_SOURCE_LSB +: 32]  = 32'd1;
      if (line == 0) kv_line[HW_SEQUENCE_SHARED_LSB +: 32] = Length - 1;
      kv_line = ref_fold_seal(kv_line);
    end
  endfunction

  function automatic hw_desc_t desc_of(input int q, input int index);
    hw_desc_t desc;
    int       what;
    desc            = '0;
    desc.opcode     = OP_NOP;
    desc.rollout_id = index;
    desc.prefix_id  = PREFIX_NONE;
    desc.member     = MEMBER_NONE;
    desc.checkpoint = CHECKPOINT_NEVER;
    desc.user_data  = 64'(index);
    what            = load_of[q];
    if (q == victim) begin
      case (mix_of[index % 1024])
        Decode: begin
          desc.opcode         = OP_DECODE;
          desc.policy_version = 16'(version_of[index % 1024]);
          desc.max_tokens     = 20;
          desc.delta_offset = 64'd256 * (index % 1024);
        end
        Reward: begin
          desc.opcode       = OP_REWARD;
          desc.max_tokens   = 32;
          desc.delta_offset = 64'd256 * (index % 1024);
        end
        Policy: begin
          desc.opcode         = OP_POLICY;
          desc.policy_version = 16'(index + 1);
          desc.delta_offset   = 64'd64 * (index + 1);
          desc.checkpoint     = '0;
        end
        Publish:  desc = publish_of(desc);
        Language: desc = language_of(desc, index);
        default: ;
      endcase
      desc.flags[FLAG_INTERRUPT_BIT] = 1'b1;
    end else case (what)
      Lines: begin
        desc.opcode       = OP_DECODE;
        desc.max_tokens   = 5 + index % 30;
        desc.delta_offset = 64'd256 * (index % 1024);
      end
      Messages: desc.flags[FLAG_INTERRUPT_BIT] = 1'b1;
      Readback: begin
        desc.opcode       = OP_REWARD;
        desc.max_tokens   = 20000;
      end
      Publishes: begin
        desc.opcode         = OP_POLICY;
        desc.policy_version = 16'(index + 1);
        desc.delta_offset   = 64'd64 * (index + 1);
        desc.checkpoint     = '0;
      end
      Groups: begin
        desc.prefix_id = index / 4;
        case (index % 4)
          0: begin desc.opcode = OP_PREFILL; desc.max_tokens = 2; end
          1: begin
            desc.opcode       = OP_DECODE;
            desc.max_tokens   = 3;
            desc.delta_offset = 64'd256 * (index % 1024);
            desc.member       = 16'd0;
          end
          2: begin desc.opcode = OP_STOP; desc.member = 16'd1; end
          default: begin desc.opcode = OP_STOP; desc.member = MEMBER_NONE; end
        endcase
        desc.flags[FLAG_COW_PREFIX_BIT] = index % 4 != 0;
      end
      Engine: desc = (index == 0) ? publish_of(desc) : language_of(desc, index);
      default: ;
    endcase
    desc_of = desc;
  endfunction
  // A version of engine 1, and a DECODE by it.
  function automatic hw_desc_t publish_of(input hw_desc_t blank);
    publish_of                = blank;
    publish_of.opcode         = OP_POLICY;
    publish_of.model_id       = 16'd1;
    publish_of.policy_version = 16'd1;
    publish_of.delta_offset   = 64'd64 * PolicyLine;
    publish_of.checkpoint     = '0;
  endfunction

  function automatic hw_desc_t language_of(input hw_desc_t blank, input int index);
    language_of                = blank;
    language_of.opcode         = OP_DECODE;
    language_of.model_id       = 16'd1;
    language_of.policy_version = 16'd1;
    language_of.seq_len        = Length;
    language_of.max_tokens     = 2;
    language_of.delta_offset   = 64'd256 * (index % 1024) + 4;
    language_of.kv_offset      = (index % 4 == 3) ? 64'd4096 : 64'd0;
  endfunction

  int mix_of [0:1023];                  // what the victim publishes, by index, …
  int version_of [0:1023];              // … and the version that a DECODE of it names
  int version = 0;                      // that it published last

  localparam int Kept = 2048;
  logic [(Things+1)*Kept-1:0] kept = '0;
  logic [511:0]           sealed [0:(Things+1)*Kept-1];

  function automatic logic [511:0] data_of(input logic [63:0] addr);
    int q, line;
    q    = int'(addr[31:28]);
    line = int'(addr[23:6]);
    if (addr[63:32] == Base[63:32] && Engines > 1 && addr[27:24] >= 4'(Kv) && addr[27:24] <= 4'(Arena))
      data_of = (addr[27:24] == 4'(Kv)) ? kv_line(line) : (addr[27:24] == 4'(Model)) ? model_line(line) : '0;
    else if (addr[63:32] != Base[63:32] || (addr[27:24] != 4'(Sq) && addr[27:24] != 4'(Token))) begin
      fail($sformatf("R11: read of %h", addr));
      data_of = '0;
    end else if (addr[27:24] == 4'(Sq)) begin
      // What was worked out once is kept.
      if (q == victim || line >= Kept) data_of = ref_seal(desc_of(q, line), Key, line);
      else begin
        if (!kept[load_of[q] * Kept + line]) begin
          kept[load_of[q] * Kept + line]   = 1'b1;
          sealed[load_of[q] * Kept + line] = ref_seal(desc_of(q, line), Key, line);
        end
        data_of = sealed[load_of[q] * Kept + line];
      end
    end
    else if (line == PolicyLine)     data_of = {384'd0, ref_header(16'd1, 16'd1, 32'd0, 32'd64)};
    else if (line == PolicyLine + 1) data_of = image_line();
    else data_of = {384'd0, ref_policy(16'(line), 32'(line) * 32'h9E37_79B9)};
  endfunction

  // ---------------------------------------------------------------- reads
  localparam int Ids = 64, Depth = 256;
  int          r_wait = 0, aw_wait = 0, w_wait = 0;
  logic [63:0] r_addr [0:Ids*Depth-1];
  int          r_len [0:Ids*Depth-1], r_due [0:Ids*Depth-1], r_key [0:Ids*Depth-1];
  int          r_head [0:Ids-1], r_tail [0:Ids-1];
  logic [Ids-1:0] r_some = '0, b_some = '0;
  int          r_id = 0, r_at, r_beat = 0, r_pick, b_id = 0, b_at, b_pick;
  logic        r_busy = 1'b0;
  initial begin
    for (int k = 0; k < Ids; k++) begin r_head[k] = 0; r_tail[k] = 0; b_head[k] = 0; b_tail[k] = 0; end
    m_axi_rvalid = 1'b0;
    m_axi_bvalid = 1'b0;
  end

  // Ready changes behind the clock, as all that the device sees.
  initial {m_axi_arready, m_axi_awready, m_axi_wready} = 3'b111;

  function automatic int due(input int key);
    due = cycle + 3 + (late[key] == 0 ? 0 : below(late[key]));
  endfunction

  always @(posedge clk) if (rst_n) begin
    if (m_axi_arvalid) begin
      if (m_axi_arready) begin
        int at, key, q;
        q   = int'(m_axi_araddr[31:28]);
        key = int'(m_axi_aruser) * Accesses + ((m_axi_arid >= EngineIds) ? ReadEngine : (m_axi_araddr[27:24] == 4'(Sq)) ? ReadDesc : ReadBack);
        if ((m_axi_araddr[27:24] >= 4'(Model) ? q : owner_of[q]) != int'(m_axi_aruser)) fail($sformatf("R11: ARUSER %0d with an address of queue pair %0d", m_axi_aruser, q));
        at  = int'(m_axi_arid) * Depth + r_tail[m_axi_arid] % Depth;
        r_addr[at] = m_axi_araddr;
        r_len[at]  = int'(m_axi_arlen) + 1;
        r_key[at]  = key;
        r_due[at]  = due(key);
        r_tail[m_axi_arid] = r_tail[m_axi_arid] + 1;
        if (r_tail[m_axi_arid] - r_head[m_axi_arid] > Depth) $fatal(1, "tenants: too many reads of ID %0d", m_axi_arid);
        r_some[m_axi_arid] = 1'b1;
        r_wait = below(k_cycles);
      end else r_wait = r_wait - 1;
    end
    m_axi_arready <= r_wait == 0;
    if (!m_axi_rvalid || m_axi_rready) begin
    m_axi_rvalid <= 1'b0;
    if (!r_busy && r_some != '0) begin
      r_pick = -1;
      for (int k = 0; k < Ids && r_pick < 0; k++) begin
        r_id = (r_id + 1) % Ids;
        if (r_some[r_id]) begin
          r_at = r_id * Depth + r_head[r_id] % Depth;
          if (r_due[r_at] <= cycle && !hold[r_key[r_at]]) r_pick = r_id;
        end
      end
      r_busy = r_pick >= 0;
      r_beat = 0;
    end
    if (r_busy) begin
      m_axi_rvalid <= 1'b1;
      m_axi_rid    <= 6'(r_id);
      m_axi_rdata  <= data_of(r_addr[r_at] + 64 * r_beat);
      m_axi_rresp  <= chance(bad[r_key[r_at]]) ? 2'b10 : 2'b00;
      m_axi_rlast  <= r_beat + 1 == r_len[r_at];
      r_beat = r_beat + 1;
      if (r_beat == r_len[r_at]) begin
        r_busy = 1'b0;
        r_head[r_id] = r_head[r_id] + 1;
        r_some[r_id] = r_head[r_id] != r_tail[r_id];
      end
    end
    end
  end

  // ---------------------------------------------------------------- writes
  logic [63:0]  aw_addr [0:15];
  logic [5:0]   aw_id [0:15];
  logic [3:0]   aw_user [0:15];
  logic [511:0] w_data [0:15];
  logic [63:0]  w_strb [0:15];
  int           aw_head = 0, aw_tail = 0, w_head = 0, w_tail = 0;
  int           b_head [0:Ids-1], b_tail [0:Ids-1], b_key [0:Ids*Depth-1], b_due [0:Ids*Depth-1], b_pair [0:Ids*Depth-1], b_gain [0:Ids*Depth-1];
  int           owed = 0;                     // writes without a response
  int           done_count [0:15];            // completions that are visible, of a queue pair
  int           life_count [0:15], fault_count [0:15];    // events that were written, of a function
  int           message_count [0:15];         // of a queue pair, on the bus
  int           error_count = 0;              // completions of the victim with status ERROR
  int           done_at = 0, life_at = 0, message_at = 0; // the victim's last
  int           expected_index = 0;
  initial for (int k = 0; k < 16; k++) begin done_count[k] = 0; life_count[k] = 0; fault_count[k] = 0; message_count[k] = 0; end

  task automatic take_write(input logic [63:0] addr, input logic [5:0] id, input logic [3:0] user, input logic [511:0] data, input logic [63:0] strb);
    int             number, key, at, gain;
    hw_completion_t done;
    hw_event_t      event_now;
    number = int'(addr[31:28]);
    gain   = 0;
    if (addr[63:32] != Base[63:32]) fail($sformatf("R11: write to %h", addr));
    case (int'(addr[27:24]))
      Cq: begin
        key = WriteDone;
        for (int half = 0; half < 2; half++) if (strb[32*half]) begin
          gain = gain + 1;
          done = data[256*half +: 256];
          if (number == victim) begin
            if (done.user_data[31:0] >= 32'(published)) fail($sformatf("R3: the victim's completion of descriptor %0d", done.user_data));
            if (done.status == STATUS_ERROR) error_count = error_count + 1;
            if (done.status == STATUS_ERROR && $test$plusargs("show")) $display("error %0d of descriptor %0d, kind %0d, cycle %0d", done.error, done.user_data[31:0], mix_of[done.user_data % 1024], cycle);
          end
        end
      end
      Token: key = WriteLine;
      Eq: begin
        key       = WriteEvent;
        event_now = strb[0] ? data[255:0] : data[511:256];
        if (number != int'(user)) fail($sformatf("R23: an event of function %0d in the ring of function %0d", user, number));
        if (number == owner_of[victim] && int'(event_now.queue_id) != victim)
          fail($sformatf("R23: an event of queue pair %0d in the ring of function %0d", event_now.queue_id, number));
        if (event_now.kind == EVENT_FAULT) fault_count[number] = fault_count[number] + 1;
        else begin
          life_count[number] = life_count[number] + 1;
          if (number == owner_of[victim]) life_at = cycle;
        end
      end
      Arena: begin
        key = WriteStore;
        if (number != int'(user)) fail($sformatf("R11: function %0d writes the arena of function %0d", user, number));
      end
      Message: begin
        key = WriteMessage;
        message_count[number] = message_count[number] + 1;
        if (number == victim) message_at = cycle;
      end
      default: begin
        key = WriteLine;
        fail($sformatf("R11: write to %h", addr));
      end
    endcase
    if (key != WriteEvent && key != WriteStore && int'(user) != owner_of[number]) fail($sformatf("R11: AWUSER %0d with an address of queue pair %0d", user, number));
    key = int'(user) * Accesses + key;
    at  = int'(id) * Depth + b_tail[id] % Depth;
    b_key[at]  = key;
    b_pair[at] = number;
    b_gain[at] = gain;
    b_due[at]  = due(key);
    b_tail[id] = b_tail[id] + 1;
    b_some[id] = 1'b1;
    owed       = owed + 1;
    if (b_tail[id] - b_head[id] > Depth) $fatal(1, "tenants: too many writes of ID %0d", id);
  endtask

  always @(posedge clk) if (rst_n) begin
    if (m_axi_awvalid) begin
      if (m_axi_awready) begin
        aw_addr[aw_tail % 16] = m_axi_awaddr;
        aw_id[aw_tail % 16]   = m_axi_awid;
        aw_user[aw_tail % 16] = m_axi_awuser;
        aw_tail = aw_tail + 1;
        aw_wait = below(k_cycles);
      end else aw_wait = aw_wait - 1;
    end
    m_axi_awready <= aw_wait == 0;
    if (m_axi_wvalid) begin
      if (m_axi_wready) begin
        w_data[w_tail % 16] = m_axi_wdata;
        w_strb[w_tail % 16] = m_axi_wstrb;
        w_tail = w_tail + 1;
        w_wait = below(k_cycles);
      end else w_wait = w_wait - 1;
    end
    m_axi_wready  <= w_wait == 0;
    while (aw_head != aw_tail && w_head != w_tail) begin
      take_write(aw_addr[aw_head % 16], aw_id[aw_head % 16], aw_user[aw_head % 16], w_data[w_head % 16], w_strb[w_head % 16]);
      aw_head = aw_head + 1;
      w_head  = w_head + 1;
    end
    if (!m_axi_bvalid || m_axi_bready) begin
    m_axi_bvalid <= 1'b0;
    if (b_some != '0) begin
      b_pick = -1;
      for (int k = 0; k < Ids && b_pick < 0; k++) begin
        b_id = (b_id + 1) % Ids;
        if (b_some[b_id]) begin
          b_at = b_id * Depth + b_head[b_id] % Depth;
          if (b_due[b_at] <= cycle && !hold[b_key[b_at]]) b_pick = b_id;
        end
      end
      if (b_pick >= 0) begin
        m_axi_bvalid <= 1'b1;
        m_axi_bid    <= 6'(b_pick);
        m_axi_bresp  <= chance(bad[b_key[b_at]]) ? 2'b10 : 2'b00;
        b_head[b_pick] = b_head[b_pick] + 1;
        b_some[b_pick] = b_head[b_pick] != b_tail[b_pick];
        owed = owed - 1;
        if (b_gain[b_at] != 0) begin
          done_count[b_pair[b_at]] = done_count[b_pair[b_at]] + b_gain[b_at];
          if (b_pair[b_at] == victim) done_at = cycle;
        end
      end
    end
    end
  end

  // ---------------------------------------------------------------- engine 1 (R24): what the bus owes it, and what a death gives up
  // No more than 128 lines of reads and 32 stores are in flight. Of each death no more are given up: what the engine asks for then, the bus never sees.
  int lines_owed [0:15], stores_owed [0:15], lines_given [0:15], stores_given [0:15], most_given = 0;
  logic rows_asked = 1'b0;                // the newest read is an attacker's, of its first rows
  initial for (int f = 0; f < 16; f++) begin lines_owed[f] = 0; stores_owed[f] = 0; lines_given[f] = 0; stores_given[f] = 0; end
  if (Engines > 1) begin : gen_engine
    int f;
    always @(posedge clk) if (rst_n) begin
      if (m_axi_arvalid && m_axi_arready && m_axi_arid >= EngineIds) begin
        f = int'(m_axi_arid[3:0]);
        lines_owed[f] = lines_owed[f] + int'(m_axi_arlen) + 1;
        rows_asked    = f != owner_of[victim] && m_axi_araddr[27:24] == 4'(Model) && m_axi_araddr[23:6] > 18'd40 && m_axi_araddr[23:6] < 18'd200;
        if (lines_owed[f] > 128) fail($sformatf("R24: the bus owes %0d lines to engine 1 of function %0d", lines_owed[f], f));
      end
      if (m_axi_rvalid && m_axi_rready && m_axi_rid >= EngineIds) lines_owed[m_axi_rid[3:0]] = lines_owed[m_axi_rid[3:0]] - 1;
      for (int q = 0; q < Queues; q++) if (u_device.die[q]) begin
        lines_given[u_device.owners[q]]  = 0;
        stores_given[u_device.owners[q]] = 0;
      end
      if (u_device.r_given && u_device.r_id >= EngineIds) begin
        f = int'(u_device.r_id[3:0]);
        lines_given[f] = lines_given[f] + 1;
        if (lines_given[f] > most_given) most_given = lines_given[f];
        if (lines_given[f] > 128) fail($sformatf("R24: %0d lines of engine 1 are given up with a death of function %0d", lines_given[f], f));
      end
      if (u_device.b_given && u_device.store_ack) begin
        f = int'(u_device.b_id[3:0]);
        stores_given[f] = stores_given[f] + 1;
        if (stores_given[f] > 32) fail($sformatf("R24: %0d stores of engine 1 are given up with a death of function %0d", stores_given[f], f));
      end
    end
  end

  // ---------------------------------------------------------------- the register port: an access is answered two cycles behind address and data
  int write_since = -1, read_since = -1;
  logic write_addr = 1'b0, write_data = 1'b0;
  int bell_at = 0, arm_at = 0;
  always @(posedge clk) if (rst_n) begin
    if (s_axil_bvalid) begin write_since = -1; end
    else if (write_since >= 0 && cycle - write_since > 2) fail("R28: a register write is answered late");
    if (s_axil_rvalid) read_since = -1;
    else if (read_since >= 0 && cycle - read_since > 2) fail("R28: a register read is answered late");
    if (s_axil_awvalid && s_axil_awready) write_addr = 1'b1;
    if (s_axil_wvalid && s_axil_wready)   write_data = 1'b1;
    if (write_addr && write_data) begin
      write_since = cycle;
      {write_addr, write_data} = 2'b00;
      if (s_axil_awaddr == REG_DOORBELL + BLOCK_QUEUE_PER_QUEUE * victim) bell_at = cycle;
    end
    if (s_axil_arvalid && s_axil_arready) read_since = cycle;
  end

  // ---------------------------------------------------------------- registers
  function automatic logic [17:0] fq(input logic [17:0] addr, input int q);
    fq = addr + BLOCK_FUNCTION_PER_FUNCTION * owner_of[q] + BLOCK_FUNCTION_QUEUE_PER_QUEUE * q;
  endfunction
  function automatic logic [17:0] own(input logic [17:0] addr, input int q);
    own = addr + BLOCK_QUEUE_PER_QUEUE * q;
  endfunction

  // Gives queue pair q to function f, with these workers, and configures it. Nothing of either is active.
  task automatic give(input int q, input int f, input logic [15:0] workers);
    owner_of[q] = f;
    u_registers.write(REG_QUEUE_FUNCTION + BLOCK_DEVICE_QUEUE_PER_QUEUE * q, f);
    u_registers.write(REG_FN_WORKERS + BLOCK_DEVICE_FUNCTION_PER_FUNCTION * f, workers);
    u_registers.write64(REG_WINDOW_0_BASE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION * f, 0);
    u_registers.write64(REG_WINDOW_0_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION * f, '1);
    u_registers.write64(REG_EQ_BASE_LO + BLOCK_FUNCTION_PER_FUNCTION * f, place(f, Eq));
    u_registers.write(REG_EQ_SIZE + BLOCK_FUNCTION_PER_FUNCTION * f, 65536);
    u_registers.write(REG_EVENT_CONTROL + BLOCK_FUNCTION_PER_FUNCTION * f, 1);
    u_registers.write64(fq(REG_SQ_BASE_LO, q), place(q, Sq));
    u_registers.write64(fq(REG_CQ_BASE_LO, q), place(q, Cq));
    u_registers.write64(fq(REG_TOKEN_BASE_LO, q), place(q, Token));
    u_registers.write64(fq(REG_TOKEN_SIZE_LO, q), 64'h80_0000);
    u_registers.write(fq(REG_SQ_SIZE, q), 65536);
    u_registers.write(fq(REG_CQ_SIZE, q), 65536);
    u_registers.write(fq(REG_SQ_KEY, q), Key);
    if (Engines > 1) begin
      u_registers.write64(fq(REG_KV_BASE_LO, q), place(q, Kv));
      u_registers.write64(fq(REG_KV_SIZE_LO, q), 64'h1_0000);
      u_registers.write64(REG_MODEL_BASE_LO + BLOCK_FUNCTION_PER_FUNCTION * f, place(f, Model));
      u_registers.write64(REG_MODEL_SIZE_LO + BLOCK_FUNCTION_PER_FUNCTION * f, 64'd64 * (ProgramLine + 2));
      u_registers.write64(REG_ARENA_0_BASE_LO + BLOCK_FUNCTION_PER_FUNCTION * f, place(f, Arena));
      u_registers.write64(REG_ARENA_0_SIZE_LO + BLOCK_FUNCTION_PER_FUNCTION * f, 64'd64 * BlockLines * 4);
    end
    u_registers.write64(REG_MESSAGE_ADDRESS_LO + BLOCK_DEVICE_MESSAGE_PER_QUEUE * q, place(q, Message));
    u_registers.write(REG_MESSAGE_CONTROL + BLOCK_DEVICE_MESSAGE_PER_QUEUE * q, 0);
  endtask

  // Nothing is active.
  task automatic set_timeout(input int cycles);
    u_registers.write(REG_BUS_TIMEOUT, cycles);
    timeout = cycles;
  endtask

  // A wait that ends by itself takes no longer (R15).
  localparam int Patience = 100_000;

  task automatic await_inactive(input int q);
    logic [31:0] value;
    int          from;
    value = STATE_ACTIVE;
    from  = cycle;
    while ((value & STATE_ACTIVE) != 0) begin
      if (cycle - from > Patience) $fatal(1, "hang: %0s: queue pair %0d stays ACTIVE", waits_for, q);
      u_registers.read(own(REG_STATE, q), value);
      repeat (between(1, 6)) @(posedge clk);
    end
  endtask

  // ---------------------------------------------------------------- the attackers
  logic [15:0] attack = '0, calm = '1;
  for (genvar q = 0; q < Queues; q++) begin : gen_attacker
    logic [31:0] value;
    logic        ok;
    int          tail, until_then, from, then;

    // A life: until it has done what the action says, or the attack ends.
    task automatic life;
      u_registers.write(fq(REG_CONTROL, q), CONTROL_ENABLE);
      tail       = 0;
      until_then = (action >= Reset) ? cycle + between(20, 600) : cycle + 1_000_000;
      while (attack[q] && cycle < until_then && tail < 65000) begin
        case (thing)
          Fetch: begin
            tail = tail + 1;
            u_registers.try_write(own(REG_DOORBELL, q), tail, ok);
          end
          Messages: begin
            tail = tail + 4;
            u_registers.try_write(own(REG_DOORBELL, q), tail, ok);
            u_registers.try_write(own(REG_ARM, q), 0, ok);
          end
          Registers: begin
            case (below(6))
              0: begin
                tail = tail + 4;
                u_registers.try_write(own(REG_DOORBELL, q), tail, ok);
              end
              5: u_registers.try_write(own(REG_DOORBELL, q), 32'h8000_0000 | rnd(), ok);
              1: u_registers.try_write(own(REG_CQ_HEAD, q), rnd(), ok);
              2: u_registers.try_read(own(REG_SQ_HEAD, q), value, ok);
              3: u_registers.try_write(own(REG_ABORT, q), below(60000), ok);
              default: u_registers.try_write(fq(REG_SQ_SIZE, q), 4, ok);      // locked
            endcase
          end
          default: if (thing == Engine && tail == 0) begin
            // Its DECODEs come behind its version.
            tail = 1;
            u_registers.try_write(own(REG_DOORBELL, q), tail, ok);
            from = cycle;
            then = done_count[q];
            while (attack[q] && cycle < until_then && cycle - from < 1000 && done_count[q] == then) @(posedge clk);
          end else if (tail < 60000) begin
            tail = 60000;
            u_registers.try_write(own(REG_DOORBELL, q), tail, ok);
          end
        endcase
        repeat (between(1, 8)) @(posedge clk);
      end
    endtask

    task automatic stop;
      u_registers.try_write(fq(REG_CONTROL, q), 0, ok);
      await_inactive(q);
      u_registers.write(own(REG_ERROR, q), '1);
    endtask

    initial begin
      while (!rst_n) @(posedge clk);
      forever begin
        while (!attack[q]) @(posedge clk);
        calm[q] = 1'b0;
        while (attack[q]) begin
          life;
          if (attack[q] && action == Reset) begin
            u_registers.write(REG_FN_CONTROL + BLOCK_FUNCTION_PER_FUNCTION * owner_of[q], FN_CONTROL_RESET);
            await_inactive(q);
          end else if (attack[q] && (action == Disabled || action == Reassigned)) begin
            stop;
            if (action == Reassigned) begin
              // A FAULT: an ENABLE is refused. At once the queue pair moves to the victim's function, and after a while back.
              u_registers.write(fq(REG_SQ_SIZE, q), 3);
              u_registers.write(fq(REG_CONTROL, q), CONTROL_ENABLE);
              u_registers.write(REG_QUEUE_FUNCTION + BLOCK_DEVICE_QUEUE_PER_QUEUE * q, owner_of[victim]);
              repeat (between(1, 200)) @(posedge clk);
              u_registers.write(REG_QUEUE_FUNCTION + BLOCK_DEVICE_QUEUE_PER_QUEUE * q, owner_of[q]);
              u_registers.write(fq(REG_SQ_SIZE, q), 65536);
              u_registers.write(own(REG_ERROR, q), '1);
            end
          end else if (attack[q]) stop;
        end
        stop;
        calm[q] = 1'b1;
      end
    end
  end

  // ---------------------------------------------------------------- bounds of R28
  int others, their_workers, weights;    // queue pairs that attack, their workers, the sum of their weights
  logic shares = 1'b0;                   // they share workers with the victim
  int   deaths = 0;                      // of others, each of which may hold the workers for so long

  function automatic int u_bound();
    u_bound = 11 * k_cycles;
  endfunction
  function automatic int n_bound();
    n_bound = (others + 3 + 2 * ((others + 7) / 8)) * k_cycles + weights * ((FetchPlaces + 7) / 8) + others + their_workers + (their_workers + 5) * u_bound() + 32;
  endfunction
  // A descriptor of an attacker, at a worker: 34 tokens.
  function automatic int m_bound();
    m_bound = n_bound() + weights * 40 * (their_workers + 1) * u_bound();
  endfunction
  // The looks of the watchdog, and what it gives up of a queue pair: a cycle for each answer and one between, and six for each ID.
  function automatic int v_bound();
    v_bound = 28 * ((Queues > Functions) ? Queues : Functions) + 2 * (Engines > 1 ? 421 : 261) + 36;
  endfunction
  // A descriptor of an attacker at engine 1, each of whose steps waits for those of the other workers.
  function automatic int d_engine();
    d_engine = (their_workers + 1) * alone[k_cycles][Language];
  endfunction
  function automatic int bound_of(input int what);
    bound_of = shares ? m_bound() + ((timeout != 0) ? v_bound() + deaths * timeout : 0) : n_bound();
    if (shares && thing == Engine) bound_of = bound_of + d_engine();
    case (what)
      Decode: bound_of = bound_of + 2 * (their_workers + 1) * u_bound();
      Reward: bound_of = bound_of + 3 * ((others + 1) * (16 + 10 * k_cycles) + ((thing == Engine) ? 94 * others : 0));
      Policy: bound_of = bound_of + (others + 1) * (8 + 10 * k_cycles) + ((thing == Engine) ? 102 * others : 0);
      // A step for each of two tokens, behind those of all workers.
      Language: bound_of = bound_of + 2 * d_engine();
      default: ;
    endcase
  endfunction

  // ---------------------------------------------------------------- the victim
  int published = 0;                     // of its life
  int done_before, life_before, message_before, fault_before;
  int alone [0:7][0:5];                  // cycles that a descriptor takes alone, by K and kind
  int worst = 0, worst_event = 0, worst_message = 0, worst_reset = 0;   // lost cycles, in percent of the bound
  initial for (int k = 0; k < 8; k++) for (int w = 0; w < 6; w++) alone[k][w] = 0;

  // The victim's queue pair goes to this function, with these workers, and starts.
  task automatic begin_victim_of(input int q, input int f, input logic [15:0] workers);
    victim = q;
    give(q, f, workers);
    begin_victim;
  endtask

  task automatic begin_victim;
    u_registers.write(fq(REG_CONTROL, victim), CONTROL_ENABLE);
    published      = 0;
    version        = 0;
    done_before    = done_count[victim];
    life_before    = life_count[owner_of[victim]];
    fault_before   = fault_count[owner_of[victim]];
    message_before = message_count[victim];
    error_count    = 0;
  endtask

  task automatic next_is(input int index, input int what);
    mix_of[index % 1024]     = what;
    version_of[index % 1024] = version;
    if (what == Policy) version = index + 1;
  endtask

  // Publishes one and waits for its completion, its message and its event; the cycles from the doorbell to the completion.
  task automatic run_one(input int what, input int patience, output int took);
    int from, seen;
    next_is(published, what);
    u_registers.write(own(REG_ARM, victim), published);
    published = published + 1;
    u_registers.write(own(REG_DOORBELL, victim), published);
    from = bell_at;
    while (done_count[victim] - done_before != published && cycle - from <= patience) @(posedge clk);
    if (done_count[victim] - done_before != published) begin
      fail($sformatf("R28: %0s %0s: a descriptor of kind %0d has not completed after %0d cycles", thing_name(thing), action_name(action), what, cycle - from));
      took = cycle - from;
    end else begin
      took = done_at - from;
      while (message_count[victim] - message_before != published && cycle - done_at < patience) @(posedge clk);
      if (message_count[victim] - message_before != published)
        fail($sformatf("R28: %0s %0s: no message after %0d cycles", thing_name(thing), action_name(action), cycle - done_at));
      while (life_count[owner_of[victim]] - life_before != published && cycle - done_at < patience + (others + 1) * 32) @(posedge clk);
      if (life_count[owner_of[victim]] - life_before != published) begin
        fail($sformatf("R28: %0s %0s: no event after %0d cycles", thing_name(thing), action_name(action), cycle - done_at));
        life_before = life_count[owner_of[victim]] - published;
      end
      seen = 100 * (message_at - done_at - 6) / ((others + 1) * u_bound());
      if (seen > worst_message) worst_message = seen;
      if (seen > 100) fail($sformatf("R28: %0s %0s: a message came after %0d cycles", thing_name(thing), action_name(action), message_at - done_at));
      seen = 100 * (life_at - done_at - 12 - k_cycles) / ((others + 1) * (u_bound() + 32));
      if (seen > worst_event) worst_event = seen;
      if (seen > 100) fail($sformatf("R28: %0s %0s: an event came after %0d cycles", thing_name(thing), action_name(action), life_at - done_at));
    end
  endtask

  // What each kind takes alone, the longest of a few.
  task automatic measure_alone(input int k);
    int took;
    others        = 0;
    their_workers = 0;
    weights       = 0;
    k_cycles      = k;
    for (int what = 0; what < 4; what++) begin
      repeat (6) begin
        run_one(what, 1000, took);
        if (took > alone[k][what]) alone[k][what] = took;
      end
    end
  endtask

  // Engine 1: the victim's version, once in its life, and then what a DECODE by it takes alone, with a copy.
  task automatic measure_language(input int k);
    int took;
    k_cycles = k;
    run_one(Publish, 2000, took);
    run_one(Language, 20000, took);
    alone[k][Language] = took;
  endtask

  task automatic end_victim;
    logic [31:0] value;
    u_registers.write(fq(REG_CONTROL, victim), 0);
    await_inactive(victim);
  endtask

  // One cell of the matrix: these queue pairs attack for so many times the bound.
  task automatic cell_of(input int what, input int does, input logic [15:0] attackers, input int k, input int times);
    int   took, lost, from, kind, kinds, bound, number;
    logic slow;
    logic [31:0] value;
    thing    = what;
    action   = does;
    k_cycles = k;
    others   = 0;
    their_workers = shares ? Workers : 0;
    for (int q = 0; q < Queues; q++) if (attackers[q]) begin
      others     = others + 1;
      load_of[q] = what;
    end
    weights = others;
    if (!shares) for (int w = 0; w < Workers; w++) if (workers_of_attack[w]) their_workers = their_workers + 1;
    deaths = (does == Withheld) ? others : 0;
    waits_for = {"cell ", thing_name(what), " ", action_name(does)};
    begin_victim;
    if (shares && what == Engine) run_one(Publish, 2000, took);
    slow = chance(50);
    for (int f = 0; f < Functions; f++) if (f != owner_of[victim]) begin
      for (int a = 0; a < Accesses; a++) begin
        late[f*Accesses + a] = (does == Late || (does >= Reset && slow)) ? 300 : 0;
        bad[f*Accesses + a]  = (does == Erroneous && !(what == Engine && a == ReadBack)) ? (what == Engine ? 3 : 40) : 0;
      end
      if (does == Withheld && what != Engine) case (what)
        Lines, Groups: hold[f*Accesses + WriteLine]   = 1'b1;
        Completions:   hold[f*Accesses + WriteDone]   = 1'b1;
        Messages:      hold[f*Accesses + WriteMessage] = 1'b1;
        Events:        hold[f*Accesses + WriteEvent]  = 1'b1;
        Fetch:         hold[f*Accesses + ReadDesc]    = 1'b1;
        Readback, Publishes: hold[f*Accesses + ReadBack] = 1'b1;
        default:       hold[f*Accesses +: Accesses] = Accesses'(1 << WriteDone);
      endcase
    end
    attack = attackers;
    repeat (300) @(posedge clk);
    // Engine 1 is withheld from in mid-run, from its reads where most of them are to come: what it has asked for is what a death gives up.
    if (does == Withheld && what == Engine) begin
      repeat (between(0, 2000)) @(posedge clk);
      stores     = !stores;
      rows_asked = 1'b0;
      from       = cycle;
      while (!stores && !rows_asked && cycle - from < 5000) @(posedge clk);
      for (int f = 0; f < Functions; f++) if (f != owner_of[victim]) hold[f*Accesses + (stores ? WriteStore : ReadEngine)] = 1'b1;
    end
    from   = cycle;
    number = (shares && what == Engine) ? Policy : 0;
    kinds = 4;
    while (cycle - from < times * n_bound() && errors == 0) begin
      kind  = number % kinds;
      if (shares && what == Engine && kind == Policy) kind = Language;
      bound = bound_of(kind);
      run_one(kind, alone[k][kind] + bound + 200, took);
      lost = took - alone[k][kind];
      if (lost > bound) fail($sformatf("R28: %0s %0s, K %0d: kind %0d lost %0d cycles, bound %0d", thing_name(what), action_name(does), k, kind, lost, bound));
      if (100 * lost / bound > worst) worst = 100 * lost / bound;
      number = number + 1;
    end
    // A FAULT of the victim: the error of a line.
    if (errors == 0) begin
      bad[owner_of[victim]*Accesses + WriteLine] = 100;
      run_one(Decode, alone[k][Decode] + 2 * bound_of(Decode) + 200, took);
      bad[owner_of[victim]*Accesses + WriteLine] = 0;
      if (error_count != 1) fail($sformatf("%0d completions with an error", error_count));
      repeat (2 * u_bound() + 64) @(posedge clk);
      if (fault_count[owner_of[victim]] - fault_before != 1) fail($sformatf("R28: %0s %0s: %0d events of one fault", thing_name(what), action_name(does), fault_count[owner_of[victim]] - fault_before));
      u_registers.write(own(REG_ERROR, victim), '1);
      u_registers.read(REG_EVENTS_DROPPED + BLOCK_FUNCTION_PER_FUNCTION * owner_of[victim], value);
      if (value != 0) fail($sformatf("R28: %0s %0s: %0d events were dropped", thing_name(what), action_name(does), value));
    end
    // A reset of the victim's function, with eight descriptors under way.
    for (int n = 0; n < 8; n++) next_is(published + n, below(2));
    published = published + 8;
    u_registers.write(own(REG_DOORBELL, victim), published);
    repeat (between(0, 40)) @(posedge clk);
    u_registers.write(REG_FN_CONTROL + BLOCK_FUNCTION_PER_FUNCTION * owner_of[victim], FN_CONTROL_RESET);
    from  = cycle;
    bound = 8 * ((their_workers + 5) * u_bound() + 32) + bound_of(Decode);
    value = 1;
    while (value != 0 && cycle - from <= bound + 60) begin
      u_registers.read(REG_FN_CONTROL + BLOCK_FUNCTION_PER_FUNCTION * owner_of[victim], value);
      if (value != 0) repeat (2) @(posedge clk);
    end
    if (value != 0) fail($sformatf("R28: %0s %0s, K %0d: the reset of the victim's function has not ended after %0d cycles", thing_name(what), action_name(does), k, cycle - from));
    if (100 * (cycle - from) / bound > worst_reset) worst_reset = 100 * (cycle - from) / bound;
    // The bus answers, and the attackers end.
    hold   = '0;
    for (int a = 0; a < 16 * Accesses; a++) begin late[a] = 0; bad[a] = 0; end
    attack = '0;
    from   = cycle;
    while (calm != '1) begin
      if (cycle - from > Patience) $fatal(1, "hang: %0s: attackers %04h do not end", waits_for, ~calm);
      @(posedge clk);
    end
    if ($test$plusargs("show"))
      $display("%0s %0s, K %0d, %0d attack, cycle %0d: of the bounds, descriptors %0d, messages %0d, events %0d, reset %0d percent", thing_name(what), action_name(does), k, others, cycle,
               worst, worst_message, worst_event, worst_reset);
    {worst, worst_message, worst_event, worst_reset} = '0;
    if ($test$plusargs("survey")) errors = 0;
  endtask
  logic [15:0] workers_of_attack = '0;
  logic        stores = 1'b0;             // engine 1: withheld are its stores, and the next time its reads

  task automatic begin_bench;
    while (!rst_n) @(posedge clk);
    @(posedge clk);
  endtask
endmodule
