// A worker's way out: packs its tokens into 64-byte lines and keeps up to two finished items, so that the worker
// goes on while an item waits for the write port. An item is a token line, the end of a descriptor, or both.
module result_buffer
  import core_pkg::*;
(
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic         clear_i,

  // From the worker. token_i and done_i only with ready_o; both together for a last token.
  output logic         ready_o,        // early: from a register
  input  logic         token_i,
  input  logic [31:0]  token_data_i,
  input  logic [63:0]  token_addr_i,   // bus address, a multiple of 4; consecutive within a descriptor
  input  logic         done_i,
  input  done_t        done_data_i,

  // Does an item that is not yet delivered end a descriptor of this rollout?
  input  logic [31:0]  probe_rollout_i,
  output logic         holds_o,

  // To the arbiter.
  output logic         valid_o,
  output logic         has_line_o,
  output beat_t        line_o,
  output logic         has_done_o,
  output done_t        done_o,
  input  logic         take_i
);
  // Item being filled and item being delivered: one bit each is enough for two places.
  logic        fill_q, head_q;
  logic [1:0]  count_q;

  logic [31:0] words     [0:31];       // two lines of 16 words
  logic [63:0] line_addr [0:1];
  logic [15:0] word_en   [0:1];
  logic        has_line  [0:1];
  logic        has_done  [0:1];
  done_t       done_0_q, done_1_q;

  logic [3:0]  word;
  logic [15:0] word_en_q, word_en_now; // words filled so far in the line that is being filled
  logic        finish;

  assign ready_o     = !count_q[1];
  assign word        = token_addr_i[5:2];
  assign word_en_now = token_i ? (word_en_q | (16'd1 << word)) : word_en_q;
  assign finish      = done_i || (token_i && word == 4'd15);

  always_ff @(posedge clk_i) begin
    if (token_i) words[{fill_q, word}] <= token_data_i;
    if (finish) begin
      line_addr[fill_q] <= {token_addr_i[63:6], 6'd0};
      word_en[fill_q]   <= word_en_now;
      has_line[fill_q]  <= word_en_now != '0;
      has_done[fill_q]  <= done_i;
      if (done_i) begin
        if (fill_q) done_1_q <= done_data_i;
        else        done_0_q <= done_data_i;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      fill_q    <= 1'b0;
      head_q    <= 1'b0;
      count_q   <= '0;
      word_en_q <= '0;
    end else if (clear_i) begin
      fill_q    <= 1'b0;
      head_q    <= 1'b0;
      count_q   <= '0;
      word_en_q <= '0;
    end else begin
      if (finish) begin
        fill_q    <= !fill_q;
        word_en_q <= '0;
      end else begin
        word_en_q <= word_en_now;
      end
      if (take_i) head_q <= !head_q;
      count_q <= count_q + 2'(finish) - 2'(take_i);
    end
  end

  assign valid_o    = count_q != '0;
  assign has_line_o = has_line[head_q];
  assign has_done_o = has_done[head_q];
  assign done_o     = head_q ? done_1_q : done_0_q;

  logic [511:0] data;
  assign line_o = {line_addr[head_q], word_en[head_q], data};
  for (genvar k = 0; k < 16; k++) begin : gen_word
    assign data[32*k +: 32] = words[{head_q, 4'(k)}];
  end

  // With one item, it is at head_q; with two, both count.
  logic holds_0, holds_1;
  assign holds_0 = (count_q[1] || (valid_o && !head_q)) && has_done[0] && done_0_q.rollout_id == probe_rollout_i;
  assign holds_1 = (count_q[1] || (valid_o &&  head_q)) && has_done[1] && done_1_q.rollout_id == probe_rollout_i;
  assign holds_o = holds_0 || holds_1;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if ((token_i || done_i) && !ready_o) $fatal(1, "R4 result_buffer: a result with no place for it");
      if (take_i && !valid_o) $fatal(1, "R3 result_buffer: an item was taken that is not there");
      if (token_i && token_addr_i[1:0] != '0) $fatal(1, "R11 result_buffer: token address %h is misaligned", token_addr_i);
    end
  end
`endif
endmodule
