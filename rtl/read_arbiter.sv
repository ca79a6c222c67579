// Who uses the read port: descriptor fetch, behind it readback, whose reads are single beats, and behind both an engine's bursts, each
// with IDs of their own. What has been shown on the bus stays there until it is taken (AXI); what was promised to the bus
// outlives a reset of the device. Data of different IDs may come in any order. None waits for ever (R28): what Patience addresses of others have passed
// goes next, a burst before a read.
module read_arbiter
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Ahead   = 4,           // reads of readback that may be in flight, of each queue pair
  parameter int Patience = 8,          // addresses of others that pass a read, or a burst
  parameter int Engines = 1            // 2: there is an engine that reads
) (
  input  logic         clk_i,
  input  logic         bus_rst_ni,

  input  logic         fetch_valid_i,
  input  logic [5:0]   fetch_id_i,
  input  logic [63:0]  fetch_addr_i,
  input  logic [7:0]   fetch_len_i,
  input  logic [3:0]   fetch_owner_i,
  output logic         fetch_ready_o,

  input  logic         read_valid_i,    // one beat; of each queue pair no more than Ahead are asked for at a time
  input  logic [3:0]   read_queue_i,
  input  logic [63:0]  read_addr_i,
  input  logic [3:0]   read_owner_i,
  output logic         read_ready_o,    // early
  output logic         beat_o,          // its data is there, of this queue pair
  output logic [3:0]   beat_queue_o,
  output logic         idle_o,          // nothing of it is promised to the bus, or in flight

  input  logic         burst_valid_i,   // of an engine; the address stays until it is taken
  input  logic [63:0]  burst_addr_i,
  input  logic [7:0]   burst_len_i,
  input  logic [3:0]   burst_owner_i,
  output logic         burst_ready_o,
  output logic         burst_beat_o,    // of the function whose number the ID's low bits are

  output logic [5:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [3:0]   m_axi_aruser,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [5:0]   m_axi_rid,
  input  logic         m_axi_rvalid
);
  localparam int CountBits = $clog2(Ahead * Queues + 1);

  logic                 shown_q, held_q, mine;    // a read waits; it was on the bus in the last cycle
  logic [63:0]          addr_q;
  logic [3:0]           owner_q, queue_q;
  logic [CountBits-1:0] count_q;                  // reads that were taken in, and their data has not come

  // An engine's burst goes where neither of them wants the port, or once it is on the bus.
  // Those that pass are counted as they are taken. So a turn begins when nothing is on the bus.
  localparam int PassedBits = $clog2(Patience + 1);
  logic [PassedBits-1:0] read_passed_q, burst_passed_q;
  logic                  read_turn, burst_turn, granted;
  logic                  burst, burst_held_q;
  assign read_turn     = read_passed_q == PassedBits'(Patience);
  assign burst_turn    = burst_passed_q == PassedBits'(Patience);
  assign granted       = m_axi_arvalid && m_axi_arready;
  assign burst         = (Engines > 1) && burst_valid_i && (burst_held_q || burst_turn || (!fetch_valid_i && !shown_q));
  assign burst_ready_o = burst && m_axi_arready;
  assign burst_beat_o  = (Engines > 1) && m_axi_rvalid && m_axi_rid >= NPU_READ_AXI_ID;
  if (Engines > 1) begin : gen_burst
    always_ff @(posedge clk_i) begin
      burst_held_q <= bus_rst_ni && burst && !m_axi_arready;
      if (!bus_rst_ni || !burst_valid_i || burst_ready_o) burst_passed_q <= '0;
      else if (granted)                                   burst_passed_q <= burst_passed_q + 1'b1;
    end
  end else begin : gen_none
    assign burst_held_q   = 1'b0;
    assign burst_passed_q = '0;
  end

  assign mine          = shown_q && (held_q || !fetch_valid_i || read_turn) && !burst;
  assign fetch_ready_o = m_axi_arready && !mine && !burst;
  assign read_ready_o  = !shown_q;
  assign m_axi_arvalid = fetch_valid_i || shown_q || burst;
  assign m_axi_arid    = burst ? NPU_READ_AXI_ID + 6'(burst_owner_i) : mine ? READBACK_AXI_ID + 6'(queue_q) : fetch_id_i;
  assign m_axi_araddr  = burst ? burst_addr_i : mine ? addr_q : fetch_addr_i;
  assign m_axi_arlen   = burst ? burst_len_i : mine ? 8'd0 : fetch_len_i;
  assign m_axi_aruser  = burst ? burst_owner_i : mine ? owner_q : fetch_owner_i;
  assign beat_o        = m_axi_rvalid && m_axi_rid >= READBACK_AXI_ID && m_axi_rid < READBACK_AXI_ID + 6'(Queues) && count_q != '0;
  assign beat_queue_o  = m_axi_rid[3:0];
  assign idle_o        = count_q == '0;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      shown_q <= 1'b0;
      held_q  <= 1'b0;
      count_q <= '0;
      read_passed_q <= '0;
    end else begin
      if (shown_q) begin
        held_q <= mine && !m_axi_arready;
        if (mine && m_axi_arready) shown_q <= 1'b0;
        if (mine && m_axi_arready)       read_passed_q <= '0;
        else if (granted && !read_turn) read_passed_q <= read_passed_q + 1'b1;
      end
      if (read_valid_i && read_ready_o) begin
        shown_q <= 1'b1;
        addr_q  <= read_addr_i;
        owner_q <= read_owner_i;
        queue_q <= (Queues == 1) ? '0 : read_queue_i;
      end
      if ((read_valid_i && read_ready_o) || beat_o) count_q <= count_q + CountBits'(read_valid_i && read_ready_o) - CountBits'(beat_o);
    end
  end

`ifndef SYNTHESIS
  int read_passed_by, burst_passed_by;
  always_ff @(posedge clk_i) begin
    // Of this process alone.
    /* verilator lint_off BLKSEQ */
    if (!bus_rst_ni) begin
      read_passed_by  = 0;
      burst_passed_by = 0;
    end else if (granted) begin
      read_passed_by  = (!shown_q || mine) ? 0 : read_passed_by + 1;
      burst_passed_by = (!burst_valid_i || burst_ready_o) ? 0 : burst_passed_by + 1;
      if (read_passed_by > Patience + 1 || burst_passed_by > Patience)
        $fatal(1, "R28 read_arbiter: %0d addresses pass a read, %0d a burst", read_passed_by, burst_passed_by);
    end
    /* verilator lint_on BLKSEQ */
    if (bus_rst_ni && m_axi_rvalid) begin
      if (m_axi_rid < NPU_READ_AXI_ID ? 32'(m_axi_rid[3:0]) >= 32'(Queues) : Engines == 1 || m_axi_rid >= EVENT_AXI_ID)
        $fatal(1, "R3 read_arbiter: R beat with unknown ID %0d", m_axi_rid);
      if (m_axi_rid >= READBACK_AXI_ID && m_axi_rid < NPU_READ_AXI_ID && !beat_o) $fatal(1, "R3 read_arbiter: R beat without a read in flight");
    end
    if (bus_rst_ni && read_valid_i && read_ready_o) begin
      if (count_q == CountBits'(Ahead * Queues)) $fatal(1, "R4 read_arbiter: one read more than there is room for");
      if (read_addr_i[5:0] != '0) $fatal(1, "R11 read_arbiter: read of %h is misaligned", read_addr_i);
    end
  end
`endif
endmodule
