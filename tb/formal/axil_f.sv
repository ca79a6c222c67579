// The register port answers every access once, with what the registers said, and in bounded time: axil_slave, complete. Its inputs are free: nothing is
// assumed of the master, not even that it holds what it shows.
module axil_f (
  input logic        clk_i,
  input logic [17:0] awaddr_i, araddr_i,
  input logic        awvalid_i, wvalid_i, bready_i, arvalid_i, rready_i,
  input logic [31:0] wdata_i, read_data_i,
  input logic [3:0]  wstrb_i,
  input logic        write_error_i, read_error_i
);
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic        awready, wready, bvalid, arready, rvalid, write, partial, read;
  logic [1:0]  bresp, rresp;
  logic [31:0] rdata, write_data;
  logic [17:0] write_addr, read_addr;

  axil_slave u_slave (
    .clk_i, .rst_ni(run),
    .s_axil_awaddr(awaddr_i), .s_axil_awvalid(awvalid_i), .s_axil_awready(awready),
    .s_axil_wdata(wdata_i), .s_axil_wstrb(wstrb_i), .s_axil_wvalid(wvalid_i), .s_axil_wready(wready),
    .s_axil_bresp(bresp), .s_axil_bvalid(bvalid), .s_axil_bready(bready_i),
    .s_axil_araddr(araddr_i), .s_axil_arvalid(arvalid_i), .s_axil_arready(arready),
    .s_axil_rdata(rdata), .s_axil_rresp(rresp), .s_axil_rvalid(rvalid), .s_axil_rready(rready_i),
    .write_o(write), .write_addr_o(write_addr), .write_data_o(write_data), .write_partial_o(partial), .write_error_i,
    .read_o(read), .read_addr_o(read_addr), .read_data_i, .read_error_i
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic        aw_owed = 1'b0, w_owed = 1'b0, b_owed = 1'b0, ar_owed = 1'b0, r_owed = 1'b0;   // taken in and not passed on
  logic [17:0] aw_addr, ar_addr;
  logic [31:0] w_data, r_data;
  logic [3:0]  w_strb;
  logic        b_error, r_error;
  always_ff @(posedge clk_i) if (run) begin
    if (awvalid_i && awready) {aw_owed, aw_addr} <= {1'b1, awaddr_i};
    else if (write)           aw_owed <= 1'b0;
    if (wvalid_i && wready)   {w_owed, w_data, w_strb} <= {1'b1, wdata_i, wstrb_i};
    else if (write)           w_owed <= 1'b0;
    if (write)                {b_owed, b_error} <= {1'b1, write_error_i};
    else if (bready_i)        b_owed <= 1'b0;
    if (arvalid_i && arready) {ar_owed, ar_addr} <= {1'b1, araddr_i};
    else if (read)            ar_owed <= 1'b0;
    if (read)                 {r_owed, r_error, r_data} <= {1'b1, read_error_i, read_data_i};
    else if (rready_i)        r_owed <= 1'b0;
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    // One address, one beat of data and one response at a time: each is taken in only once the one before it has been passed on.
    assert (awready == !aw_owed && wready == !w_owed && arready == !ar_owed);
    // An access happens as soon as all of it is there and the response before it has gone. So it is answered two cycles behind address and data (R28).
    assert (write == (aw_owed && w_owed && !b_owed));
    assert (read == (ar_owed && !r_owed));
    // It is the one that was asked for.
    if (aw_owed) assert (write_addr == aw_addr);
    if (w_owed)  assert (write_data == w_data && partial == (w_strb != 4'hF));
    if (ar_owed) assert (read_addr == ar_addr);
    // Its response is there until it is taken, with what the registers said: of a write and of a read once each.
    assert (bvalid == b_owed && rvalid == r_owed);
    if (bvalid) assert (bresp == (b_error ? 2'b10 : 2'b00));
    if (rvalid) assert (rresp == (r_error ? 2'b10 : 2'b00) && rdata == r_data);
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [1:0] writes = '0, reads = '0;
  logic       waited = 1'b0;                     // a response, while the next access was there
  always_ff @(posedge clk_i) if (run) begin
    if (bvalid && bready_i && writes != '1) writes <= writes + 1'b1;
    if (rvalid && rready_i && reads != '1)  reads <= reads + 1'b1;
    waited <= waited || (aw_owed && w_owed && b_owed && ar_owed && r_owed);
  end
  always_comb case (`REACH)
    0:       assert (!(writes == 2'd3 && reads == 2'd3));
    default: assert (!waited);
  endcase
`endif
endmodule
