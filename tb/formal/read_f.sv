// The read port (read_arbiter with its three users): what was shown stays until it is taken, each user's bursts come with its ID, and the data of a read
// is handed to the user that asked.
//
// Assumed of fetch and of the engine: what they show they hold until it is taken (desc_ring, npu_port; protocol_monitor sees it on the bus in every bench). Of
// readback: no more than Ahead at a time (readback; asserted in read_arbiter). Of the bus: data of a user only comes after its address.
module read_f import core_pkg::*; (
  input logic        clk_i,
  input logic        fetch_valid_i, read_valid_i, burst_valid_i, arready_i, rvalid_i,
  input logic [63:0] fetch_addr_i, read_addr_i, burst_addr_i,
  input logic [7:0]  fetch_len_i, burst_len_i,
  input logic [3:0]  fetch_owner_i, read_owner_i, burst_owner_i,
  input logic [5:0]  rid_i
);
  localparam int Ahead = 4;
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic        fetch_ready, read_ready, beat, idle, burst_ready, burst_beat, arvalid;
  logic [5:0]  arid;
  logic [63:0] araddr;
  logic [7:0]  arlen;
  logic [3:0]  aruser;

  read_arbiter #(.Ahead(Ahead), .Engines(2)) u_arbiter (
    .clk_i, .bus_rst_ni(run),
    .fetch_valid_i, .fetch_addr_i, .fetch_len_i, .fetch_owner_i, .fetch_ready_o(fetch_ready),
    .read_valid_i, .read_addr_i, .read_owner_i, .read_ready_o(read_ready), .beat_o(beat), .idle_o(idle),
    .burst_valid_i, .burst_addr_i, .burst_len_i, .burst_owner_i, .burst_ready_o(burst_ready), .burst_beat_o(burst_beat),
    .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_aruser(aruser), .m_axi_arvalid(arvalid), .m_axi_arready(arready_i),
    .m_axi_rid(rid_i), .m_axi_rvalid(rvalid_i)
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic        fetch_held = 1'b0, burst_held = 1'b0, ar_held = 1'b0;
  logic [75:0] fetch_was, burst_was;
  logic [81:0] ar_was;
  logic        waits = 1'b0;                     // a read that was taken in and is not on the bus
  logic [67:0] wanted;                           // its address and owner
  logic [2:0]  asked = '0, flying = '0;          // reads that were taken in, and that are on the bus, without their data
  logic        takes, shown;
  assign takes = read_valid_i && read_ready;
  assign shown = arvalid && arready_i && !fetch_ready && !burst_ready;
  always_ff @(posedge clk_i) begin
    fetch_held <= run && fetch_valid_i && !fetch_ready;
    fetch_was  <= {fetch_addr_i, fetch_len_i, fetch_owner_i};
    burst_held <= run && burst_valid_i && !burst_ready;
    burst_was  <= {burst_addr_i, burst_len_i, burst_owner_i};
    ar_held    <= run && arvalid && !arready_i;
    ar_was     <= {arid, araddr, arlen, aruser};
    if (run) begin
      if (takes) {waits, wanted} <= {1'b1, read_addr_i, read_owner_i};
      else if (shown) waits <= 1'b0;
      asked  <= asked + 3'(takes) - 3'(beat);
      flying <= flying + 3'(shown) - 3'(beat);
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (!run) assume (!fetch_valid_i && !read_valid_i && !burst_valid_i && !rvalid_i);
    if (fetch_held) assume (fetch_valid_i && fetch_was == {fetch_addr_i, fetch_len_i, fetch_owner_i});
    if (burst_held) assume (burst_valid_i && burst_was == {burst_addr_i, burst_len_i, burst_owner_i});
    if (asked == 3'(Ahead)) assume (!read_valid_i);
    if (rvalid_i && rid_i == READBACK_AXI_ID) assume (flying != '0);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    // AXI: what is shown stays as it is.
    if (ar_held) assert (arvalid && ar_was == {arid, araddr, arlen, aruser});
    // Nobody's address is taken but when the bus takes it, and one at a time.
    assert (!(fetch_ready && burst_ready));
    if (fetch_ready && fetch_valid_i) assert (arready_i && arvalid && arid == '0 && araddr == fetch_addr_i && arlen == fetch_len_i && aruser == fetch_owner_i);
    if (burst_ready) assert (arready_i && arvalid && burst_valid_i && arid == NPU_READ_AXI_ID && araddr == burst_addr_i && arlen == burst_len_i && aruser == burst_owner_i);
    // What is neither is the read that waits: one beat, its own address and function.
    if (arvalid && arid == READBACK_AXI_ID) assert (waits && arlen == '0 && {araddr, aruser} == wanted);
    if (arvalid) assert (arid == '0 || arid == READBACK_AXI_ID || arid == NPU_READ_AXI_ID);
    if (shown) assert (arid == READBACK_AXI_ID);
    assert (read_ready == !waits);
    // Data goes to who asked.
    assert (beat == (rvalid_i && rid_i == READBACK_AXI_ID) && burst_beat == (rvalid_i && rid_i == NPU_READ_AXI_ID));
    assert (idle == (asked == '0) && asked <= 3'(Ahead) && asked == flying + 3'(waits));
    // Whatever is there is shown.
    assert (arvalid == (fetch_valid_i || waits || burst_valid_i));
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [2:0] passed = '0;
  always_ff @(posedge clk_i) if (run) passed <= !waits ? '0 : passed + 3'(fetch_ready && fetch_valid_i && passed != '1);
  always_comb case (`REACH)
    0:       assert (!(asked == 3'(Ahead) && flying == 3'(Ahead - 1) && ar_held && arid == READBACK_AXI_ID));
    1:       assert (!(ar_held && arid == NPU_READ_AXI_ID && fetch_valid_i && waits));
    default: assert (!(passed == 3'd3 && beat));
  endcase
`endif
endmodule
