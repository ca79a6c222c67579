// Posts work entries into a send ring of the modelled NIC (docs/nic.md, W1 to W8), for a device that is the ring's one agent. One entry
// at a time: it waits for room, computes the check word with one multiplier, writes the slot but for its last word, the last word,
// and the bell, each behind the response of the write before.
//
// entry_ready_o and the valid signals of the bus come from registers.
module nic_poster
  import desc_pkg::*;
  import policy_pkg::*;
(
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic [63:0]  ring_base_i,      // bus address of the ring, a multiple of 64; steady behind reset, as the next two
  input  logic [31:0]  slots_i,          // 2 to 65536, a power of two
  input  logic [31:0]  key_i,            // with what the NIC mixes into a ring's key
  input  logic [63:0]  completed_i,      // entries that the NIC has completed, as it wrote them
  input  logic         stopped_i,        // the ring's fault is not 0: the NIC completes nothing more

  input  logic         entry_valid_i,    // its payload is visible
  output logic         entry_ready_o,
  input  logic [447:0] entry_i,          // bytes 0 to 55 of an HwNicEntry
  output logic         posted_o,         // for a cycle: the bell was rung for an entry
  output logic         fault_o,          // a write was answered by an error, or the ring has stopped: nothing more is posted
  output logic         idle_o,

  output logic         m_axi_awvalid_o,
  input  logic         m_axi_awready_i,
  output logic [63:0]  m_axi_awaddr_o,   // of a line of 64 bytes, in one beat
  output logic         m_axi_wvalid_o,
  input  logic         m_axi_wready_i,
  output logic [511:0] m_axi_wdata_o,
  output logic [63:0]  m_axi_wstrb_o,
  input  logic         m_axi_bvalid_i,
  output logic         m_axi_bready_o,
  input  logic [1:0]   m_axi_bresp_i
);
  typedef enum logic [2:0] { StIdle, StRoom, StSum, StSlot, StPublish, StBell, StFault } state_e;

  localparam logic [63:0] SlotStrobe    = 64'h00FF_FFFF_FFFF_FFFF;
  localparam logic [63:0] PublishStrobe = 64'hFF00_0000_0000_0000;
  localparam logic [63:0] BellStrobe    = 64'h0000_0000_0000_00FF << NIC_BELL_AT;

  state_e       state_q;
  logic [447:0] entry_q;
  logic [63:0]  next_q;                  // running index of the entry
  logic [63:0]  sum_q;
  logic [3:0]   step_q;                  // pair of words, 8 the index
  logic         aw_q, w_q;               // the address, the data are not taken yet

  // ---------------------------------------------------------------- check word (R2, W2)
  logic [511:0] sealed;
  logic [31:0]  low, high, key_low, key_high;
  assign sealed = {check_word(sum_q), next_q[31:0], entry_q};

  logic [15:0][31:0] keys;               // wires and inverters
  for (genvar k = 0; k < 16; k++) begin : gen_keys
    assign keys[k] = key_word(key_i, k);
  end
  assign key_low  = keys[{step_q[2:0], 1'b0}];
  assign key_high = keys[{step_q[2:0], 1'b1}];
  // The check word counts as 0.
  assign low      = (step_q == 4'd7) ? next_q[31:0] : entry_q[64 * step_q[2:0] +: 32];
  assign high     = (step_q == 4'd7) ? 32'd0 : entry_q[64 * step_q[2:0] + 32 +: 32];

  logic [31:0] factor_low, factor_high;
  logic [63:0] product;
  assign factor_low  = low + key_low;
  assign factor_high = high + key_high;
  assign product     = (step_q == 4'd8) ? 64'(next_q[31:0]) * GOLDEN_64 : 64'(factor_low) * 64'(factor_high);

  // ---------------------------------------------------------------- states
  logic has_room, is_write, is_taken, is_answered;
  assign has_room    = next_q - completed_i < 64'(slots_i);
  assign is_write    = state_q == StSlot || state_q == StPublish || state_q == StBell;
  assign is_taken    = !aw_q && !w_q;
  assign is_answered = is_write && is_taken && m_axi_bvalid_i;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= StIdle;
      next_q  <= '0;
      aw_q    <= 1'b0;
      w_q     <= 1'b0;
    end else begin
      if (m_axi_awready_i) aw_q <= 1'b0;
      if (m_axi_wready_i)  w_q  <= 1'b0;
      unique case (state_q)
        StIdle: if (entry_valid_i) begin
          entry_q <= entry_i;
          state_q <= StRoom;
        end
        StRoom: if (stopped_i) begin
          state_q <= StFault;
        end else if (has_room) begin
          sum_q   <= '0;
          step_q  <= '0;
          state_q <= StSum;
        end
        StSum: begin
          sum_q  <= sum_q + product;
          step_q <= step_q + 4'd1;
          if (step_q == 4'd8) begin
            {aw_q, w_q} <= 2'b11;
            state_q     <= StSlot;
          end
        end
        StSlot, StPublish, StBell: if (is_answered) begin
          if (m_axi_bresp_i != 2'b00) begin
            state_q <= StFault;
          end else if (state_q == StBell) begin
            next_q  <= bell;
            state_q <= StIdle;
          end else begin
            {aw_q, w_q} <= 2'b11;
            state_q     <= (state_q == StSlot) ? StPublish : StBell;
          end
        end
        default: ;
      endcase
    end
  end

  logic [31:0] slot;
  logic [63:0] bell;
  assign slot            = next_q[31:0] & (slots_i - 32'd1);
  assign bell            = next_q + 64'd1;
  assign entry_ready_o   = state_q == StIdle;
  assign idle_o          = state_q == StIdle;
  assign fault_o         = state_q == StFault;
  assign posted_o        = state_q == StBell && is_answered && m_axi_bresp_i == 2'b00;
  assign m_axi_awvalid_o = aw_q;
  assign m_axi_awaddr_o  = ring_base_i + ((state_q == StBell) ? 64'd0 : 64'(NIC_SLOTS_AT) + {26'd0, slot, 6'd0});
  assign m_axi_wvalid_o  = w_q;
  assign m_axi_wdata_o   = (state_q == StBell) ? 512'(bell) << (8 * NIC_BELL_AT) : sealed;
  assign m_axi_wstrb_o   = (state_q == StBell) ? BellStrobe : (state_q == StPublish) ? PublishStrobe : SlotStrobe;
  assign m_axi_bready_o  = is_write && is_taken;

`ifndef SYNTHESIS
  always @(posedge clk_i) if (rst_ni) begin
    if (state_q == StSlot && !has_room) $fatal(1, "W3 a slot is written that is not completed");
  end
`endif
endmodule
