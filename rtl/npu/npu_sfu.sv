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
  } tag_t;

  logic busy_q, done_q;
  // What the word is, known from its start.
  logic sums_q;         // ADD, MUL, ROPE: a line of integers for each line of a
  logic own_q;          // ADD, MUL, SWIGLU: a line of b for each line of a
  logic shared_q;       // NORM, ROPE: one for two
  logic factors_q, swiglu_q, norm_q, store_q;

  assign idle_o = !busy_q;
  assign done_o = done_q;
  assign end_o  = UNIT_FINE;

  // ---------------------------------------------------------------- what is asked for
  logic                 reading_q, pause_q, gain_q, b_next_q, odd_q, second_q, head_out_q;
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
  logic          table_valid_q, logistic_valid_q, swish_valid_q, factor_valid_q, number_valid_q, product_valid_q, value_valid_q, half_valid_q;
  /* verilator lint_off UNUSEDSIGNAL */  // not all of a tag goes all the way
  tag_t          table_tag_q, logistic_tag_q, factor_tag_q, swish_tag_q, number_tag_q, product_tag_q, value_tag_q, half_tag_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [511:0]  gate_q, up_q, up_late_q;
  logic [255:0]  low_q, rise_q, part_q;
  logic [511:0]  factor_q, number_q, other_q, third_q;    // number · factor (17 bits of each 32); other · third
  logic [1023:0] first_product_q, second_product_q, value_q;
  logic [255:0]  squares4_q;
  logic          squares4_valid_q, squares4_last_q, squares_last_q;
  logic [63:0]   squares_q;
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
  logic [CHIP_BITS-1:0] line_at_q, side_at_q;

  logic                 rms_ready;
  logic [15:0]          inverse;
  logic [4:0]           half_up;
  npu_rms u_rms (
    .clk_i, .rst_ni, .start_i(squares_last_q), .squares_i(squares_q), .count_i(op_i.width), .epsilon_i(op_i.value),
    .ready_o(rms_ready), .inverse_o(inverse), .half_o(half_up)
  );

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
  logic                 push, pop, give, take, go, closes, put, put_last, note, note_last, a_comes, freed;
  logic [CHIP_BITS:0]   push_line;
  logic [511:0]         push_data, next_line, next_side, lanes, lanes2, lanes3;
  logic [1023:0]        wide;
  logic [255:0]         halves, lows, rises, parts, fours;
  logic [127:0]         bytes;
  logic [15:0]          noted, h, signs;
  logic [75:0]          tops;
  logic [14:0]          sizes, at;
  logic [52:0]          bits;
  logic [3:0]           down;
  logic [18:0]          best;
  logic [24:0]          dividend;
  logic [17:0]          rest;
  logic [31:0]          pair;
  logic signed [31:0]   x, y;
  logic signed [16:0]   f;
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
        line_at_q   <= line_at_q + 1'b1;
        line_full_q <= 1'b0;
      end else if (side_full_q) begin
        push        = 1'b1;
        push_line   = {1'b0, side_at_q};
        push_data   = side_q;
        side_at_q   <= side_at_q + 1'b1;
        side_full_q <= 1'b0;
      end else if (head_owed_q && rms_ready) begin
        push        = 1'b1;
        push_line   = {1'b0, op_i.dst};
        push_data   = {480'd0, (norm_q ? exponent_q + {11'd0, half_up} - 16'd46 : -16'd25) + {10'd0, shift_q}, norm_q ? inverse : 16'h8000};
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
      half_valid_q <= value_valid_q && value_tag_q.second;
      if (value_valid_q) begin
        if (value_tag_q.second) begin
          for (int k = 0; k < 16; k++) halves[16*k +: 16] = half_of(value_q[64*k +: 64], shift_q);
          half_q     <= halves;
          half_tag_q <= value_tag_q;
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
      squares_last_q <= squares4_valid_q && squares4_last_q;
      if (squares4_valid_q)
        squares_q <= squares_q + ((squares4_q[63:0] + squares4_q[127:64]) + (squares4_q[191:128] + squares4_q[255:192]));

      // -------------------------------------------------------------- what the products become
      value_valid_q    <= product_valid_q && !sums_q;
      squares4_valid_q <= product_valid_q && norm_q && !product_tag_q.second;
      if (product_valid_q) begin
        if (sums_q) begin
          for (int k = 0; k < 16; k++) begin
            p = second_product_q[64*k +: 64];
            case (op_i.kind)
              OP_ADD:  lanes[32*k +: 32] = bound_residual(p);
              OP_MUL:  lanes[32*k +: 32] = bound32(round10(p));
              default: lanes[32*k +: 32] = bound32(round14((k % 2 == 0) ? first_product_q[64*k +: 64] - p : first_product_q[64*k +: 64] + p));
            endcase
          end
          line_q      <= lanes;
          line_full_q <= 1'b1;
          if (product_tag_q.last && product_tag_q.whole) ended_q <= 1'b1;
        end else begin
          wide = first_product_q;
          if (swiglu_q) for (int k = 0; k < 16; k++) wide[64*k +: 64] = round10(second_product_q[64*k +: 64]);
          value_q     <= wide;
          value_tag_q <= product_tag_q;
          if (norm_q && !product_tag_q.second) begin
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
      if (number_valid_q) begin
        product_tag_q <= number_tag_q;
        if (op_i.kind == OP_ADD) begin
          for (int k = 0; k < 16; k++) begin
            x = other_q[32*k +: 32];
            y = third_q[32*k +: 32];
            wide[64*k +: 64] = 64'(x) + 64'(y);
          end
          second_product_q <= wide;
        end else if (sums_q || swiglu_q || (norm_q && !number_tag_q.second)) begin
          for (int k = 0; k < 16; k++) begin
            x = other_q[32*k +: 32];
            y = third_q[32*k +: 32];
            wide[64*k +: 64] = 64'(x) * 64'(y);
          end
          second_product_q <= wide;
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

      // -------------------------------------------------------------- SWIGLU: swish, the logistic function, its table
      a_comes = read_answer_i && !answer_tag_q.b && !answer_tag_q.gain;
      number_valid_q <= swiglu_q ? swish_valid_q : a_comes;
      if (swish_valid_q) begin
        for (int k = 0; k < 16; k++) lanes[32*k +: 32] = bound32(round15(first_product_q[64*k +: 64]));
        other_q      <= lanes;
        third_q      <= up_late_q;
        number_tag_q <= swish_tag_q;
      end
      swish_valid_q <= swiglu_q && factor_valid_q;
      if (factor_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          x = number_q[32*k +: 32];
          f = factor_q[32*k +: 17];
          wide[64*k +: 64] = 64'(x) * 64'(f);
        end
        first_product_q <= wide;
        swish_tag_q     <= factor_tag_q;
      end
      factor_valid_q <= swiglu_q ? logistic_valid_q : a_comes && factors_q;
      if (logistic_valid_q) begin
        for (int k = 0; k < 16; k++)
          lanes[32*k +: 32] = {16'd0, low_q[16*k +: 16]} + ((32'(rise_q[16*k +: 16]) * 32'(part_q[16*k +: 9]) + 32'd256) >> 9);
        factor_q     <= lanes;
        number_q     <= gate_q;
        up_late_q    <= up_q;
        factor_tag_q <= logistic_tag_q;
      end
      logistic_valid_q <= table_valid_q;
      if (table_valid_q) begin
        for (int k = 0; k < 16; k++) begin
          at   = logistic_at(gate_q[32*k +: 32]);
          pair = SIGMOID[{1'b0, at[14:9], 4'd0} +: 32];
          lows[16*k +: 16]  = pair[15:0];
          rises[16*k +: 16] = pair[31:16] - pair[15:0];
          parts[16*k +: 16] = {7'd0, at[8:0]};
        end
        low_q          <= lows;
        rise_q         <= rises;
        part_q         <= parts;
        logistic_tag_q <= table_tag_q;
      end
      table_valid_q <= swiglu_q && a_comes;

      // -------------------------------------------------------------- answers
      if (read_answer_i) begin
        if (a_comes && swiglu_q) begin
          gate_q      <= read_data_i;
          up_q        <= held_q;
          table_tag_q <= answer_tag_q;
        end else if (a_comes) begin
          number_tag_q <= answer_tag_q;
          factor_tag_q <= answer_tag_q;
          lanes2       = read_data_i;
          lanes3       = norm_q ? read_data_i : held_q;
          if (factors_q) begin
            halves = answer_tag_q.odd ? held_q[511:256] : held_q[255:0];
            case (op_i.kind)
              OP_NORM: for (int k = 0; k < 16; k++) lanes[32*k +: 32] = {{16{halves[16*k + 15]}}, halves[16*k +: 16]};
              OP_ROPE:
                for (int k = 0; k < 16; k++) begin
                  // Cosine and sine of its pair; the sine goes with the neighbour.
                  pair = halves[32*(k/2) +: 32];
                  lanes[32*k +: 32]  = {{16{pair[15]}}, pair[15:0]};
                  lanes3[32*k +: 32] = {{16{pair[31]}}, pair[31:16]};
                  lanes2[32*k +: 32] = read_data_i[32*((k % 2 == 0) ? k + 1 : k - 1) +: 32];
                end
              default: for (int k = 0; k < 16; k++) lanes[32*k +: 32] = 32'd1;
            endcase
            number_q <= read_data_i;
            factor_q <= lanes;
          end
          other_q <= lanes2;
          third_q <= lanes3;
        end
        if (answer_tag_q.gain)   exponent_q <= read_data_i[15:0];
        else if (answer_tag_q.b) held_q     <= read_data_i;
      end

      // -------------------------------------------------------------- reads
      closes  = sums_q || (second_q && (quarter_q == '1 || (left_q == 13'd1 && heads_q == 13'd1)));
      go      = reading_q && !pause_q && (!read_valid_q || read_ready_i) && (b_next_q || ((!closes || room_q != '0) && !head_out_q));
      take    = go && !b_next_q && closes;
      room_q  <= room_q + {2'd0, give} - {2'd0, take};
      if (read_valid_q && read_ready_i) begin
        answer_tag_q <= read_tag_q;
        read_valid_q <= 1'b0;
      end
      if (read_ready_i) pause_q    <= 1'b0;   // a cycle without one, not one that waits
      if (freed)        head_out_q <= 1'b0;
      if (go) begin
        read_valid_q <= 1'b1;
        read_line_q  <= b_next_q ? b_q : a_q;
        read_tag_q   <= {gain_q, b_next_q, odd_q, second_q, left_q == 13'd1, heads_q == 13'd1};
        if (b_next_q) begin
          b_q      <= b_q + 1'b1;
          b_next_q <= gain_q;
          gain_q   <= 1'b0;
        end else begin
          b_next_q <= own_q || (shared_q && odd_q);
          odd_q    <= !odd_q;
          if (second_q) quarter_q <= quarter_q + 1'b1;
          head_out_q <= store_q && second_q;
          if (left_q != 13'd1) begin
            left_q <= left_q - 1'b1;
            a_q    <= a_q + 1'b1;
          end else begin
            left_q <= op_i.width[16:4];
            if (!sums_q && !second_q) begin
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
            end
          end
        end
      end
    end else if (start_i) begin
      busy_q           <= 1'b1;
      sums_q           <= op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_ROPE;
      own_q            <= op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_SWIGLU;
      shared_q         <= op_i.kind == OP_NORM || op_i.kind == OP_ROPE;
      factors_q        <= op_i.kind == OP_NORM || op_i.kind == OP_ROPE || op_i.kind == OP_ACT;
      swiglu_q         <= op_i.kind == OP_SWIGLU;
      norm_q           <= op_i.kind == OP_NORM;
      store_q          <= op_i.kind == OP_STORE;
      reading_q        <= 1'b1;
      pause_q          <= 1'b0;
      gain_q           <= op_i.kind == OP_NORM;
      b_next_q         <= op_i.kind != OP_ACT && op_i.kind != OP_STORE;
      odd_q            <= 1'b0;
      second_q         <= 1'b0;
      head_out_q       <= 1'b0;
      a_q              <= op_i.a;
      begin_q          <= op_i.a;
      b_q              <= op_i.b;
      left_q           <= op_i.width[16:4];
      heads_q          <= op_i.heads;
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
      line_at_q        <= (op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_ROPE) ? op_i.dst
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
      if (rst_ni && 32'(CHIP_BITS'(read_line_q - op_i.a)) >= a_lines_q && 32'(CHIP_BITS'(read_line_q - op_i.b)) >= b_lines_q)
        $fatal(1, "N2 npu_sfu: line %0d is read, which is of no operand", read_line_q);
    end
    if (busy_q) begin
      if (rst_ni && queue_count_q > 4'(QueueLines)) $fatal(1, "N2 npu_sfu: a line with no place for it");
    end
    if (done_q) begin
      if (rst_ni && written_q != makes_q) $fatal(1, "N2 npu_sfu: %0d lines written, not %0d", written_q, makes_q);
    end
    if (start_i) begin
      if (rst_ni && busy_q) $fatal(1, "N1 npu_sfu: started while it is busy");
      if (rst_ni && (op_i.kind < OP_ADD || op_i.kind > OP_STORE)) $fatal(1, "N1 npu_sfu: started with a word of kind %0d", op_i.kind);
      if (rst_ni && (op_i.heads == '0 || op_i.width == '0 || op_i.width[4:0] != '0 || (op_i.kind < OP_ROPE && op_i.heads != 13'd1)))
        $fatal(1, "N1 npu_sfu: started with %0d heads of %0d", op_i.heads, op_i.width);
      elements  = 32'(op_i.heads) * 32'(op_i.width);
      written_q <= '0;
      makes_q   <= (op_i.kind == OP_ADD || op_i.kind == OP_MUL || op_i.kind == OP_ROPE) ? elements / 16
                 : (op_i.kind == OP_STORE) ? (32'(op_i.heads) + 31) / 32 + (elements + 63) / 64
                 : 1 + (elements + 2047) / 2048 + (elements + 63) / 64;
      a_lines_q <= elements / 16;
      b_lines_q <= (op_i.kind == OP_ROPE) ? 32'(op_i.width) / 32 : (op_i.kind == OP_NORM) ? 1 + elements / 32
                 : (op_i.kind == OP_ACT || op_i.kind == OP_STORE) ? 0 : elements / 16;
    end
  end
  /* verilator lint_on BLKSEQ */
`endif
endmodule
