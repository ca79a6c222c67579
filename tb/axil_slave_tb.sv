// axil_slave: each bus transfer becomes exactly one access of one cycle, with the answer of that cycle, whatever the
// order of address and data and however slow the master is; reads and writes at the same time.
module axil_slave_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic [11:0] awaddr, araddr, write_addr, read_addr;
  logic        awvalid, awready, wvalid, wready, bvalid, bready, arvalid, arready, rvalid, rready;
  logic [31:0] wdata, rdata, write_data, read_data;
  logic [3:0]  wstrb;
  logic [1:0]  bresp, rresp;
  logic        write, write_partial, write_error, read, read_error;

  register_master u_master (
    .clk_i(clk), .rst_ni(rst_n),
    .awaddr_o(awaddr), .awvalid_o(awvalid), .awready_i(awready), .wdata_o(wdata), .wstrb_o(wstrb),
    .wvalid_o(wvalid), .wready_i(wready), .bresp_i(bresp), .bvalid_i(bvalid), .bready_o(bready),
    .araddr_o(araddr), .arvalid_o(arvalid), .arready_i(arready), .rdata_i(rdata), .rresp_i(rresp),
    .rvalid_i(rvalid), .rready_o(rready)
  );

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
  assign write_error = write_addr[2];
  assign read_error  = read_addr[3];
  assign read_data   = {20'd0, read_addr} ^ noise;

  int          writes = 0, reads = 0;
  logic [11:0] seen_addr, read_seen_addr;
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
    logic [11:0] addr;
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
    logic [11:0] addr;
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
    finish_bench("axil_slave_tb");
  end
endmodule
