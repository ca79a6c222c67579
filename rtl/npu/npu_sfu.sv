// The SFU, which executes VEC: 16 lanes of 32 bits, a line of on-chip memory a cycle.
//
// A line of b comes before the one or two lines of a that need it and is held. What reads ask for carries a tag through all stages:
//
//   read → a, b → [table, logistic, product, swish] → product → value → half → held block → mantissas → line → queue → write
//                  SWIGLU alone                        └ ADD, MUL, ROPE ────────────────────────────────┘
//                                                      └ STORE: magnitude → largest → scale; 16 dividers ┘
//
// An activation takes two passes: the first ends with the shift of the second, whose first value is not there before. Of NORM the
// second pass does not wait for the division: its line of scale and exponent is the last to be written.
// Nothing stalls behind a read: one that completes a line is asked for when the queue has room for it.
//
// Words of Gemma 3N take the stages of SWIGLU (a's line, an entry of a table or a factor that holds for all, a product) and of ADD:
//
//   TANH, GEGLU     table → between two entries → ±1 or a gate → as SWIGLU
//   BLEND           both products of ROPE, by √½
//   LEVEL           squares → npu_rms → for each factor of the gain: its product with the inverse → with a → shifted → line
//   RESCALE         squares of a, of b → npu_rms twice → both factors' product instead of the gain's
//   CUT             sum → mean → squares of what is beside it → root → times the deviations, by lane 0 → line
//   PREDICT         lines of all streams → a coefficient and a line in a cycle → their sum → line
//   CORRECT         what was found less the first stream → by a coefficient → beside the stream → line
//
// Stages are written from the last to the first, so that each reads the registers before they change.
module npu_sfu
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_sfu_pkg::*;
(
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 start_i,
  /* verilator lint_off UNUSEDSIGNAL */  // fields of other units
  input  npu_op_t              op_i,
  /* verilator lint_on UNUSEDSIGNAL */
  output logic                 idle_o,
  output logic                 done_o,
  output npu_end_t             end_o,

  output logic                 read_valid_o,
  output logic [CHIP_BITS-1:0] read_line_o,
  input  logic                 read_ready_i,
  input  logic                 read_answer_i,
  input  logic [511:0]         read_data_i,

  output logic                 write_valid_o,
  output logic [CHIP_BITS-1:0] write_line_o,
  output logic [511:0]         write_data_o,
  input  logic                 write_ready_i
);
  localparam int QueueLines = 8;
  // Two places are for lines that no read asks for: shifts or scales, and the first line of an activation.
  localparam int Rooms      = QueueLines - 2;

  // What a line that is read is.
  typedef struct packed {
    logic gain;         // the line with a gain's exponent
    logic b;
    logic odd;          // the second of its block, and of those that share a line of b
    logic second;       // read for the second time
    logic last;         // of its pass
    logic whole;        // of its pass, of the last head
    logic middle;       // of the second pass of three
    logic mine;         // of the stream that the sum is added to
    logic opens;        // the first of a sum …
    logic closes;       // … and the last
    logic [1:0] stream;
  } tag_t;

  logic busy_q, done_q;
  // What the word is, known from its start.
  logic sums_q;         // ADD, MUL, ROPE, BLEND: a line of integers for each line of a
  logic own_q;          // ADD, MUL, SWIGLU, GEGLU, BLEND: a line of b for each line of a
  logic shared_q;       // NORM, ROPE, LEVEL: one for two
  logic factors_q;      // NORM, ROPE, ACT, BLEND: two products at once
  logic gated_q;        // SWIGLU, GEGLU
  logic measures_q;     // LEVEL, RESCALE, CUT: numbers are made when what holds for all of them is known
  logic streams_q;      // PREDICT, CORRECT
  logic norm_q, store_q, tanh_q, level_q, rescale_q, cut_q, copy_q, predict_q, correct_q;

  // As many lines as a has, or as all streams have.
  function automatic logic makes_integers(input npu_kind_t kind);
    makes_integers = kind == OP_ADD || kind == OP_MUL || kind == OP_ROPE || kind == OP_LEVEL || kind == OP_BLEND || kind == OP_CUT
                  || kind == OP_RESCALE || kind == OP_PREDICT || kind == OP_CORRECT;
  endfunction

  assign idle_o = !busy_q;
  assign done_o = done_q;
  assign end_o  = UNIT_FINE;

  // ---------------------------------------------------------------- what is asked for
  logic                 reading_q, pause_q, hold_q, gain_q, b_next_q, odd_q, middle_q, second_q, head_out_q;
  logic [1:0]           stream_q;
  logic [CHIP_BITS-1:0] a_q, b_q, begin_q;
  logic [12:0]          left_q, heads_q;
  logic [1:0]           quarter_q;
  logic [2:0]           room_q;
  logic                 read_valid_q;
  logic [CHIP_BITS-1:0] read_line_q;
  tag_t                 read_tag_q, answer_tag_q;
  assign read_valid_o = read_valid_q;
  assign read_line_o  = read_line_q;

  // ---------------------------------------------------------------- stages
  logic [511:0]  held_q;                                  // the line of b
  logic [15:0]   exponent_q;
  logic          table_valid_q, logistic_valid_q, swish_valid_q, sum_valid_q, factor_valid_q, number_valid_q, product_valid_q, value_valid_q, half_valid_q;
  /* verilator lint_off UNUSEDSIGNAL */  // not all of a tag goes all the way
  tag_t          table_tag_q, logistic_tag_q, factor_tag_q, swish_tag_q, number_tag_q, product_tag_q, value_tag_q, half_tag_q, sum_tag_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [511:0]  gate_q, up_q, gate_late_q, up_wait_q, up_late_q, up_last_q;
  logic [255:0]  low_q, rise_q, part_q;
  logic [511:0]  factor_q, number_q, other_q;             // number · factor (17 bits of each 32); other · third
  logic [527:0]  third_q, news_q;                         // 33 bits of each number
  logic [1023:0] first_product_q, second_product_q, value_q;
  logic [255:0]  squares4_q;
  logic          squares4_valid_q, squares4_last_q, squares_last_q;
  logic [63:0]   squares_q;
  // What holds for all numbers of a word, or of a head.
  logic          absolute_q, below_zero_q, waits_q, measured_q, fix_q, bound1_q, bound2_q, left_shift_q;
  logic [15:0]   inverse_q, wanted_q;                     // RESCALE: the root of b, 16 bits
  logic [4:0]    first_half_q;
  logic signed [17:0] raw_q;
  logic signed [25:0] mean_q;
  logic signed [63:0] bound_q;
  // PREDICT: a line of each stream, and where it is with them.
  logic [511:0]  stream_lines_q [0:3];
  logic          mixes_q, mix_last_q;
  logic [1:0]    mix_into_q, mix_q;
  logic [3:0]    mix_at_q;                                // coefficient
  logic [1023:0] sum_q;
  logic [52:0]   magnitude_q;
  logic          sized_q;
  logic [5:0]    shift_q;
  logic [255:0]  half_q, block_first_q, block_second_q;
  logic [14:0]   block_or_q;
  logic          block_valid_q, rest_valid_q, block_last_q, rest_last_q;
  logic [3:0]    down_q;

  // STORE: a head's largest magnitude, then a line at a time.
  logic [511:0]  stored_q;                                // sign and 19 bits of each 32
  logic          stored_valid_q, stored_waits_q, top_valid_q, best_valid_q, scaled_q;
  logic          top_fresh_q, best_whole_q;              // the first of its head; the last head
  logic          stored_last_q, stored_whole_q, top_last_q, top_whole_q;
  logic [75:0]   top_q;
  logic [18:0]   best_q;
  logic [15:0]   scale_q;
  logic [16:0]   divisor_q;
  logic [511:0]  rest_q, quotient_q;                      // 18 and 7 bits of each 32
  logic [15:0]   below_q;                                 // which are below 0
  logic [2:0]    steps_q;
  logic          divided_q, divided_last_q;

  // What is made: a line of integers or mantissas, one of shifts or scales, the first one of an activation.
  logic [511:0]         line_q, side_q;
  logic [1:0]           line_part_q;
  logic [5:0]           side_part_q;
  logic                 line_full_q, side_full_q, head_owed_q, ended_q;
  logic [CHIP_BITS-1:0] line_at_q, line_begin_q, side_at_q;
  logic [1:0]           line_stream_q;

  logic                 rms_ready, found;
  logic [24:0]          mean;
  /* verilator lint_off UNUSEDSIGNAL */  // of a root of b 16 bits
  logic [31:0]          root;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [15:0]          inverse;
  logic [4:0]           half_up;
  npu_rms u_rms (
    .clk_i, .rst_ni, .start_i(squares_last_q), .squares_i(squares_q), .count_i(op_i.width), .epsilon_i(op_i.value),
    .mean_i(cut_q && !measured_q), .plain_i(cut_q),
    .ready_o(rms_ready), .mean_o(mean), .root_o(root), .inverse_o(inverse), .half_o(half_up)
  );
  assign found = waits_q && rms_ready;

  // ---------------------------------------------------------------- the queue of lines to be written
  logic [511:0]         queue_data [0:QueueLines-1];
  logic [CHIP_BITS:0]   queue_line [0:QueueLines-1];      // above the address: a read made room for it
  logic [2:0]           queue_head_q, queue_tail_q;
  logic [3:0]           queue_count_q;
  logic                 write_valid_q;
  logic [CHIP_BITS-1:0] write_line_q;
  logic [511:0]         write_data_q;
  assign write_valid_o = write_valid_q;
  assign write_line_o  = write_line_q;
  assign write_data_o  = write_data_q;

  /* verilator lint_off BLKSEQ */  // names for what is between two stages
  logic                 push, pop, give, go, closes, room, put, put_last, note, note_last, a_comes, a_detours, freed, last_stream;
  logic [2:0]           take;
  logic [CHIP_BITS:0]   push_line;
  logic [511:0]         push_data, next_line, next_side, lanes, lanes2, near;
  logic [527:0]         lanes3;
  logic [1023:0]        wide;
  logic [255:0]         halves, lows, rises, parts, fours;
  logic [127:0]         bytes;
  logic [15:0]          noted, h, signs;
  logic [75:0]          tops;
  logic [14:0]          sizes;
  logic [15:0]          at;
  logic [52:0]          bits;
  logic [3:0]           down;
  logic [18:0]          best;
  logic [24:0]          dividend;
  logic [17:0]          rest;
  logic [31:0]          pair;
  logic signed [31:0]   x;
  logic signed [32:0]   y;
  logic signed [16:0]   f;
  tag_t                 tag;
  logic signed [63:0]   p;

  always_ff @(posedge clk_i) begin
    if (busy_q || done_q) done_q <= 1'b0;
    if (busy_q) begin
      // -------------------------------------------------------------- writes
      push = 1'b0;
      pop  = queue_count_q != '0 && (!write_valid_q || write_ready_i);
      give = 1'b0;
      if (ended_q && !line_full_q && !side_full_q && !head_owed_q && queue_count_q == '0 && (!write_valid_q || write_ready_i)) begin
        busy_q <= 1'b0;
        done_q <= 1'b1;
      end
      if (line_full_q) begin
        push        = 1'b1;
        push_line   = {1'b1, line_at_q};
        push_data   = line_q;
        line_full_q <= 1'b0;
        if (!streams_q) line_at_q <= line_at_q + 1'b1;
        else begin
          // A line of each stream, then the next one of each.
          last_stream   = {1'b0, line_stream_q} + 3'd1 == op_i.heads[2:0];
          line_stream_q <= last_stream ? '0 : line_stream_q + 1'b1;
          line_at_q     <= last_stream ? line_begin_q + 1'b1 : line_at_q + CHIP_BITS'(op_i.width[16:4]);
          if (last_stream) line_begin_q <= line_begin_q + 1'b1;
        end
      end else if (side_full_q) begin
        push        = 1'b1;
        push_line   = {1'b0, side_at_q};
        push_data   = side_q;
        side_at_q   <= side_at_q + 1'b1;
        side_full_q <= 1'b0;
      end else if (head_owed_q && rms_ready) begin
        push        = 1'b1;
        push_line   = {1'b0, op_i.dst};
        push_data   = {480'd0, (norm_q ? exponent_q + {11'd0, half_up} - 16'd46 : tanh_q ? -16'd30 : -16'd25) + {10'd0, shift_q}, norm_q ? inverse : 16'h8000};
        head_owed_q <= 1'b0;
      end
      if (pop) begin
        write_valid_q <= 1'b1;
        write_line_q  <= queue_line[queue_head_q][CHIP_BITS-1:0];
        write_data_q  <= queue_data[queue_head_q];
        give          = queue_line[queue_head_q][CHIP_BITS];
        queue_head_q  <= queue_head_q + 1'b1;
      end else if (write_ready_i) begin
        write_valid_q <= 1'b0;
      end
      if (push) begin
        queue_line[queue_tail_q] <= push_line;
        queue_data[queue_tail_q] <= push_data;
        queue_tail_q <= queue_tail_q + 1'b1;
      end
      queue_count_q <= queue_count_q + {3'd0, push} - {3'd0, pop};

      // -------------------------------------------------------------- mantissas, shifts and scales into lines
      put       = 1'b0;
      put_last  = 1'b0;
      note      = 1'b0;
      note_last = 1'b0;
      if (block_valid_q || rest_valid_q) begin
        put      = 1'b1;
        put_last = rest_valid_q && rest_last_q;
        note     = block_valid_q;
        note_last = block_last_q;
        down     = rest_valid_q ? down_q : down_of(block_or_q);
        halves   = rest_valid_q ? block_second_q : block_first_q;
        noted    = {12'd0, down};
        for (int k = 0; k < 16; k++) bytes[8*k +: 8] = mantissa_of({{16{halves[16*k + 15]}}, halves[16*k +: 16]}, down);
        down_q      <= down;
        rest_last_q <= block_last_q;
      end
      rest_valid_q <= block_valid_q;
      if (divided_q) begin
        put      = 1'b1;
        put_last = divided_last_q;
        for (int k = 0; k < 16; k++)
          bytes[8*k +: 8] = below_q[k] ? -{1'b0, quotient_q[32*k +: 7]} : {1'b0, quotient_q[32*k +: 7]};
      end
      if (best_valid_q) begin
        note      = 1'b1;
        note_last = best_whole_q;
        noted     = scale_of(best_q);
      end
      if (put) begin
        next_line = (line_part_q == '0) ? '0 : line_q;
        case (line_part_q)
          2'd0:    next_line[127:0]   = bytes;
          2'd1:    next_line[255:128] = bytes;
          2'd2:    next_line[383:256] = bytes;
          default: next_line[511:384] = bytes;
        endcase
        line_q <= next_line;
        if (line_part_q == '1 || put_last) line_full_q <= 1'b1;
        if (put_last) ended_q <= 1'b1;
        line_part_q <= put_last ? '0 : line_part_q + 1'b1;
      end
      if (note) begin
        next_side = (side_part_q == '0) ? '0 : side_q;
        if (store_q) next_side[{side_part_q[4:0], 4'd0} +: 16] = noted;
        else         next_side[{side_part_q, 3'd0} +: 8]       = noted[7:0];
        side_q <= next_side;
        if ((store_q ? side_part_q[4:0] == '1 : side_part_q == '1) || note_last) side_full_q <= 1'b1;
        side_part_q <= (store_q && side_part_q[4:0] == '1) ? '0 : side_part_q + 1'b1;
      end

      // -------------------------------------------------------------- STORE: largest magnitude, dividers
      freed     = 1'b0;
      divided_q <= steps_q == 3'd1;
      if (steps_q != '0) begin
        for (int k = 0; k < 16; k++) begin
          rest = {rest_q[32*k +: 17], quotient_q[32*k + 6]};
          lanes[32*k +: 32]  = {14'd0, (rest >= {1'b0, divisor_q}) ? rest - {1'b0, divisor_q} : rest};
          lanes2[32*k +: 32] = {25'd0, quotient_q[32*k +: 6], rest >= {1'b0, divisor_q}};
        end
        rest_q     <= lanes;
        quotient_q <= lanes2;
        steps_q    <= steps_q - 1'b1;
      end else if (stored_waits_q && scaled_q) begin
        // ⌊(32 · magnitude + scale) / (2 · scale)⌋, and 1 less above the line if it is below 0: halves go up.
        for (int k = 0; k < 16; k++) begin
          dividend = {1'b0, stored_q[32*k +: 19], 5'd0} + {9'd0, scale_q} - {24'd0, stored_q[32*k + 31]};
          lanes[32*k +: 32]  = {14'd0, dividend[24:7]};
          lanes2[32*k +: 32] = {25'd0, dividend[6:0]};
          signs[k]           = stored_q[32*k + 31];
        end
        rest_q         <= lanes;
        quotient_q     <= lanes2;
        below_q        <= signs;
        divisor_q      <= {scale_q, 1'b0};
        divided_last_q <= stored_last_q && stored_whole_q;
        steps_q        <= 3'd7;
        stored_waits_q <= 1'b0;
        freed          = 1'b1;
        if (stored_last_q) scaled_q <= 1'b0;
      end
      if (best_valid_q) begin
        scale_q  <= noted;
        scaled_q <= 1'b1;
      end
      best_valid_q <= top_valid_q && top_last_q;
      if (top_valid_q) begin
        best = top_fresh_q ? '0 : best_q;
        for (int k = 0; k < 4; k++) if (top_q[19*k +: 19] > best) best = top_q[19*k +: 19];
        best_q       <= best;
        best_whole_q <= top_whole_q;
        top_fresh_q  <= top_last_q;
      end
      top_valid_q <= stored_valid_q;
      if (stored_valid_q) begin
        for (int k = 0; k < 4; k++) begin
          best = stored_q[128*k +: 19];
          for (int j = 1; j < 4; j++) if (stored_q[128*k + 32*j +: 19] > best) best = stored_q[128*k + 32*j +: 19];
          tops[19*k +: 19] = best;
        end
        top_q     <= tops;
        top_last_q  <= stored_last_q;
        top_whole_q <= stored_whole_q;
      end

      // -------------------------------------------------------------- activations: the shift of all, the blocks
      block_valid_q <= half_valid_q && half_tag_q.odd;
      if (half_valid_q) begin
        sizes = half_tag_q.odd ? block_or_q : '0;
        for (int k = 0; k < 16; k++) begin
          h     = half_q[16*k +: 16];
          h     = h[15] ? -h : h;
          sizes = sizes | h[14:0];
        end
        if (half_tag_q.odd) block_second_q <= half_q;
        else                block_first_q  <= half_q;
        block_or_q   <= sizes;
        block_last_q <= half_tag_q.last;
      end
      half_valid_q <= value_valid_q && value_tag_q.second && !measures_q;
      if (value_valid_q) begin
        if (value_tag_q.second) begin
          for (int k = 0; k < 16; k++) begin
            p = shifted_of(value_q[64*k +: 64], shift_q);
            halves[16*k +: 16] = half_of(p);
            lanes[32*k +: 32]  = bound_residual(p);
          end
          if (measures_q) begin
            line_q      <= lanes;
            line_full_q <= 1'b1;
            if (value_tag_q.last) hold_q <= 1'b0;
            if (value_tag_q.last && value_tag_q.whole) ended_q <= 1'b1;
          end else begin
            half_q     <= halves;
            half_tag_q <= value_tag_q;
          end
        end else begin
          // As many bits as the largest has.
          bits = magnitude_q;
          for (int k = 0; k < 16; k++) begin
            p    = value_q[64*k +: 64];
            p    = (p < 64'sd0) ? -p : p;
            bits = bits | p[52:0];
          end
        end
      end
      if (sized_q) begin
        shift_q     <= shift_of(magnitude_q);
        head_owed_q <= 1'b1;
      end
      if (value_valid_q && !value_tag_q.second) magnitude_q <= bits;
      sized_q <= value_valid_q && value_tag_q.last && !value_tag_q.second;
      // A sum that may be below 0 is divided without its sign.
      absolute_q     <= squares4_valid_q && squares4_last_q && cut_q && !measured_q;
      squares_last_q <= (squares4_valid_q && squares4_last_q && !(cut_q && !measured_q)) || absolute_q;
      if (absolute_q) begin
        below_zero_q <= squares_q[63];
        squares_q    <= squares_q[63] ? -squares_q : squares_q;
      end else if (squares_last_q) squares_q <= '0;
      else if (squares4_valid_q)
        squares_q <= squares_q + ((squares4_q[63:0] + squares4_q[127:64]) + (squares4_q[191:128] + squares4_q[255:192]));

      // -------------------------------------------------------------- what holds for all numbers
      if (squares_last_q) waits_q <= measures_q;
      if (found) begin
        waits_q      <= 1'b0;
        measured_q   <= !level_q;
        inverse_q    <= (rescale_q && measured_q) ? inverse_q : inverse;
        first_half_q <= half_up;
        wanted_q     <= root[30:15];
        raw_q        <= level_q ? 18'sd36 - {{2{exponent_q[15]}}, exponent_q} - {13'd0, half_up} : 18'sd31 - {13'd0, first_half_q} + {13'd0, half_up};
        if (!measured_q) mean_q <= below_zero_q ? -{1'b0, mean} : {1'b0, mean};
        if (!level_q && !measured_q) hold_q <= 1'b0;
        else if (!cut_q) fix_q <= 1'b1;
      end
      if (fix_q) begin
        fix_q        <= 1'b0;
        hold_q       <= 1'b0;
        left_shift_q <= raw_q < 0;
        // Of more than 26 to the left nothing but 0 stays within the bounds.
        shift_q      <= (raw_q < -18'sd26) ? '0 : (raw_q < 0) ? 6'd26 + raw_q[5:0] : (raw_q > 18'sd63) ? 6'd63 : raw_q[5:0];
      end
      bound1_q <= found && cut_q && measured_q;
      bound2_q <= bound1_q;
      if (bound2_q) begin
        p       = second_product_q[63:0];
        bound_q <= 64'(mean_q) + (p >>> 21) + $signed({63'd0, p[20]});
        hold_q  <= 1'b0;
      end

      // -------------------------------------------------------------- PREDICT, CORRECT: sums of products beside their stream
      sum_valid_q <= product_valid_q && streams_q && product_tag_q.closes;
      if (sum_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          p = value_q[64*k +: 64];
          lanes[32*k +: 32] = bound_residual(p + round10_any(sum_q[64*k +: 64]));
        end
        line_q      <= lanes;
        line_full_q <= 1'b1;
        if (sum_tag_q.last) ended_q <= 1'b1;
      end
      if (product_valid_q && streams_q) begin
        for (int k = 0; k < 16; k++)
          wide[64*k +: 64] = (product_tag_q.opens ? 64'd0 : sum_q[64*k +: 64]) + second_product_q[64*k +: 64];
        sum_q     <= wide;
        sum_tag_q <= product_tag_q;
        if (product_tag_q.closes) value_q <= first_product_q;
      end

      // -------------------------------------------------------------- what the products become
      value_valid_q    <= product_valid_q && !sums_q && !streams_q && !cut_q && (!measures_q || product_tag_q.second);
      squares4_valid_q <= product_valid_q && (norm_q || measures_q) && !product_tag_q.second;
      if (product_valid_q && !streams_q) begin
        if (sums_q || (cut_q && product_tag_q.second)) begin
          for (int k = 0; k < 16; k++) begin
            p = second_product_q[64*k +: 64];
            case (op_i.kind)
              OP_ADD:  lanes[32*k +: 32] = bound_residual(p);
              OP_MUL:  lanes[32*k +: 32] = bound32(round10(p));
              OP_BLEND: lanes[32*k +: 32] = bound_residual(round16(first_product_q[64*k +: 64] + p));
              OP_CUT:  lanes[32*k +: 32] = (p[63] && !copy_q) ? '0 : p[31:0];
              default: lanes[32*k +: 32] = bound32(round14((k % 2 == 0) ? first_product_q[64*k +: 64] - p : first_product_q[64*k +: 64] + p));
            endcase
          end
          line_q      <= lanes;
          line_full_q <= 1'b1;
          if (product_tag_q.last && product_tag_q.whole) ended_q <= 1'b1;
        end else begin
          wide = first_product_q;
          if (gated_q) for (int k = 0; k < 16; k++) wide[64*k +: 64] = round10(second_product_q[64*k +: 64]);
          if (tanh_q || (measures_q && !left_shift_q)) wide = second_product_q;
          else if (measures_q) for (int k = 0; k < 16; k++) wide[64*k +: 64] = raised(second_product_q[64*k +: 64]);
          value_q     <= wide;
          value_tag_q <= product_tag_q;
          if ((norm_q || measures_q) && !product_tag_q.second) begin
            for (int k = 0; k < 4; k++)
              fours[64*k +: 64] = (second_product_q[256*k +: 64] + second_product_q[256*k + 64 +: 64])
                                + (second_product_q[256*k + 128 +: 64] + second_product_q[256*k + 192 +: 64]);
            squares4_q      <= fours;
            squares4_last_q <= product_tag_q.last;
          end
        end
      end

      // -------------------------------------------------------------- products
      product_valid_q <= number_valid_q && !store_q;
      stored_valid_q  <= number_valid_q && store_q && !number_tag_q.second;
      if (number_valid_q || bound1_q) begin
        if (number_valid_q) product_tag_q <= number_tag_q;
        if (op_i.kind == OP_ADD || (cut_q && number_tag_q.second && !bound1_q)) begin
          for (int k = 0; k < 16; k++) begin
            x = other_q[32*k +: 32];
            y = third_q[33*k +: 33];
            wide[64*k +: 64] = 64'(x) + (cut_q ? -bound_q : 64'(y));
          end
          second_product_q <= wide;
        end else if (sums_q || gated_q || tanh_q || measures_q || streams_q || (norm_q && !number_tag_q.second)) begin
          for (int k = 0; k < 16; k++) begin
            x = other_q[32*k +: 32];
            y = third_q[33*k +: 33];
            wide[64*k +: 64] = 64'(x) * 64'(y);
          end
          second_product_q <= wide;
        end
        if (correct_q || (predict_q && number_tag_q.mine)) begin
          for (int k = 0; k < 16; k++) begin
            x = predict_q ? other_q[32*k +: 32] : number_q[32*k +: 32];
            y = third_q[33*k +: 33];
            wide[64*k +: 64] = 64'(x) + (predict_q ? 64'sd0 : 64'(y));
          end
          first_product_q <= wide;
        end
        if (store_q) begin
          for (int k = 0; k < 16; k++) begin
            x = other_q[32*k +: 32];
            lanes[32*k +: 32] = {x[31], 12'd0, (x > 32'(STORED) || x < -32'(STORED)) ? 19'(STORED) : x[31] ? 19'(-x) : x[18:0]};
          end
          stored_q     <= lanes;
          stored_last_q  <= number_tag_q.last;
          stored_whole_q <= number_tag_q.whole;
          if (number_tag_q.second) stored_waits_q <= 1'b1;
        end
      end

      // -------------------------------------------------------------- what takes a table, or a factor that holds for all
      a_comes   = read_answer_i && !answer_tag_q.b && !answer_tag_q.gain && !predict_q;
      a_detours = a_comes && (gated_q || tanh_q || correct_q || (measures_q && (cut_q ? answer_tag_q.middle : answer_tag_q.second)));
      number_valid_q <= swish_valid_q || (correct_q && logistic_valid_q) || (a_comes && !a_detours) || mixes_q;
      if (swish_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          p = first_product_q[64*k +: 64];
          x = up_last_q[32*k +: 32];
          lanes[32*k +: 32]  = gated_q ? bound32(round15(p)) : (level_q || rescale_q) ? x : p[31:0];
          lanes3[33*k +: 33] = gated_q ? 33'(x) : tanh_q ? 33'd1 : p[32:0];
        end
        other_q      <= lanes;
        third_q      <= lanes3;
        number_tag_q <= swish_tag_q;
      end
      swish_valid_q <= factor_valid_q && !factors_q;
      if (factor_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          x = number_q[32*k +: 32];
          f = factor_q[32*k +: 17];
          wide[64*k +: 64] = 64'(x) * 64'(f);
        end
        first_product_q <= wide;
        swish_tag_q     <= factor_tag_q;
        up_last_q       <= up_late_q;
      end
      factor_valid_q <= (logistic_valid_q && !correct_q) || (a_comes && factors_q);
      if (logistic_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          x = gate_late_q[32*k +: 32];
          lanes[32*k +: 32]  = cut_q ? 32'd1 : measures_q ? {16'd0, inverse_q}
                             : {16'd0, low_q[16*k +: 16]} + ((32'(rise_q[16*k +: 16]) * 32'(part_q[16*k +: 9]) + 32'd256) >> 9);
          lanes2[32*k +: 32] = cut_q ? x - 32'(mean_q) : tanh_q ? (x[31] ? -32'd1 : 32'd1) : x;
          lanes3[33*k +: 33] = {held_q[{2'd0, logistic_tag_q.stream, 5'd31}], held_q[{2'd0, logistic_tag_q.stream, 5'd0} +: 32]};
        end
        factor_q     <= lanes;
        number_q     <= lanes2;
        up_late_q    <= up_wait_q;
        factor_tag_q <= logistic_tag_q;
        if (correct_q) begin
          // Its coefficient is the one that is 32 bits wide.
          for (int k = 0; k < 16; k++) lanes[32*k +: 32] = lanes3[31:0];
          other_q      <= lanes;
          third_q      <= news_q;
          number_tag_q <= logistic_tag_q;
        end
      end
      logistic_valid_q <= table_valid_q;
      if (table_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          case (op_i.kind)
            OP_TANH: begin
              at   = tanh_at(gate_q[32*k +: 32]);
              pair = {1'b0, TANH[15 * 32'(at[15:8]) + 15 +: 15], 1'b0, TANH[15 * 32'(at[15:8]) +: 15]};
              at   = {7'd0, at[7:0], 1'b0};
            end
            OP_GEGLU: begin
              at   = {1'b0, gelu_at(gate_q[32*k +: 32])};
              pair = GELU[{1'b0, at[14:9], 4'd0} +: 32];
            end
            default: begin
              at   = {1'b0, logistic_at(gate_q[32*k +: 32])};
              pair = SIGMOID[{1'b0, at[14:9], 4'd0} +: 32];
            end
          endcase
          lows[16*k +: 16]  = pair[15:0];
          rises[16*k +: 16] = pair[31:16] - pair[15:0];
          parts[16*k +: 16] = {7'd0, at[8:0]};
        end
        low_q          <= lows;
        rise_q         <= rises;
        part_q         <= parts;
        gate_late_q    <= gate_q;
        up_wait_q      <= up_q;
        logistic_tag_q <= table_tag_q;
        if (correct_q && table_tag_q.mine) begin
          for (int k = 0; k < 16; k++) begin
            x = up_q[32*k +: 32];
            y = {gate_q[32*k + 31], gate_q[32*k +: 32]};
            lanes3[33*k +: 33] = 33'(x) - y;
          end
          news_q <= lanes3;
        end
      end
      table_valid_q <= a_detours;

      // -------------------------------------------------------------- PREDICT: a coefficient and a stream in a cycle
      if (mixes_q) begin
        for (int k = 0; k < 16; k++)
          lanes3[33*k +: 33] = {held_q[{mix_at_q, 5'd31}], held_q[{mix_at_q, 5'd0} +: 32]};
        other_q     <= stream_lines_q[mix_q];
        third_q     <= lanes3;
        last_stream = {1'b0, mix_q} + 3'd1 == op_i.heads[2:0];
        tag         = '0;
        tag.mine    = mix_q == mix_into_q;
        tag.opens   = mix_q == '0;
        tag.closes  = last_stream;
        tag.last    = mix_last_q && last_stream && {1'b0, mix_into_q} + 3'd1 == op_i.heads[2:0];
        number_tag_q <= tag;
        mix_at_q     <= mix_at_q + 1'b1;
        mix_q        <= last_stream ? '0 : mix_q + 1'b1;
        if (last_stream) begin
          mix_into_q <= mix_into_q + 1'b1;
          if ({1'b0, mix_into_q} + 3'd1 == op_i.heads[2:0]) begin
            mixes_q <= 1'b0;
            hold_q  <= 1'b0;
          end
        end
      end
      if (read_answer_i && predict_q && !answer_tag_q.gain) begin
        stream_lines_q[answer_tag_q.stream] <= read_data_i;
        if (answer_tag_q.closes) begin
          mixes_q    <= 1'b1;
          mix_last_q <= answer_tag_q.last;
          mix_q      <= '0;
          mix_into_q <= '0;
          mix_at_q   <= '0;
        end
      end

      // -------------------------------------------------------------- answers
      if (found && cut_q && measured_q) begin
        // Of CUT in lane 0: the root times the deviations.
        other_q <= {480'd0, root};
        third_q <= {495'd0, 1'b0, op_i.value};
      end
      if (read_answer_i) begin
        // Within what may be squared.
        near = read_data_i;
        if (norm_q || level_q || rescale_q) for (int k = 0; k < 16; k++) near[32*k +: 32] = within26(read_data_i[32*k +: 32]);
        else if (cut_q && !copy_q)          for (int k = 0; k < 16; k++) near[32*k +: 32] = within24(read_data_i[32*k +: 32]);
        halves = answer_tag_q.odd ? held_q[511:256] : held_q[255:0];
        if (a_detours) begin
          lanes = near;
          if (level_q)        for (int k = 0; k < 16; k++) lanes[32*k +: 32] = {{16{halves[16*k + 15]}}, halves[16*k +: 16]};
          else if (rescale_q) for (int k = 0; k < 16; k++) lanes[32*k +: 32] = {16'd0, wanted_q};
          gate_q      <= lanes;
          table_tag_q <= answer_tag_q;
          if (!correct_q) up_q <= measures_q ? near : held_q;
        end else if (a_comes) begin
          number_tag_q <= answer_tag_q;
          factor_tag_q <= answer_tag_q;
          lanes2       = near;
          for (int k = 0; k < 16; k++) lanes3[33*k +: 33] = (norm_q || measures_q) ? {near[32*k + 31], near[32*k +: 32]} : {held_q[32*k + 31], held_q[32*k +: 32]};
          if (cut_q) for (int k = 0; k < 16; k++) lanes3[33*k +: 33] = 33'd1;
          if (factors_q) begin
            case (op_i.kind)
              OP_NORM: for (int k = 0; k < 16; k++) lanes[32*k +: 32] = {{16{halves[16*k + 15]}}, halves[16*k +: 16]};
              OP_ROPE:
                for (int k = 0; k < 16; k++) begin
                  // Cosine and sine of its pair; the sine goes with the neighbour.
                  pair = halves[32*(k/2) +: 32];
                  lanes[32*k +: 32]  = {{16{pair[15]}}, pair[15:0]};
                  lanes3[33*k +: 33] = {{17{pair[31]}}, pair[31:16]};
                  lanes2[32*k +: 32] = read_data_i[32*((k % 2 == 0) ? k + 1 : k - 1) +: 32];
                end
              OP_BLEND:
                for (int k = 0; k < 16; k++) begin
                  // √½.
                  lanes[32*k +: 32]  = 32'(HALF_ROOT);
                  lanes2[32*k +: 32] = held_q[32*k +: 32];
                  lanes3[33*k +: 33] = 33'(HALF_ROOT);
                end
              default: for (int k = 0; k < 16; k++) lanes[32*k +: 32] = 32'd1;
            endcase
            number_q <= near;
            factor_q <= lanes;
          end
          other_q <= lanes2;
          third_q <= lanes3;
        end
        if (answer_tag_q.gain && !streams_q) exponent_q <= read_data_i[15:0];
        else if (answer_tag_q.b && correct_q && !answer_tag_q.gain) up_q <= read_data_i;
        else if (answer_tag_q.b)             held_q <= read_data_i;
      end

      // -------------------------------------------------------------- reads
      closes      = sums_q || correct_q || (second_q && (measures_q || quarter_q == '1 || (left_q == 13'd1 && heads_q == 13'd1)));
      last_stream = {1'b0, stream_q} + 3'd1 == op_i.heads[2:0];
      // Lines of all streams come of a line of each.
      take        = b_next_q ? '0 : predict_q ? ((stream_q == '0) ? op_i.heads[2:0] : '0) : {2'd0, closes};
      room        = room_q >= take;
      go          = reading_q && !pause_q && !hold_q && (!read_valid_q || read_ready_i) && (b_next_q || (room && !head_out_q));
      room_q      <= room_q + {2'd0, give} - (go ? take : '0);
      if (read_valid_q && read_ready_i) begin
        answer_tag_q <= read_tag_q;
        read_valid_q <= 1'b0;
      end
      if (read_ready_i) pause_q    <= 1'b0;   // a cycle without one, not one that waits
      if (freed)        head_out_q <= 1'b0;
      if (go) begin
        read_valid_q <= 1'b1;
        read_line_q  <= b_next_q ? b_q : a_q;
        tag          = '0;
        tag.gain     = gain_q;
        tag.b        = b_next_q;
        tag.odd      = odd_q;
        tag.middle   = middle_q;
        tag.second   = second_q;
        tag.last     = left_q == 13'd1 && (!streams_q || last_stream);
        tag.whole    = heads_q == 13'd1;
        tag.mine     = stream_q == '0;
        tag.opens    = 1'b1;
        tag.closes   = last_stream || correct_q;
        tag.stream   = stream_q;
        read_tag_q   <= tag;
        if (b_next_q) begin
          b_q      <= (gain_q && correct_q) ? op_i.a : b_q + 1'b1;
          b_next_q <= gain_q && !level_q && !predict_q;
          gain_q   <= 1'b0;
        end else if (streams_q) begin
          // A line of each stream.
          stream_q <= last_stream ? '0 : stream_q + 1'b1;
          a_q      <= last_stream ? begin_q + 1'b1 : a_q + CHIP_BITS'(op_i.width[16:4]);
          if (last_stream) begin
            begin_q   <= begin_q + 1'b1;
            left_q    <= left_q - 1'b1;
            reading_q <= left_q != 13'd1;
            b_next_q  <= correct_q;
            hold_q    <= predict_q;
          end
        end else begin
          b_next_q <= own_q || (shared_q && odd_q && (!level_q || second_q));
          odd_q    <= !odd_q;
          if (second_q) quarter_q <= quarter_q + 1'b1;
          head_out_q <= store_q && second_q;
          if (left_q != 13'd1) begin
            left_q <= left_q - 1'b1;
            a_q    <= a_q + 1'b1;
          end else begin
            left_q <= op_i.width[16:4];
            if (measures_q && !second_q) begin
              // Behind what holds for all numbers.
              hold_q   <= 1'b1;
              middle_q <= !level_q && !middle_q;
              second_q <= level_q || middle_q;
              a_q      <= (rescale_q && !middle_q) ? op_i.b : begin_q;
              b_q      <= op_i.b + 1'b1;
              b_next_q <= level_q;
            end else if (!sums_q && !second_q) begin
              // Once more. An activation's first value finds its shift, behind a cycle without a read.
              second_q <= 1'b1;
              b_q      <= norm_q ? op_i.b + 1'b1 : op_i.b;
              pause_q  <= 1'b1;
              a_q      <= begin_q;
            end else begin
              reading_q <= heads_q != 13'd1;
              heads_q   <= heads_q - 1'b1;
              second_q  <= 1'b0;
              begin_q   <= a_q + 1'b1;
              b_q       <= op_i.b;
              a_q       <= a_q + 1'b1;
              if (level_q) begin
                // The next head's squares take the shorter way: not before this one's numbers are through.
                b_next_q <= 1'b0;
                hold_q   <= 1'b1;
              end
            end
          end
        end
      end
    end else if (start_i) begin
      busy_q           <= 1'b1;
      sums_q           <= op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_ROPE || op_i.kind == OP_BLEND;
      own_q            <= op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_SWIGLU || op_i.kind == OP_GEGLU || op_i.kind == OP_BLEND;
      shared_q         <= op_i.kind == OP_NORM || op_i.kind == OP_ROPE || op_i.kind == OP_LEVEL;
      factors_q        <= op_i.kind == OP_NORM || op_i.kind == OP_ROPE || op_i.kind == OP_ACT || op_i.kind == OP_BLEND;
      gated_q          <= op_i.kind == OP_SWIGLU || op_i.kind == OP_GEGLU;
      measures_q       <= op_i.kind == OP_LEVEL || op_i.kind == OP_RESCALE || op_i.kind == OP_CUT;
      streams_q        <= op_i.kind == OP_PREDICT || op_i.kind == OP_CORRECT;
      norm_q           <= op_i.kind == OP_NORM;
      tanh_q           <= op_i.kind == OP_TANH;
      level_q          <= op_i.kind == OP_LEVEL;
      rescale_q        <= op_i.kind == OP_RESCALE;
      cut_q            <= op_i.kind == OP_CUT;
      copy_q           <= op_i.kind == OP_CUT && op_i.value == '0;
      predict_q        <= op_i.kind == OP_PREDICT;
      correct_q        <= op_i.kind == OP_CORRECT;
      store_q          <= op_i.kind == OP_STORE;
      reading_q        <= 1'b1;
      pause_q          <= 1'b0;
      hold_q           <= 1'b0;
      // Of a gain the line with its exponent, of streams that of coefficients.
      gain_q           <= op_i.kind == OP_NORM || op_i.kind == OP_LEVEL || op_i.kind == OP_PREDICT || op_i.kind == OP_CORRECT;
      b_next_q         <= op_i.kind != OP_ACT && op_i.kind != OP_STORE && op_i.kind != OP_TANH && op_i.kind != OP_CUT && op_i.kind != OP_RESCALE;
      odd_q            <= 1'b0;
      middle_q         <= 1'b0;
      second_q         <= op_i.kind == OP_CUT && op_i.value == '0;
      stream_q         <= '0;
      head_out_q       <= 1'b0;
      a_q              <= (op_i.kind == OP_CORRECT) ? op_i.dst : op_i.a;
      begin_q          <= (op_i.kind == OP_CORRECT) ? op_i.dst : op_i.a;
      b_q              <= op_i.b;
      left_q           <= op_i.width[16:4];
      heads_q          <= (op_i.kind == OP_PREDICT || op_i.kind == OP_CORRECT) ? 13'd1 : op_i.heads;
      quarter_q        <= '0;
      room_q           <= 3'(Rooms);
      table_valid_q    <= 1'b0;
      logistic_valid_q <= 1'b0;
      factor_valid_q   <= 1'b0;
      swish_valid_q    <= 1'b0;
      number_valid_q   <= 1'b0;
      product_valid_q  <= 1'b0;
      value_valid_q    <= 1'b0;
      half_valid_q     <= 1'b0;
      block_valid_q    <= 1'b0;
      rest_valid_q     <= 1'b0;
      squares4_valid_q <= 1'b0;
      squares_last_q   <= 1'b0;
      squares_q        <= '0;
      absolute_q       <= 1'b0;
      waits_q          <= 1'b0;
      measured_q       <= 1'b0;
      fix_q            <= 1'b0;
      bound1_q         <= 1'b0;
      bound2_q         <= 1'b0;
      bound_q          <= '0;
      mixes_q          <= 1'b0;
      sum_valid_q      <= 1'b0;
      magnitude_q      <= '0;
      sized_q          <= 1'b0;
      stored_valid_q   <= 1'b0;
      stored_waits_q   <= 1'b0;
      top_valid_q      <= 1'b0;
      top_fresh_q      <= 1'b1;
      best_valid_q     <= 1'b0;
      scaled_q         <= 1'b0;
      steps_q          <= '0;
      divided_q        <= 1'b0;
      line_part_q      <= '0;
      side_part_q      <= '0;
      line_full_q      <= 1'b0;
      side_full_q      <= 1'b0;
      head_owed_q      <= 1'b0;
      ended_q          <= 1'b0;
      queue_head_q     <= '0;
      queue_tail_q     <= '0;
      queue_count_q    <= '0;
      // Shifts lie behind the first line, scales on it; mantissas behind those.
      side_at_q        <= (op_i.kind == OP_STORE) ? op_i.dst : op_i.dst + 1'b1;
      line_begin_q     <= op_i.dst;
      line_stream_q    <= '0;
      line_at_q        <= makes_integers(op_i.kind) ? op_i.dst
                        : (op_i.kind == OP_STORE) ? op_i.dst + ((CHIP_BITS'(op_i.heads) + 15'd31) >> 5)
                        : op_i.dst + CHIP_BITS'((op_i.width + 17'd4095) >> 11);
    end
    if (!rst_ni) begin
      busy_q        <= 1'b0;
      done_q        <= 1'b0;
      read_valid_q  <= 1'b0;
      write_valid_q <= 1'b0;
      squares_last_q <= 1'b0;
    end
  end

`ifndef SYNTHESIS
  // N1, N2: what the word reads and writes, in lines.
  logic [31:0] elements, makes_q, written_q, a_lines_q, b_lines_q;
  always_ff @(posedge clk_i) begin
    if (write_valid_q) begin
      if (rst_ni && 32'(CHIP_BITS'(write_line_q - op_i.dst)) >= makes_q)
        $fatal(1, "N2 npu_sfu: line %0d is written, of %0d from %0d on", write_line_q, makes_q, op_i.dst);
      if (write_ready_i) written_q <= written_q + 1;
    end
    if (read_valid_q) begin
      if (rst_ni && 32'(CHIP_BITS'(read_line_q - op_i.a)) >= a_lines_q && 32'(CHIP_BITS'(read_line_q - op_i.b)) >= b_lines_q
          && !(correct_q && 32'(CHIP_BITS'(read_line_q - op_i.dst)) < makes_q))
        $fatal(1, "N2 npu_sfu: line %0d is read, which is of no operand", read_line_q);
    end
    if (busy_q) begin
      if (rst_ni && queue_count_q > 4'(QueueLines)) $fatal(1, "N2 npu_sfu: a line with no place for it");
    end
    if (done_q) begin
      if (rst_ni && written_q != makes_q) $fatal(1, "N2 npu_sfu: %0d lines written, not %0d, of kind %0d", written_q, makes_q, op_i.kind);
    end
    if (start_i) begin
      if (rst_ni && busy_q) $fatal(1, "N1 npu_sfu: started while it is busy");
      if (rst_ni && (op_i.kind < OP_ADD || op_i.kind == OP_ATTEND || op_i.kind > OP_CORRECT)) $fatal(1, "N1 npu_sfu: started with a word of kind %0d", op_i.kind);
      if (rst_ni && (op_i.heads == '0 || op_i.width == '0 || op_i.width[4:0] != '0 || (op_i.kind < OP_ROPE && op_i.heads != 13'd1)))
        $fatal(1, "N1 npu_sfu: started with %0d heads of %0d", op_i.heads, op_i.width);
      elements  = 32'(op_i.heads) * 32'(op_i.width);
      written_q <= '0;
      makes_q   <= makes_integers(op_i.kind) ? elements / 16
                 : (op_i.kind == OP_STORE) ? (32'(op_i.heads) + 31) / 32 + (elements + 63) / 64
                 : 1 + (elements + 2047) / 2048 + (elements + 63) / 64;
      a_lines_q <= ((op_i.kind == OP_CORRECT) ? 32'(op_i.width) : elements) / 16;
      b_lines_q <= (op_i.kind == OP_ROPE) ? 32'(op_i.width) / 32 : (op_i.kind == OP_NORM || op_i.kind == OP_LEVEL) ? 1 + 32'(op_i.width) / 32
                 : (op_i.kind == OP_PREDICT || op_i.kind == OP_CORRECT) ? 1
                 : (op_i.kind == OP_ACT || op_i.kind == OP_STORE || op_i.kind == OP_TANH || op_i.kind == OP_CUT) ? 0 : elements / 16;
    end
  end
  /* verilator lint_on BLKSEQ */
`endif
endmodule
