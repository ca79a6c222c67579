// axi_writer on a memory with stalls and latency: every beat reaches the bus once with its address, ID, strobes and
// data, in order per source, and with the function of its queue pair; an urgent completion goes before token lines, another one behind them, and a message
// before all. But none waits for ever (R28): behind a message another beat goes first, and behind eight beats of others a token line; never more than MAX_WRITES token lines in flight; idle says when nothing is left. Of the responses of a function's ID it
// says which are those of an engine's lines, whose strobes are of bytes.
module axi_writer_tb;
  import bench_pkg::*;
  import core_pkg::*;

  localparam logic [63:0] Base  = 64'h3_0000_0000;
  localparam int          Lines = 256;
  localparam int          Many  = 512;
  localparam int          Queues = 5;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic         line_waits = 1'b0, lines_wait, line_valid, line_turn, want = 1'b0;
  logic [15:0]  line_ready, line_place;
  logic [63:0]  pairs = '0;
  logic [3:0]   line_worker = '0, line_first = '0, line_last = '0, completion_first = '0, completion_last = '0;
  logic [63:0]  line_addr = '0, completion_addr = '0;
  logic [511:0] line_data = '0, completion_data = '0;
  logic         completion_valid = 1'b0, completion_urgent = 1'b0, completion_ready;
  logic         ack, ack_error, sent, idle;
  logic [5:0]   ack_id, awid, bid;
  logic [3:0]   awuser, line_queue = '0, completion_queue = '0, start_queue = '0;
  logic         start = 1'b0;
  queue_config_t start_config = '0;
  logic         message_valid = 1'b0, message_ready;
  logic [3:0]   message_queue = '0;
  logic [63:0]  message_addr = '0;
  logic [31:0]  message_data = '0;
  logic         event_valid = 1'b0, event_urgent = 1'b0, event_ready, took_event;
  logic [3:0]   event_owner = '0;
  logic [63:0]  event_addr = '0;
  logic [255:0] event_data = '0;
  int           events = 0, events_acked = 0, events_behind = 0;
  logic         store_valid = 1'b0, store_urgent = 1'b0, store_ready, took_store, ack_store;
  logic [3:0]   store_owner = '0;
  logic [63:0]  store_addr = '0, store_strobe = '0;
  logic [511:0] store_data = '0;
  int           stores = 0, stores_acked = 0, stores_behind = 0;
  logic         kind [0:16*Many-1];     // of the writes of each function's ID: a store
  int           kinds_in [0:15], kinds_out [0:15];
  initial for (int f = 0; f < 16; f++) begin kinds_in[f] = 0; kinds_out[f] = 0; end
  logic [63:0]  awaddr, wstrb;
  logic [7:0]   awlen;
  logic [2:0]   awsize;
  logic [1:0]   awburst, bresp;
  logic         awvalid, awready, wlast, wvalid, wready, bvalid;
  logic [511:0] wdata;
  logic         accept, effect, effect_error;
  logic [5:0]   accept_id, effect_id;
  logic [63:0]  accept_addr, accept_strb, effect_addr, effect_strb;
  logic [511:0] accept_data, effect_data;

  // As completion_arbiter has it: a line waits only with a place, and none refuses its turn.
  assign lines_wait = line_waits && line_place[line_worker];
  assign line_valid = lines_wait && (want || line_turn) && line_ready[line_worker];

  axi_writer #(.Queues(Queues), .Workers(16), .Engines(2)) u_writer (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config),
    .line_queue_i(line_queue), .completion_queue_i(completion_queue), .m_axi_awuser(awuser), .line_waits_i(lines_wait), .line_place_o(line_place), .line_turn_o(line_turn), .line_valid_i(line_valid), .pairs_i(pairs),
    .line_addr_i(line_addr), .line_first_i(line_first), .line_last_i(line_last), .line_data_i(line_data),
    .line_ready_o(line_ready), .completion_valid_i(completion_valid), .completion_urgent_i(completion_urgent),
    .completion_addr_i(completion_addr), .completion_first_i(completion_first), .completion_last_i(completion_last),
    .completion_data_i(completion_data), .completion_ready_o(completion_ready),
    .message_valid_i(message_valid), .message_queue_i(message_queue), .message_addr_i(message_addr), .message_data_i(message_data),
    .message_ready_o(message_ready), .event_valid_i(event_valid), .event_urgent_i(event_urgent), .event_owner_i(event_owner),
    .event_addr_i(event_addr), .event_data_i(event_data), .event_ready_o(event_ready),
    .store_valid_i(store_valid), .store_urgent_i(store_urgent), .store_owner_i(store_owner), .store_addr_i(store_addr), .store_data_i(store_data),
    .store_strobe_i(store_strobe), .store_ready_o(store_ready), .ack_store_o(ack_store), .ack_o(ack), .ack_id_o(ack_id),
    .ack_error_o(ack_error), .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize),
    .m_axi_awburst(awburst), .m_axi_awvalid(awvalid), .m_axi_awready(awready), .m_axi_wdata(wdata),
    .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready), .m_axi_bid(bid),
    .m_axi_bresp(bresp), .m_axi_bvalid(bvalid), .sent_o(sent), .idle_o(idle)
  );

  memory_model #(.Lines(Lines), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(rst_n), .awid_i(awid), .awaddr_i(awaddr), .awvalid_i(awvalid), .awready_o(awready),
    .wdata_i(wdata), .wstrb_i(wstrb), .wvalid_i(wvalid), .wready_o(wready), .bid_o(bid), .bresp_o(bresp),
    .bvalid_o(bvalid), .bready_i(1'b1), .araddr_i(64'd0), .arlen_i(8'd0), .arid_i(6'd0), .arvalid_i(1'b0),
    .rready_i(1'b1), .arready_o(), .rid_o(), .rdata_o(), .rresp_o(), .rlast_o(), .rvalid_o(),
    .accept_o(accept), .effect_o(effect), .effect_error_o(effect_error), .accept_id_o(accept_id), .effect_id_o(effect_id),
    .accept_addr_o(accept_addr), .effect_addr_o(effect_addr), .accept_strb_o(accept_strb), .effect_strb_o(effect_strb),
    .accept_data_o(accept_data), .effect_data_o(effect_data)
  );

  protocol_monitor u_protocol (
    .clk_i(clk), .rst_ni(rst_n), .awid_i(awid), .awaddr_i(awaddr), .awlen_i(awlen), .awsize_i(awsize),
    .awburst_i(awburst), .awvalid_i(awvalid), .awready_i(awready), .wdata_i(wdata), .wstrb_i(wstrb), .wlast_i(wlast),
    .wvalid_i(wvalid), .wready_i(wready), .arid_i(6'd0), .araddr_i(64'd0), .arlen_i(8'd0), .arsize_i(3'd0),
    .arburst_i(2'd0), .arvalid_i(1'b0), .arready_i(1'b0)
  );

  // ---------------------------------------------------------------- what was sent, in order
  logic [5:0]   want_id [0:Many-1];
  logic [3:0]   want_user [0:Many-1];
  int           users = 0;
  logic [63:0]  want_addr [0:Many-1], want_strb [0:Many-1];
  logic [511:0] want_data [0:Many-1];
  int           w, pushed = 0, seen = 0, acked = 0, stall_line, completion_percent, completions_out = 0, most = 0, k;
  logic         took_line, took_completion, took_message, took_other;
  logic         was_message = 1'b0, urgent_before = 1'b0;   // the last beat was a message; something urgent waited in the last cycle
  int           passed = 0, others = 0;  // beats of others while a line waits, and since the last line
  int           turns = 0, let_pass = 0;
  int           messages = 0, messages_acked = 0;
  logic [Queues-1:0] message_out = '0;  // of these queue pairs one is in flight

  function automatic logic [63:0] strobe(input logic [3:0] first, input logic [3:0] last);
    for (int b = 0; b < 64; b++) strobe[b] = b / 4 >= int'(first) && b / 4 <= int'(last);
  endfunction

  // 'owner' is the function.
  task automatic record(input logic [5:0] id, input logic [3:0] owner, input logic [63:0] addr, input logic [63:0] strb, input logic [511:0] data);
    k = pushed % Many;
    want_id[k]   = id;
    want_user[k] = owner;
    want_addr[k] = addr;
    want_strb[k] = strb;
    for (int b = 0; b < 64; b++) want_data[k][8*b +: 8] = strb[b] ? data[8*b +: 8] : 8'd0;
    pushed = pushed + 1;
  endtask

  function automatic logic [3:0] owner_of(input logic [3:0] queue);
    owner_of = 4'd13 - 4'd3 * queue;
  endfunction

  always @(posedge clk) if (rst_n && started) begin
    if (ack) acked = acked + 1;
    if (ack_store && !(ack && ack_id >= EVENT_AXI_ID)) fail("R24: a response of another ID is taken as that of a store");
    if (ack && ack_id >= EVENT_AXI_ID) begin
      k = int'(ack_id - EVENT_AXI_ID);
      if (ack_store !== kind[k*Many + kinds_out[k] % Many]) fail("R24: the response of an event is taken as that of a store, or the other way round");
      kinds_out[k] = kinds_out[k] + 1;
      if (ack_store) stores_acked = stores_acked + 1;
      else           events_acked = events_acked + 1;
    end
    else if (ack && ack_id >= MESSAGE_AXI_ID) begin
      messages_acked = messages_acked + 1;
      message_out[ack_id - MESSAGE_AXI_ID] = 1'b0;
    end
    took_completion = completion_valid && completion_ready;
    if (took_completion) completions_out = completions_out + 1;
    if (ack && ack_id >= COMPLETION_AXI_ID && ack_id < MESSAGE_AXI_ID) completions_out = completions_out - 1;
    took_line       = line_valid;
    took_message    = message_valid && message_ready;
    took_event      = event_valid && event_ready;
    took_store      = store_valid && store_ready;
    took_other      = took_completion || took_message || took_event || took_store;
    // R28: what waits is passed over by a bounded number of beats.
    if (line_turn && (!lines_wait || others < 8)) fail($sformatf("a line's turn behind %0d beats of others", others));
    if (line_turn && took_other) fail("something takes a line's turn");
    if (took_line && !want) turns = turns + 1;
    passed = (!lines_wait || took_line) ? 0 : passed + int'(took_other);
    others = took_line ? 0 : others + int'(took_other);
    if (passed > 8) fail("R28: a token line is passed over by more than eight beats");
    if (took_message && was_message && urgent_before) fail("R28: a message goes behind a message, and something urgent waits");
    if ((took_line || took_completion || took_event || took_store) && message_valid && !was_message && !line_turn) fail("something passes a message");
    if ((took_line || took_completion || took_event || took_store) && message_valid && was_message) let_pass = let_pass + 1;
    if (took_line || took_other) was_message = took_message;
    urgent_before = (completion_valid && completion_urgent && !took_completion) || (event_valid && event_urgent && !took_event) || (store_valid && store_urgent && !took_store);
    if (store_valid && store_urgent && ((line_ready != 0 && !line_turn) || completion_ready || event_ready)) fail("something may pass an urgent store");
    if (took_store && !store_urgent && (lines_wait || completion_valid || event_valid)) fail("a store passes what waits");
    if (took_store && (took_line || took_completion || took_event || took_message)) fail("two beats in one cycle, one of them a store");
    if (took_store) begin
      record(EVENT_AXI_ID + store_owner, store_owner, store_addr, store_strobe, store_data);
      stores = stores + 1;
      if (store_urgent && (lines_wait || completion_valid || event_valid)) stores_behind = stores_behind + 1;
    end
    if (took_store || took_event) begin
      k = took_store ? int'(store_owner) : int'(event_owner);
      kind[k*Many + kinds_in[k] % Many] = took_store;
      kinds_in[k] = kinds_in[k] + 1;
    end
    if (event_valid && event_urgent && ((line_ready != 0 && !line_turn) || completion_ready)) fail("R23: something may pass an urgent event");
    if (took_event && !event_urgent && (lines_wait || completion_valid)) fail("R23: an event passes what waits");
    if (took_event && (took_line || took_completion)) fail("two beats in one cycle, one of them an event");
    if (took_event) begin
      record(EVENT_AXI_ID + event_owner, event_owner, event_addr & ~64'd63, event_addr[5] ? 64'hFFFF_FFFF_0000_0000 : 64'hFFFF_FFFF, {2{event_data}});
      events = events + 1;
      if (event_urgent && (lines_wait || completion_valid)) events_behind = events_behind + 1;
    end
    if (took_message) begin
      record(MESSAGE_AXI_ID + message_queue, owner_of(message_queue), message_addr & ~64'd63, 64'hF << message_addr[5:0], {16{message_data}});
      messages = messages + 1;
      message_out[message_queue] = 1'b1;
    end
    if (took_line && took_completion) fail("two beats in one cycle");
    expect_eq("sent", sent, took_line || took_completion);
    if (completion_valid && completion_urgent && completion_ready && line_ready != 0) fail("a line may pass an urgent completion");
    if (took_completion && !completion_urgent && lines_wait) fail("half a completion beat passes a token line");
    if (took_completion) record(COMPLETION_AXI_ID + completion_queue, owner_of(completion_queue), completion_addr, strobe(completion_first, completion_last), completion_data);
    if (took_line) record(6'(line_queue), owner_of(line_queue), line_addr, strobe(line_first, line_last), line_data);
    if (awvalid && awready) begin
      expect_eq("AWUSER", awuser, want_user[users % Many]);
      users = users + 1;
    end
    if (accept) begin
      k = seen % Many;
      if (seen == pushed) fail("a write that nobody sent");
      expect_eq("AWID", accept_id, want_id[k]);
      expect_eq("address", accept_addr, want_addr[k]);
      expect_eq("strobes", accept_strb, want_strb[k]);
      if (accept_data !== want_data[k]) fail("wrong data");
      seen = seen + 1;
    end
    k = (pushed - messages - events - stores) - (acked - messages_acked - events_acked - stores_acked);
    if (k - completions_out > most) most = k - completions_out;
    if (k - completions_out > MAX_WRITES) fail($sformatf("%0d token lines in flight", k - completions_out));

    if (!message_valid || took_message) begin
      k = below(Queues);
      message_valid <= !message_out[k] && started && completion_percent != 0 && chance(10);
      message_queue <= 4'(k);
      message_addr  <= 64'hFFFF_FFFF_FFFF_F000 + 4 * below(1024);
      message_data  <= rnd();
    end
    if (!event_valid || took_event) begin
      event_valid  <= started && completion_percent != 0 && events - events_acked < 256 && chance(30);
      event_urgent <= chance(20);
      event_owner  <= 4'(below(16));
      event_addr   <= Base + 32 * below(2 * Lines);
      event_data   <= {8{rnd()}};
    end else if (chance(5)) event_urgent <= 1'b1;             // it has waited long enough
    if (!store_valid || took_store) begin
      store_valid  <= started && completion_percent != 0 && stores - stores_acked < 32 && chance(30);
      store_urgent <= chance(20);
      store_owner  <= 4'(below(16));
      store_addr   <= Base + 64 * below(Lines);
      store_data   <= {16{rnd()}};
      store_strobe <= chance(30) ? '1 : chance(50) ? 64'h3 << 2 * below(32) : {rnd(), rnd()};    // bytes
    end else if (chance(5)) store_urgent <= 1'b1;
    want <= !chance(stall_line);
    if (!line_waits || took_line || !line_place[line_worker]) begin
      line_waits  <= !chance(stall_line);
      k = below(16);
      w = below(Queues);
      line_worker <= k;
      line_queue  <= w;
      pairs[4*k +: 4] <= w;
      line_addr   <= Base + 64 * below(Lines);
      line_data   <= {16{rnd()}};
      k = below(16);
      line_first  <= 4'(k);
      line_last   <= 4'(between(k, 15));
    end
    if (!completion_valid || took_completion) begin
      // Each comes with a place, of half as many as token lines have.
      completion_valid  <= chance(completion_percent) && completions_out < MAX_WRITES / 2;
      completion_queue  <= below(Queues);
      completion_urgent <= chance(50);
      completion_addr   <= Base + 64 * below(Lines);
      completion_data   <= {16{rnd()}};
      case (below(3))
        0: {completion_first, completion_last} <= {4'd0, 4'd7};
        1: {completion_first, completion_last} <= {4'd8, 4'd15};
        default: {completion_first, completion_last} <= {4'd0, 4'd15};
      endcase
    end else if (chance(10)) completion_urgent <= 1'b1;        // it has waited long enough
  end

  logic started = 1'b0;
  initial begin
    u_protocol.quiet = 1'b0;
    @(posedge rst_n);
    for (int q = 0; q < Queues; q++) begin
      start              <= 1'b1;
      start_queue        <= q;
      start_config.owner <= owner_of(q);
      @(posedge clk);
    end
    start <= 1'b0;
    @(posedge clk);
    started = 1'b1;
    for (int m = 0; m < 16; m++) begin
      stall_line             = m[0] ? 60 : 0;
      completion_percent     = m[1] ? 80 : 10;
      u_memory.stall_aw      = m[2] ? 60 : 0;
      u_memory.stall_w       = m[2] ? 60 : 0;
      u_memory.stall_b       = m[3] ? 60 : 0;
      u_memory.write_latency = m[3] ? 300 : 0;
      u_memory.write_jitter  = m[3] ? 50 : 0;
      repeat (700) @(posedge clk);
    end
    // Drain: idle when, and only when, every response is in.
    stall_line = 100;
    completion_percent = 0;
    waits_for = "the bench waits for idle_o";
    repeat (3) @(posedge clk);
    while (!idle) @(posedge clk);
    @(posedge clk);
    if (acked != pushed || seen != pushed) fail($sformatf("idle with %0d of %0d acknowledged", acked, pushed));
    u_protocol.expect_balanced;
    if (events < 200 || events_behind < 50) fail($sformatf("only %0d events, %0d of them before others", events, events_behind));
    if (stores < 200 || stores_behind < 30) fail($sformatf("only %0d stores, %0d of them before others", stores, stores_behind));
    if (turns < 5 || let_pass < 20) fail($sformatf("only %0d turns of lines, and %0d beats passed a message", turns, let_pass));
    if (messages < 200) fail($sformatf("only %0d messages", messages));
    if (most != MAX_WRITES) fail($sformatf("at most %0d writes were in flight: the limit was not reached", most));
    finish_bench("axi_writer_tb");
  end
endmodule
