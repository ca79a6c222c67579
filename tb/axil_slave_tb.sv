// axil_slave: each bus transfer becomes exactly one access of one cycle, with the answer of that cycle, whatever the
// order of address and data and however slow the master is; reads and writes at the same time.
module axil_slave_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic [17:0] awaddr, araddr, write_addr, read_addr;
  logic        awvalid, awready, wvalid, wready, bvalid, bready, arvalid, arready, rvalid, rready;
  logic [31:0] wdata, rdata, write_data, read_data;
  logic [3:0]  wstrb;
  logic [1:0]  bresp, rresp;
  logic        write, write_partial, write_error, read, read_error;

  // One access at a time …
  logic [17:0] one_awaddr, one_araddr;
  logic        one_awvalid, one_wvalid, one_bready, one_arvalid, one_rready;
  logic [31:0] one_wdata;
  logic [3:0]  one_wstrb;
  register_master u_master (
    .clk_i(clk), .rst_ni(rst_n),
    .awaddr_o(one_awaddr), .awvalid_o(one_awvalid), .awready_i(awready), .wdata_o(one_wdata), .wstrb_o(one_wstrb),
    .wvalid_o(one_wvalid), .wready_i(wready), .bresp_i(bresp), .bvalid_i(bvalid), .bready_o(one_bready),
    .araddr_o(one_araddr), .arvalid_o(one_arvalid), .arready_i(arready), .rdata_i(rdata), .rresp_i(rresp),
    .rvalid_i(rvalid), .rready_o(one_rready)
  );

  // … or a stream that does not wait for answers: each channel at its own pace.
  localparam int Stream = 500;
  logic        streaming = 1'b0;
  int          stall, aw_sent = 0, w_sent = 0, ar_sent = 0, b_seen = 0, r_seen = 0;
  int          write_count = 0, read_count = 0;
  logic        aw_on = 1'b0, w_on = 1'b0, ar_on = 1'b0, b_on = 1'b0, r_on = 1'b0;
  logic [31:0] r_data [0:Stream-1];     // what the page answered, in order

  function automatic logic [17:0] stream_addr(input int k);
    stream_addr = 18'(k * 18'h2B4);
  endfunction

  function automatic logic [31:0] stream_data(input int k);
    stream_data = k * 32'h0123_4567;
  endfunction

  assign awvalid = streaming ? aw_on : one_awvalid;
  assign awaddr  = streaming ? stream_addr(aw_sent) : one_awaddr;
  assign wvalid  = streaming ? w_on : one_wvalid;
  assign wdata   = streaming ? stream_data(w_sent) : one_wdata;
  assign wstrb   = streaming ? 4'hF : one_wstrb;
  assign bready  = streaming ? b_on : one_bready;
  assign arvalid = streaming ? ar_on : one_arvalid;
  assign araddr  = streaming ? stream_addr(ar_sent) : one_araddr;
  assign rready  = streaming ? r_on : one_rready;

  always @(posedge clk) if (streaming) begin
    if (write) begin
      expect_eq("address of a streamed write", write_addr, stream_addr(write_count));
      expect_eq("data of a streamed write", write_data, stream_data(write_count));
      write_count <= write_count + 1;
    end
    if (read) begin
      expect_eq("address of a streamed read", read_addr, stream_addr(read_count));
      r_data[read_count] = read_data;
      read_count <= read_count + 1;
    end
    if (bvalid && bready) begin
      expect_eq("answer of a streamed write", bresp, write_fails(stream_addr(b_seen)) ? 2'b10 : 2'b00);
      b_seen <= b_seen + 1;
    end
    if (rvalid && rready) begin
      expect_eq("data of a streamed read", rdata, r_data[r_seen]);
      r_seen <= r_seen + 1;
    end
    if (awvalid && awready) aw_sent <= aw_sent + 1;
    if (wvalid && wready) w_sent <= w_sent + 1;
    if (arvalid && arready) ar_sent <= ar_sent + 1;
    if (!aw_on || awready) aw_on <= aw_sent + int'(awvalid && awready) < Stream && !chance(stall);
    if (!w_on || wready)   w_on  <= w_sent + int'(wvalid && wready) < Stream && !chance(stall);
    if (!ar_on || arready) ar_on <= ar_sent + int'(arvalid && arready) < Stream && !chance(stall);
    b_on <= !chance(stall);
    r_on <= !chance(stall);
  end

  task automatic stream(input int percent);
    stall = percent;
    u_master.watching = 1'b0;
    write_count <= 0; read_count <= 0;
    aw_sent <= 0; w_sent <= 0; ar_sent <= 0; b_seen <= 0; r_seen <= 0;
    streaming <= 1'b1;
    waits_for = "the bench waits for the answers to a stream";
    @(posedge clk);
    while (b_seen < Stream || r_seen < Stream) @(posedge clk);
    repeat (5) @(posedge clk);
    expect_eq("streamed writes", write_count, Stream);
    expect_eq("streamed reads", read_count, Stream);
    streaming <= 1'b0;
    @(posedge clk);
  endtask

  axil_slave u_slave (
    .clk_i(clk), .rst_ni(rst_n),
    .s_axil_awaddr(awaddr), .s_axil_awvalid(awvalid), .s_axil_awready(awready),
    .s_axil_wdata(wdata), .s_axil_wstrb(wstrb), .s_axil_wvalid(wvalid), .s_axil_wready(wready),
    .s_axil_bresp(bresp), .s_axil_bvalid(bvalid), .s_axil_bready(bready),
    .s_axil_araddr(araddr), .s_axil_arvalid(arvalid), .s_axil_arready(arready),
    .s_axil_rdata(rdata), .s_axil_rresp(rresp), .s_axil_rvalid(rvalid), .s_axil_rready(rready),
    .write_o(write), .write_addr_o(write_addr), .write_data_o(write_data), .write_partial_o(write_partial),
    .write_error_i(write_error), .read_o(read), .read_addr_o(read_addr), .read_data_i(read_data), .read_error_i(read_error)
  );

  // A page whose answers depend on the address and on the cycle: a late or a second look would show.
  logic [31:0] noise = '0;
  function automatic logic write_fails(input logic [17:0] addr);
    write_fails = addr[2];
  endfunction
  assign write_error = write_fails(write_addr);
  assign read_error  = read_addr[3];
  assign read_data   = {20'd0, read_addr} ^ noise;

  int          writes = 0, reads = 0;
  logic [17:0] seen_addr, read_seen_addr;
  logic [31:0] seen_data, answered;
  logic        seen_partial;
  always @(posedge clk) begin
    noise <= rnd();
    if (rst_n && write) begin
      writes = writes + 1;
      seen_addr = write_addr;
      seen_data = write_data;
      seen_partial = write_partial;
    end
    if (rst_n && read) begin
      reads = reads + 1;
      read_seen_addr = read_addr;
      answered = read_data;
    end
  end

  task automatic one_write;
    logic [17:0] addr;
    logic [31:0] data;
    logic [3:0]  strobe;
    logic        ok;
    int          earlier;
    addr = rnd(); data = rnd(); strobe = chance(70) ? 4'hF : rnd();
    earlier = writes;
    u_master.write_strobe(addr, data, strobe, ok);
    expect_eq("accesses of one write", writes - earlier, 1);
    expect_eq("address of a write", seen_addr, addr);
    expect_eq("data of a write", seen_data, data);
    expect_eq("partial", seen_partial, strobe != 4'hF);
    expect_eq("OKAY", ok, !addr[2]);
  endtask

  task automatic one_read;
    logic [17:0] addr;
    logic [31:0] data;
    logic        ok;
    int          earlier;
    addr = rnd();
    earlier = reads;
    u_master.try_read(addr, data, ok);
    expect_eq("accesses of one read", reads - earlier, 1);
    expect_eq("address of a read", read_seen_addr, addr);
    expect_eq("data of a read", data, answered);
    expect_eq("OKAY", ok, !addr[3]);
  endtask

  initial begin
    @(posedge rst_n);
    @(posedge clk);
    for (int k = 0; k < 2; k++) begin
      u_master.delay = k * 50;
      fork
        repeat (400) one_write;
        repeat (400) one_read;
      join
    end
    expect_eq("writes", writes, 800);
    expect_eq("reads", reads, 800);
    stream(0);
    stream(50);
    stream(80);
    finish_bench("axil_slave_tb");
  end
endmodule
