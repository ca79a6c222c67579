// desc_fetch behind desc_ring, three queue pairs: every published slot comes out once, in order of its queue pair, with its
// bytes, its queue pair, its running index and the fault of its beat, whatever memory and consumer do; what is under way
// for one that is turned off is dropped while the others go on, and its next start is clean.
module desc_fetch_tb;
  import bench_pkg::*;
  import core_pkg::*;

  localparam logic [63:0] Base  = 64'h2_0000_0000;
  localparam int          Lines = 512;
  localparam int          Depth = 32;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Queues = 3;
  localparam int Places = Depth / 4;

  logic              start = 1'b0, doorbell = 1'b0, ok;
  logic [3:0]        start_queue = '0, bell_queue = '0, request_queue, request_owner, slot_queue, taken_queue = '0;
  queue_config_t     start_config = '0;
  logic [Queues-1:0] on = '0, published, busy;
  logic [31:0]       doorbell_tail = '0, slot_index, head_unused, tail_unused, posted_unused;
  logic [63:0]       request_addr, araddr;
  logic              request, request_ready, taken = 1'b0, arvalid, arready, rlast, rvalid;
  logic [4:0]        request_slots;
  logic [5:0]        arid, rid;
  logic [3:0]        aruser;
  logic [7:0]        arlen;
  logic [2:0]        arsize;
  logic [1:0]        arburst, rresp;
  logic [511:0]      rdata, slot_data;
  logic              slot_valid, slot_fault, beat, fault, idle;

  desc_ring #(.Queues(Queues), .FetchDepth(Depth)) u_ring (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue),
    .start_config_i(start_config), .on_i(on), .enabled_i(on), .doorbell_i(doorbell), .doorbell_queue_i(bell_queue),
    .doorbell_tail_i(doorbell_tail), .doorbell_ok_o(ok), .abort_i(1'b0), .request_o(request), .request_addr_o(request_addr),
    .request_slots_o(request_slots), .request_queue_o(request_queue), .request_owner_o(request_owner),
    .request_ready_i(request_ready), .received_i(slot_valid), .received_queue_i(slot_queue), .received_index_o(slot_index),
    .taken_i(taken), .taken_queue_i(taken_queue), .published_o(published), .state_queue_i(4'd0), .head_o(head_unused),
    .tail_o(tail_unused), .posted_i(1'b0), .posted_queue_i(4'd0), .posted_head_o(posted_unused)
  );

  desc_fetch #(.Queues(Queues), .FetchDepth(Depth)) u_fetch (
    .clk_i(clk), .bus_rst_ni(rst_n), .on_i(on), .request_i(request), .request_addr_i(request_addr),
    .request_slots_i(request_slots), .request_queue_i(request_queue), .request_owner_i(request_owner),
    .request_ready_o(request_ready),
    .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
    .m_axi_aruser(aruser), .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_rid(rid), .m_axi_rdata(rdata),
    .m_axi_rresp(rresp), .m_axi_rlast(rlast), .m_axi_rvalid(rvalid),
    .slot_valid_o(slot_valid), .slot_data_o(slot_data), .slot_fault_o(slot_fault), .slot_queue_o(slot_queue),
    .beat_o(beat), .fault_o(fault), .busy_o(busy), .idle_o(idle)
  );

  memory_model #(.Lines(Lines), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(rst_n),
    .awid_i(6'd0), .awaddr_i(64'd0), .awvalid_i(1'b0), .wdata_i(512'd0), .wstrb_i(64'd0), .wvalid_i(1'b0), .bready_i(1'b1),
    .araddr_i(araddr), .arlen_i(arlen), .arid_i(arid), .arvalid_i(arvalid), .arready_o(arready),
    .rid_o(rid), .rdata_o(rdata), .rresp_o(rresp), .rlast_o(rlast), .rvalid_o(rvalid), .rready_i(1'b1),
    .awready_o(), .wready_o(), .bid_o(), .bresp_o(), .bvalid_o(), .accept_o(), .effect_o(), .effect_error_o(),
    .accept_id_o(), .effect_id_o(), .accept_addr_o(), .effect_addr_o(), .accept_strb_o(), .effect_strb_o(),
    .accept_data_o(), .effect_data_o()
  );

  protocol_monitor u_protocol (
    .clk_i(clk), .rst_ni(rst_n),
    .awid_i(6'd0), .awaddr_i(64'd0), .awlen_i(8'd0), .awsize_i(3'd0), .awburst_i(2'd0), .awvalid_i(1'b0), .awready_i(1'b0),
    .wdata_i(512'd0), .wstrb_i(64'd0), .wlast_i(1'b0), .wvalid_i(1'b0), .wready_i(1'b0),
    .arid_i(arid), .araddr_i(araddr), .arlen_i(arlen), .arsize_i(arsize), .arburst_i(arburst),
    .arvalid_i(arvalid), .arready_i(arready)
  );

  int          stall_out, faults_seen = 0, faults_told = 0, beats = 0, q, turned_off = 0;
  logic        running = 1'b0;
  // By queue pair.
  int          stored [0:Queues-1], part [0:Queues-1];      // slots that came out and keep their place; place in memory
  logic [31:0] next [0:Queues-1], written [0:Queues-1];
  logic [16:0] size [0:Queues-1];
  logic [31:0] first [0:Queues-1];
  logic [31:0] ahead, mark;

  function automatic logic [511:0] content(input int pair, input logic [31:0] index);
    content = {16{32'(pair) * 32'h1111_1111 ^ index}};
  endfunction

  // Starts a queue pair that has nothing left.
  task automatic begin_pair(input int pair);
    size[pair]    = 17'd1 << between(1, 7);
    part[pair]    = 160 * pair + below(160 - int'(size[pair]));
    first[pair]   = chance(50) ? -between(1, 300) : rnd();
    next[pair]    = first[pair];
    written[pair] = first[pair];
    stored[pair]  = 0;
    start                 <= 1'b1;
    start_queue           <= pair;
    start_config.sq_base  <= Base + 64 * part[pair];
    start_config.sq_size  <= size[pair];
    start_config.sq_start <= first[pair];
    start_config.owner    <= pair + 4;
    @(posedge clk);
    start <= 1'b0;
    on[pair] <= 1'b1;
    @(posedge clk);
  endtask

  task automatic end_pair(input int pair);
    on[pair] <= 1'b0;
    turned_off = turned_off + 1;
    waits_for = "the bench waits for the end of what a queue pair has in flight";
    @(posedge clk);
    @(posedge clk);
    while (busy[pair]) @(posedge clk);
  endtask

  always @(posedge clk) begin
    doorbell <= 1'b0;
    taken    <= 1'b0;
    if (running) begin
      if (arvalid) expect_eq("ARUSER", aruser, (araddr - Base) / 64 / 160 + 4);
      if (rvalid && rresp != 0) faults_seen = faults_seen + 1;
      if (fault) faults_told = faults_told + 1;
      if (beat) beats = beats + 1;
      if (taken) stored[taken_queue] = stored[taken_queue] - 1;
      if (slot_valid) begin
        q = int'(slot_queue);
        if (!on[q]) fail($sformatf("R12: a slot of queue pair %0d, which is off", q));
        stored[q] = stored[q] + 1;
        if (stored[q] > Places) fail($sformatf("%0d slots of queue pair %0d came out for %0d places", stored[q], q, Places));
        if (slot_index !== next[q]) fail($sformatf("slot %h of queue pair %0d, expected %h", slot_index, q, next[q]));
        if (slot_fault !== (rresp != 0)) fail($sformatf("slot %h: fault is %b", next[q], slot_fault));
        if (!slot_fault && slot_data !== content(q, next[q])) fail($sformatf("slot %h carries %h", next[q], slot_data));
        next[q] = next[q] + 1;
      end
      q = below(Queues);
      if (on[q] && stored[q] != 0 && !chance(stall_out)) begin
        taken       <= 1'b1;
        taken_queue <= q;
        if (taken && taken_queue == q && stored[q] == 1) taken <= 1'b0;
      end
      // The host: a slot may be written again once the ring says that it was read.
      q = below(Queues);
      if (on[q] && !doorbell && chance(30)) begin     // no two doorbells in cycles on end
        ahead = below(int'(size[q]) + 1 - int'(written[q] - next[q]));
        for (int k = 0; k < int'(ahead); k++) begin
          u_memory.line[part[q] + written[q] % size[q]] = content(q, written[q]);
          written[q] = written[q] + 1;
        end
        doorbell      <= 1'b1;
        bell_queue    <= q;
        doorbell_tail <= written[q];
      end
    end
  end

  initial begin
    u_protocol.quiet = 1'b0;
    @(posedge rst_n);
    for (int k = 0; k < 16; k++) begin
      u_memory.read_latency = k[1] ? 40 : 0;
      u_memory.read_jitter  = k[1] ? 30 : 0;
      u_memory.stall_ar     = k[2] ? 50 : 0;
      u_memory.stall_r      = k[2] ? 50 : 0;
      u_memory.error_r      = k[1] ? 5 : 0;
      stall_out             = k[3] ? 60 : 0;
      for (int pair = 0; pair < Queues; pair++) begin_pair(pair);
      running = 1'b1;
      // One at a time is turned off in mid-flight and starts anew.
      repeat (4) begin
        waits_for = "desc_fetch_tb: run in progress";
        repeat (between(50, 250)) @(posedge clk);
        q = below(Queues);
        mark = q;
        end_pair(mark);
        begin_pair(mark);
      end
      repeat (1500) @(posedge clk);
      for (int pair = 0; pair < Queues; pair++)
        if (next[pair] - first[pair] < 10) fail($sformatf("only %0d slots of queue pair %0d came out", next[pair] - first[pair], pair));
      // All: what is promised is completed, then nothing is left.
      on <= '0;
      waits_for = "the bench waits for idle_o";
      repeat (2) @(posedge clk);
      while (!idle) @(posedge clk);
      if (u_memory.reading != 0 || rvalid) fail("R12: idle with a read in flight");
      if (busy != 0) fail("R12: a queue pair is busy and nothing is in flight");
      running = 1'b0;
    end
    expect_eq("faults told", faults_told, faults_seen);
    if (faults_seen == 0) fail("no faulty beat was seen");
    finish_bench("desc_fetch_tb");
  end
endmodule
