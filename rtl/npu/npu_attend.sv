// ATTN (docs/isa.md): the mean of the values of a layer for each stored query, bit for bit as docs/engine.md has it.
//
// For each query head the blocks of 32 tokens one behind the other; of each its scales of keys, keys, scales of values and
// values, which follow each other in the arena, are asked for at once, two blocks ahead. A line is two pieces of 32 channels:
// heads of 32 have two tokens in it, and those of 96, 160, 224 begin in the middle of one every second time. So everything is
// made of pieces: each half of the multipliers has its own token and its own piece of the head.
//
//   keys     line → products, in fours → dots of pieces → of a token → × scale → × scale → × factor → score
//   values   score → below the ceiling → table → weight × scale; line → products → sums of the block, by half and piece
//   join     sums of both halves → up to 15 bits to the left → the bin, 16 channels a cycle
//   mean     both bins → over the weights of both: 16 dividers of 20 steps
//
// With a window blocks ahead of it are not asked for, but for the first ones, the sinks; tokens ahead of it in the block in which it begins are multiplied, but have no score
// and no weight.
//
// Of a block that is below both bins nothing is computed, of tokens behind the position neither. An operand of a quotient:
// each block has a token whose weight is at least 128, so that the highest bin's sum of weights is, and no sum of values is
// above 2^23 times that of weights; the value's 4 fraction bits taken off, 20 bits and a sign are left.
module npu_attend
  import npu_pkg::*;
  import npu_unit_pkg::*;
