// Descriptor fetch: the read side of the AXI master. Any number of bursts may be in flight; desc_ring asks only
// for what fits behind desc_check, so each beat is taken as it comes. Its reads have the number of their queue pair as ID: so those of one return in
// order, and no queue pair's stand before another one's. What was promised to the bus outlives a reset of the device, and a disable of
// its queue pair, whose beats are then dropped.
module desc_fetch
  import core_pkg::*;
#(
  parameter int Queues     = 1,
  parameter int FetchDepth = 128
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         bus_rst_ni,
  input  logic [Queues-1:0] on_i,     // what arrives for others is dropped

  input  logic         request_i,
  input  logic [63:0]  request_addr_i,
  input  logic [4:0]   request_slots_i,
  input  logic [3:0]   request_queue_i,
  input  logic [3:0]   request_owner_i,
  output logic         request_ready_o,

  output logic [5:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [2:0]   m_axi_arsize,
  output logic [1:0]   m_axi_arburst,
  output logic [3:0]   m_axi_arcache,
  output logic [2:0]   m_axi_arprot,
  output logic [3:0]   m_axi_aruser,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [5:0]   m_axi_rid,
  input  logic [511:0] m_axi_rdata,
  input  logic [1:0]   m_axi_rresp,
  input  logic         m_axi_rlast,
  input  logic         m_axi_rvalid,

  output logic         slot_valid_o,  // a slot has arrived
  output logic [511:0] slot_data_o,
  output logic         slot_fault_o,  // the memory answered with an error
  output logic [3:0]   slot_queue_o,  // of the beat, dropped or not

  output logic         beat_o,        // one cycle per beat read
  output logic         fault_o,       // one cycle per faulty beat
  output logic [Queues-1:0] busy_o,   // something is requested or in flight
  output logic         idle_o         // nothing is, of any queue pair
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int CountBits = $clog2(FetchDepth) + 1;
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  logic [(1 << QueueBits)-1:0] on;
  assign on = (1 << QueueBits)'(on_i);

  // The request register of desc_ring is the AR register.
  assign m_axi_arid      = (Queues == 1) ? '0 : {2'b00, request_queue_i};
  assign m_axi_araddr    = request_addr_i;
  assign m_axi_arlen     = {3'd0, request_slots_i} - 8'd1;
  assign m_axi_arsize    = 3'd6;
  assign m_axi_arburst   = 2'b01;
  assign m_axi_arcache   = AXI_CACHE;
  assign m_axi_arprot    = AXI_PROT;
  assign m_axi_aruser    = request_owner_i;
  assign m_axi_arvalid   = request_i;
  assign request_ready_o = m_axi_arready;

  logic                 beat, asked, owed;
  logic [CountBits-1:0] in_flight_q;
  logic [3:0]           queue;

  assign asked        = request_i && m_axi_arready;
  assign beat         = m_axi_rvalid && m_axi_rid < 6'(Queues) && owed;   // one that nobody waits for is dropped
  assign fault_o      = beat && m_axi_rresp != '0;
  assign slot_valid_o = beat && on[queue[QueueBits-1:0]];
  assign slot_data_o  = m_axi_rdata;
  assign slot_fault_o = m_axi_rresp != '0;
  assign slot_queue_o = queue;
  assign beat_o       = beat;
  assign idle_o       = !request_i && in_flight_q == '0;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) in_flight_q <= '0;
    else if (beat || request_i) begin
      in_flight_q <= in_flight_q - CountBits'(beat) + (asked ? CountBits'(request_slots_i) : '0);
    end
  end

  // ---------------------------------------------------------------- bursts in flight, of each queue pair
  if (Queues == 1) begin : gen_one
    assign queue  = '0;
    assign owed   = in_flight_q != '0;
    assign busy_o = !idle_o;
  end else begin : gen_many
    logic                 ended;
    logic [CountBits-1:0] bursts_q [0:Queues-1];
    logic [Queues-1:0]    begins, ends, some_q;

    assign ended = beat && m_axi_rlast;
    assign queue = m_axi_rid[3:0];
    assign owed  = (some_q & Queues'(16'd1 << queue)) != '0;

    assign begins = asked ? Queues'(16'd1 << request_queue_i) : '0;
    assign ends   = ended ? Queues'(16'd1 << queue) : '0;

    always_ff @(posedge clk_i) begin
      if (!bus_rst_ni) begin
        for (int q = 0; q < Queues; q++) bursts_q[q] <= '0;
        some_q <= '0;
      end else if (begins != ends) begin
        for (int q = 0; q < Queues; q++) begin
          if (begins[q] && !ends[q]) begin
            bursts_q[q] <= bursts_q[q] + 1'b1;
            some_q[q]   <= 1'b1;
          end else if (ends[q] && !begins[q]) begin
            bursts_q[q] <= bursts_q[q] - 1'b1;
            some_q[q]   <= bursts_q[q] != CountBits'(1);
          end
        end
      end
    end
    assign busy_o = some_q | (request_i ? Queues'(16'd1 << request_queue_i) : '0);
  end

`ifndef SYNTHESIS
  // RLAST must fall on the last beat of the oldest burst of its queue pair: a small mirror of the lengths in flight.
  logic [4:0] left [0:16*FetchDepth-1];
  int         oldest_q [0:15];
  int         newest_q [0:15];
  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      for (int q = 0; q < 16; q++) begin
        oldest_q[q] <= 0;
        newest_q[q] <= 0;
      end
    end else begin
      if (asked) begin
        left[int'(request_queue_i) * FetchDepth + newest_q[request_queue_i] % FetchDepth] <= request_slots_i;
        newest_q[request_queue_i] <= newest_q[request_queue_i] + 1;
      end
      if (m_axi_rvalid && m_axi_rid < 6'(Queues) && !beat) $fatal(1, "R3 desc_fetch: R beat without a read in flight");
      if (beat) begin
        if (m_axi_rlast != (left[int'(queue) * FetchDepth + oldest_q[queue] % FetchDepth] == 5'd1)) $fatal(1, "R3 desc_fetch: RLAST on the wrong beat");
        left[int'(queue) * FetchDepth + oldest_q[queue] % FetchDepth] <= left[int'(queue) * FetchDepth + oldest_q[queue] % FetchDepth] - 5'd1;
        if (m_axi_rlast) oldest_q[queue] <= oldest_q[queue] + 1;
      end
    end
  end
`endif
endmodule
