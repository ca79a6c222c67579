// AXI4-Lite master: register accesses as tasks, one at a time, and a check of the slave's handshake.
module register_master (
  input  logic        clk_i,
  input  logic        rst_ni,
  output logic [17:0] awaddr_o,
  output logic        awvalid_o,
  input  logic        awready_i,
  output logic [31:0] wdata_o,
  output logic [3:0]  wstrb_o,
  output logic        wvalid_o,
  input  logic        wready_i,
  input  logic [1:0]  bresp_i,
  input  logic        bvalid_i,
  output logic        bready_o,
  output logic [17:0] araddr_o,
  output logic        arvalid_o,
  input  logic        arready_i,
  input  logic [31:0] rdata_i,
  input  logic [1:0]  rresp_i,
  input  logic        rvalid_i,
  output logic        rready_o
);
  import bench_pkg::*;
  localparam int Patience = 200;        // cycles that the slave may take

  int delay = 0;                        // percent: chance of each idle cycle before and between the channels

  initial begin
    awvalid_o = 1'b0; awaddr_o = '0;
    wvalid_o  = 1'b0; wdata_o  = '0; wstrb_o = '0;
    bready_o  = 1'b0;
    arvalid_o = 1'b0; araddr_o = '0;
    rready_o  = 1'b0;
  end

  // Several hosts may use it: one access at a time.
  logic taken = 1'b0;
  task automatic take;
    while (taken) @(posedge clk_i);
    taken = 1'b1;
  endtask

  task automatic idle;
    while (chance(delay)) @(posedge clk_i);
  endtask

  task automatic bound(inout int waited, input string what, input logic [17:0] addr);
    waited = waited + 1;
    if (waited > Patience)
      $fatal(1, "hang: the register master waits for %0s of address 0x%05h", what, addr);
  endtask

  // Any strobes; ok is low for SLVERR.
  task automatic write_strobe(input logic [17:0] addr, input logic [31:0] data, input logic [3:0] strobe,
                              output logic ok);
    int waited;
    take;
    waited = 0;
    fork
      begin
        idle();
        awaddr_o  <= addr;
        awvalid_o <= 1'b1;
        @(posedge clk_i);
        while (!awready_i) begin
          bound(waited, "AWREADY", addr);
          @(posedge clk_i);
        end
        awvalid_o <= 1'b0;
      end
      begin
        idle();
        wdata_o  <= data;
        wstrb_o  <= strobe;
        wvalid_o <= 1'b1;
        @(posedge clk_i);
        while (!wready_i) begin
          bound(waited, "WREADY", addr);
          @(posedge clk_i);
        end
        wvalid_o <= 1'b0;
      end
    join
    idle();
    bready_o <= 1'b1;
    @(posedge clk_i);
    while (!bvalid_i) begin
      bound(waited, "BVALID", addr);
      @(posedge clk_i);
    end
    ok = bresp_i === 2'b00;
    if (bresp_i !== 2'b00 && bresp_i !== 2'b10) fail($sformatf("write of 0x%05h answered %b", addr, bresp_i));
    bready_o <= 1'b0;
    taken = 1'b0;
  endtask

  task automatic try_write(input logic [17:0] addr, input logic [31:0] data, output logic ok);
    write_strobe(addr, data, 4'hF, ok);
  endtask

  task automatic write(input logic [17:0] addr, input logic [31:0] data);
    logic ok;
    try_write(addr, data, ok);
    if (!ok) fail($sformatf("write of 0x%0h to register 0x%05h was refused", data, addr));
  endtask

  // Two writes as close as the bus allows, with 'gap' idle cycles between them; both must be accepted.
  task automatic write_two(input logic [17:0] addr_0, input logic [31:0] data_0,
                           input logic [17:0] addr_1, input logic [31:0] data_1, input int gap);
    int waited;
    waited = 0;
    fork
      for (int k = 0; k < 2; k++) begin
        awaddr_o  <= (k == 0) ? addr_0 : addr_1;
        awvalid_o <= 1'b1;
        @(posedge clk_i);
        while (!awready_i) @(posedge clk_i);
        awvalid_o <= 1'b0;
        if (k == 0) repeat (gap) @(posedge clk_i);
      end
      for (int k = 0; k < 2; k++) begin
        wdata_o  <= (k == 0) ? data_0 : data_1;
        wstrb_o  <= 4'hF;
        wvalid_o <= 1'b1;
        @(posedge clk_i);
        while (!wready_i) @(posedge clk_i);
        wvalid_o <= 1'b0;
        if (k == 0) repeat (gap) @(posedge clk_i);
      end
      begin
        bready_o <= 1'b1;
        for (int k = 0; k < 2; k++) begin
          @(posedge clk_i);
          while (!bvalid_i) begin
            bound(waited, "BVALID", addr_1);
            @(posedge clk_i);
          end
          if (bresp_i !== 2'b00) fail($sformatf("write %0d of two, %0d cycles apart, was refused", k, gap));
        end
        bready_o <= 1'b0;
      end
    join
  endtask

  task automatic refuse(input logic [17:0] addr, input logic [31:0] data);
    logic ok;
    try_write(addr, data, ok);
    if (ok) fail($sformatf("write of 0x%0h to register 0x%05h was not refused", data, addr));
  endtask

  task automatic try_read(input logic [17:0] addr, output logic [31:0] data, output logic ok);
    int waited;
    take;
    waited = 0;
    idle();
    araddr_o  <= addr;
    arvalid_o <= 1'b1;
    @(posedge clk_i);
    while (!arready_i) begin
      bound(waited, "ARREADY", addr);
      @(posedge clk_i);
    end
    arvalid_o <= 1'b0;
    idle();
    rready_o <= 1'b1;
    @(posedge clk_i);
    while (!rvalid_i) begin
      bound(waited, "RVALID", addr);
      @(posedge clk_i);
    end
    data = rdata_i;
    ok   = rresp_i === 2'b00;
    rready_o <= 1'b0;
    taken = 1'b0;
  endtask

  task automatic read(input logic [17:0] addr, output logic [31:0] data);
    logic ok;
    try_read(addr, data, ok);
    if (!ok) fail($sformatf("read of register 0x%05h was refused", addr));
  endtask

  // A counter counts on between its halves: the high one is read on both sides of the low one.
  task automatic write64(input logic [17:0] addr, input logic [63:0] data);
    write(addr, data[31:0]);
    write(addr + 18'd4, data[63:32]);
  endtask

  task automatic read64(input logic [17:0] addr, output logic [63:0] data);
    logic [31:0] first;
    read(addr + 18'd4, first);
    read(addr, data[31:0]);
    read(addr + 18'd4, data[63:32]);
    if (data[63:32] !== first) read(addr, data[31:0]);
  endtask

  task automatic expect_read(input logic [17:0] addr, input logic [31:0] expected);
    logic [31:0] data;
    read(addr, data);
    expect_eq($sformatf("register 0x%05h", addr), data, expected);
  endtask

  // The slave's side of the handshake: what it shows stays until it is taken.
  logic       watching = 1'b1;          // low: somebody else drives the bus
  logic       b_held, r_held;
  logic [1:0] bresp, rresp;
  logic [31:0] rdata;
  always @(posedge clk_i) begin
    if (!rst_ni || !watching) begin
      b_held <= 1'b0;
      r_held <= 1'b0;
    end else begin
      if (b_held && (!bvalid_i || bresp_i !== bresp)) fail("AXI-Lite: B changed before it was taken");
      if (r_held && (!rvalid_i || rresp_i !== rresp || rdata_i !== rdata)) fail("AXI-Lite: R changed before it was taken");
      b_held <= bvalid_i && !bready_o;
      r_held <= rvalid_i && !rready_o;
      bresp  <= bresp_i;
      rresp  <= rresp_i;
      rdata  <= rdata_i;
    end
  end
endmodule