(
  input  logic                        clk_i,
  input  logic                        rst_ni,
  // A word.
  input  logic                        start_i,
  /* verilator lint_off UNUSEDSIGNAL */
  input  npu_op_t                     op_i,
  /* verilator lint_on UNUSEDSIGNAL */
  output logic                        idle_o,
  output logic                        done_o,
  output logic [3:0]                  end_o,          // npu_end_t
  input  logic [31:0]                 position_i,     // of the step

  // On-chip memory.
  output logic                        read_valid_o,
  output logic [CHIP_BITS-1:0]        read_line_o,
  input  logic                        read_ready_i,
  input  logic                        read_answer_i,
  input  logic [LINE_BITS-1:0]        read_data_i,
  output logic                        write_valid_o,
  output logic [CHIP_BITS-1:0]        write_line_o,
  output logic [LINE_BITS-1:0]        write_data_o,
  input  logic                        write_ready_i,

  // The arena.
  output logic                        fetch_valid_o,
  output logic [MEMORY_BITS-1:0]      fetch_line_o,
  output logic [15:0]                 fetch_lines_o,
  input  logic                        fetch_ready_i,
  input  logic                        beat_valid_i,
  input  logic [LINE_BITS-1:0]        beat_data_i,
  input  logic                        beat_fault_i,
  output logic                        beat_ready_o,

  // The block table.
  output logic                        block_ask_o,
  output logic [10:0]                 block_entry_o,
  input  logic                        block_answer_i,
  input  logic [MEMORY_BITS-1:0]      block_line_i,
  input  logic [3:0]                  block_end_i
);
  localparam logic [3:0] Idle    = 4'd0;
  localparam logic [3:0] Query   = 4'd1;   // the head's query comes
  localparam logic [3:0] Keys    = 4'd2;   // up to the values' scales, and until all scores are there
  localparam logic [3:0] Ceiling = 4'd3;
  localparam logic [3:0] Bin     = 4'd4;
  localparam logic [3:0] Values  = 4'd5;
  localparam logic [3:0] Join    = 4'd6;
  localparam logic [3:0] Mean    = 4'd7;   // the divisor
  localparam logic [3:0] Divide  = 4'd8;
  localparam logic [3:0] Last    = 4'd9;   // the last line is still to be written
  localparam logic [3:0] Drain   = 4'd10;  // it failed: what was asked for is taken

  localparam int SumBits = 16 * 40;        // 16 channels: 32 low bits of each, then 8 high ones of each
  localparam int Steps   = 20;

  logic [3:0]             phase_q;
  logic                   busy_q;          // the phase is not Idle
  logic                   done_q, failed_q;
  logic [3:0]             end_q;

  logic [3:0]             pieces;          // of a head
  logic [8:0]             half;            // lines of a head's keys, or values, in a block
  logic [9:0]             whole;           // … of both
  assign pieces = op_i.width[8:5];
  assign half   = 9'd1 + 9'(op_i.width[8:1]);
  assign whole  = {half, 1'b0};

  // ---------------------------------------------------------------- what is asked for
  localparam logic [1:0] Rest  = 2'd0;
  localparam logic [1:0] Look  = 2'd1;     // for the block's entry
  localparam logic [1:0] Fetch = 2'd2;
  logic [1:0]             ask_q;
  logic                   more_q;          // blocks are to be asked for
  logic [12:0]            ask_head_q;
  logic [11:0]            ask_entry_q;
  logic [13:0]            ask_share_q;     // head · kv_heads mod heads: who shares what without a division
  logic [21:0]            ask_offset_q;    // of the shared head in the layer, in lines
  logic [MEMORY_BITS-1:0] fetch_line_q;
  logic [1:0]             ahead_q;         // blocks asked for that are not all taken
  logic [10:0]            owed_q;          // lines of them

  // ---------------------------------------------------------------- where it is
  logic [12:0]            head_q;
  logic [26:0]            entry_q;
  logic [31:0]            window_from;     // the first position of the window
  logic                   parted, parted_q;   // something is left out between sinks and window
  logic [31:0]            seen, seen_q;    // the first position that counts, behind the sinks
  logic [26:0]            begin_q;         // the first block
  logic                   last_entry;
  logic [4:0]             skip, begin_skip, after_skip;   // tokens ahead of it in this block, the first, the next
  logic [5:0]             count;           // tokens of the block that count
  logic [8:0]             line_q;          // of the block, or of its values
  logic                   open_q;          // lines of this phase are to come
  // The token and the piece with which the next line begins.
  logic [5:0]             token_q;
  logic [2:0]             piece_q;
  assign window_from = (op_i.window == '0 || position_i < 32'(op_i.window)) ? '0 : position_i + 32'd1 - 32'(op_i.window);
  assign parted      = window_from > {15'd0, op_i.sinks, 5'd0};
  assign seen        = parted ? window_from : '0;
  assign skip        = (entry_q == seen_q[31:5]) ? seen_q[4:0] : '0;
  assign begin_skip  = (begin_q == seen_q[31:5]) ? seen_q[4:0] : '0;
  assign after_skip  = (entry_after(entry_q) == seen_q[31:5]) ? seen_q[4:0] : '0;
  assign last_entry  = entry_q == position_i[31:5];
  assign count      = last_entry ? {1'b0, position_i[4:0]} + 6'd1 : 6'd32;

  // ---------------------------------------------------------------- the query
  logic                   read_q, reads_q, scale_next_q, come_scale_q;
  logic [CHIP_BITS-1:0]   read_line_q;
  logic [15:0]            from_piece_q;    // the head's first one, of all stored heads
  logic [3:0]             read_piece_q;    // the next one of it
  logic [3:0]             come_piece_q;
  logic [15:0]            query_scale_q;
  logic [255:0]           query_q [0:7];

  // ---------------------------------------------------------------- scores
  logic [LINE_BITS-1:0]   key_scales_q, value_scales_q;
  logic                   parts_full_q, parts_a_begins_q, parts_a_ends_q, parts_b_begins_q, parts_b_ends_q;
  logic [4:0]             parts_a_token_q, parts_b_token_q;
  logic [LINE_BITS-1:0]   parts_q;         // 16 sums of four products, 18 bits of each 32
  logic signed [23:0]     dot_q;           // of the pieces so far
  logic signed [23:0]     dots_a_q [0:31], dots_b_q [0:31];   // of tokens that ended in the first half of a line, in the second
  logic [5:0]             finished_q, scoring_q, scored_q;    // tokens
  logic                   once_full_q, twice_full_q, thrice_full_q;
  logic signed [39:0]     once_q;
  logic [15:0]            once_scale_q;
  /* verilator lint_off UNUSEDSIGNAL */   // of which a shift leaves the upper bits
  logic signed [55:0]     twice_q;
  logic signed [63:0]     thrice_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic signed [32:0]     scores_q [0:31];
  logic signed [32:0]     largest_q;

  // ---------------------------------------------------------------- bins
  logic signed [24:0]     ceiling_q;
  logic signed [20:0]     highest_q;       // number of the highest bin
  logic                   some_q;          // there is one
  logic                   high_q;          // which of the two it is
  logic [1:0]             holds_q;         // there is something in it
  logic [1:0][39:0]       total_q;         // of weights
  logic                   into_q;          // which one the block goes to
  logic                   skips_q;         // none

  // ---------------------------------------------------------------- weights
  logic [5:0]             weighing_q, weighed_q;
  logic                   below_full_q, power_full_q, weight_full_q;
  logic [7:0]             below_part_q;
  logic [3:0]             below_whole_q, power_whole_q;
  logic                   below_near_q, power_near_q;
  logic [15:0]            power_q;
  logic [7:0]             weight_q;
  logic [12:0]            block_total_q;
  logic [23:0]            weights_q [0:31];   // times the values' scales

  // ---------------------------------------------------------------- values
  logic                   products_a_q, products_b_q;   // there are some, of each half
  logic [2:0]             products_a_piece_q, products_b_piece_q;
  logic [2047:0]          products_q;
  logic [SumBits-1:0]     sums_a_q [0:7][0:1], sums_b_q [0:7][0:1];
  logic [7:0]             holds_a_q, holds_b_q;
  logic                   joined_full_q;
  logic [4:0]             join_q;          // of 16 channels
  logic [3:0]             joined_group_q;
  logic [SumBits-1:0]     joined_q;
  logic [511:0]           bins_q [0:31][0:1];   // of 16 channels, in eights

  // ---------------------------------------------------------------- means
  logic [39:0]            divisor_q;
  logic [3:0]             group_q;         // of 16 channels
  logic [4:0]             step_q;          // 0: the bins are read, 1: what is divided; then Steps of them, and the line
  logic [1023:0]          rest_q;
  logic [15:0]            minus_q;
  logic                   write_q;
  logic [CHIP_BITS-1:0]   write_line_q;    // the next one
  logic [CHIP_BITS-1:0]   out_line_q;
  logic [LINE_BITS-1:0]   out_data_q;

  assign idle_o        = !busy_q;
  assign done_o        = done_q;
  assign end_o         = end_q;
  assign read_valid_o  = read_q;
  assign read_line_o   = read_line_q;
  assign write_valid_o = write_q;
  assign write_line_o  = out_line_q;
  assign write_data_o  = out_data_q;
  assign fetch_valid_o = ask_q == Fetch;
  assign fetch_line_o  = fetch_line_q;
  assign fetch_lines_o = 16'(whole);
  assign block_ask_o   = ask_q == Look;
  assign block_entry_o = ask_entry_q[10:0];

  // The second half of the line: the next piece, of the same token or of the next.
  logic [5:0]             token_b;
  logic [2:0]             piece_b;
  logic                   a_ends, b_ends;
  assign a_ends  = {1'b0, piece_q} + 4'd1 == pieces;
  assign piece_b = a_ends ? 3'd0 : piece_q + 3'd1;
  assign token_b = a_ends ? token_q + 6'd1 : token_q;
  assign b_ends  = {1'b0, piece_b} + 4'd1 == pieces;

  assign beat_ready_o = (open_q && (phase_q == Keys || (phase_q == Values && (skips_q || weighed_q > token_b || weighed_q == count))))
                     || (phase_q == Drain && owed_q != '0);

  // The block that is seen after another one.
  function automatic logic [26:0] entry_after(input logic [26:0] entry);
    entry_after = (parted_q && entry + 27'd1 == 27'(op_i.sinks)) ? seen_q[31:5] : entry + 27'd1;
  endfunction

  // An entry of the block table, or the one behind the largest table's last.
  function automatic logic [11:0] first_entry(input logic [26:0] entry);
    first_entry = {entry[26:11] != '0, entry[10:0]};
  endfunction

  function automatic logic signed [31:0] byte_product(input logic [7:0] a, input logic [7:0] b);
    byte_product = $signed({{24{a[7]}}, a}) * $signed({{24{b[7]}}, b});
  endfunction

  /* verilator lint_off BLKSEQ */  // names for what is between two stages
  logic [3:0]             phase;
  logic                   open, more, failed, take, taken_all, writing, reading, two;
  logic [8:0]             line;
  logic [1:0]             ask, ahead;
  logic [10:0]            owed;
  logic [15:0]            piece;
  logic [CHIP_BITS-1:0]   scale_lines;
  logic [13:0]            share;
  logic [4:0]             step;
  logic [15:0]            minus;
  logic [1023:0]          sums, sums_low;
  logic signed [63:0]     value;
  logic [60:0]            rest;
  logic [40:0]            top;
  logic [39:0]            low_total;
  logic                   joins, weighs, weighs_a, weighs_b, use_a, use_b, rises, next_below;
  logic [7:0]             holds_a, holds_b;
  logic [SumBits-1:0]     sum, sum_b;
  logic [39:0]            lane;
  logic [23:0]            weight_a, weight_b;
  /* verilator lint_off UNUSEDSIGNAL */
  logic [16:0]            weight;
  logic signed [32:0]     above;
  logic signed [31:0]     dot_a, dot_b;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [33:0]            below;
  logic signed [20:0]     number;
  logic signed [32:0]     score;
  logic signed [51:0]     twice;
  logic signed [23:0]     dot, token_dot;
  logic [255:0]           query_a, query_b;

  // What stands behind reads what stands before in the pipeline, so it comes first: a register is read before it is written.
  always_ff @(posedge clk_i) begin
    if (done_q) done_q <= 1'b0;
    if (busy_q) begin
      phase   = phase_q;
      open    = open_q;
      line    = line_q;
      ask     = ask_q;
      more    = more_q;
      failed  = failed_q;
      ahead   = ahead_q;
      owed    = owed_q;
      holds_a = holds_a_q;
      holds_b = holds_b_q;
      take    = beat_valid_i && beat_ready_o;
      writing = write_q && !write_ready_i;
      reading = read_q && !read_ready_i;
      taken_all = 1'b0;
      if ((phase_q == Last && !write_q) || (phase_q == Drain && !write_q && ask_q == Rest && !more_q && owed_q == '0)) begin
        phase  = Idle;
        busy_q <= 1'b0;
        done_q <= 1'b1;
      end
      if (phase_q == Keys && !open_q && scored_q == count) phase = Ceiling;

      // ------------------------------------------------------------ the query
      if (phase_q == Query) begin
        if (!reads_q && !read_q && !read_answer_i && come_piece_q == pieces) begin
          phase   = Keys;
          open    = 1'b1;
          line    = '0;
          entry_q <= begin_q;
          some_q  <= 1'b0;
          finished_q <= '0;
          scoring_q  <= {1'b0, begin_skip};
          scored_q   <= {1'b0, begin_skip};
        end
        if (read_answer_i && come_scale_q) begin
          query_scale_q <= read_data_i[{head_q[4:0], 4'd0} +: 16];
          come_scale_q  <= 1'b0;
        end else if (read_answer_i) begin
          // Of a line both halves, but where the head begins or ends in the middle of it.
          piece = from_piece_q + 16'(come_piece_q);
          two   = !piece[0] && come_piece_q + 4'd1 != pieces;
          query_q[come_piece_q[2:0]] <= piece[0] ? read_data_i[511:256] : read_data_i[255:0];
          if (two) query_q[come_piece_q[2:0] + 3'd1] <= read_data_i[511:256];
          come_piece_q <= come_piece_q + (two ? 4'd2 : 4'd1);
        end
        if (reads_q && !reading) begin
          reading     = 1'b1;
          scale_lines = CHIP_BITS'(op_i.heads[12:5]) + CHIP_BITS'(op_i.heads[4:0] != '0);
          piece       = from_piece_q + 16'(read_piece_q);
          two         = !piece[0] && read_piece_q + 4'd1 != pieces;
          read_line_q <= op_i.a + (scale_next_q ? CHIP_BITS'(head_q[12:5]) : scale_lines + CHIP_BITS'(piece[15:1]));
          if (scale_next_q) begin
            scale_next_q <= 1'b0;
            come_scale_q <= 1'b1;
            come_piece_q <= '0;
          end else begin
            read_piece_q <= read_piece_q + (two ? 4'd2 : 4'd1);
            if (read_piece_q + (two ? 4'd2 : 4'd1) == pieces) reads_q <= 1'b0;
          end
        end
      end
      read_q <= reading;

      // ------------------------------------------------------------ means
      if (phase_q == Divide) begin
        step = step_q + 5'd1;
        if (step_q == 5'(Steps + 2)) begin
          step = step_q;
          if (!writing) begin
            for (int k = 0; k < 16; k++)
              out_data_q[32*k +: 32] <= {{12{minus_q[k]}}, rest_q[64*k +: 20] ^ {20{minus_q[k]}}};
            out_line_q   <= write_line_q;
            writing      = 1'b1;
            write_line_q <= write_line_q + 1'b1;
            step    = 5'd0;
            group_q      <= group_q + 4'd1;
            if (group_q + 4'd1 == {pieces[2:0], 1'b0}) begin   // of 16 groups the last one is 15, and pieces 8
              phase        = (head_q + 1'b1 == op_i.heads) ? Last : Query;
              head_q       <= head_q + 1'b1;
              from_piece_q <= from_piece_q + 16'(pieces);
              reads_q      <= 1'b1;
              scale_next_q <= 1'b1;
              read_piece_q <= '0;
            end
          end
        end else if (step_q == 5'd0) begin
          sums     = {bins_q[{high_q, group_q}][1], bins_q[{high_q, group_q}][0]};
          sums_low = {bins_q[{!high_q, group_q}][1], bins_q[{!high_q, group_q}][0]};
          for (int k = 0; k < 16; k++) begin
            value = sums_low[64*k +: 64];
            value = value >>> 16;
            if (!holds_q[!high_q]) value = 64'sd0;
            sums[64*k +: 64] = sums[64*k +: 64] + value;
          end
        end else if (step_q == 5'd1) begin
          // Halves go up; below 0 the quotient is that of what is not there: -1 - q.
          for (int k = 0; k < 16; k++) begin
            value = rest_q[64*k +: 64];
            value = value + {21'd0, divisor_q, 3'd0};
            value = value >>> 4;
            minus[k] = value[63];
            sums[64*k +: 64] = value[63] ? ~value : value;
          end
          minus_q <= minus;
        end else begin
          // 20 bits of quotient below, the rest above.
          for (int k = 0; k < 16; k++) begin
            rest = {rest_q[64*k +: 60], 1'b0};
            top  = rest[60:20];
            if (top >= {1'b0, divisor_q}) begin
              top     = top - {1'b0, divisor_q};
              rest[0] = 1'b1;
            end
            sums[64*k +: 64] = {3'd0, top, rest[19:0]};
          end
        end
        rest_q <= sums;
        step_q <= step;
      end
      write_q <= writing;
      if (phase_q == Mean) begin
        low_total = holds_q[!high_q] ? total_q[!high_q] >> 16 : '0;
        divisor_q <= total_q[high_q] + low_total;
        group_q   <= '0;
        step_q    <= 5'd0;
        phase     = Divide;
      end

      // ------------------------------------------------------------ the block's sums into their bin
      if (joined_full_q) begin
        sums = {bins_q[{into_q, joined_group_q}][1], bins_q[{into_q, joined_group_q}][0]};
        for (int k = 0; k < 16; k++) begin
          value = {{24{joined_q[512 + 8*k + 7]}}, joined_q[512 + 8*k +: 8], joined_q[32*k +: 32]};
          value = value <<< ceiling_q[3:0];
          sums[64*k +: 64] = holds_q[into_q] ? sums[64*k +: 64] + value : value;
        end
        bins_q[{into_q, joined_group_q}][0] <= sums[511:0];
        bins_q[{into_q, joined_group_q}][1] <= sums[1023:512];
        if (joined_group_q + 4'd1 == {pieces[2:0], 1'b0}) begin
          holds_q[into_q] <= 1'b1;
          total_q[into_q] <= (holds_q[into_q] ? total_q[into_q] : '0) + (40'(block_total_q) << ceiling_q[3:0]);
          taken_all = 1'b1;
        end
      end
      joins = phase_q == Join && join_q != {pieces, 1'b0};
      if (joins) begin
        sum   = sums_a_q[join_q[3:1]][join_q[0]];
        sum_b = sums_b_q[join_q[3:1]][join_q[0]];
        for (int k = 0; k < 16; k++) begin
          lane = holds_a_q[join_q[3:1]] ? {sum[512 + 8*k +: 8], sum[32*k +: 32]} : '0;
          if (holds_b_q[join_q[3:1]]) lane = lane + {sum_b[512 + 8*k +: 8], sum_b[32*k +: 32]};
          joined_q[32*k +: 32]     <= lane[31:0];
          joined_q[512 + 8*k +: 8] <= lane[39:32];
        end
        joined_group_q <= join_q[3:0];
        if (join_q[0]) begin
          holds_a[join_q[3:1]] = 1'b0;
          holds_b[join_q[3:1]] = 1'b0;
        end
        join_q <= join_q + 5'd1;
      end
      joined_full_q <= joins;

      // ------------------------------------------------------------ values
      if (phase_q == Values && !open_q) begin
        join_q <= '0;
        phase  = Join;
        if (skips_q) taken_all = 1'b1;
      end
      if (products_a_q) begin
        for (int g = 0; g < 2; g++) begin
          sum = sums_a_q[products_a_piece_q][g];
          for (int k = 0; k < 16; k++) begin
            lane = holds_a_q[products_a_piece_q] ? {sum[512 + 8*k +: 8], sum[32*k +: 32]} : '0;
            lane = lane + {{8{products_q[512*g + 32*k + 31]}}, products_q[512*g + 32*k +: 32]};
            sum[32*k +: 32]     = lane[31:0];
            sum[512 + 8*k +: 8] = lane[39:32];
          end
          sums_a_q[products_a_piece_q][g] <= sum;
        end
        holds_a[products_a_piece_q] = 1'b1;
      end
      if (products_b_q) begin
        for (int g = 0; g < 2; g++) begin
          sum = sums_b_q[products_b_piece_q][g];
          for (int k = 0; k < 16; k++) begin
            lane = holds_b_q[products_b_piece_q] ? {sum[512 + 8*k +: 8], sum[32*k +: 32]} : '0;
            lane = lane + {{8{products_q[1024 + 512*g + 32*k + 31]}}, products_q[1024 + 512*g + 32*k +: 32]};
            sum[32*k +: 32]     = lane[31:0];
            sum[512 + 8*k +: 8] = lane[39:32];
          end
          sums_b_q[products_b_piece_q][g] <= sum;
        end
        holds_b[products_b_piece_q] = 1'b1;
      end
      use_a    = token_q < count;
      use_b    = token_b < count;
      weighs_a = 1'b0;
      weighs_b = 1'b0;
      if (take && phase_q == Values) begin
        weight_a = weights_q[token_q[4:0]];
        weight_b = weights_q[token_b[4:0]];
        weighs_a = use_a && token_q >= {1'b0, skip} && !skips_q && weight_a != '0;
        weighs_b = use_b && token_b >= {1'b0, skip} && !skips_q && weight_b != '0;
        if (weighs_a || weighs_b) begin
          for (int k = 0; k < 32; k++) begin
            products_q[32*k +: 32]        <= {{24{beat_data_i[8*k + 7]}}, beat_data_i[8*k +: 8]} * {8'd0, weight_a};
            products_q[1024 + 32*k +: 32] <= {{24{beat_data_i[256 + 8*k + 7]}}, beat_data_i[256 + 8*k +: 8]} * {8'd0, weight_b};
          end
        end
        products_a_piece_q <= piece_q;
        products_b_piece_q <= piece_b;
      end
      products_a_q <= weighs_a;
      products_b_q <= weighs_b;

      // ------------------------------------------------------------ weights
      if (weight_full_q) begin
        weights_q[weighed_q[4:0]] <= {16'd0, weight_q} * {8'd0, value_scales_q[{weighed_q[4:0], 4'd0} +: 16]};
        block_total_q <= block_total_q + 13'(weight_q);
        weighed_q     <= weighed_q + 6'd1;
      end
      if (power_full_q) begin
        weight   = ({1'b0, power_q} + (17'd128 << power_whole_q)) >> (5'd8 + 5'(power_whole_q));
        weight_q <= power_near_q ? weight[7:0] : '0;
      end
      weight_full_q <= power_full_q;
      if (below_full_q) begin
        power_q       <= EXP2[{below_part_q, 4'd0} +: 16];
        power_whole_q <= below_whole_q;
        power_near_q  <= below_near_q;
      end
      power_full_q <= below_full_q;
      weighs = phase_q == Values && !skips_q && weighing_q != count;
      if (weighs) begin
        score         = scores_q[weighing_q[4:0]];
        below         = {ceiling_q[24], ceiling_q, 8'd0} - {score[32], score};
        below_part_q  <= below[7:0];
        below_whole_q <= below[11:8];
        below_near_q  <= below[33:8] <= 26'd8;
        weighing_q    <= weighing_q + 6'd1;
      end
      below_full_q <= weighs;

      // ------------------------------------------------------------ which bin
      if (phase_q == Bin) begin
        number        = ceiling_q[24:4];
        phase         = Values;
        open          = 1'b1;
        rises         = !some_q || number > highest_q;
        next_below    = number - 21'sd1 == highest_q;
        into_q        <= (!rises && number == highest_q) ? high_q : !high_q;
        skips_q       <= !rises && number != highest_q && number + 21'sd1 != highest_q;
        if (rises) begin
          // What was highest is one below now, or counts no more.
          holds_q[!high_q] <= 1'b0;
          if (!some_q || !next_below) holds_q[high_q] <= 1'b0;
          highest_q <= number;
          high_q    <= !high_q;
          some_q    <= 1'b1;
        end
        weighing_q    <= {1'b0, skip};
        weighed_q     <= {1'b0, skip};
        block_total_q <= '0;
      end
      if (phase_q == Ceiling) begin
        above     = largest_q + 33'sd255;
        ceiling_q <= above[32:8];
        phase     = Bin;
      end

      // ------------------------------------------------------------ scores
      if (phase_q == Keys) begin
        if (thrice_full_q) begin
          score = {thrice_q[63], thrice_q[63:32]};
          score = score + {32'd0, thrice_q[31]};
          scores_q[scored_q[4:0]] <= score;
          if (scored_q == {1'b0, skip} || score > largest_q) largest_q <= score;
          scored_q <= scored_q + 6'd1;
        end
        if (twice_full_q) begin
          twice    = twice_q[55:4];
          twice    = twice + {51'd0, twice_q[3]};
          thrice_q <= {{12{twice[51]}}, twice} * {32'd0, op_i.value};
        end
        thrice_full_q <= twice_full_q;
        if (once_full_q) twice_q <= {{16{once_q[39]}}, once_q} * {40'd0, once_scale_q};
        twice_full_q <= once_full_q;
        once_full_q  <= scoring_q < finished_q;
        if (scoring_q < finished_q) begin
          // With an even number of pieces all tokens end in a second half, with an odd one every second token.
          token_dot    = (pieces[0] && !scoring_q[0]) ? dots_a_q[scoring_q[4:0]] : dots_b_q[scoring_q[4:0]];
          once_q       <= {{16{token_dot[23]}}, token_dot} * {24'd0, query_scale_q};
          once_scale_q <= key_scales_q[{scoring_q[4:0], 4'd0} +: 16];
          scoring_q    <= scoring_q + 6'd1;
        end
        if (parts_full_q) begin
          dot_a = parts_q[31:0];
          dot_b = parts_q[287:256];
          for (int k = 1; k < 8; k++) begin
            dot_a = dot_a + parts_q[32*k +: 32];
            dot_b = dot_b + parts_q[256 + 32*k +: 32];
          end
          dot = (parts_a_begins_q ? '0 : dot_q) + dot_a[23:0];
          if (parts_a_ends_q) dots_a_q[parts_a_token_q] <= dot;
          dot = (parts_b_begins_q ? '0 : dot) + dot_b[23:0];
          if (parts_b_ends_q) dots_b_q[parts_b_token_q] <= dot;
          dot_q      <= dot;
          finished_q <= finished_q + 6'(parts_a_ends_q) + 6'(parts_b_ends_q);
        end
        parts_full_q <= take && line_q != '0 && line_q != half && use_a;
        if (take && line_q != '0 && line_q != half && use_a) begin
          query_a = query_q[piece_q];
          query_b = query_q[piece_b];
          for (int k = 0; k < 8; k++) begin
            parts_q[32*k +: 32] <= byte_product(beat_data_i[32*k +: 8], query_a[32*k +: 8])
                                 + byte_product(beat_data_i[32*k + 8 +: 8], query_a[32*k + 8 +: 8])
                                 + byte_product(beat_data_i[32*k + 16 +: 8], query_a[32*k + 16 +: 8])
                                 + byte_product(beat_data_i[32*k + 24 +: 8], query_a[32*k + 24 +: 8]);
            parts_q[256 + 32*k +: 32] <= byte_product(beat_data_i[256 + 32*k +: 8], query_b[32*k +: 8])
                                 + byte_product(beat_data_i[256 + 32*k + 8 +: 8], query_b[32*k + 8 +: 8])
                                 + byte_product(beat_data_i[256 + 32*k + 16 +: 8], query_b[32*k + 16 +: 8])
                                 + byte_product(beat_data_i[256 + 32*k + 24 +: 8], query_b[32*k + 24 +: 8]);
          end
          parts_a_begins_q <= piece_q == '0;
          parts_a_ends_q   <= a_ends;
          parts_a_token_q  <= token_q[4:0];
          parts_b_begins_q <= a_ends;
          parts_b_ends_q   <= b_ends && use_b;
          parts_b_token_q  <= token_b[4:0];
        end
      end

      // ------------------------------------------------------------ what is asked for
      case (ask_q)
        Rest: begin
          if (more_q && ahead_q != 2'd2) begin
            if (!ask_entry_q[11]) ask = Look;
            else begin
              // Beyond the largest table.
              more   = 1'b0;
              failed = 1'b1;
              end_q  <= UNIT_MISSING;
            end
          end
        end
        Look: begin
          fetch_line_q <= block_line_i + MEMORY_BITS'(op_i.layer) + MEMORY_BITS'(ask_offset_q);
          if (block_answer_i) begin
            ask = (block_end_i == UNIT_FINE && more_q) ? Fetch : Rest;
            if (block_end_i != UNIT_FINE && more_q) begin
              more   = 1'b0;
              failed = 1'b1;
              end_q  <= block_end_i;
            end
          end
        end
        default: begin
          if (fetch_ready_i) begin
            ask         = Rest;
            ahead       = ahead + 2'd1;
            owed        = owed + 11'(whole);
            ask_entry_q <= first_entry(entry_after(27'(ask_entry_q)));
            if (27'(ask_entry_q) == position_i[31:5]) begin
              ask_entry_q <= first_entry(begin_q);
              share       = ask_share_q + 14'(op_i.kv_heads);
              if (share >= 14'(op_i.heads)) begin
                share        = share - 14'(op_i.heads);
                ask_offset_q <= ask_offset_q + 22'(whole);
              end
              ask_share_q <= share;
              ask_head_q  <= ask_head_q + 1'b1;
              if (ask_head_q + 1'b1 == op_i.heads) more = 1'b0;
            end
          end
        end
      endcase

      // ------------------------------------------------------------ lines
      if (take) begin
        owed = owed - 11'd1;
        if (beat_fault_i) begin
          failed = 1'b1;
          more   = 1'b0;
          end_q  <= UNIT_MEMORY;
        end
        line    = line_q + 9'd1;
        token_q <= b_ends ? token_b + 6'd1 : token_b;
        piece_q <= b_ends ? 3'd0 : piece_b + 3'd1;
        if (phase_q == Keys && (line_q == '0 || line_q == half)) begin
          token_q <= '0;
          piece_q <= '0;
        end
        if (phase_q == Keys && line_q == '0) key_scales_q <= beat_data_i;
        if (phase_q == Keys && line_q == half) begin
          value_scales_q <= beat_data_i;
          open           = 1'b0;
          line           = 9'd1;
        end
        if (phase_q == Values && line_q + 9'd1 == half) begin
          open  = 1'b0;
          ahead = ahead - 2'd1;
        end
      end
      if (taken_all) begin
        phase   = last_entry ? Mean : Keys;
        open    = 1'b1;
        line    = '0;
        entry_q <= entry_after(entry_q);
        // Behind the last block the next head's first one begins with what Query says.
        finished_q <= '0;
        scoring_q  <= {1'b0, after_skip};
        scored_q   <= {1'b0, after_skip};
      end
      if (failed_q && (phase_q == Keys || phase_q == Values)) phase = Drain;

      ahead_q   <= ahead;
      failed_q  <= failed;
      more_q    <= more;
      holds_a_q <= holds_a;
      holds_b_q <= holds_b;
      line_q    <= line;
      ask_q     <= ask;
      owed_q    <= owed;
      open_q    <= open;
      phase_q   <= phase;
    end
    if (start_i) begin
      phase_q      <= Query;
      busy_q       <= 1'b1;
      failed_q     <= 1'b0;
      end_q        <= UNIT_FINE;
      more_q       <= 1'b1;
      ask_head_q   <= '0;
      ask_entry_q  <= (op_i.sinks != '0 && parted) ? '0 : first_entry(seen[31:5]);
      begin_q      <= (op_i.sinks != '0 && parted) ? '0 : seen[31:5];
      seen_q       <= seen;
      parted_q     <= parted;
      ask_share_q  <= '0;
      ask_offset_q <= '0;
      ahead_q      <= 2'd0;
      head_q       <= '0;
      from_piece_q <= '0;
      reads_q      <= 1'b1;
      scale_next_q <= 1'b1;
      read_piece_q <= '0;
      parts_full_q <= 1'b0;
      {once_full_q, twice_full_q, thrice_full_q} <= 3'd0;
      {below_full_q, power_full_q, weight_full_q} <= 3'd0;
      {products_a_q, products_b_q} <= 2'd0;
      {holds_a_q, holds_b_q} <= 16'd0;
      joined_full_q <= 1'b0;
      write_line_q  <= op_i.dst;
    end
    if (!rst_ni) begin
      phase_q <= Idle;
      busy_q  <= 1'b0;
      done_q  <= 1'b0;
      ask_q   <= Rest;
      owed_q  <= '0;
      read_q  <= 1'b0;
      write_q <= 1'b0;
      open_q  <= 1'b0;
      high_q  <= 1'b0;
      holds_q <= 2'b00;
    end
  end
  /* verilator lint_on BLKSEQ */

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && (busy_q || start_i || read_answer_i)) begin
      if (start_i && busy_q) $fatal(1, "N1 npu_attend: a word comes while one is in hand");
      if (start_i && op_i.kind != OP_ATTEND) $fatal(1, "N1 npu_attend: a word of another unit, kind %0d", op_i.kind);
      if (read_answer_i && phase_q != Query) $fatal(1, "N5 npu_attend: a line comes that was not asked for");
      if (beat_valid_i && owed_q == '0) $fatal(1, "N5 npu_attend: a line of the arena comes that was not asked for");
      if (phase_q == Divide && step_q == 5'd2 && !failed_q) begin
        for (int k = 0; k < 16; k++)
          if (rest_q[64*k + 20 +: 44] >= 44'(divisor_q)) $fatal(1, "N4 npu_attend: a mean of more than 20 bits, channel %0d of group %0d", k, group_q);
      end
      if (done_q && (owed_q != '0 || read_q || write_q)) $fatal(1, "N5 npu_attend: a word ends with lines still to come");
    end
  end
`endif
endmodule
