// AXI4-Lite slave: turns bus transfers into single-cycle register accesses. Address and data of a write may come
// in any order; one write and one read are in progress at a time, independently of each other.
module axil_slave (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic [17:0] s_axil_awaddr,
  input  logic        s_axil_awvalid,
  output logic        s_axil_awready,
  input  logic [31:0] s_axil_wdata,
  input  logic [3:0]  s_axil_wstrb,
  input  logic        s_axil_wvalid,
  output logic        s_axil_wready,
  output logic [1:0]  s_axil_bresp,
  output logic        s_axil_bvalid,
  input  logic        s_axil_bready,
  input  logic [17:0] s_axil_araddr,
  input  logic        s_axil_arvalid,
  output logic        s_axil_arready,
  output logic [31:0] s_axil_rdata,
  output logic [1:0]  s_axil_rresp,
  output logic        s_axil_rvalid,
  input  logic        s_axil_rready,

  // One cycle each; the answer comes combinationally in the same cycle.
  output logic        write_o,
  output logic [17:0] write_addr_o,
  output logic [31:0] write_data_o,
  output logic        write_partial_o,  // not all four bytes
  input  logic        write_error_i,
  output logic        read_o,
  output logic [17:0] read_addr_o,
  input  logic [31:0] read_data_i,
  input  logic        read_error_i
);
  localparam logic [1:0] RespOkay   = 2'b00;
  localparam logic [1:0] RespSlverr = 2'b10;

  logic        aw_held_q, w_held_q, ar_held_q;
  logic [17:0] aw_addr_q, ar_addr_q;
  logic [31:0] w_data_q;
  logic [3:0]  w_strb_q;

  assign s_axil_awready = !aw_held_q;
  assign s_axil_wready  = !w_held_q;
  assign s_axil_arready = !ar_held_q;

  assign write_o         = aw_held_q && w_held_q && !s_axil_bvalid;
  assign write_addr_o    = aw_addr_q;
  assign write_data_o    = w_data_q;
  assign write_partial_o = w_strb_q != 4'hF;
  assign read_o          = ar_held_q && !s_axil_rvalid;
  assign read_addr_o     = ar_addr_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      aw_held_q     <= 1'b0;
      aw_addr_q     <= '0;
      w_held_q      <= 1'b0;
      w_data_q      <= '0;
      w_strb_q      <= '0;
      s_axil_bvalid <= 1'b0;
      s_axil_bresp  <= RespOkay;
    end else begin
      if (s_axil_awvalid && s_axil_awready) begin
        aw_held_q <= 1'b1;
        aw_addr_q <= s_axil_awaddr;
      end
      if (s_axil_wvalid && s_axil_wready) begin
        w_held_q <= 1'b1;
        w_data_q <= s_axil_wdata;
        w_strb_q <= s_axil_wstrb;
      end
      if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 1'b0;
      if (write_o) begin
        aw_held_q     <= 1'b0;
        w_held_q      <= 1'b0;
        s_axil_bvalid <= 1'b1;
        s_axil_bresp  <= write_error_i ? RespSlverr : RespOkay;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      ar_held_q     <= 1'b0;
      ar_addr_q     <= '0;
      s_axil_rvalid <= 1'b0;
      s_axil_rdata  <= '0;
      s_axil_rresp  <= RespOkay;
    end else begin
      if (s_axil_arvalid && s_axil_arready) begin
        ar_held_q <= 1'b1;
        ar_addr_q <= s_axil_araddr;
      end
      if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 1'b0;
      if (read_o) begin
        ar_held_q     <= 1'b0;
        s_axil_rvalid <= 1'b1;
        s_axil_rdata  <= read_data_i;
        s_axil_rresp  <= read_error_i ? RespSlverr : RespOkay;
      end
    end
  end
endmodule
