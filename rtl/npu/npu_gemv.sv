// GEMV and HEAD: a matrix of model memory times the activations at op.a of up to Contexts contexts, 64 products a beat for each. Of OP_MULTIPLY
// the rows go to op.dst, 16 a line; of OP_HEAD they are logits, and go to the samplers.
//
//   activation  of one context after the other: head, then in turn a line of shifts and the 32 lines of mantissas that it is for; each line of
//               mantissas is kept with its two shifts
//   memory      a line of 32 rows' scales, then these rows in one burst, and so on: asked for ahead, as far as memory takes it, so a beat
//               can be taken in every cycle. Rows that do not fill a line of scales are asked for one by one, which spares a multiplier
//   beat        weights beside mantissas → sums of four products → sums of two blocks → both shifted and added → the row's sum
//   row         sum · factor → shifted → within 32 bits → its place in the line, or [softcap in four cycles, as long as the sampler takes] the sampler
//
// Behind the last row of OP_MULTIPLY zeros fill up 32.
//
// Weights, scales and where a row stands are the same for all contexts, which go in step; what is a context's own is its numbers. The factor of a
// row, its scale times that of the activation, is worked out beside the beats. Whatever may have to wait, for a line of dst,
// the write port or a sampler, is the last step, and with it the whole pipeline stands still.
module npu_gemv
  import npu_pkg::*;
  import npu_unit_pkg::*;
