// From logits to a token and its log-probability (docs/engine.md, "Sampling"), a logit in four cycles: one multiplier of hashes, one of
// straight lines between a table's entries, and one of 32 x 28 bits.
//
//   hash     four multiplications for each logit's 32 bits, and thirteen once for what they begin with
//   noise    the logarithm of what is drawn, then of its complement's, or of the ratio: each six cycles through one table
//   key      logit · sharpness + noise; the largest one's token and power are kept
//   block    powers of 32 logits are kept until the largest is known, and then read back, one a cycle, while the next ones come
//   bins     three sums of blocks, by 16 powers of 2
//   end      the logarithm of the sums, by the same table; its product with ln(2), and ahead of it that of the distance to the highest bin, by the
//            same multiplier
//
// A step that scores has its token given: then that one's power is kept, however far it lies below the others.
//
// A logit is taken in the first of four phases only, so no two meet at what they share. What a stage needs of an earlier one is copied every
// four cycles, at stages 3, 7, 11 and 15.
module npu_sampler
  import npu_unit_pkg::*;
  import npu_pkg::*;
(
  input  logic        clk_i,
  input  logic        rst_ni,

  /* verilator lint_off UNUSEDSIGNAL */
  input  npu_step_t   step_i,           // stays while a step runs
  /* verilator lint_on UNUSEDSIGNAL */
  input  logic        forget_i,         // a step begins: no head goes on

  input  logic        begin_i,          // the first of a chain of heads
  output logic        begun_o,          // one has begun that has not had its last logit
  output logic        idle_o,

  input  logic        logit_valid_i,
  input  logic [31:0] logit_i,
  input  logic        logit_last_i,     // and then the token
  output logic        logit_ready_o,

  // The word that gave them is done.
  input  logic        done_i,
  input  npu_end_t    end_i,
  output logic        sample_valid_o,   // beside it
  output logic [31:0] sample_token_o,
  output logic [31:0] sample_logp_o     // 16 fraction bits, never above 0
);
  localparam logic [31:0] Golden = 32'h9E37_79B9;
  localparam logic [27:0] One    = 28'd1512775;     // the sharpness of temperature 1
  localparam logic [27:0] LnTwo  = 28'd11629080;    // 24 fraction bits

  // mix(x) is turned(turned(spread(x), First), Second).
  function automatic logic [31:0] spread(input logic [31:0] x);
    spread = x ^ (x >> 16);
  endfunction

  localparam logic [1:0] First  = 2'd0;
  localparam logic [1:0] Second = 2'd1;
  localparam logic [1:0] Plain  = 2'd2;   // the product with Golden

  function automatic logic [31:0] turned(input logic [31:0] x, input logic [1:0] which);
    logic [31:0] product;
    product = x * ((which == First) ? 32'h7FEB_352D : (which == Second) ? 32'h846C_A68B : Golden);
    turned = (which == First) ? product ^ (product >> 15) : (which == Second) ? product ^ (product >> 16) : product;
  endfunction

  // Zeros above the highest one.
  function automatic logic [5:0] zeros(input logic [63:0] value);
    logic [63:0] x;
    x = value;
    zeros = '0;
    for (int k = 5; k >= 0; k--)
      if (x >> (64 - (1 << k)) == '0) begin
        zeros[k] = 1'b1;
        x = x << (1 << k);
      end
  endfunction

  // What is below the highest one, which so many zeros are above.
  function automatic logic [31:0] normal(input logic [63:0] value, input logic [5:0] by);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [63:0] shifted;
    /* verilator lint_on UNUSEDSIGNAL */
    shifted = value << by;
    normal = shifted[62:31];
  endfunction

  // -log2(1 - w), of the logarithm of 2^33 - W.
  function automatic logic [29:0] surprise(input logic [30:0] logarithm);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [30:0] rest;
    /* verilator lint_on UNUSEDSIGNAL */
    rest = 31'd553648128 - logarithm;
    surprise = rest[29:0];
  endfunction

  function automatic logic signed [59:0] times(input logic signed [31:0] a, input logic [27:0] b);
    logic signed [59:0] wide;
    wide = {{28{a[31]}}, a};
    times = wide * $signed({1'b0, b});
  endfunction

  // A power of 2 of 10 fraction bits, rounded up to a whole number.
  function automatic logic signed [30:0] ceiling(input logic signed [40:0] power);
    /* verilator lint_off UNUSEDSIGNAL */
    logic signed [40:0] up;
    /* verilator lint_on UNUSEDSIGNAL */
    up = power + 41'sd1023;
    ceiling = up[40:10];
  endfunction

  // How far a power is below a whole number: too far, whole, part.
  function automatic logic [15:0] below(input logic signed [30:0] whole, input logic signed [40:0] power);
    logic [41:0] distance;
    distance = {whole[30], whole, 10'd0} - {power[40], power};
    below = {distance[41:10] > 32'd21, distance[14:0]};
  endfunction

  // 48 fraction bits to 16, halves up, never above 0, and within 32 bits.
  /* verilator lint_off UNUSEDSIGNAL */
  function automatic logic [31:0] nats(input logic signed [73:0] product);
    /* verilator lint_on UNUSEDSIGNAL */
    logic signed [42:0] rounded;
    rounded = {product[73], product[73:32]} + {42'd0, product[31]};
    nats = (rounded > 0) ? '0 : (rounded[42:31] != '1 && rounded != '0) ? 32'h8000_0000 : rounded[31:0];
  endfunction

  // What lies further below than any log-probability does stays there.
  function automatic logic signed [31:0] bounded(input logic signed [42:0] distance);
    bounded = (distance[42] && distance[42:27] != '1) ? -32'sd134217728 : distance[31:0];
  endfunction

  // A table's entry, and by how much the next one is higher.
  function automatic logic [41:0] straight(input logic [24:0] low, input logic [24:0] high);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [24:0] rise;
    /* verilator lint_on UNUSEDSIGNAL */
    rise = high - low;
    straight = {rise[16:0], low};
  endfunction

  // 2^20 · 2^-(down + …), halves up.
  function automatic logic [20:0] lowered(input logic [20:0] entry, input logic [4:0] down);
    /* verilator lint_off UNUSEDSIGNAL */
    logic [21:0] sum, half;
    /* verilator lint_on UNUSEDSIGNAL */
    half = (22'd1 << down) >> 1;
    sum = ({1'b0, entry} + half) >> down;
    lowered = sum[20:0];
  endfunction

  // Constants, not memories that are loaded: not every target loads them.
  logic [41:0] lines  [0:511];          // of the logarithm, then of the ratio
  logic [20:0] powers [0:1023];
  for (genvar k = 0; k < 256; k++) begin : gen_lines
    assign lines[k]       = straight(LOG2[25*k +: 25], LOG2[25*k + 25 +: 25]);
    assign lines[k + 256] = straight(RATIO[25*k +: 25], RATIO[25*k + 25 +: 25]);
  end
  for (genvar k = 0; k < 1024; k++) begin : gen_powers
    assign powers[k] = POWER[21*k +: 21];
  end

  // ---------------------------------------------------------------- what is in hand
  logic        busy_q, begun_q, ready_q, have_q, takes, quiet;
  logic [1:0]  phase_q;
  logic [17:0] at_q;                    // a logit is at this stage
  logic        greedy_q;
  logic [27:0] sharpness_q;

  assign begun_o        = begun_q;
  assign idle_o         = !busy_q;
  assign logit_ready_o  = ready_q && phase_q == '0;
  assign sample_valid_o = have_q && done_i && end_i == UNIT_FINE;
  assign takes          = logit_valid_i && logit_ready_o;

  // ---------------------------------------------------------------- hashes
  logic        draws_q;                 // what they begin with is being worked out
  logic [3:0]  draw_q;
  logic [31:0] position, hash_q, offset_q, counter_q, other_q, turn;
  logic [1:0]  which;

  // The chosen token's.
  assign position = step_i.position + 32'd1;
  assign which    = !draws_q ? {1'b0, at_q[1] || at_q[3]} : (draw_q == '0) ? Plain : draw_q[0] ? First : Second;

  always_comb begin
    turn = '0;
    if (busy_q) turn = turned(hash_q, which);
  end

  // ---------------------------------------------------------------- straight lines
  logic [4:0]  line_q;                  // an argument is at this stage
  logic        ratio0_q, ratio1_q, ratio2_q;
  logic [63:0] x0_q, x1_q;
  logic [5:0]  zeros_q, whole2_q, whole3_q, whole4_q;
  logic [31:0] mantissa_q;              // below its highest one: 8 bits of index, 24 of part
  logic [16:0] rise_q;
  logic [24:0] low3_q, low4_q;
  logic [23:0] part_q;
  logic [30:0] logarithm_q;             // 24 fraction bits, as all of noise
  /* verilator lint_off UNUSEDSIGNAL */
  logic [40:0] between_q;
  /* verilator lint_on UNUSEDSIGNAL */

  // ---------------------------------------------------------------- logits on their way
  logic signed [31:0] logit0_q, logit1_q, logit2_q, logit3_q;
  logic               last0_q, last1_q, last2_q, last3_q, last4_q;
  logic [30:0]        drawn1_q, drawn2_q;     // w of 33 bits, without its lowest, which is 1, and the highest,
  logic               tail1_q, tail2_q;       // which is here: w is one half or more
  logic [29:0]        noise1_q, noise2_q;
  logic signed [31:0] noise_q;
  logic signed [59:0] product_q;
  logic signed [61:0] key_q, best_q;
  logic signed [40:0] power_q;
  logic               none_q;                 // no logit yet
  logic [31:0]        token_q, chosen_q;      // of the logit that comes to the last stage next; the best one's
  logic signed [40:0] chosen_power_q;
  logic               picks;                  // the token that comes to the last stage, or was given

  // ---------------------------------------------------------------- blocks
  logic [40:0]        held [0:31];
  logic signed [40:0] top_q, held_q;
  logic               closes_q, closes_last_q;  // a block is complete
  logic [4:0]         size_q;                   // less one
  logic               walks_q, walk_last_q, reads_q;
  logic [4:0]         walk_q, walk_size_q;
  logic [3:0]         walk_at_q;                // a power is at this stage of the walk
  logic [5:0]         walk_end_q;               // the last of the block is, and at 4 and 5 the block's sum
  logic signed [30:0] ceiling_q;
  logic [9:0]         part1_q;
  logic [4:0]         down1_q, down2_q;
  logic               far1_q, far2_q;
  logic [20:0]        entry_q, term_q;
  logic [25:0]        block_q;
  logic signed [26:0] bin, highest_q;
  logic               empty_q;                  // no block yet
  logic               into_high_q, into_low_q, into_lowest_q;
  logic [40:0]        raised_q;
  logic [63:0]        high_q, low_q, lowest_q;  // sums of the highest bin, and of the two below

  assign bin = ceiling_q[30:4];

  // ---------------------------------------------------------------- the end
  logic [8:0]         end_q;                    // at this stage of it
  logic signed [42:0] distance_q;               // of the token's power from the highest bin, 10 fraction bits
  logic signed [31:0] nats_q;
  logic signed [59:0] upper_q;
  logic [31:0]        logp_q;

  assign picks = step_i.scores ? token_q == step_i.seed : none_q || key_q > best_q;

  assign sample_token_o = chosen_q;
  assign sample_logp_o  = logp_q;

  assign quiet = at_q == '0 && !draws_q && !closes_q && !walks_q && end_q == '0;

  // What reads a register stands before what writes it: a simulation then needs no copy of it.
  always_ff @(posedge clk_i) begin
    if (busy_q || takes) begin
      // ------------------------------------------------------------ the log-probability
      if (end_q[8]) begin
        logp_q  <= nats({upper_q, 14'd0} - {{14{product_q[59]}}, product_q});
        have_q  <= 1'b1;
        begun_q <= 1'b0;
      end

      // ------------------------------------------------------------ arguments of straight lines
      if (at_q[3]) begin
        // 2^33 - w is w with all of its bits but the lowest turned.
        x0_q     <= {31'd0, turn ^ {32{turn[31]}}, 1'b1};
        ratio0_q <= 1'b0;
      end
      if (at_q[9]) begin
        x0_q     <= tail2_q ? {34'd0, surprise(logarithm_q)} : {32'd0, drawn2_q, 1'b1};
        ratio0_q <= !tail2_q;
      end
      if (end_q[0]) begin
        x0_q     <= high_q + (low_q >> 16) + (lowest_q >> 32);
        ratio0_q <= 1'b0;
      end

      // ------------------------------------------------------------ logits, the later ones first
      if (at_q[17]) begin
        none_q  <= 1'b0;
        if (picks) begin
          best_q         <= key_q;
          chosen_q       <= token_q;
          chosen_power_q <= power_q;
        end
        held[token_q[4:0]] <= power_q;
        if (token_q[4:0] == '0 || power_q > top_q) top_q <= power_q;
        if (token_q[4:0] == '1 || last4_q) begin
          closes_q      <= 1'b1;
          closes_last_q <= last4_q;
          size_q        <= token_q[4:0];
        end
        token_q <= token_q + 32'd1;
      end
      if (at_q[16]) begin
        key_q   <= {{2{product_q[59]}}, product_q} + {{24{noise_q[31]}}, noise_q, 6'd0};
        power_q <= {product_q[59], product_q[59:20]} + {40'd0, product_q[19]};
      end
      if (end_q[5]) upper_q <= product_q;
      if (at_q[15] || end_q[4] || end_q[7])
        product_q <= times(end_q[4] || end_q[7] ? nats_q : logit3_q, end_q[4] || end_q[7] ? LnTwo : sharpness_q);
      if (at_q[15]) begin
        noise_q <= greedy_q ? '0 : $signed({2'd0, noise2_q}) - $signed({1'b0, logarithm_q});
        last4_q <= last3_q;
      end
      if (at_q[13]) noise2_q <= noise1_q;
      if (at_q[11]) begin
        logit3_q <= logit2_q;
        last3_q  <= last2_q;
      end
      if (at_q[9]) noise1_q <= tail2_q ? 30'd402653184 : surprise(logarithm_q);
      if (at_q[7]) begin
        logit2_q <= logit1_q;
        last2_q  <= last1_q;
        drawn2_q <= drawn1_q;
        tail2_q  <= tail1_q;
      end
      if (at_q[3]) begin
        logit1_q <= logit0_q;
        last1_q  <= last0_q;
        drawn1_q <= turn[30:0];
        tail1_q  <= turn[31];
      end

      // ------------------------------------------------------------ straight lines
      if (end_q[6]) nats_q <= {1'b0, logarithm_q};
      if (end_q[3]) nats_q <= bounded(distance_q);
      if (end_q[2]) distance_q <= {{2{chosen_power_q[40]}}, chosen_power_q} - {{2{highest_q[26]}}, highest_q, 14'd0} + 43'sd20480;
      if (line_q[4]) logarithm_q <= {1'b0, whole4_q, 24'd0} + {6'd0, low4_q} + {14'd0, between_q[40:24]} + {30'd0, between_q[23]};
      if (line_q[3]) begin
        between_q <= rise_q * part_q;
        whole4_q  <= whole3_q;
        low4_q    <= low3_q;
      end
      if (line_q[2]) begin
        {rise_q, low3_q} <= lines[{ratio2_q, mantissa_q[31:24]}];
        part_q           <= mantissa_q[23:0];
        whole3_q         <= whole2_q;
      end
      if (line_q[1]) begin
        mantissa_q <= normal(x1_q, zeros_q);
        whole2_q   <= ratio1_q ? '0 : ~zeros_q;
        ratio2_q   <= ratio1_q;
      end
      if (line_q[0]) begin
        zeros_q  <= ratio0_q ? 6'd31 : zeros(x0_q);
        x1_q     <= x0_q;
        ratio1_q <= ratio0_q;
      end

      // ------------------------------------------------------------ hashes
      if (at_q[0] || at_q[2]) hash_q <= turn;
      if (at_q[1])            hash_q <= spread(turn ^ other_q);
      if (takes) begin
        hash_q    <= spread(counter_q);
        counter_q <= counter_q + Golden;
        logit0_q  <= logit_i;
        last0_q   <= logit_last_i;
        if (logit_last_i) ready_q <= 1'b0;
      end
      if (draws_q) begin
        case (draw_q)
          4'd0: begin
            offset_q <= turn;
            hash_q   <= spread(step_i.rollout + Golden);
          end
          4'd2:  hash_q <= spread(step_i.seed ^ turn);
          4'd4:  hash_q <= spread(turn + offset_q);
          4'd6: begin
            counter_q <= turn;
            hash_q    <= spread(step_i.seed + Golden);
          end
          4'd8:  hash_q <= spread(position ^ turn);
          4'd10: hash_q <= spread(turn + step_i.rollout);
          4'd12: begin
            other_q <= turn;
            draws_q <= 1'b0;
            ready_q <= 1'b1;
          end
          default: hash_q <= turn;
        endcase
        draw_q <= draw_q + 4'd1;
      end

      // ------------------------------------------------------------ blocks
      if (walks_q) begin
        if (walk_end_q[5]) begin
          if (into_high_q)   high_q   <= high_q + {23'd0, raised_q};
          if (into_low_q)    low_q    <= low_q + {23'd0, raised_q};
          if (into_lowest_q) lowest_q <= lowest_q + {23'd0, raised_q};
          walks_q <= 1'b0;
        end
        if (walk_end_q[4]) begin
          raised_q    <= {15'd0, block_q} << ceiling_q[3:0];
          into_high_q   <= empty_q || bin >= highest_q;
          into_low_q    <= !empty_q && bin == highest_q - 27'sd1;
          into_lowest_q <= !empty_q && bin == highest_q - 27'sd2;
          if (empty_q || bin > highest_q) begin
            lowest_q  <= empty_q ? '0 : (bin - 27'sd1 == highest_q) ? low_q : (bin - 27'sd2 == highest_q) ? high_q : '0;
            low_q     <= (!empty_q && bin - 27'sd1 == highest_q) ? high_q : '0;
            high_q    <= '0;
            highest_q <= bin;
            empty_q   <= 1'b0;
          end
        end
        if (walk_at_q[3]) block_q <= block_q + {5'd0, term_q};
        if (walk_at_q[2]) term_q  <= far2_q ? '0 : lowered(entry_q, down2_q);
        if (walk_at_q[1]) begin
          entry_q <= powers[part1_q];
          down2_q <= down1_q;
          far2_q  <= far1_q;
        end
        if (walk_at_q[0]) {far1_q, down1_q, part1_q} <= below(ceiling_q, held_q);
        walk_end_q <= {walk_end_q[4:0], reads_q && walk_q == walk_size_q};
        walk_at_q  <= {walk_at_q[2:0], reads_q};
        if (reads_q) begin
          held_q  <= held[walk_q];
          reads_q <= walk_q != walk_size_q;
          walk_q  <= walk_q + 5'd1;
        end
      end else if (closes_q) begin
        walks_q     <= 1'b1;
        reads_q     <= 1'b1;
        walk_q      <= '0;
        walk_size_q <= size_q;
        walk_last_q <= closes_last_q;
        ceiling_q   <= ceiling(top_q);
        block_q     <= '0;
        closes_q    <= 1'b0;
      end

      // ------------------------------------------------------------ what goes on
      busy_q  <= takes || !quiet;
      phase_q <= (takes || !quiet) ? phase_q + 2'd1 : '0;
      end_q   <= {end_q[7:0], walk_end_q[5] && walk_last_q};
      line_q  <= {line_q[3:0], at_q[3] || at_q[9] || end_q[0]};
      at_q    <= {at_q[16:0], takes};
    end

    if (begin_i) begin
      busy_q      <= 1'b1;
      begun_q     <= 1'b1;
      ready_q     <= 1'b0;
      draws_q     <= 1'b1;
      draw_q      <= '0;
      hash_q      <= position;
      greedy_q    <= step_i.sharpness == '0;
      sharpness_q <= (step_i.sharpness == '0) ? One : step_i.sharpness;
      none_q      <= 1'b1;
      empty_q     <= 1'b1;
      token_q     <= '0;
    end
    if (done_i || forget_i) begin
      have_q <= 1'b0;
      if (forget_i || end_i != UNIT_FINE) begin
        begun_q <= 1'b0;
        ready_q <= 1'b0;
      end
    end

    if (!rst_ni) begin
      busy_q     <= 1'b0;
      begun_q    <= 1'b0;
      ready_q    <= 1'b0;
      have_q     <= 1'b0;
      phase_q    <= '0;
      at_q       <= '0;
      line_q     <= '0;
      draws_q    <= 1'b0;
      closes_q   <= 1'b0;
      walks_q    <= 1'b0;
      reads_q    <= 1'b0;
      walk_at_q  <= '0;
      walk_end_q <= '0;
      end_q      <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && begin_i && busy_q) $fatal(1, "N1 npu_sampler: begins while it has logits in hand");
    if (rst_ni && forget_i && busy_q) $fatal(1, "N7 npu_sampler: is to forget what it has in hand");
    if (rst_ni && at_q[17] && closes_q) $fatal(1, "N4 npu_sampler: a block is complete before the one before it is read");
  end
`endif
endmodule
