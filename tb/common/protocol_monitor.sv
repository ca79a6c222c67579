// Rules of AXI that the device's master must keep, and rule R12: nothing moves while the bench calls the bus quiet. R11:
// messages, which their ID tells, go to the page where the benches want them, and nothing else does.
module protocol_monitor #(
  parameter logic [63:0] Messages = 64'hFFFF_FFFF_FFFF_F000   // address of that page
) (
  input logic         clk_i,
  input logic         rst_ni,
  input logic [5:0]   awid_i,
  input logic [63:0]  awaddr_i,
  input logic [7:0]   awlen_i,
  input logic [2:0]   awsize_i,
  input logic [1:0]   awburst_i,
  input logic         awvalid_i,
  input logic         awready_i,
  input logic [511:0] wdata_i,
  input logic [63:0]  wstrb_i,
  input logic         wlast_i,
  input logic         wvalid_i,
  input logic         wready_i,
  input logic [5:0]   arid_i,
  input logic [63:0]  araddr_i,
  input logic [7:0]   arlen_i,
  input logic [2:0]   arsize_i,
  input logic [1:0]   arburst_i,
  input logic         arvalid_i,
  input logic         arready_i
);
  import bench_pkg::*;

  logic quiet = 1'b1;                  // set by the bench: the device must not start anything

  logic         aw_held = 1'b0, w_held = 1'b0, ar_held = 1'b0;
  logic [69:0]  aw;
  logic [576:0] w;
  logic [83:0]  ar;
  int           aw_beats, w_beats;

  task automatic check_burst(input string name, input logic [63:0] addr, input logic [7:0] len,
                             input logic [2:0] size, input logic [1:0] burst);
    if ((^{addr, len, size, burst}) === 1'bx) fail($sformatf("AXI: %0s address channel carries X", name));
    if (size != 3'd6 || burst != 2'b01) fail($sformatf("AXI: %0s size %0d burst %0d", name, size, burst));
    if (addr[5:0] != 0) fail($sformatf("AXI: %0s address %h is misaligned", name, addr));
    if (int'(addr[11:6]) + int'(len) + 1 > 64)
      fail($sformatf("AXI: %0s burst of %0d beats from %h crosses 4 KiB", name, int'(len) + 1, addr));
  endtask

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      aw_held  <= 1'b0;
      w_held   <= 1'b0;
      ar_held  <= 1'b0;
      aw_beats <= 0;
      w_beats  <= 0;
    end else begin
      if ((^{awvalid_i, wvalid_i, arvalid_i}) === 1'bx) fail("AXI: a valid signal is X");
      if (quiet && (awvalid_i || wvalid_i || arvalid_i)) fail("R12: bus traffic while the device is inactive");

      if (aw_held && (!awvalid_i || aw !== {awid_i, awaddr_i})) fail("AXI: AW changed before it was taken");
      if (w_held && (!wvalid_i || w !== {wlast_i, wstrb_i, wdata_i})) fail("AXI: W changed before it was taken");
      if (ar_held && (!arvalid_i || ar !== {arid_i, araddr_i, arlen_i})) fail("AXI: AR changed before it was taken");
      aw_held <= awvalid_i && !awready_i;
      w_held  <= wvalid_i && !wready_i;
      ar_held <= arvalid_i && !arready_i;
      aw <= {awid_i, awaddr_i};
      w  <= {wlast_i, wstrb_i, wdata_i};
      ar <= {arid_i, araddr_i, arlen_i};

      if (awvalid_i) begin
        check_burst("AW", awaddr_i, awlen_i, awsize_i, awburst_i);
        if ((awid_i >= 6'd32 && awid_i < 6'd48) !== (awaddr_i[63:12] === Messages[63:12]))
          fail($sformatf("R11: a write of ID %0d to %h", awid_i, awaddr_i));
        if (awlen_i != 0) fail("AXI: a write of more than one beat; memory_model would have to learn that");
      end
      if (wvalid_i) begin
        if (wlast_i !== 1'b1) fail("AXI: WLAST is low on the only beat of a burst");
        if ((^wstrb_i) === 1'bx) fail("AXI: WSTRB carries X");
        if (wready_i) begin
          if ((^wdata_i) === 1'bx) fail("AXI: WDATA carries X");
          for (int k = 0; k < 16; k++) if (wstrb_i[4*k +: 4] !== 4'hF) begin
            for (int b = 4 * k; b < 4 * k + 4; b++)
              if (!wstrb_i[b] && wdata_i[8*b +: 8] !== 0) fail("AXI: a byte of WDATA that is not written is not 0");
          end
        end
      end
      if (arvalid_i) begin
        check_burst("AR", araddr_i, arlen_i, arsize_i, arburst_i);
        if (arid_i >= 6'd16 && (arid_i >= 6'd32 || arlen_i !== 0)) fail($sformatf("AXI: %0d beats with ARID %0d", arlen_i + 1, arid_i));
      end
      if (awvalid_i && awready_i) aw_beats <= aw_beats + 1;
      if (wvalid_i && wready_i) w_beats <= w_beats + 1;
    end
  end

  // When all is done, addresses and data must have come in pairs.
  task automatic expect_balanced;
    if (aw_beats != w_beats) fail($sformatf("AXI: %0d AW and %0d W transfers", aw_beats, w_beats));
  endtask
endmodule