#(
  parameter int Lines    = 1024,              // of 64 mantissas: as many as an activation may have, 2 to 1,024
  parameter int Contexts = 1                  // that share a pass over the weights, 1 to 8
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   start_i,
  /* verilator lint_off UNUSEDSIGNAL */       // what other kinds of words need
  input  npu_op_t                op_i,
  /* verilator lint_on UNUSEDSIGNAL */
  input  logic [Contexts-1:0]    mask_i,      // beside start_i: whose word it is, one at least
  input  logic                   give_up_i,   // nobody waits for the word: no further rows are asked for
  output logic                   idle_o,
  output logic                   done_o,
  output npu_end_t               end_o,

  // On-chip memory, lines of a context.
  output logic                   read_valid_o,
  output logic [2:0]             read_context_o,
  output logic [CHIP_BITS-1:0]   read_line_o,
  input  logic                   read_ready_i,
  input  logic                   read_answer_i,
  input  logic [511:0]           read_data_i,
  output logic                   write_valid_o,
  output logic [2:0]             write_context_o,
  output logic [CHIP_BITS-1:0]   write_line_o,
  output logic [511:0]           write_data_o,
  input  logic                   write_ready_i,

  // Model memory.
  output logic                   fetch_valid_o,
  output logic [MEMORY_BITS-1:0] fetch_line_o,
  output logic [15:0]            fetch_lines_o,
  input  logic                   fetch_ready_i,
  input  logic                   beat_valid_i,
  input  logic [511:0]           beat_data_i,
  input  logic                   beat_fault_i,
  output logic                   beat_ready_o,

  // The samplers, one for each context.
  output logic                   sampler_begin_o,   // those of mask_i's contexts forget all logits
  input  logic                   sampler_begun_i,   // a head may continue
  input  logic                   sampler_idle_i,    // nothing that they were given is left to be done
  output logic [Contexts-1:0]    logit_valid_o,
  output logic [Contexts-1:0][31:0] logit_o,
  output logic                   logit_last_o,      // a token is wanted behind this one
  input  logic [Contexts-1:0]    logit_ready_i
);
  if (Lines < 2 || Lines > 1024) begin : gen_bad_lines
    localparam bit LinesMustBe2To1024 = {-1{1'b1}};   // ends the elaboration
  end
  if (Contexts < 1 || Contexts > 8) begin : gen_bad_contexts
    localparam bit ContextsMustBe1To8 = {-1{1'b1}};
  end

  localparam int ColumnBits  = $clog2(Lines);
  localparam int ContextBits = (Contexts == 1) ? 1 : $clog2(Contexts);

  // Lower four bits of each byte: shifts count no more.
  function automatic logic [255:0] nibbles(input logic [511:0] bytes);
    nibbles = '0;
    for (int k = 0; k < 64; k++) nibbles[4*k +: 4] = bytes[8*k +: 4];
  endfunction

  function automatic logic signed [31:0] products(input logic [31:0] w, input logic [31:0] a);
    products = $signed(w[7:0])   * $signed(a[7:0])   + $signed(w[15:8])  * $signed(a[15:8]) +
               $signed(w[23:16]) * $signed(a[23:16]) + $signed(w[31:24]) * $signed(a[31:24]);
  endfunction

  // A block's sum, of its eight sums of four: 32 · 2^14 at most.
  function automatic logic signed [20:0] block(input logic [255:0] parts);
    logic signed [31:0] sum;
    sum = '0;
    for (int k = 0; k < 8; k++) sum = sum + $signed(parts[32*k +: 32]);
    block = sum[20:0];
  endfunction

  function automatic logic [31:0] joined(input logic signed [20:0] low, input logic signed [20:0] high,
                                         input logic [7:0] shifts);
    logic signed [31:0] wide_low, wide_high;
    wide_low  = {{11{low[20]}}, low};
    wide_high = {{11{high[20]}}, high};
    joined = (wide_low << shifts[3:0]) + (wide_high << shifts[7:4]);
  endfunction

  function automatic logic [23:0] factor(input logic [15:0] row, input logic [15:0] scale);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [31:0] product;
    /* verilator lint_on UNUSEDSIGNAL */
    product = row * scale;
    factor = product[31:8];
  endfunction

  // value / 2^amount, halves up.
  function automatic logic [63:0] rounded(input logic signed [63:0] value, input logic [5:0] amount);
    logic signed [63:0] shifted;
    shifted = value >>> amount;
    rounded = shifted + {63'd0, amount != '0 && value[amount - 6'd1]};
  endfunction

  function automatic logic [31:0] clamped(input logic [63:0] value);
    clamped = (value[63:31] == '0 || value[63:31] == '1) ? value[31:0] : {value[63], {31{!value[63]}}};
  endfunction

  // Sums of the residual stream stay within ±(2^26 - 1).
  function automatic logic [31:0] residual(input logic signed [31:0] a, input logic signed [31:0] b);
    logic signed [32:0] sum;
    sum = a + b;
    residual = (sum > 33'sd67108863) ? 32'd67108863 : (sum < -33'sd67108863) ? -32'd67108863 : sum[31:0];
  endfunction

  function automatic logic [31:0] magnitude(input logic [31:0] value);
    magnitude = value[31] ? -value : value;
  endfunction

  // softcap: |logit| / 30 with 14 fraction bits, at most 65,535.
  function automatic logic [15:0] thirtieth(input logic [48:0] product);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [48:0] sum;
    /* verilator lint_on UNUSEDSIGNAL */
    sum = product + 49'd32768;
    thirtieth = (sum[48:32] != '0) ? 16'hFFFF : sum[31:16];
  endfunction

  // … between two entries of the table,
  function automatic logic [14:0] between(input logic [14:0] low, input logic [14:0] rise, input logic [7:0] part);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [22:0] sum;
    /* verilator lint_on UNUSEDSIGNAL */
    sum = 23'(rise) * 23'(part) + 23'd128;
    between = low + sum[22:8];
  endfunction

  // … and 30 times that, of 15 fraction bits 10 left.
  function automatic logic [31:0] thirty(input logic [14:0] tanh, input logic minus);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [18:0] product;
    /* verilator lint_on UNUSEDSIGNAL */
    product = {tanh, 4'd8} - {4'd0, tanh};
    thirty = minus ? -{17'd0, product[18:4]} : {17'd0, product[18:4]};
  endfunction

  // A row's place in its line: zeros fill up the last one.
  function automatic logic [31:0] placed(input logic [31:0] there, input logic [31:0] value, input logic pad, input logic accumulate);
    placed = pad ? '0 : accumulate ? residual(there, value) : value;
  endfunction

  // How far a product is shifted: right, or left if it is negative.
  function automatic logic signed [17:0] shift(input logic [7:0] row, input logic [15:0] activation);
    shift = -(18'sd18 + {{10{row[7]}}, row} + {{2{activation[15]}}, activation});
  endfunction

  // … and left as right by 31 - amount.
  function automatic logic [5:0] amount(input logic signed [17:0] right);
    amount = (right < 0) ? 6'd31 + right[5:0] : right[5:0];
  endfunction

  // The lowest of a mask.
  function automatic logic [2:0] lowest(input logic [Contexts-1:0] mask);
    lowest = '0;
    for (int k = Contexts - 1; k >= 0; k--) if (mask[k]) lowest = 3'(k);
  endfunction

  // Those of a mask behind one.
  function automatic logic [Contexts-1:0] behind(input logic [Contexts-1:0] mask, input logic [2:0] context_now);
    behind = mask;
    for (int k = 0; k < Contexts; k++) if (k <= int'(context_now)) behind[k] = 1'b0;
  endfunction

  // ---------------------------------------------------------------- the word
  logic        busy_q, done_q;
  npu_end_t    end_q;
  logic [Contexts-1:0] mask_q;
  logic        head_q, last_q, cap_q, accumulate_q, scaled_q, half_q;
  logic [10:0] row_lines_q;                   // lines of a row: 1 to 1,024
  logic [9:0]  last_column_q;                 // and one less
  logic [9:0]  last_column;
  logic        multiplies, refused;           // refused: a head that continues none

  assign multiplies  = op_i.kind == OP_MULTIPLY;
  assign refused     = !multiplies && !op_i.first && !sampler_begun_i;
  assign last_column = op_i.columns[15:6] - (op_i.columns[5] ? 10'd0 : 10'd1);

  assign idle_o = !busy_q && !done_q;
  assign done_o = done_q;
  assign end_o  = end_q;

  // ---------------------------------------------------------------- reads of on-chip memory
  localparam logic [1:0] Head     = 2'd0;
  localparam logic [1:0] Shifts   = 2'd1;
  localparam logic [1:0] Mantissas = 2'd2;
  localparam logic [1:0] Before   = 2'd3;     // a line of dst

  logic                 read_valid_q;
  logic [1:0]           read_what_q, came_what_q;
  logic [2:0]           read_context_q, came_context_q;     // whose line
  logic [Contexts-1:0]  read_left, came_left;               // whose come behind it
  logic [CHIP_BITS-1:0] read_line_q, shifts_line_q, mantissas_line_q, before_line_q;
  logic [10:0]          ask_column_q;         // lines of mantissas that were asked for
  logic [9:0]           came_column_q;
  logic                 filled_q;             // all activations are here
  logic [11:0]          before_left_q;        // lines of dst that are still to be asked for
  logic                 before_open_q;        // one of each context is on its way, or here,
  logic                 before_here_q;        // and they are here

  assign read_valid_o   = read_valid_q;
  assign read_context_o = read_context_q;
  assign read_line_o    = read_line_q;
  assign read_left      = behind(mask_q, read_context_q);
  assign came_left      = behind(mask_q, came_context_q);

  // ---------------------------------------------------------------- model memory
  logic                   fetch_valid_q, fetch_scales_q, fetch_single_q;
  logic [MEMORY_BITS-1:0] fetch_line_q, rows_line_q;
  logic [31:0]            scales_line_q;
  logic [15:0]            fetch_lines_q;
  logic [20:0]            rows_unasked_q, rows_untaken_q, rows_left_q;   // left: to be put into their place
  logic                   wants_scales_q;     // the next beat is one of scales
  logic [511:0]           scales_q;
  logic [4:0]             row_q;              // in the line of scales
  logic [9:0]             column_q;

  assign fetch_valid_o = fetch_valid_q;
  assign fetch_line_o  = fetch_line_q;
  assign fetch_lines_o = fetch_lines_q;

  // ---------------------------------------------------------------- the pipeline
  logic               taken_q, parts_valid_q, blocks_valid_q, joined_valid_q;       // of a beat
  logic               taken_last_q, parts_last_q, blocks_last_q, joined_last_q;     // a row's last
  logic [511:0]       weights_q;
  logic [15:0]        row_scale_q;
  logic               row_valid_q, product_valid_q, shifted_valid_q, value_valid_q; // of a row

  // ---------------------------------------------------------------- the last step
  logic                 soft_goes, soft_free, pads, places, puts, fills, loads, stands, takes, weighs, cuts;
  logic                 line_here_q;          // what is added to is here
  logic [3:0]           slot_q;
  logic [511:0]         full_q [0:(1 << ContextBits)-1];
  logic [Contexts-1:0]  write_left_q, logit_valid_q;        // contexts whose line is to be written; whose logit is to be taken
  logic [2:0]           write_context;
  logic [CHIP_BITS-1:0] write_line_q;
  logic                 logit_last_q, begin_q;
  logic [Contexts-1:0][31:0] logit_q;
  logic [4:0]           pads_q;               // zeros behind the last row
  logic [3:0]           soft_q;               // a logit is at this stage of softcap
  logic                 soft_last_q;

  assign write_valid_o   = write_left_q != '0;
  assign write_context   = lowest(write_left_q);
  assign write_context_o = write_context;
  assign write_line_o    = write_line_q;
  // Icarus 11 misses changes of an array's word in a continuous assignment that chooses it.
  always_comb write_data_o = full_q[write_context[ContextBits-1:0]];
  assign logit_valid_o   = logit_valid_q;
  assign logit_o         = logit_q;
  assign logit_last_o    = logit_last_q;
  assign sampler_begin_o = begin_q;

  assign stands       = value_valid_q && (cap_q ? !soft_free : head_q ? logit_valid_q != '0 : !line_here_q || (write_left_q != '0 && slot_q == 4'd15));
  assign soft_goes    = !(soft_q[3] && (logit_valid_q & ~logit_ready_i) != '0);
  assign soft_free    = soft_q[2:0] == '0 && soft_goes;
  assign pads         = busy_q && !head_q && rows_left_q != '0 && rows_left_q <= {16'd0, pads_q} && !(write_left_q != '0 && slot_q == 4'd15);
  assign places       = (value_valid_q && !stands) || pads;
  assign puts         = places && !head_q;
  assign fills        = puts && slot_q == 4'd15;
  assign loads        = before_here_q && (fills || !line_here_q);
  assign beat_ready_o = filled_q && !stands;
  assign takes        = beat_valid_i && beat_ready_o;
  assign cuts         = give_up_i && fetch_valid_q && fetch_ready_i && !fetch_scales_q;
  assign weighs       = takes && !wants_scales_q;

  // ---------------------------------------------------------------- a context's numbers
  // Words are for the first context alone for much of the time: the others rest meanwhile.
  logic [Contexts-1:0] now, beyond_first;
  logic                clk_beyond_first;
  assign now          = start_i ? mask_i : busy_q ? mask_q : '0;
  assign beyond_first = now & ~Contexts'(1);
  rest_clock u_rest_clock (.clk_i, .rst_ni, .moves_i(beyond_first != '0), .clk_o(clk_beyond_first));

  for (genvar c = 0; c < Contexts; c++) begin : gen_context
    logic clk_context;
    assign clk_context = (c == 0) ? clk_i : clk_beyond_first;

    logic [511:0]       before_q, line_q;     // of line_q the next value's place is lowest, and moves up as they come
    logic [15:0]        scale_q;              // of the activation
    logic signed [15:0] exponent_q;
    logic [255:0]       shifts_q;
    logic [519:0]       activation [0:Lines-1];   // two shifts, 64 mantissas
    logic [519:0]       mantissas_q;
    logic [511:0]       parts_q;
    logic [7:0]         shifts1_q, shifts2_q;
    logic signed [20:0] low_q, high_q;
    logic [31:0]        joined_q, sum_q;
    logic [23:0]        factor1_q, factor2_q, factor3_q, factor4_q;
    logic signed [31:0] row_sum_q;
    logic signed [55:0] product_q;
    logic [63:0]        shifted_q;
    logic               over_q, below_q;      // beyond 32 bits, and on which side
    logic [31:0]        value_q;
    logic               soft_minus_q;
    logic [48:0]        soft_product_q;
    logic [15:0]        soft_at_q;
    logic [14:0]        soft_low_q, soft_rise_q, tanh_q;
    logic [7:0]         soft_part_q;

    // By how much products are shifted.
    logic               left_q, far_q, none_q;  // far: so far left that nothing but 0 stays; none: so far right that nothing does
    logic [5:0]         amount_q;
    logic               answers;                // what was read is its

    assign answers = read_answer_i && came_context_q == 3'(c);

    // What goes on to others, with those of the other contexts.
    always_ff @(posedge clk_i) begin
      if (places && head_q && !cap_q) logit_q[c] <= value_q;
      if (soft_q[3] && soft_goes)     logit_q[c] <= thirty(tanh_q, soft_minus_q);
    end

    // Each wide register that is not of the pipeline has a process of its own: in one that goes on reading it a simulation copies it in
    // every cycle.
    always_ff @(posedge clk_i) begin
      if (fills && mask_q[c]) full_q[c] <= {placed(line_q[31:0], value_q, pads, accumulate_q), line_q[511:32]};
    end

    always_ff @(posedge clk_context) begin
      if (loads) line_q <= before_q;
      else if (puts && mask_q[c]) line_q <= {placed(line_q[31:0], value_q, pads, accumulate_q), line_q[511:32]};
    end

    always_ff @(posedge clk_context) begin
      if (answers) shifts_q <= (came_what_q == Shifts) ? nibbles(read_data_i) : {8'd0, shifts_q[255:8]};
    end

    // What reads a register stands before what writes it, for the same reason.
    always_ff @(posedge clk_context) begin
      if (busy_q && mask_q[c]) begin
        if (answers) begin
          if (came_what_q == Before) before_q <= read_data_i;
          if (came_what_q == Head) {exponent_q, scale_q} <= read_data_i[31:0];
          if (came_what_q == Mantissas) begin
            activation[came_column_q[ColumnBits-1:0]] <=
              {shifts_q[7:0], (half_q && came_column_q == last_column_q) ? 256'd0 : read_data_i[511:256], read_data_i[255:0]};
            if (came_column_q == last_column_q) begin
              left_q   <= scaled_q && shift(op_i.exponent, exponent_q) < 0;
              far_q    <= scaled_q && shift(op_i.exponent, exponent_q) < -18'sd31;
              none_q   <= scaled_q && shift(op_i.exponent, exponent_q) > 18'sd63;
              amount_q <= !scaled_q ? '0 : amount(shift(op_i.exponent, exponent_q));
            end
          end
        end

        // ---------------------------------------------------------- softcap
        if (soft_q[2]) tanh_q <= between(soft_low_q, soft_rise_q, soft_part_q);
        if (soft_q[1]) begin
          soft_low_q  <= TANH[15 * 32'(soft_at_q[15:8]) +: 15];
          soft_rise_q <= TANH[15 * 32'(soft_at_q[15:8]) + 15 +: 15] - TANH[15 * 32'(soft_at_q[15:8]) +: 15];
          soft_part_q <= soft_at_q[7:0];
        end
        if (soft_q[0]) soft_at_q <= thirtieth(soft_product_q);
        if (places && cap_q) begin
          soft_product_q <= {17'd0, magnitude(value_q)} * 49'(THIRTIETH);
          soft_minus_q   <= value_q[31];
        end

        // ---------------------------------------------------------- rows and beats, the later ones first
        if (!stands) begin
          if (shifted_valid_q) value_q <= over_q ? {below_q, {31{!below_q}}} : clamped(shifted_q);

          if (product_valid_q) begin
            shifted_q <= none_q ? 64'd0 :
                         rounded(left_q ? {product_q[31], product_q[31:0], 31'd0} : {{8{product_q[55]}}, product_q}, amount_q);
            over_q    <= far_q ? product_q != '0 : left_q && product_q[55:31] != '0 && product_q[55:31] != '1;
            below_q   <= product_q[55];
          end

          if (row_valid_q) product_q <= row_sum_q * $signed({1'b0, factor4_q});

          if (joined_valid_q) begin
            row_sum_q <= sum_q + joined_q;
            factor4_q <= factor3_q;
            sum_q     <= joined_last_q ? '0 : sum_q + joined_q;
          end

          if (blocks_valid_q) begin
            joined_q  <= joined(low_q, high_q, shifts2_q);
            factor3_q <= factor2_q;
          end

          if (parts_valid_q) begin
            low_q     <= block(parts_q[255:0]);
            high_q    <= block(parts_q[511:256]);
            shifts2_q <= shifts1_q;
            factor2_q <= factor1_q;
          end

          if (taken_q) begin
            for (int g = 0; g < 16; g++)
              parts_q[32*g +: 32] <= products(weights_q[32*g +: 32], mantissas_q[32*g +: 32]);
            shifts1_q <= mantissas_q[519:512];
            factor1_q <= scaled_q ? factor(row_scale_q, scale_q) : 24'd1;
          end

          if (weighs) mantissas_q <= activation[column_q[ColumnBits-1:0]];
        end
      end
      if (start_i && mask_i[c]) sum_q <= '0;
    end
  end

  // ---------------------------------------------------------------- what contexts have in common
  always_ff @(posedge clk_i) begin
    if (takes && wants_scales_q) scales_q <= beat_data_i;
  end

  always_ff @(posedge clk_i) begin
    if (weighs) weights_q <= beat_data_i;
  end

  always_ff @(posedge clk_i) begin
    if (busy_q) begin
      // ------------------------------------------------------------ the end
      if (rows_left_q == '0 && (!before_open_q || before_here_q)
          && (head_q ? soft_q == '0 && logit_valid_q == '0 && sampler_idle_i
                     : write_left_q == '0 || (write_ready_i && behind(write_left_q, write_context) == '0))) begin
        busy_q   <= 1'b0;
        done_q   <= 1'b1;
        filled_q <= 1'b0;
      end

      // ------------------------------------------------------------ reads of on-chip memory
      if (!read_valid_q && !before_open_q && before_left_q != '0 && rows_left_q != '0) begin
        // The activations were asked for: read_what_q is Before. A word that is given up may ask for one line too many.
        read_valid_q   <= 1'b1;
        read_context_q <= lowest(mask_q);
        read_line_q    <= before_line_q;
        before_line_q  <= before_line_q + CHIP_BITS'(1);
        before_left_q  <= before_left_q - 12'd1;
        before_open_q  <= 1'b1;
      end
      if (loads) begin
        before_open_q <= 1'b0;
        before_here_q <= 1'b0;
        line_here_q   <= 1'b1;
      end else if (fills && accumulate_q) begin
        line_here_q   <= 1'b0;
      end
      if (read_answer_i) begin
        if (came_what_q == Before && came_left == '0) before_here_q <= 1'b1;
        if (came_what_q == Mantissas) begin
          if (came_column_q == last_column_q && came_left == '0) filled_q <= 1'b1;
          came_column_q <= (came_column_q == last_column_q) ? '0 : came_column_q + 10'd1;
        end
      end
      if (read_valid_q && read_ready_i) begin
        came_what_q    <= read_what_q;
        came_context_q <= read_context_q;
        if (read_what_q == Before || (read_what_q == Mantissas && ask_column_q == row_lines_q)) begin
          // On with the next context's.
          if (read_left != '0) read_context_q <= lowest(read_left);
          else begin
            read_valid_q <= 1'b0;
            read_what_q  <= Before;
          end
          if (read_what_q != Before && read_left != '0) begin
            read_what_q      <= Head;
            read_line_q      <= op_i.a;
            shifts_line_q    <= op_i.a + CHIP_BITS'(1);
            mantissas_line_q <= op_i.a + CHIP_BITS'(2) + {10'd0, last_column_q[9:5]};
            ask_column_q     <= '0;
          end
        end else if (read_what_q == Head || (read_what_q == Mantissas && ask_column_q[4:0] == '0)) begin
          read_what_q   <= Shifts;
          read_line_q   <= shifts_line_q;
          shifts_line_q <= shifts_line_q + CHIP_BITS'(1);
        end else begin
          read_what_q      <= Mantissas;
          read_line_q      <= mantissas_line_q;
          mantissas_line_q <= mantissas_line_q + CHIP_BITS'(1);
          ask_column_q     <= ask_column_q + 11'd1;
        end
      end

      // ------------------------------------------------------------ asks memory
      if (fetch_valid_q && fetch_ready_i) begin
        if (!fetch_scales_q && !(fetch_single_q && rows_unasked_q != '0)) begin
          fetch_valid_q  <= rows_unasked_q != '0;
          fetch_scales_q <= 1'b1;
          fetch_line_q   <= {2'd0, scales_line_q};
          fetch_lines_q  <= 16'd1;
          scales_line_q  <= scales_line_q + 32'd1;
        end else begin
          // Rows: 32 of them, or one.
          fetch_scales_q <= 1'b0;
          fetch_single_q <= rows_unasked_q < 21'd32;
          fetch_line_q   <= rows_line_q;
          fetch_lines_q  <= (rows_unasked_q < 21'd32) ? {5'd0, row_lines_q} : {row_lines_q, 5'd0};
          rows_line_q    <= rows_line_q + ((rows_unasked_q < 21'd32) ? {23'd0, row_lines_q} : {18'd0, row_lines_q, 5'd0});
          rows_unasked_q <= rows_unasked_q - ((rows_unasked_q < 21'd32) ? 21'd1 : 21'd32);
        end
      end

      // ------------------------------------------------------------ a value's place
      if (write_ready_i) write_left_q <= behind(write_left_q, write_context);
      logit_valid_q <= logit_valid_q & ~logit_ready_i;
      if (soft_goes) soft_q <= {soft_q[2:0], places && cap_q};
      if (soft_q[3] && soft_goes) begin
        logit_valid_q <= mask_q;
        logit_last_q  <= soft_last_q;
      end
      if (places) begin
        if (cap_q) begin
          soft_last_q   <= last_q && rows_left_q == 21'd1;
        end else if (head_q) begin
          logit_valid_q <= mask_q;
          logit_last_q  <= last_q && rows_left_q == 21'd1;
        end else begin
          slot_q <= slot_q + 4'd1;
        end
        rows_left_q <= rows_left_q - 21'd1;
      end
      if (fills) begin
        write_left_q <= mask_q;
        write_line_q <= write_line_q + CHIP_BITS'(1);
      end

      // ------------------------------------------------------------ given up: the rows that memory was asked for are the last
      if (cuts) begin
        fetch_valid_q  <= 1'b0;
        rows_unasked_q <= '0;
        rows_left_q    <= rows_left_q - rows_unasked_q - 21'(places);
        if (rows_unasked_q != '0) end_q <= UNIT_MEMORY;
      end

      // ------------------------------------------------------------ rows and beats, the later ones first
      if (!stands) begin
        value_valid_q   <= shifted_valid_q;
        shifted_valid_q <= product_valid_q;
        product_valid_q <= row_valid_q;
        row_valid_q     <= joined_valid_q && joined_last_q;
        joined_valid_q  <= blocks_valid_q;
        joined_last_q   <= blocks_last_q;
        blocks_valid_q  <= parts_valid_q;
        blocks_last_q   <= parts_last_q;
        parts_valid_q   <= taken_q;
        parts_last_q    <= taken_last_q;
        taken_q         <= 1'b0;
        if (takes) begin
          if (beat_fault_i) end_q <= UNIT_MEMORY;
          if (wants_scales_q) begin
            wants_scales_q <= 1'b0;
          end else begin
            taken_q      <= 1'b1;
            taken_last_q <= column_q == last_column_q;
            if (column_q == last_column_q) begin
              row_scale_q    <= scales_q[{row_q, 4'd0} +: 16];
              wants_scales_q <= row_q == 5'd31;
              rows_untaken_q <= rows_untaken_q - 21'd1;
              row_q          <= row_q + 5'd1;
            end
            column_q <= (column_q == last_column_q) ? '0 : column_q + 10'd1;
          end
        end
      end
    end else begin
      done_q <= 1'b0;
    end
    begin_q <= 1'b0;

    if (start_i) begin
      busy_q           <= 1'b1;
      mask_q           <= mask_i;
      end_q            <= refused ? UNIT_NO_FIRST : UNIT_FINE;
      begin_q          <= !multiplies && op_i.first;
      head_q           <= !multiplies;
      last_q           <= op_i.last;
      cap_q            <= !multiplies && op_i.cap;
      accumulate_q     <= multiplies && op_i.accumulate;
      scaled_q         <= !multiplies || op_i.scaled;
      half_q           <= op_i.columns[5];
      row_lines_q      <= {1'b0, last_column} + 11'd1;
      last_column_q    <= last_column;
      read_valid_q     <= !refused;
      read_what_q      <= Head;
      read_context_q   <= lowest(mask_i);
      read_line_q      <= op_i.a;
      shifts_line_q    <= op_i.a + CHIP_BITS'(1);
      // A line of shifts is for 2,048 channels.
      mantissas_line_q <= op_i.a + CHIP_BITS'(2) + {10'd0, last_column[9:5]};
      before_line_q    <= op_i.dst;
      before_left_q    <= (multiplies && op_i.accumulate) ? op_i.rows[15:4] : '0;
      before_open_q    <= 1'b0;
      before_here_q    <= 1'b0;
      ask_column_q     <= '0;
      came_column_q    <= '0;
      fetch_valid_q    <= !refused;
      fetch_scales_q   <= 1'b1;
      fetch_single_q   <= 1'b0;
      fetch_line_q     <= {2'd0, op_i.scales};
      fetch_lines_q    <= 16'd1;
      rows_line_q      <= op_i.from;
      scales_line_q    <= op_i.scales + 32'd1;
      rows_unasked_q   <= op_i.rows;
      rows_untaken_q   <= op_i.rows;
      rows_left_q      <= refused ? '0 : multiplies ? {op_i.rows[20:5] + {15'd0, op_i.rows[4:0] != '0}, 5'd0} : op_i.rows;
      pads_q           <= multiplies ? -op_i.rows[4:0] : '0;
      wants_scales_q   <= 1'b1;
      row_q            <= '0;
      column_q         <= '0;
      slot_q           <= '0;
      line_here_q      <= !(multiplies && op_i.accumulate);
      write_line_q     <= op_i.dst - CHIP_BITS'(1);
    end

    if (!rst_ni) begin
      busy_q          <= 1'b0;
      done_q          <= 1'b0;
      begin_q         <= 1'b0;
      filled_q        <= 1'b0;
      read_valid_q    <= 1'b0;
      write_left_q    <= '0;
      fetch_valid_q   <= 1'b0;
      logit_valid_q   <= '0;
      soft_q          <= '0;
      taken_q         <= 1'b0;
      parts_valid_q   <= 1'b0;
      blocks_valid_q  <= 1'b0;
      joined_valid_q  <= 1'b0;
      row_valid_q     <= 1'b0;
      product_valid_q <= 1'b0;
      shifted_valid_q <= 1'b0;
      value_valid_q   <= 1'b0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && start_i) begin
      if (!idle_o) $fatal(1, "N1 npu_gemv: started while it is busy");
      if (mask_i == '0) $fatal(1, "N1 npu_gemv: started for no context");
      if (op_i.kind != OP_MULTIPLY && op_i.kind != OP_HEAD) $fatal(1, "N1 npu_gemv: started with kind %0d", op_i.kind);
      if (int'(last_column) >= Lines) $fatal(1, "N2 npu_gemv: %0d columns are more than it was built for", op_i.columns);
    end
    if (rst_ni && busy_q) begin
      if (beat_valid_i && beat_ready_o && rows_untaken_q == '0) $fatal(1, "N5 npu_gemv: a beat that was not asked for");
      if (write_left_q != '0 && {6'd0, write_line_q - op_i.dst} >= {4'd0, op_i.rows[20:5] + {15'd0, op_i.rows[4:0] != '0}, 1'b0})
        $fatal(1, "N2 npu_gemv: line %0d is none of its destination", write_line_q);
    end
  end
`endif
endmodule
