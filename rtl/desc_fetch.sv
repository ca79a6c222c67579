// Descriptor fetch: the read side of the AXI master. Any number of bursts may be in flight; desc_ring asks only
// for what fits behind desc_check, so R is always ready. All reads use ID 0 and therefore return in order.
module desc_fetch
  import core_pkg::*;
#(
  parameter int FetchDepth = 128
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic         bus_rst_ni,    // of the bus: what was promised to it outlives a reset of the device
  input  logic         clear_i,       // drop what still arrives
  input  logic         start_i,
  input  logic [31:0]  start_index_i,

  input  logic         request_i,
  input  logic [63:0]  request_addr_i,
  input  logic [4:0]   request_slots_i,
  output logic         request_ready_o,
  output logic         received_o,    // a slot has arrived

  output logic [4:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [2:0]   m_axi_arsize,
  output logic [1:0]   m_axi_arburst,
  output logic [3:0]   m_axi_arcache,
  output logic [2:0]   m_axi_arprot,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [4:0]   m_axi_rid,
  input  logic [511:0] m_axi_rdata,
  input  logic [1:0]   m_axi_rresp,
  input  logic         m_axi_rlast,
  input  logic         m_axi_rvalid,
  output logic         m_axi_rready,

  output logic         slot_valid_o,
  output logic [511:0] slot_data_o,
  output logic         slot_fault_o,  // the memory answered with an error
  output logic [31:0]  slot_index_o,  // running index of the slot

  output logic         beat_o,        // one cycle per beat read
  output logic         fault_o,       // one cycle per faulty beat
  output logic         idle_o         // nothing requested, nothing in flight
);
  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int CountBits = $clog2(FetchDepth) + 1;

  // The request register of desc_ring is the AR register.
  assign m_axi_arid      = '0;
  assign m_axi_araddr    = request_addr_i;
  assign m_axi_arlen     = {3'd0, request_slots_i} - 8'd1;
  assign m_axi_arsize    = 3'd6;
  assign m_axi_arburst   = 2'b01;
  assign m_axi_arcache   = AXI_CACHE;
  assign m_axi_arprot    = AXI_PROT;
  assign m_axi_arvalid   = request_i;
  assign request_ready_o = m_axi_arready;

  logic                 beat;
  logic [CountBits-1:0] in_flight_q;
  logic [31:0]          index_q;

  assign m_axi_rready = 1'b1;
  assign beat         = m_axi_rvalid && in_flight_q != '0;   // one that nobody waits for is dropped
  assign received_o   = beat && !clear_i;
  assign fault_o      = beat && m_axi_rresp != '0;
  assign slot_valid_o = received_o;
  assign slot_data_o  = m_axi_rdata;
  assign slot_fault_o = m_axi_rresp != '0;
  assign beat_o       = beat;
  assign idle_o       = !request_i && in_flight_q == '0;
  assign slot_index_o = index_q;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) in_flight_q <= '0;
    else if (beat || request_i) begin
      in_flight_q <= in_flight_q - CountBits'(beat)
                   + ((request_i && m_axi_arready) ? CountBits'(request_slots_i) : '0);
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni)         index_q <= '0;
    else if (start_i)    index_q <= start_index_i;
    else if (received_o) index_q <= index_q + 32'd1;
  end

`ifndef SYNTHESIS
  // RLAST must fall on the last beat of the oldest burst: a small mirror of the lengths in flight.
  logic [4:0] left [0:FetchDepth-1];
  logic [CountBits-2:0] oldest_q, newest_q;
  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      oldest_q <= '0;
      newest_q <= '0;
    end else begin
      if (request_i && m_axi_arready) begin
        left[newest_q] <= request_slots_i;
        newest_q <= newest_q + 1'b1;
      end
      if (m_axi_rvalid && !beat) $fatal(1, "R3 desc_fetch: R beat without a read in flight");
      if (beat) begin
        if (m_axi_rid != '0) $fatal(1, "R3 desc_fetch: R beat with unknown ID %0d", m_axi_rid);
        if (m_axi_rlast != (left[oldest_q] == 5'd1)) $fatal(1, "R3 desc_fetch: RLAST on the wrong beat");
        left[oldest_q] <= left[oldest_q] - 5'd1;
        if (m_axi_rlast) oldest_q <= oldest_q + 1'b1;
      end
    end
  end
`endif
endmodule
