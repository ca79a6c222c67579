// The write port (axi_writer): what is shown stays until it is taken, addresses and data come in the same order and in pairs, each with the ID, function and bytes
// of who wrote, and no queue pair's lines take the places of another's (R28). One byte is watched, which stands for all.
//
// Assumed: a line comes only with its worker's ready, and no other kind goes in its cycle (completion_arbiter: line_ready_o is early; asserted in axi_writer). A response
// comes only for a beat that the bus has (AXI; asserted in axi_writer).
module writer_f import core_pkg::*; (
  input logic         clk_i,
  input logic         start_i, start_queue_i, line_waits_i, line_valid_i, line_worker_i,
  input logic [1:0]   pair_i,                     // the queue pair of each worker's line
  input logic [3:0]   start_owner_i,
  input logic [63:0]  line_addr_i, completion_addr_i, message_addr_i, event_addr_i, store_addr_i, store_strobe_i,
  input logic [3:0]   line_first_i, line_last_i, completion_first_i, completion_last_i,
  input logic         completion_valid_i, completion_urgent_i, completion_queue_i,
  input logic         message_valid_i, message_queue_i,
  input logic [31:0]  message_data_i,
  input logic         event_valid_i, event_urgent_i, event_owner_i,
  input logic         store_valid_i, store_urgent_i,
  input logic [3:0]   store_owner_i,
  input logic         awready_i, wready_i, bvalid_i,
  input logic [5:0]   bid_i,
  input logic [5:0]   watched_i                   // held: any byte of a beat
);
  localparam int Own = MAX_WRITES / 4;            // places of a queue pair for lines: half of all, by two
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic         line_queue_i, line_turn, ack_store;
  logic [1:0]   line_ready, line_place;
  assign line_queue_i = pair_i[line_worker_i];
  logic         completion_ready, message_ready, event_ready, store_ready, ack, ack_error, awvalid, wvalid, wlast, sent, idle;
  logic [5:0]   ack_id, awid;
  logic [63:0]  awaddr, wstrb;
  logic [3:0]   awuser;
  logic [511:0] wdata;
  logic [7:0]   awlen;
  logic [2:0]   awsize;
  logic [1:0]   awburst;
  queue_config_t start_config;
  always_comb begin
    start_config       = '0;
    start_config.owner = start_owner_i;
  end

  axi_writer #(.Queues(2), .Workers(2), .Engines(2)) u_writer (
    .clk_i, .rst_ni(run), .start_i, .start_queue_i(4'(start_queue_i)), .start_config_i(start_config),
    .line_waits_i, .line_valid_i, .line_queue_i(4'(line_queue_i)), .pairs_i({3'd0, pair_i[1], 3'd0, pair_i[0]}), .line_addr_i, .line_first_i, .line_last_i,
    .line_data_i('1), .line_ready_o(line_ready), .line_place_o(line_place), .line_turn_o(line_turn),
    .completion_valid_i, .completion_urgent_i, .completion_queue_i(4'(completion_queue_i)), .completion_addr_i, .completion_first_i, .completion_last_i,
    .completion_data_i('1), .completion_ready_o(completion_ready),
    .message_valid_i, .message_queue_i(4'(message_queue_i)), .message_addr_i, .message_data_i, .message_ready_o(message_ready),
    .event_valid_i, .event_urgent_i, .event_owner_i(4'(event_owner_i)), .event_addr_i, .event_data_i('1), .event_ready_o(event_ready),
    .store_valid_i, .store_urgent_i, .store_owner_i, .store_addr_i, .store_data_i('1), .store_strobe_i, .store_ready_o(store_ready),
    .ack_o(ack), .ack_id_o(ack_id), .ack_error_o(ack_error), .ack_store_o(ack_store),
    .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst), .m_axi_awuser(awuser), .m_axi_awvalid(awvalid),
    .m_axi_awready(awready_i), .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready_i),
    .m_axi_bid(bid_i), .m_axi_bresp('0), .m_axi_bvalid(bvalid_i), .sent_o(sent), .idle_o(idle)
  );

  // ---------------------------------------------------------------- the beat that goes in, as its user sees it
  logic         goes_line, goes_done, goes_message, goes_event, goes_store, goes;
  logic [1:0][3:0] owner = '0;
  logic [73:0]  address;                          // function, ID, address
  logic         writes;                           // the watched byte
  assign goes_line    = line_valid_i;
  assign goes_done    = completion_valid_i && completion_ready;
  assign goes_message = message_valid_i && message_ready;
  assign goes_event   = event_valid_i && event_ready;
  assign goes_store   = store_valid_i && store_ready;
  assign goes         = goes_line || goes_done || goes_message || goes_event || goes_store;

  // Whether the watched byte is written, from this word to that.
  function automatic logic words(input logic [3:0] first, input logic [3:0] last);
    words = watched_i[5:2] >= first && watched_i[5:2] <= last;
  endfunction
  always_comb begin
    address = {owner[line_queue_i], 5'd0, line_queue_i, line_addr_i};
    writes  = words(line_first_i, line_last_i);
    if (goes_done) begin
      address = {owner[completion_queue_i], COMPLETION_AXI_ID | 6'(completion_queue_i), completion_addr_i};
      writes  = words(completion_first_i, completion_last_i);
    end else if (goes_message) begin
      address = {owner[message_queue_i], MESSAGE_AXI_ID | 6'(message_queue_i), message_addr_i[63:6], 6'd0};
      writes  = watched_i[5:2] == message_addr_i[5:2];
    end else if (goes_event) begin
      address = {3'd0, event_owner_i, EVENT_AXI_ID | 6'(event_owner_i), event_addr_i[63:6], 6'd0};
      writes  = watched_i[5] == event_addr_i[5];
    end else if (goes_store) begin
      address = {store_owner_i, EVENT_AXI_ID | 6'(store_owner_i), store_addr_i};
      writes  = store_strobe_i[watched_i];
    end
  end

  // ---------------------------------------------------------------- what is kept of the past
  logic [73:0]     aw_queue [0:3];                // beats that went in, in order
  logic            w_queue [0:3];
  logic [2:0]      aw_left = '0, w_left = '0;     // of them on their way to the bus
  logic [1:0]      in_at = '0, aw_at = '0, w_at = '0;
  logic            aw_held = 1'b0, w_held = 1'b0;
  logic [73:0]     aw_was;
  logic [8:0]      w_was;                         // the watched byte, and whether it is written
  logic [5:0]      watched_before = '0;
  logic            begun = 1'b0;
  logic [1:0][3:0] lines = '0;                    // of a queue pair, without a response
  logic [4:0]      flying = '0;
  logic [7:0]      kinds = '0;                    // of function 0's events and stores, in order: a store
  logic [2:0]      kind_new = '0, kind_old = '0;
  logic            aw_goes, w_goes, line_acked;
  assign aw_goes    = awvalid && awready_i;
  assign w_goes     = wvalid && wready_i;
  assign line_acked = bvalid_i && bid_i < 6'd2;
  always_ff @(posedge clk_i) begin
    aw_held <= run && awvalid && !awready_i;
    w_held  <= run && wvalid && !wready_i;
    aw_was  <= {awuser, awid, awaddr};
    w_was   <= {wstrb[watched_i], wdata[8*watched_i +: 8]};
    begun   <= 1'b1;
    watched_before <= watched_i;
    if (run) begin
      if (start_i) owner[start_queue_i] <= start_owner_i;
      if (goes) begin
        aw_queue[in_at] <= address;
        w_queue[in_at]  <= writes;
        in_at <= in_at + 2'd1;
      end
      aw_at   <= aw_at + 2'(aw_goes);
      w_at    <= w_at + 2'(w_goes);
      aw_left <= aw_left + 3'(goes) - 3'(aw_goes);
      w_left  <= w_left + 3'(goes) - 3'(w_goes);
      for (int w = 0; w < 2; w++) lines[w] <= lines[w] + 4'(goes_line && line_queue_i == 1'(w)) - 4'(line_acked && bid_i[0] == 1'(w));
      flying <= flying + 5'(goes) - 5'(bvalid_i);
      if ((goes_event && !event_owner_i) || (goes_store && store_owner_i == '0)) begin
        kinds[kind_new] <= goes_store;
        kind_new <= kind_new + 3'd1;
      end
      if (bvalid_i && bid_i == EVENT_AXI_ID) kind_old <= kind_old + 3'd1;
    end
  end

  // ---------------------------------------------------------------- what is assumed
  logic [1:0] started = '0;
  always_ff @(posedge clk_i) if (start_i) started[start_queue_i] <= 1'b1;
  always_comb begin
    if (begun) assume (watched_i == watched_before);
    if (!run) assume (!start_i && !line_valid_i && !completion_valid_i && !message_valid_i && !event_valid_i && !store_valid_i && !bvalid_i);
    if (line_valid_i) assume (line_ready[line_worker_i] && line_waits_i && started[line_queue_i] && line_first_i <= line_last_i && line_addr_i[5:0] == '0);
    if (completion_valid_i) assume (started[completion_queue_i] && completion_first_i <= completion_last_i && completion_addr_i[5:0] == '0);
    if (message_valid_i) assume (started[message_queue_i] && message_addr_i[1:0] == '0);
    if (event_valid_i) assume (event_addr_i[4:0] == '0);
    if (store_valid_i) assume (store_addr_i[5:0] == '0);
    if (bvalid_i) assume (bid_i < 6'd2 || bid_i >= COMPLETION_AXI_ID);
    if (bvalid_i && bid_i == EVENT_AXI_ID) assume (kind_old != kind_new);
    if (bvalid_i) assume (flying > 5'(aw_left > w_left ? aw_left : w_left) && (bid_i < 6'd2 ? lines[bid_i[0]] != '0 : flying > 5'(lines[0]) + 5'(lines[1])));
    if (flying == '1 || lines[0] == '1 || lines[1] == '1) assume (!goes);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  logic [2:0] together;
  assign together = 3'(goes_line) + 3'(goes_done) + 3'(goes_message) + 3'(goes_event) + 3'(goes_store);
  always_comb if (run) begin
    // AXI: what is shown stays as it is; every burst is one beat of 64 bytes.
    if (aw_held) assert (awvalid && aw_was == {awuser, awid, awaddr});
    if (w_held)  assert (wvalid && w_was == {wstrb[watched_i], wdata[8*watched_i +: 8]});
    assert (awlen == '0 && awsize == 3'd6 && awburst == 2'b01 && wlast);
    // One beat a cycle; each comes once, in order, with its user's ID, function and bytes. Bytes that are not written are 0.
    assert (together <= 3'd1);
    assert (awvalid == (aw_left != '0) && wvalid == (w_left != '0));
    if (awvalid) assert ({awuser, awid, awaddr} == aw_queue[aw_at]);
    if (wvalid) begin
      assert (wstrb[watched_i] == w_queue[w_at]);
      if (!wstrb[watched_i]) assert (wdata[8*watched_i +: 8] == '0);
    end
    // Of its own places a queue pair has one whatever the others hold.
    for (int w = 0; w < 2; w++) begin
      if (lines[pair_i[w]] < 4'(Own) && aw_left < 3'd2 && w_left < 3'd2 && !message_valid_i && !event_urgent_i && !store_urgent_i && !completion_urgent_i) assert (line_ready[w]);
      if (line_ready[w]) assert (line_place[w]);
      // And it never takes the other one's.
      if (lines[pair_i[w]] == 4'(MAX_WRITES - Own) || lines[0] + lines[1] == 4'(MAX_WRITES)) assert (!line_ready[w]);
    end
    // In a line's turn nothing else goes.
    if (line_turn) assert (!goes_done && !goes_message && !goes_event && !goes_store);
    // Of the writes of function 0's ID it is told which are those of the engine.
    if (ack && ack_id == EVENT_AXI_ID && kind_old != kind_new) assert (ack_store == kinds[kind_old]);
    assert (idle == (flying == '0));
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));
    1:       assert (!(lines[0] == 4'd3 && pair_i == 2'b10 && !line_ready[0] && line_ready[1]));
    2:       assert (!(aw_held && awid >= EVENT_AXI_ID && w_left == '0));
    default: assert (!(goes_message && completion_valid_i && event_valid_i && store_valid_i));
  endcase
`endif
endmodule
