// The read port (read_arbiter with its three users): what was shown stays until it is taken, each user's bursts come with its ID, and the data of a read
// is handed to the user that asked.
//
// Assumed of fetch and of the engine: what they show they hold until it is taken (desc_ring, npu_port; protocol_monitor sees it on the bus in every bench). Of
// readback: no more than Ahead of each queue pair at a time (readback; asserted in read_arbiter). Of the bus: data of a user only comes after its address.
module read_f import core_pkg::*; (
  input logic        clk_i,
  input logic        fetch_valid_i, read_valid_i, burst_valid_i, arready_i, rvalid_i,
  input logic [63:0] fetch_addr_i, read_addr_i, burst_addr_i,
  input logic [7:0]  fetch_len_i, burst_len_i,
  input logic        fetch_queue_i, read_queue_i,
  input logic [3:0]  fetch_owner_i, read_owner_i, burst_owner_i,
  input logic [5:0]  rid_i
);
  localparam int Patience = 2, Queues = 2, Ahead = 2, All = Queues * Ahead;
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic        fetch_ready, read_ready, beat, idle, burst_ready, burst_beat, arvalid;
  logic [5:0]  arid, fetch_id;
  logic [3:0]  beat_queue;
  logic        of_read, of_burst;                // whose the data is
  assign fetch_id = 6'(fetch_queue_i);
  assign of_read  = rvalid_i && rid_i[5:1] == READBACK_AXI_ID[5:1];
  assign of_burst = rvalid_i && rid_i[5:4] == NPU_READ_AXI_ID[5:4];
  logic [63:0] araddr;
  logic [7:0]  arlen;
  logic [3:0]  aruser;

  read_arbiter #(.Queues(Queues), .Ahead(Ahead), .Patience(Patience), .Engines(2)) u_arbiter (
    .clk_i, .bus_rst_ni(run),
    .fetch_valid_i, .fetch_id_i(fetch_id), .fetch_addr_i, .fetch_len_i, .fetch_owner_i, .fetch_ready_o(fetch_ready),
    .read_valid_i, .read_queue_i(4'(read_queue_i)), .read_addr_i, .read_owner_i, .read_ready_o(read_ready), .beat_o(beat), .beat_queue_o(beat_queue), .idle_o(idle),
    .burst_valid_i, .burst_addr_i, .burst_len_i, .burst_owner_i, .burst_ready_o(burst_ready), .burst_beat_o(burst_beat),
    .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_aruser(aruser), .m_axi_arvalid(arvalid), .m_axi_arready(arready_i),
    .m_axi_rid(rid_i), .m_axi_rvalid(rvalid_i)
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic        fetch_held = 1'b0, burst_held = 1'b0, ar_held = 1'b0;
  logic [76:0] fetch_was;
  logic [75:0] burst_was;
  logic [81:0] ar_was;
  logic        waits = 1'b0;                     // a read that was taken in and is not on the bus
  logic [68:0] wanted;                           // its address, owner and queue pair
  logic [2:0]  asked = '0, flying = '0;          // reads that were taken in, and that are on the bus, without their data
  logic [1:0][2:0] flies = '0;                   // the latter of each queue pair
  logic [2:0]  read_passed = '0, burst_passed = '0;  // addresses of others that passed what waits
  logic        takes, shown;
  assign takes = read_valid_i && read_ready;
  assign shown = arvalid && arready_i && !fetch_ready && !burst_ready;
  always_ff @(posedge clk_i) begin
    fetch_held <= run && fetch_valid_i && !fetch_ready;
    fetch_was  <= {fetch_queue_i, fetch_addr_i, fetch_len_i, fetch_owner_i};
    burst_held <= run && burst_valid_i && !burst_ready;
    burst_was  <= {burst_addr_i, burst_len_i, burst_owner_i};
    ar_held    <= run && arvalid && !arready_i;
    ar_was     <= {arid, araddr, arlen, aruser};
    if (run) begin
      if (takes) {waits, wanted} <= {1'b1, read_addr_i, read_owner_i, read_queue_i};
      else if (shown) waits <= 1'b0;
      asked  <= asked + 3'(takes) - 3'(beat);
      flying <= flying + 3'(shown) - 3'(beat);
      for (int q = 0; q < 2; q++) flies[q] <= flies[q] + 3'(shown && wanted[0] == 1'(q)) - 3'(beat && rid_i[0] == 1'(q));
      read_passed  <= (!waits || shown) ? '0 : read_passed + 3'(arvalid && arready_i);
      burst_passed <= (!burst_valid_i || burst_ready) ? '0 : burst_passed + 3'(arvalid && arready_i);
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (!run) assume (!fetch_valid_i && !read_valid_i && !burst_valid_i && !rvalid_i);
    if (fetch_held) assume (fetch_valid_i && fetch_was == {fetch_queue_i, fetch_addr_i, fetch_len_i, fetch_owner_i});
    if (burst_held) assume (burst_valid_i && burst_was == {burst_addr_i, burst_len_i, burst_owner_i});
    if (asked == 3'(All)) assume (!read_valid_i);
    if (of_read) assume (flies[rid_i[0]] != '0);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    // AXI: what is shown stays as it is.
    if (ar_held) assert (arvalid && ar_was == {arid, araddr, arlen, aruser});
    // Nobody's address is taken but when the bus takes it, and one at a time.
    assert (!(fetch_ready && burst_ready));
    if (fetch_ready && fetch_valid_i) assert (arready_i && arvalid && arid == fetch_id && araddr == fetch_addr_i && arlen == fetch_len_i && aruser == fetch_owner_i);
    if (burst_ready) assert (arready_i && arvalid && burst_valid_i && arid == (NPU_READ_AXI_ID | 6'(burst_owner_i)) && araddr == burst_addr_i && arlen == burst_len_i && aruser == burst_owner_i);
    // What is neither is the read that waits: one beat, its own address and function.
    if (arvalid && arid[5:4] == READBACK_AXI_ID[5:4]) assert (waits && arlen == '0 && {araddr, aruser, arid[3:0]} == {wanted[68:1], 3'd0, wanted[0]});
    if (arvalid) assert (arid[5:1] == '0 || arid[5:1] == READBACK_AXI_ID[5:1] || arid[5:4] == NPU_READ_AXI_ID[5:4]);
    if (shown) assert (arid[5:1] == READBACK_AXI_ID[5:1]);
    assert (read_ready == !waits);
    // Data goes to who asked.
    assert (beat == of_read && (!beat || beat_queue == 4'(rid_i[0])));
    if (of_burst || of_read || (rvalid_i && rid_i < 6'd2)) assert (burst_beat == of_burst);
    // R28: nothing waits for ever.
    assert (read_passed <= 3'(Patience + 1) && burst_passed <= 3'(Patience));
    assert (idle == (asked == '0) && asked <= 3'(All) && asked == flying + 3'(waits));
    // Whatever is there is shown.
    assert (arvalid == (fetch_valid_i || waits || burst_valid_i));
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  always_comb case (`REACH)
    0:       assert (!(asked == 3'(All) && flying == 3'(All - 1) && ar_held && arid == READBACK_AXI_ID));
    1:       assert (!(ar_held && arid == NPU_READ_AXI_ID + 6'd3 && fetch_valid_i && waits));
    default: assert (!(read_passed == 3'(Patience + 1) && beat));
  endcase
`endif
endmodule
