// desc_fetch behind desc_ring: every published slot comes out once, in order, with its bytes, its running index and
// the fault of its beat, whatever memory and consumer do; a clear drops what is under way and the next start is clean.
module desc_fetch_tb;
  import bench_pkg::*;

  localparam logic [63:0] Base  = 64'h2_0000_0000;
  localparam int          Lines = 512;
  localparam int          Depth = 32;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic         clear = 1'b1, start = 1'b0, doorbell = 1'b0, ok;
  logic [31:0]  start_index, doorbell_tail = '0, head, tail, slot_index;
  logic [63:0]  base, request_addr, araddr;
  logic [16:0]  size;
  logic         request, request_ready, received, taken, published, arvalid, arready, rlast, rvalid, rready;
  logic [4:0]   request_slots, arid, rid;
  logic [7:0]   arlen;
  logic [2:0]   arsize;
  logic [1:0]   arburst, rresp;
  logic [511:0] rdata, slot_data;
  logic         slot_valid, slot_fault, beat, fault, idle;

  desc_ring #(.FetchDepth(Depth)) u_ring (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .clear_i(clear), .start_i(start), .start_index_i(start_index), .base_i(base),
    .size_i(size), .doorbell_i(doorbell), .doorbell_tail_i(doorbell_tail), .doorbell_ok_o(ok),
    .request_o(request), .request_addr_o(request_addr), .request_slots_o(request_slots),
    .request_ready_i(request_ready), .received_i(received), .taken_i(taken), .published_o(published),
    .head_o(head), .tail_o(tail)
  );

  desc_fetch #(.FetchDepth(Depth)) u_fetch (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .clear_i(clear), .start_i(start), .start_index_i(start_index),
    .request_i(request), .request_addr_i(request_addr), .request_slots_i(request_slots),
    .request_ready_o(request_ready), .received_o(received),
    .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
    .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_rid(rid), .m_axi_rdata(rdata), .m_axi_rresp(rresp),
    .m_axi_rlast(rlast), .m_axi_rvalid(rvalid), .m_axi_rready(rready),
    .slot_valid_o(slot_valid), .slot_data_o(slot_data), .slot_fault_o(slot_fault), .slot_index_o(slot_index),
    .beat_o(beat), .fault_o(fault), .idle_o(idle)
  );

  memory_model #(.Lines(Lines), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(rst_n),
    .awid_i(5'd0), .awaddr_i(64'd0), .awvalid_i(1'b0), .wdata_i(512'd0), .wstrb_i(64'd0), .wvalid_i(1'b0), .bready_i(1'b1),
    .araddr_i(araddr), .arlen_i(arlen), .arid_i(arid), .arvalid_i(arvalid), .arready_o(arready),
    .rid_o(rid), .rdata_o(rdata), .rresp_o(rresp), .rlast_o(rlast), .rvalid_o(rvalid), .rready_i(rready),
    .awready_o(), .wready_o(), .bid_o(), .bresp_o(), .bvalid_o(), .accept_o(), .effect_o(), .effect_error_o(),
    .accept_id_o(), .effect_id_o(), .accept_addr_o(), .effect_addr_o(), .accept_strb_o(), .effect_strb_o(),
    .accept_data_o(), .effect_data_o()
  );

  protocol_monitor u_protocol (
    .clk_i(clk), .rst_ni(rst_n),
    .awid_i(5'd0), .awaddr_i(64'd0), .awlen_i(8'd0), .awsize_i(3'd0), .awburst_i(2'd0), .awvalid_i(1'b0), .awready_i(1'b0),
    .wdata_i(512'd0), .wstrb_i(64'd0), .wlast_i(1'b0), .wvalid_i(1'b0), .wready_i(1'b0),
    .arid_i(arid), .araddr_i(araddr), .arlen_i(arlen), .arsize_i(arsize), .arburst_i(arburst),
    .arvalid_i(arvalid), .arready_i(arready)
  );

  int          stall_out, faults_seen = 0, faults_told = 0, beats = 0;
  int          stored = 0;              // slots that came out and keep their place
  logic [31:0] next, written, ahead;
  logic        bad [0:255];             // by index modulo 256: its beat was faulty
  logic [31:0] arrived;

  assign taken = stored != 0 && want;
  logic want = 1'b0;

  always @(posedge clk) begin
    want <= !chance(stall_out);
    doorbell <= 1'b0;
    if (!clear && !start) begin
      if (rvalid && rready) begin
        bad[arrived % 256] = rresp != 0;
        if (rresp != 0) faults_seen = faults_seen + 1;
        arrived = arrived + 1;
      end
      if (fault) faults_told = faults_told + 1;
      if (beat) beats = beats + 1;
      if (taken) stored = stored - 1;
      if (slot_valid) begin
        stored = stored + 1;
        if (stored > Depth) fail($sformatf("%0d slots came out for %0d places", stored, Depth));
        ahead = arrived - next;
        if (ahead == 0 || ahead[31]) fail($sformatf("slot %h came out before it came in", next));
        if (slot_index !== next) fail($sformatf("slot %h, expected %h", slot_index, next));
        if (slot_fault !== bad[next % 256]) fail($sformatf("slot %h: fault is %b", next, slot_fault));
        if (!slot_fault && slot_data !== {16{next}}) fail($sformatf("slot %h carries %h", next, slot_data));
        next = next + 1;
      end
      // The host: a slot may be written again once the ring says that it was read.
      if (chance(20) && !doorbell) begin
        ahead = below(int'(size) + 1 - int'(written - head));
        for (int k = 0; k < int'(ahead); k++) begin
          u_memory.line[(base - Base) / 64 + written % size] = {16{written}};
          written = written + 1;
        end
        doorbell      <= 1'b1;
        doorbell_tail <= written;
      end
    end
  end

  initial begin
    u_protocol.quiet = 1'b0;
    @(posedge rst_n);
    for (int k = 0; k < 16; k++) begin
      size        = 17'd1 << between(1, 8);
      base        = Base + 64 * below(Lines - int'(size) + 1);
      start_index = k[0] ? -between(1, 300) : rnd();
      next = start_index; written = start_index; arrived = start_index;
      u_memory.read_latency = k[1] ? 40 : 0;
      u_memory.read_jitter  = k[1] ? 30 : 0;
      u_memory.stall_ar     = k[2] ? 50 : 0;
      u_memory.stall_r      = k[2] ? 50 : 0;
      u_memory.error_r      = k[1] ? 5 : 0;
      stall_out             = k[3] ? 60 : 0;
      waits_for = "desc_fetch_tb: run in progress";
      stored = 0;
      start <= 1'b1;
      @(posedge clk);
      start <= 1'b0;
      clear <= 1'b0;
      repeat (800) @(posedge clk);
      if (next - start_index < 10) fail($sformatf("only %0d slots came out", next - start_index));
      // A disable in mid-flight: what is promised is completed, then nothing is left.
      clear <= 1'b1;
      waits_for = "the bench waits for idle_o after a clear";
      repeat (2) @(posedge clk);
      while (!idle) @(posedge clk);
      if (u_memory.ar_head != u_memory.ar_tail || rvalid) fail("R12: idle with a read in flight");
      if (slot_valid) fail("R12: a slot survives a clear");
    end
    expect_eq("faults told", faults_told, faults_seen);
    if (faults_seen == 0) fail("no faulty beat was seen");
    finish_bench("desc_fetch_tb");
  end
endmodule
