// The write side of the AXI master: one 64-byte beat per cycle, each its own burst, so none crosses 4 KiB.
// Priority: messages, urgent lines of an engine, urgent events, full completion beats, token lines, half a completion beat. None waits forever (R28).
// After a message another kind goes first, and after eight beats of others a token line.
// Responses that are withheld from one queue pair leave room for the writes of the others. Completions come with a place
// (completion_ring); of messages a queue pair has one in flight (interrupts). Events and lines of an engine share their function's ID.
module axi_writer
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4,
  parameter int Engines = 1            // 2: there is an engine that writes
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         rst_ni,           // of the bus: what was promised to it outlives a reset of the device

  input  logic         start_i,          // a queue pair starts, with this configuration
  input  logic [3:0]   start_queue_i,
  input  queue_config_t start_config_i,

  input  logic         line_waits_i,     // a line could go but for the port
  input  logic         line_valid_i,     // only with the worker's bit of line_ready_o
  input  logic [3:0]   line_queue_i,
  input  logic [63:0]  line_addr_i,
  input  logic [3:0]   line_first_i,     // words that are written
  input  logic [3:0]   line_last_i,
  input  logic [511:0] line_data_i,
  input  logic [4*Workers-1:0] pairs_i,      // early: the queue pair of each worker's oldest descriptor
  output logic [Workers-1:0] line_ready_o,   // early: does not depend on line_valid_i
  output logic [Workers-1:0] line_place_o,   // there is a place for a line of the worker, whoever has the port
  output logic         line_turn_o,      // the port is the lines' in this cycle

  input  logic         completion_valid_i,
  input  logic         completion_urgent_i,
  input  logic [3:0]   completion_queue_i,
  input  logic [63:0]  completion_addr_i,
  input  logic [3:0]   completion_first_i,
  input  logic [3:0]   completion_last_i,
  input  logic [511:0] completion_data_i,
  output logic         completion_ready_o,

  input  logic         message_valid_i,
  input  logic [3:0]   message_queue_i,
  input  logic [63:0]  message_addr_i,   // a multiple of 4
  input  logic [31:0]  message_data_i,
  output logic         message_ready_o,  // early

  input  logic         event_valid_i,
  input  logic         event_urgent_i,   // goes before lines and completions
  input  logic [3:0]   event_owner_i,    // a function
  input  logic [63:0]  event_addr_i,     // a multiple of 32
  input  logic [255:0] event_data_i,
  output logic         event_ready_o,    // early

  input  logic         store_valid_i,    // a line of an engine
  input  logic         store_urgent_i,   // goes before lines, completions and events
  input  logic [3:0]   store_owner_i,
  input  logic [63:0]  store_addr_i,
  input  logic [511:0] store_data_i,
  input  logic [63:0]  store_strobe_i,   // bytes
  output logic         store_ready_o,

  output logic         ack_o,            // one write response per cycle
  output logic [5:0]   ack_id_o,
  output logic         ack_store_o,      // it is that of a line of an engine
  output logic         ack_error_o,

  output logic [5:0]   m_axi_awid,
  output logic [63:0]  m_axi_awaddr,
  output logic [7:0]   m_axi_awlen,
  output logic [2:0]   m_axi_awsize,
  output logic [1:0]   m_axi_awburst,
  output logic [3:0]   m_axi_awcache,
  output logic [2:0]   m_axi_awprot,
  output logic [3:0]   m_axi_awuser,
  output logic         m_axi_awvalid,
  input  logic         m_axi_awready,
  output logic [511:0] m_axi_wdata,
  output logic [63:0]  m_axi_wstrb,
  output logic         m_axi_wlast,
  output logic         m_axi_wvalid,
  input  logic         m_axi_wready,
  input  logic [5:0]   m_axi_bid,
  input  logic [1:0]   m_axi_bresp,
  input  logic         m_axi_bvalid,

  output logic         sent_o,           // one beat of a token line or of completions was accepted from inside
  output logic         idle_o            // nothing promised, nothing in flight
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int CountBits = $clog2(MAX_WRITES) + 3;   // and completions, messages, events and stores
  localparam int QueueBits  = (Queues == 1) ? 1 : $clog2(Queues);

  logic                 room, use_completion, use_message, use_event, event_first, use_store, store_first, push;
  logic                 aw_full, w_full;
  logic [CountBits-1:0] in_flight_q;
  logic [5:0]           id;
  logic [3:0]           owner;
  logic [63:0]          addr;
  logic [3:0]           first, last;
  logic [63:0]          strobe;
  logic [511:0]         data;
  logic [1:0]           aw_count_unused, w_count_unused;

  // The function of each queue pair.
  logic [Queues-1:0][3:0]           owner_q;
  logic [QueueBits-1:0] start_pair, line_pair, completion_pair, message_pair, push_pair;
  assign start_pair      = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign line_pair       = (Queues == 1) ? '0 : line_queue_i[QueueBits-1:0];
  assign completion_pair = (Queues == 1) ? '0 : completion_queue_i[QueueBits-1:0];
  assign message_pair    = (Queues == 1) ? '0 : message_queue_i[QueueBits-1:0];

  always_ff @(posedge clk_i) begin
    if (start_i) owner_q[start_pair] <= start_config_i.owner;
  end

  // Token lines; half as many completions come with a place of their own.
  logic [Queues-1:0]  may_write;
  logic [Workers-1:0] line_may;
  logic               gives;
  assign gives = ack_o && m_axi_bid < COMPLETION_AXI_ID;
  for (genvar w = 0; w < Workers; w++) begin : gen_line_may
    assign line_may[w] = may_write[(Queues == 1) ? QueueBits'(0) : pairs_i[4*w +: QueueBits]];
  end

  place_quota #(.Sources(Queues), .Places(MAX_WRITES)) u_quota (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .take_i  (line_valid_i),
    .taker_i (line_pair),
    .give_i  (gives),
    .giver_i ((Queues == 1) ? QueueBits'(0) : m_axi_bid[QueueBits-1:0]),
    .ready_o (may_write)
  );

  // R28: what waits is passed over by a bounded number of beats. A message lets one beat go before the next one, and token lines have the port behind
  // eight beats of others.
  logic       message_first, line_turn, was_message_q;
  logic [3:0] passed_q;
  assign line_turn     = passed_q[3] && line_waits_i;
  assign line_turn_o   = line_turn;
  assign line_place_o  = line_may;
  assign message_first = message_valid_i && !was_message_q && !line_turn;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      was_message_q <= 1'b0;
      passed_q      <= '0;
    end else if (room) begin
      was_message_q <= use_message;
      if (line_valid_i || !line_waits_i) passed_q <= '0;
      else if (push)                     passed_q <= passed_q + 1'b1;
    end
  end

  assign room               = !aw_full && !w_full;
  assign message_ready_o    = room && !was_message_q && !line_turn;
  assign use_message        = message_valid_i && message_ready_o;
  // An event takes the port where nobody else wants it, or once it has waited long enough.
  assign store_first        = (Engines > 1) && store_valid_i && store_urgent_i;
  // A line of an engine goes where nobody else wants the port, or likewise.
  assign store_ready_o      = (Engines > 1) && room && !message_first && !line_turn && (store_urgent_i || !(line_waits_i || completion_valid_i || event_valid_i));
  assign use_store          = store_valid_i && store_ready_o;
  assign event_first        = (event_valid_i && event_urgent_i) || store_first;
  assign event_ready_o      = room && !message_first && !line_turn && !store_first && (event_urgent_i || !(line_waits_i || completion_valid_i));
  assign use_event          = event_valid_i && event_ready_o;
  assign line_ready_o       = (room && (line_turn || (!message_first && !event_first && !(completion_valid_i && completion_urgent_i))))
                            ? line_may : '0;
  assign completion_ready_o = room && !message_first && !line_turn && !event_first && (completion_urgent_i || !line_waits_i);
  assign use_completion     = completion_valid_i && completion_ready_o;
  assign sent_o             = use_completion || line_valid_i;
  assign push               = sent_o || use_message || use_event || use_store;
  assign id                 = use_store ? EVENT_AXI_ID + 6'(store_owner_i) : use_event ? EVENT_AXI_ID + 6'(event_owner_i) : use_message ? MESSAGE_AXI_ID + 6'(message_pair) : use_completion ? COMPLETION_AXI_ID + 6'(completion_pair) : 6'(line_pair);
  assign push_pair          = use_message ? message_pair : use_completion ? completion_pair : line_pair;
  assign owner              = use_store ? store_owner_i : use_event ? event_owner_i : push ? owner_q[push_pair] : '0;
  assign addr               = use_store ? store_addr_i : use_event ? {event_addr_i[63:6], 6'd0} : use_message ? {message_addr_i[63:6], 6'd0} : use_completion ? completion_addr_i : line_addr_i;
  assign first              = use_event ? {event_addr_i[5], 3'd0} : use_message ? message_addr_i[5:2] : use_completion ? completion_first_i : line_first_i;
  assign last               = use_event ? {event_addr_i[5], 3'd7} : use_message ? message_addr_i[5:2] : use_completion ? completion_last_i : line_last_i;

  // Bytes that are not written are 0: nothing of another rollout appears on the bus.
  always_comb begin
    data = '0;
    if (push) begin
      data = use_store ? store_data_i : use_event ? {2{event_data_i}} : use_message ? {16{message_data_i}} : use_completion ? completion_data_i : line_data_i;
      if (use_store) begin
        for (int k = 0; k < 64; k++) if (!strobe[k]) data[8*k +: 8] = '0;
      end else if (strobe != '1) begin
        for (int k = 0; k < 16; k++) begin
          if (!strobe[4*k]) data[32*k +: 32] = '0;
        end
      end
    end
  end

  always_comb begin
    strobe = '0;
    if (use_store) strobe = store_strobe_i;
    else if (push) strobe = (64'hFFFF_FFFF_FFFF_FFFF << {first, 2'b00}) & (64'hFFFF_FFFF_FFFF_FFFF >> {4'd15 - last, 2'b00});
  end

  // Quiet: what is not valid is 0, so nothing of a rollout stays on the bus either.
  sync_fifo #(.Width(74), .Depth(2), .Quiet(1'b1)) u_aw (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (push),
    .data_i  ({owner, id, addr}),
    .full_o  (aw_full),
    .valid_o (m_axi_awvalid),
    .data_o  ({m_axi_awuser, m_axi_awid, m_axi_awaddr}),
    .pop_i   (m_axi_awvalid && m_axi_awready),
    .count_o (aw_count_unused)
  );

  sync_fifo #(.Width(576), .Depth(2), .Quiet(1'b1)) u_w (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (push),
    .data_i  ({strobe, data}),
    .full_o  (w_full),
    .valid_o (m_axi_wvalid),
    .data_o  ({m_axi_wstrb, m_axi_wdata}),
    .pop_i   (m_axi_wvalid && m_axi_wready),
    .count_o (w_count_unused)
  );

  assign m_axi_awlen   = 8'd0;
  assign m_axi_awsize  = 3'd6;
  assign m_axi_awburst = 2'b01;
  assign m_axi_awcache = AXI_CACHE;
  assign m_axi_awprot  = AXI_PROT;
  assign m_axi_wlast   = 1'b1;
  assign ack_o        = m_axi_bvalid && !idle_o;  // with nothing in flight a response is dropped; else none may come that nobody waits for
  assign ack_id_o     = m_axi_bid;
  assign ack_error_o  = m_axi_bresp != '0;
  assign idle_o       = in_flight_q == '0;

  // Of the writes of a function's ID, in order: whether it is a line of an engine.
  if (Engines > 1) begin : gen_kinds
    localparam int KindBits = 9;           // 256 events, and what an engine has in flight
    logic                kind_mem [0:MAX_FUNCTIONS*(1 << KindBits)-1];
    logic [KindBits-1:0] newest_q [0:MAX_FUNCTIONS-1];
    logic [KindBits-1:0] oldest_q [0:MAX_FUNCTIONS-1];
    logic                owned;
    assign owned       = ack_o && m_axi_bid >= EVENT_AXI_ID;
    assign ack_store_o = owned ? kind_mem[{m_axi_bid[3:0], oldest_q[m_axi_bid[3:0]]}] : 1'b0;

    always_ff @(posedge clk_i) begin
      if (use_store || use_event) kind_mem[{owner, newest_q[owner]}] <= use_store;
      if (!rst_ni) begin
        for (int f = 0; f < MAX_FUNCTIONS; f++) begin
          newest_q[f] <= '0;
          oldest_q[f] <= '0;
        end
      end else begin
        if (use_store || use_event) newest_q[owner] <= newest_q[owner] + 1'b1;
        if (owned) oldest_q[m_axi_bid[3:0]] <= oldest_q[m_axi_bid[3:0]] + 1'b1;
      end
    end
  end else begin : gen_one_kind
    assign ack_store_o = 1'b0;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni)            in_flight_q <= '0;
    else if (push != ack_o) in_flight_q <= push ? in_flight_q + 1'b1 : in_flight_q - 1'b1;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (m_axi_bvalid) begin
      if (rst_ni && idle_o) $fatal(1, "R3 axi_writer: write response without a write in flight");
    end
    if (push) begin
      // That there is room for it is held by the FIFOs and the quota.
      if (rst_ni && line_valid_i && (use_completion || use_message || use_event || use_store)) $fatal(1, "R3 axi_writer: a token line with no place for it");
      if (rst_ni && use_message && message_addr_i[1:0] != '0) $fatal(1, "R14 axi_writer: message at %h is misaligned", message_addr_i);
      if (rst_ni && use_event && event_addr_i[4:0] != '0) $fatal(1, "R23 axi_writer: event at %h is misaligned", event_addr_i);
      if (rst_ni && addr[5:0] != '0) $fatal(1, "R11 axi_writer: beat at %h is misaligned", addr);
    end
  end
`endif
endmodule
