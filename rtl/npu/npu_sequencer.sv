// Fetches a step's words, executes MEMSET and CTRL, and makes all others ready for their units: shapes and descriptors read, every
// operand checked, in the order in which the interpreter checks (npu/src/run/sequence.rs), so that the same error is named.
//
// Eight lines of the program are held; one that is not there is asked for together with those behind it, so a program of up to 64 words is
// read once. Words go through two registers (fetched, decoded); a MEMSET takes a cycle, a word for a unit some ten, while
// those before it run. One multiplier makes all products.
module npu_sequencer
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Lines = 1024          // of on-chip memory, at most 32,768
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   start_i,          // a step, only while idle_o; what follows stays until over_o
  input  logic [MEMORY_BITS-1:0] program_i,        // its first line in model memory
  input  logic [PC_BITS-1:0]     words_i,
  input  logic [MEMORY_BITS-1:0] memory_lines_i,   // of model memory
  input  logic                   silent_i,         // no token is wanted
  output logic                   idle_o,
  output logic                   moves_o,          // a step is under way, and does not only wait for its last word to be taken
  output logic                   over_o,           // a cycle: the step is over, nothing is in flight
  output npu_log_t               log_o,            // … for this reason, unless a unit has one

  output logic                   fetch_valid_o,
  output logic [MEMORY_BITS-1:0] fetch_line_o,
  output logic [15:0]            fetch_lines_o,
  input  logic                   fetch_ready_i,
  input  logic                   beat_valid_i,
  input  logic [LINE_BITS-1:0]   beat_data_i,
  input  logic                   beat_fault_i,
  output logic                   beat_ready_o,

  output logic                   issue_valid_o,
  output npu_issue_t             issue_o,
  input  logic                   issue_taken_i,    // it went to its unit; only with issue_valid_o
  input  logic                   quiet_i,          // no unit has a word
  input  logic                   failed_i,         // a unit could not finish its word: none is issued any more
  input  logic                   give_up_i         // nobody waits for the step: likewise, and it ends as FAULT_MEMORY
);
  if (Lines < 1 || Lines > 1 << CHIP_BITS) begin : gen_bad_lines
    localparam bit LinesMustBe1To32768 = {-1{1'b1}};   // ends the elaboration
  end

  localparam logic [2:0] AT_IDLE   = 3'd0;
  localparam logic [2:0] AT_WORD   = 3'd1;    // takes what is decoded
  localparam logic [2:0] AT_READY  = 3'd2;    // makes a word ready, step by step
  localparam logic [2:0] AT_TABLE  = 3'd3;    // finds a layer's words, step by step
  localparam logic [2:0] AT_SILENT = 3'd4;    // waits until all words in flight are done: the step may be over
  localparam logic [2:0] AT_END    = 3'd5;    // … it is over
  localparam logic [2:0] AT_DRAIN  = 3'd6;    // … and what was asked of memory is taken

  // What is wrong with a word, in the order of the interpreter's checks; the first one is what is said.
  localparam int WRONG_ODD      = 0;
  localparam int WRONG_SHAPE    = 1;
  localparam int WRONG_EPSILON  = 2;    // it is not set, or the deviations
  localparam int WRONG_MATRIX   = 3;    // a descriptor of a matrix is not set
  localparam int WRONG_LENGTH   = 4;
  localparam int WRONG_DESC     = 5;
  localparam int WRONG_OUTSIDE  = 6;    // of a loop
  localparam int WRONG_HEAD     = 7;    // heads of keys and values, their width
  localparam int WRONG_AUX      = 8;
  localparam int WRONG_MEMORY   = 9;
  localparam int WRONG_SOURCE   = 10;   // not set
  localparam int WRONG_NUMBER   = 11;   // it is no layer's
  localparam int WRONG_BLOCK    = 12;
  localparam int WRONG_ROWS     = 13;   // no multiple of 32, or heads that cannot share
  localparam int WRONG_FACTOR   = 14;   // it is not set, or the window
  localparam int WRONG_WINDOW   = 15;
  localparam int WRONG_UNSET   = 16;   // sinks are not set
  localparam int WRONG_SINKS    = 17;
  localparam int WRONG_RANGE    = 18;
  localparam int WRONG_OVERLAP  = 19;
  localparam int WRONGS         = 20;

  function automatic logic [4:0] fault_of(input logic [WRONGS-1:0] wrong);
    fault_of = FAULT_NONE;
    if (wrong[WRONG_OVERLAP]) fault_of = FAULT_OVERLAP;
    if (wrong[WRONG_RANGE])   fault_of = FAULT_OUT_OF_RANGE;
    if (wrong[WRONG_SINKS])   fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_UNSET])  fault_of = FAULT_REGISTER_UNSET;
    if (wrong[WRONG_WINDOW])  fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_FACTOR])  fault_of = FAULT_REGISTER_UNSET;
    if (wrong[WRONG_ROWS])    fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_BLOCK])   fault_of = FAULT_BLOCK_TOO_SMALL;
    if (wrong[WRONG_NUMBER])  fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_SOURCE])  fault_of = FAULT_REGISTER_UNSET;
    if (wrong[WRONG_MEMORY])  fault_of = FAULT_MEMORY_OUT_OF_RANGE;
    if (wrong[WRONG_AUX])     fault_of = FAULT_BAD_AUX;
    if (wrong[WRONG_HEAD])    fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_OUTSIDE]) fault_of = FAULT_NO_LOOP;
    if (wrong[WRONG_DESC])    fault_of = FAULT_DESCRIPTOR_UNSET;
    if (wrong[WRONG_LENGTH])  fault_of = FAULT_BAD_LENGTH;
    if (wrong[WRONG_MATRIX])  fault_of = FAULT_DESCRIPTOR_UNSET;
    if (wrong[WRONG_EPSILON]) fault_of = FAULT_REGISTER_UNSET;
    if (wrong[WRONG_SHAPE])   fault_of = FAULT_SHAPE_UNSET;
    if (wrong[WRONG_ODD])     fault_of = FAULT_MISALIGNED;
  endfunction

  // A width of heads.
  function automatic logic bad_width(input logic [15:0] width);
    bad_width = width == '0 || width > 16'd256 || width[4:0] != '0;
  endfunction

  // A number of heads.
  function automatic logic bad_heads(input logic [36:0] heads);
    bad_heads = heads == '0 || heads > 37'd4096;
  endfunction

  // Lines of formats (docs/isa.md, "How vectors lie").
  function automatic logic [17:0] activation(input logic [17:0] count);
    activation = 18'd1 + ((count + 18'd2047) >> 11) + ((count + 18'd63) >> 6);
  endfunction

  function automatic logic [17:0] stored(input logic [13:0] heads, input logic [20:0] count);
    stored = (({4'd0, heads} + 18'd31) >> 5) + {2'b00, 16'(({1'b0, count} + 22'd63) >> 6)};
  endfunction

  // Of all integers that there may be: so many that no memory has them are all alike.
  /* verilator lint_off UNUSEDSIGNAL */  // a multiple of 16
  function automatic logic [17:0] integers(input logic [36:0] count);
  /* verilator lint_on UNUSEDSIGNAL */
    integers = (count[36:21] != '0) ? '1 : {1'b0, count[20:4]};
  endfunction

  // Of rows, filled up to 32.
  function automatic logic [17:0] products(input logic [21:0] rows);
    products = {rows[21:5] + {16'd0, rows[4:0] != '0}, 1'b0};
  endfunction

  function automatic logic meets(input npu_range_t x, input npu_range_t y);
    meets = x.used && y.used && {1'b0, x.start} < y.stop && {1'b0, y.start} < x.stop;
  endfunction

  // Where both are the same lines, what is read and written line by line may be so.
  function automatic logic clash(input npu_range_t x, input npu_range_t y, input logic in_place);
    clash = meets(x, y) && !(in_place && x == y);
  endfunction

  // ------------------------------------------------------------------ state
  logic [2:0]  at_q;
  logic [4:0]  step_q;

  // The program: eight lines, each with the place that it has in the program.
  logic [LINE_BITS-1:0] store [0:7];
  logic [PC_BITS-7:0]   tag_q [0:7];
  logic [7:0]           held_q, bad_q;
  logic [PC_BITS-1:0]   pc_q;              // of the next word to fetch

  // What memory owes.
  logic                 ask_q;
  logic [MEMORY_BITS-1:0] ask_line_q;
  logic [3:0]           ask_lines_q, owed_q;
  logic                 owed_layer_q;      // lines of a layer's words
  logic [PC_BITS-4:0]   fill_q;            // where the next line of the program goes

  // A layer's words: a line of them, words taken of it, words to come.
  logic [LINE_BITS-1:0] line_q;
  logic                 line_full_q, line_bad_q;
  logic [2:0]           line_word_q;
  logic [5:0]           left_q;
  logic                 layering_q;        // words are those of a layer

  // Fetched and decoded.
  logic                 word_valid_q, word_none_q, word_bad_q;
  logic [63:0]          word_q;
  logic [PC_BITS-1:0]   word_pc_q;
  logic                 decoded_valid_q, decoded_none_q, decoded_bad_q;
  logic [63:0]          decoded_word_q;
  logic [PC_BITS-1:0]   decoded_pc_q;
  npu_word_t            d;                 // of decoded_word_q

  // What MEMSET sets.
  logic [47:0]          shapes [0:127];    // fmap, then weight
  logic [47:0]          descriptors [0:63];
  logic [127:0]         shape_set_q;
  logic [63:0]          descriptor_set_q;
  logic [31:0]          epsilon_q, factor_q, window_q, source_q, cut_q, sinks_q;
  logic                 epsilon_set_q, factor_set_q, window_set_q, source_set_q, cut_set_q, sinks_set_q;

  // The loop.
  logic                 around_q;
  logic [LAYER_BITS-1:0] layer_q, count_q;
  logic [PC_BITS-1:0]   loop_pc_q;
  logic [5:0]           loop_words_q;
  logic [31:0]          table_q;
  logic [15:0]          stride_q;

  // The word that is made ready.
  npu_place_t           place_q;
  logic [47:0]          shape_q, descriptor_q;
  logic                 shape_known_q, descriptor_known_q;
  logic [31:0]          base_q;
  logic [15:0]          aux_q;
  logic [20:0]          factor_a_q;
  logic [15:0]          factor_b_q;
  logic [36:0]          product_q, first_q, second_q, third_q;
  logic                 large_q;           // the first product is above 2^20
  logic [37:0]          sum_q;
  logic [WRONGS-1:0]    wrong_q;
  logic [12:0]          rest_q, dividend_q;
  logic [MEMORY_BITS-1:0] from_q;
  logic [15:0]          lines_q;
  logic [17:0]          a_lines_q, b_lines_q, w_lines_q;
  npu_range_t           a_q, b_q, w_q;
  logic                 a_over_q, b_over_q, w_over_q;

  logic                 issue_valid_q;
  npu_issue_t           issue_q;
  npu_log_t             log_q;

  assign idle_o        = at_q == AT_IDLE;
  assign moves_o       = ask_q || owed_q != '0 || (at_q != AT_IDLE && !(at_q == AT_READY && step_q == last_step && wrong_q == '0 && issue_valid_q));
  assign log_o         = log_q;
  assign fetch_valid_o = ask_q;
  assign fetch_line_o  = ask_line_q;
  assign fetch_lines_o = {12'd0, ask_lines_q};
  assign beat_ready_o  = owed_q != '0 && (!owed_layer_q || !line_full_q);
  assign issue_valid_o = issue_valid_q;
  assign issue_o       = issue_q;

  // ------------------------------------------------------------------ what goes on
  // Small conditions, from registers but for failed_i and issue_taken_i.
  logic running, draining, take_word, take_next, done_word, refuse, room;
  logic is_matrix, is_kv, is_vector, is_by_head, is_streams, takes_epsilon, a_in_place, b_in_place;
  logic [15:0] m, n, k;
  logic [CHIP_BITS-1:0] b_start;
  logic [4:0]  last_step;
  logic [3:0]  loop_lines;            // of a layer's words

  assign loop_lines = {1'b0, loop_words_q[5:3]} + {3'd0, loop_words_q[2:0] != '0};
  assign running    = at_q == AT_WORD;
  assign draining   = at_q == AT_END || at_q == AT_DRAIN;
  assign m          = shape_q[47:32];
  assign n          = shape_q[31:16];
  assign k          = shape_q[15:0];
  assign b_start    = (d.kind == OP_MULTIPLY) ? d.dst : d.b;
  assign is_matrix  = d.kind == OP_MULTIPLY || d.kind == OP_HEAD || d.kind == OP_EMBED;
  assign is_kv      = d.kind == OP_APPEND || d.kind == OP_ATTEND;
  assign is_streams = d.kind == OP_PREDICT || d.kind == OP_CORRECT;
  assign is_by_head = d.kind == OP_ROPE || d.kind == OP_STORE || d.kind == OP_LEVEL || is_streams;
  assign takes_epsilon = d.kind == OP_NORM || d.kind == OP_LEVEL || d.kind == OP_RESCALE;
  // Each line is read, for the last time, before it is written.
  assign b_in_place = d.accumulate || d.kind == OP_ADD || d.kind == OP_MUL || d.kind == OP_ROPE || d.kind == OP_BLEND;
  assign a_in_place = b_in_place || d.kind == OP_LEVEL || d.kind == OP_CUT || d.kind == OP_RESCALE || d.kind == OP_PREDICT;
  assign is_vector  = d.where == UNIT_SFU;
  assign last_step  = (d.kind == OP_ATTEND) ? 5'd16 : 5'd10;
  assign room       = !issue_valid_q || issue_taken_i;

  // What becomes of a decoded word that is not for a unit.
  logic       word_here, is_set, loop_begins, loop_ends;
  logic [4:0] refused;
  assign word_here   = running && decoded_valid_q;
  assign loop_begins = d.form == FORM_LAYERS && !around_q && decoded_word_q[55:40] != '0;
  assign loop_ends   = layer_q + 16'd1 == count_q;

  assign is_set  = word_here && d.memset && d.fault == FAULT_NONE && !decoded_none_q && !decoded_bad_q;
  assign refused = !word_here                              ? FAULT_NONE
                 : decoded_bad_q                           ? FAULT_MEMORY
                 : decoded_none_q                          ? FAULT_NO_END
                 : is_set                                  ? FAULT_NONE
                 : layering_q                              ? FAULT_BAD_LAYER_WORD
                 : (d.fault != FAULT_NONE)                 ? d.fault
                 : (d.form == FORM_END || d.form == FORM_END_SILENT) ? (around_q ? FAULT_BAD_LOOP : FAULT_NONE)
                 : (d.form == FORM_LAYERS)                 ? (loop_begins ? FAULT_NONE : FAULT_BAD_LOOP)
                 : (d.form == FORM_NEXT)                   ? (around_q ? FAULT_NONE : FAULT_NO_LOOP)
                 : (!d.unit || d.max)                      ? FAULT_NOT_BUILT
                 :                                           FAULT_NONE;

  assign refuse    = refused != FAULT_NONE;
  // A word that is done with where it is taken: MEMSET, and the last `next`.
  assign done_word = word_here && !refuse && (is_set || (d.form == FORM_NEXT && loop_ends));
  assign take_word = (at_q == AT_WORD) && (!decoded_valid_q || done_word);
  assign take_next = take_word && word_valid_q;

  npu_decode u_decode (.clk_i, .take_i(take_next), .word_i(word_q), .word_o(d));

  // The next word of the program or of the layer.
  logic               next_here, next_none, next_bad, program_held;
  logic [2:0]         slot;
  assign slot         = pc_q[5:3];
  assign next_none    = !layering_q && pc_q >= words_i;
  assign program_held = held_q[slot] && tag_q[slot] == pc_q[PC_BITS-1:6];
  assign next_here    = layering_q ? line_full_q : next_none || program_held;
  assign next_bad     = layering_q ? line_bad_q : !next_none && bad_q[slot];

  // Lines of the program from the next word's on.
  logic [PC_BITS-3:0] lines_left;
  assign lines_left = (PC_BITS-2)'((PC_BITS+1)'(words_i) + (PC_BITS+1)'(7) >> 3) - (PC_BITS-2)'(pc_q[PC_BITS-1:3]);

  // From the last step of a word to the first, so that registers are read before they are written, which spares a simulation a
  // copy of each in every cycle.
  always_ff @(posedge clk_i) begin
    over_o <= 1'b0;
    if (at_q != AT_IDLE) begin
      // ---------------------------------------------------------------- execution
      // A word for a unit.
      if (at_q == AT_READY) begin
        if (step_q == last_step) begin
          if (wrong_q != '0) begin
            at_q        <= AT_END;
            log_q.fault <= fault_of(wrong_q);
          end else if (room) begin
            at_q            <= AT_WORD;
            decoded_valid_q <= 1'b0;
            issue_q.place   <= place_q;
            issue_q.where   <= d.where;
            issue_q.sync    <= d.sync;
            issue_q.a       <= a_q.used ? a_q : '0;
            issue_q.b       <= b_q.used ? b_q : '0;
            issue_q.w       <= w_q.used ? w_q : '0;
            issue_q.kv_read  <= d.kind == OP_ATTEND;
            issue_q.kv_write <= d.kind == OP_APPEND;
            issue_q.op            <= '0;
            issue_q.op.kind       <= d.kind;
            issue_q.op.accumulate <= d.accumulate;
            issue_q.op.scaled     <= d.scaled;
            issue_q.op.first      <= d.first;
            issue_q.op.last       <= d.last;
            issue_q.op.cap        <= d.cap;
            issue_q.op.dst        <= d.dst;
            issue_q.op.a          <= d.a;
            issue_q.op.b          <= d.b;
            issue_q.op.lines      <= lines_q;
            if (is_matrix || d.kind == OP_ROW) issue_q.op.rows <= first_q[20:0];
            if (is_matrix) begin
              issue_q.op.columns <= k;
              issue_q.op.scales  <= descriptor_q[47:16];
            end
            if (is_by_head)               issue_q.op.heads <= first_q[12:0];
            else if (is_vector)           issue_q.op.heads <= 13'd1;
            else if (d.kind == OP_ATTEND) issue_q.op.heads <= m[12:0];
            if (is_kv) begin
              issue_q.op.kv_heads <= n[12:0];
              issue_q.op.block    <= base_q;
              issue_q.op.layer    <= second_q[30:0];
            end
            if (is_kv || is_by_head)      issue_q.op.width <= {1'b0, k};
            else if (is_vector)           issue_q.op.width <= third_q[16:0];
            if (is_matrix || d.kind == OP_GAIN) issue_q.op.exponent <= aux_q[7:0];
            if (is_matrix || d.kind == OP_COPY || d.kind == OP_GAIN || d.kind == OP_ROW) issue_q.op.from <= from_q;
            else if (d.kind == OP_OUT)    issue_q.op.from <= MEMORY_BITS'(d.outer);
            if (d.kind == OP_ROW)         issue_q.op.stride <= aux_q[14:0];
            if (takes_epsilon)            issue_q.op.value <= epsilon_q;
            else if (d.kind == OP_CUT)    issue_q.op.value <= cut_q;
            else if (d.kind == OP_ATTEND) issue_q.op.value <= factor_q;
            if (d.windowed)               issue_q.op.window <= window_q[16:0];
            if (d.sinked)                 issue_q.op.sinks  <= sinks_q[16:5];
          end
        end
        if (step_q == 5'd15) wrong_q[WRONG_ROWS] <= rest_q != '0;      // of `attn` alone
        case (step_q)
          5'd8: begin
            if (is_kv) begin
              if (sum_q > {6'd0, base_q}) wrong_q[WRONG_BLOCK] <= 1'b1;
            end else if (d.where != UNIT_SFU && d.kind != OP_OUT) begin
              if (sum_q > {4'd0, memory_lines_i}) wrong_q[WRONG_MEMORY] <= 1'b1;
            end
            wrong_q[WRONG_RANGE]   <= (a_q.used && a_over_q) || (b_q.used && b_over_q) || (w_q.used && w_over_q);
            wrong_q[WRONG_OVERLAP] <= clash(a_q, w_q, a_in_place) || clash(b_q, w_q, b_in_place);
          end
          5'd7: begin
            // … and where it ends; of a matrix that is both, and its scales come next.
            from_q <= is_matrix || d.kind == OP_ROW ? MEMORY_BITS'(base_q) : sum_q[MEMORY_BITS-1:0];
            case (d.kind)
              OP_COPY, OP_ROW:      sum_q <= sum_q + {22'd0, lines_q};
              OP_GAIN:              sum_q <= sum_q + {22'd0, lines_q} - 38'd1;
              OP_APPEND, OP_ATTEND: begin
                if (sum_q > {22'd0, aux_q}) wrong_q[WRONG_BLOCK] <= 1'b1;
                sum_q <= sum_q + {1'b0, second_q};
              end
              default: begin
                if (is_matrix) begin
                  if (sum_q > {4'd0, memory_lines_i}) wrong_q[WRONG_MEMORY] <= 1'b1;
                  sum_q <= {6'd0, descriptor_q[47:16]} + (({16'd0, first_q[21:0]} + 38'd31) >> 5);
                end
              end
            endcase
            a_q.used  <= d.where != UNIT_MEM || d.kind == OP_APPEND || d.kind == OP_OUT;
            a_q.start <= d.a;
            a_q.stop  <= {1'b0, d.a} + a_lines_q[CHIP_BITS:0];
            a_over_q  <= {4'd0, d.a} + {1'b0, a_lines_q} > 19'(Lines);
            b_q.used  <= d.accumulate || (is_vector && d.kind != OP_ACT && d.kind != OP_STORE && d.kind != OP_TANH && d.kind != OP_CUT);
            b_q.start <= b_start;
            b_q.stop  <= {1'b0, b_start} + b_lines_q[CHIP_BITS:0];
            b_over_q  <= {4'd0, b_start} + {1'b0, b_lines_q} > 19'(Lines);
            w_q.used  <= d.kind != OP_APPEND && d.kind != OP_OUT && d.kind != OP_HEAD;
            w_q.start <= d.dst;
            w_q.stop  <= {1'b0, d.dst} + w_lines_q[CHIP_BITS:0];
            w_over_q  <= {4'd0, d.dst} + {1'b0, w_lines_q} > 19'(Lines);
          end
          5'd6: begin
            case (d.kind)
              OP_MULTIPLY, OP_HEAD, OP_EMBED:
                wrong_q[WRONG_LENGTH] <= first_q == '0 || large_q || k == '0 || k[4:0] != '0;
              OP_COPY, OP_OUT:
                wrong_q[WRONG_LENGTH] <= large_q || third_q == '0 || third_q > 37'd131072 || third_q[1:0] != '0;
              OP_GAIN:
                wrong_q[WRONG_LENGTH] <= large_q || third_q == '0 || third_q > 37'd65504 || third_q[4:0] != '0;
              OP_ROW:
                wrong_q[WRONG_LENGTH] <= first_q == '0 || large_q || k == '0 || k[1:0] != '0;
              OP_APPEND:
                wrong_q[WRONG_LENGTH] <= m != 16'd2;
              OP_ATTEND:
                wrong_q[WRONG_LENGTH] <= bad_heads(37'(m));
              OP_ROPE, OP_STORE:
                wrong_q[WRONG_LENGTH] <= bad_heads(first_q) || bad_width(k);
              OP_LEVEL:
                wrong_q[WRONG_LENGTH] <= bad_heads(first_q) || k == '0 || k > 16'd4096 || k[4:0] != '0;
              OP_PREDICT, OP_CORRECT:
                wrong_q[WRONG_LENGTH] <= first_q == '0 || first_q > 37'd4 || k == '0 || k > 16'd4096 || k[4:0] != '0;
              default:
                wrong_q[WRONG_LENGTH] <= large_q || third_q == '0 || third_q[4:0] != '0
                                      || third_q > ((d.kind == OP_RESCALE) ? 37'd4096 : 37'd65536);
            endcase
            wrong_q[WRONG_HEAD] <= is_kv && (bad_heads(37'(n)) || bad_width(k));
            wrong_q[WRONG_ROWS] <= (d.kind == OP_MULTIPLY && ((d.accumulate && first_q[4:0] != '0) || first_q > 37'd65504))
                                || (d.kind == OP_HEAD && !d.last && first_q[4:0] != '0);
            // Memory: where it begins …
            case (d.kind)
              OP_COPY:               sum_q <= {6'd0, base_q} + 38'(d.outer);
              OP_ROW:                sum_q <= {6'd0, base_q} + {1'b0, third_q};
              OP_APPEND, OP_ATTEND:  sum_q <= {1'b0, first_q} + 38'({n, 1'b0});
              OP_MULTIPLY, OP_HEAD, OP_EMBED: sum_q <= {6'd0, base_q} + {1'b0, third_q};
              default:               sum_q <= {6'd0, base_q};
            endcase
            case (d.kind)
              OP_COPY, OP_OUT: lines_q <= third_q[17:2];
              OP_GAIN:         lines_q <= 16'd1 + {4'd0, third_q[16:5]};
              OP_ROW:          lines_q <= {2'b00, k[15:2]};
              default:         lines_q <= '0;
            endcase
            // Lines of on-chip operands.
            case (d.kind)
              OP_MULTIPLY, OP_HEAD: a_lines_q <= activation({2'b00, k});
              OP_OUT:               a_lines_q <= third_q[19:2];
              OP_APPEND:            a_lines_q <= stored({n[12:0], 1'b0}, {first_q[19:0], 1'b0});
              OP_ATTEND:            a_lines_q <= stored({1'b0, m[12:0]}, third_q[20:0]);
              OP_CORRECT:           a_lines_q <= {6'd0, k[15:4]};
              default:              a_lines_q <= integers(third_q);
            endcase
            case (d.kind)
              OP_MULTIPLY: b_lines_q <= products(first_q[21:0]);
              OP_NORM:     b_lines_q <= 18'd1 + {2'b00, third_q[20:5]};
              OP_LEVEL:    b_lines_q <= 18'd1 + {7'd0, k[15:5]};
              OP_ROPE:     b_lines_q <= {7'd0, k[15:5]};
              OP_PREDICT, OP_CORRECT: b_lines_q <= 18'd1;
              default:     b_lines_q <= integers(third_q);
            endcase
            case (d.kind)
              OP_MULTIPLY:               w_lines_q <= products(first_q[21:0]);
              OP_EMBED:                  w_lines_q <= {6'd0, k[15:4]};
              OP_COPY:                   w_lines_q <= third_q[19:2];
              OP_GAIN:                   w_lines_q <= 18'd1 + {2'b00, third_q[20:5]};
              OP_ROW:                    w_lines_q <= {4'd0, k[15:2]};
              OP_ACT, OP_SWIGLU, OP_NORM, OP_TANH, OP_GEGLU: w_lines_q <= activation(third_q[17:0]);
              OP_STORE:                  w_lines_q <= stored({1'b0, first_q[12:0]}, third_q[20:0]);
              default:                   w_lines_q <= integers(third_q);
            endcase
          end
          5'd5: third_q  <= product_q;
          5'd4: second_q <= product_q;
          5'd3: begin
            first_q    <= product_q;
            large_q    <= product_q > 37'd1048576;
            // The last word of a product that is too large is not looked at.
            factor_a_q <= (d.kind == OP_ATTEND) ? {5'd0, m} : (d.kind == OP_ROW) ? product_q[20:0] - 21'd1 : product_q[20:0];
            factor_b_q <= is_matrix ? 16'((17'(k) + 17'd63) >> 6) : (d.kind == OP_ROW) ? aux_q : k;
          end
          5'd2: begin
            if (is_matrix && !descriptor_known_q) wrong_q[WRONG_MATRIX] <= 1'b1;
            case (d.kind)
              OP_MULTIPLY, OP_HEAD, OP_EMBED, OP_GAIN: wrong_q[WRONG_AUX] <= aux_q[15:7] != '0 && aux_q[15:7] != '1;
              OP_ROW, OP_APPEND, OP_ATTEND:            wrong_q[WRONG_AUX] <= aux_q[15];
              default: ;
            endcase
            factor_a_q <= {5'd0, d.sourced ? source_q[15:0] : layer_q};
            factor_b_q <= aux_q;
          end
          5'd1: begin
            wrong_q[WRONG_ODD]     <= d.odd;
            wrong_q[WRONG_SHAPE]   <= !shape_known_q;
            wrong_q[WRONG_EPSILON] <= (takes_epsilon && !epsilon_set_q) || (d.kind == OP_CUT && !cut_set_q);
            wrong_q[WRONG_MATRIX]  <= is_matrix && (!descriptor_known_q || d.desc == 6'd63);
            wrong_q[WRONG_DESC]    <= !is_matrix && !is_vector && d.kind != OP_OUT && !descriptor_known_q;
            wrong_q[WRONG_OUTSIDE] <= is_kv && !around_q;
            wrong_q[WRONG_SOURCE]  <= d.sourced && !source_set_q;
            wrong_q[WRONG_NUMBER]  <= d.sourced && source_q[31:16] != '0;
            wrong_q[WRONG_FACTOR]  <= d.kind == OP_ATTEND && (!factor_set_q || (d.windowed && !window_set_q));
            wrong_q[WRONG_WINDOW]  <= d.windowed && (window_q == '0 || window_q > 32'd65536);
            wrong_q[WRONG_UNSET]  <= d.sinked && !sinks_set_q;
            wrong_q[WRONG_SINKS]   <= d.sinked && (sinks_q > 32'd65536 || sinks_q[4:0] != '0);
            base_q <= descriptor_q[47:16];
            aux_q  <= descriptor_q[15:0];
            // The scales of a matrix.
            descriptor_q       <= descriptors[d.desc + 6'd1];
            descriptor_known_q <= descriptor_set_q[d.desc + 6'd1];
            factor_a_q <= is_kv ? {5'd0, n} : {5'd0, m};
            factor_b_q <= is_kv ? k : n;
          end
          default: ;
        endcase
        if (step_q != last_step) step_q <= step_q + 5'd1;
        product_q <= factor_a_q * factor_b_q;
        // Heads modulo those that share, a bit a cycle.
        if (step_q == 5'd1) begin
          rest_q     <= '0;
          dividend_q <= m[12:0];
        end else begin
          dividend_q <= {dividend_q[11:0], 1'b0};
          rest_q     <= ({1'b0, rest_q, dividend_q[12]} >= {2'b00, n[12:0]})
                      ? {rest_q[11:0], dividend_q[12]} - n[12:0] : {rest_q[11:0], dividend_q[12]};
        end
      end

      if (issue_taken_i) issue_valid_q <= 1'b0;
      if (at_q == AT_READY && step_q == last_step && wrong_q == '0 && room) issue_valid_q <= 1'b1;

      // Where a layer's words lie, and whether memory has them.
      if (at_q == AT_TABLE) begin
        step_q       <= step_q + 5'd1;
        case (step_q)
          5'd7: if (wrong_q != '0) begin
            at_q        <= AT_END;
            log_q.fault <= fault_of(wrong_q);
          end else if (ask_q || owed_q != '0) step_q <= step_q;     // lines of the program are on their way
          else begin
            at_q         <= AT_WORD;
            layering_q   <= 1'b1;
            left_q       <= loop_words_q;
            ask_q        <= loop_words_q != '0;
            ask_line_q   <= from_q;
            ask_lines_q  <= loop_lines;
            owed_q       <= loop_lines;
            owed_layer_q <= 1'b1;
            line_full_q  <= 1'b0;
          end
          5'd6: wrong_q[WRONG_MEMORY] <= sum_q > {4'd0, memory_lines_i};
          5'd5: begin
            from_q <= sum_q[MEMORY_BITS-1:0];
            sum_q  <= sum_q + {34'd0, loop_lines};
          end
          5'd4: sum_q <= {6'd0, table_q} + {1'b0, product_q};
          5'd2: begin
            wrong_q[WRONG_AUX] <= stride_q[15];
            factor_a_q <= {5'd0, layer_q};
            factor_b_q <= stride_q;
          end
          5'd1: begin
            table_q  <= descriptor_q[47:16];
            stride_q <= descriptor_q[15:0];
            wrong_q[WRONG_DESC] <= !descriptor_known_q;
          end
          default: ;
        endcase
        word_valid_q <= 1'b0;                    // what was fetched behind the word
        decoded_valid_q <= 1'b0;
        product_q    <= factor_a_q * factor_b_q;
      end

      if (word_here && !is_set) begin
        shape_q            <= shapes[{d.weight, d.shape}];
        shape_known_q      <= shape_set_q[{d.weight, d.shape}];
        descriptor_q       <= descriptors[d.desc];
        descriptor_known_q <= descriptor_set_q[d.desc];
      end
      if (word_here) begin
        step_q  <= 5'd1;
        wrong_q <= '0;
        if (refuse) begin
          at_q        <= AT_END;
          log_q.fault <= refused;
        end else if (is_set) begin
          case (d.form)
            FORM_MEMSET_FMAP, FORM_MEMSET_WEIGHT: begin
              shapes[{d.form == FORM_MEMSET_WEIGHT, decoded_word_q[57:52]}]      <= decoded_word_q[51:4];
              shape_set_q[{d.form == FORM_MEMSET_WEIGHT, decoded_word_q[57:52]}] <= 1'b1;
            end
            FORM_MEMSET_DESC: begin
              descriptors[decoded_word_q[57:52]]      <= decoded_word_q[51:4];
              descriptor_set_q[decoded_word_q[57:52]] <= 1'b1;
            end
            FORM_MEMSET_EPSILON: begin
              epsilon_q     <= decoded_word_q[51:20];
              epsilon_set_q <= 1'b1;
            end
            FORM_MEMSET_WINDOW: begin
              window_q     <= decoded_word_q[51:20];
              window_set_q <= 1'b1;
            end
            FORM_MEMSET_SOURCE: begin
              source_q     <= decoded_word_q[51:20];
              source_set_q <= 1'b1;
            end
            FORM_MEMSET_CUT: begin
              cut_q     <= decoded_word_q[51:20];
              cut_set_q <= 1'b1;
            end
            FORM_MEMSET_SINKS: begin
              sinks_q     <= decoded_word_q[51:20];
              sinks_set_q <= 1'b1;
            end
            default: begin
              factor_q     <= decoded_word_q[51:20];
              factor_set_q <= 1'b1;
            end
          endcase
        end else begin
          case (d.form)
            FORM_END:        at_q <= AT_END;
            FORM_END_SILENT: at_q <= AT_SILENT;
            FORM_LAYERS: begin
              at_q         <= AT_TABLE;
              count_q      <= decoded_word_q[55:40];
              loop_words_q <= decoded_word_q[39:34];
              loop_pc_q    <= decoded_pc_q + 1'b1;
              layer_q      <= '0;
              around_q     <= 1'b1;
            end
            FORM_NEXT: begin
              if (loop_ends) around_q <= 1'b0;
              else begin
                at_q    <= AT_TABLE;
                step_q  <= 5'd2;
                layer_q <= layer_q + 1'b1;
              end
            end
            default: at_q <= AT_READY;
          endcase
        end
      end

      // ---------------------------------------------------------------- words
      if (take_word) begin
        decoded_valid_q <= word_valid_q;
        decoded_none_q  <= word_none_q;
        decoded_bad_q   <= word_bad_q;
        decoded_word_q  <= word_q;
        decoded_pc_q    <= word_pc_q;
        word_valid_q    <= 1'b0;
      end
      if (running && (take_word || !word_valid_q) && next_here && !(layering_q && left_q == '0)) begin
        word_valid_q <= 1'b1;
        word_none_q  <= next_none;
        word_bad_q   <= next_bad;
        word_pc_q    <= pc_q;
        if (layering_q) begin
          word_q      <= line_q[{line_word_q, 6'd0} +: 64];
          line_word_q <= line_word_q + 3'd1;
          left_q      <= left_q - 6'd1;
          if (line_word_q == 3'd7 || left_q == 6'd1) line_full_q <= 1'b0;
        end else begin
          word_q <= (next_none || next_bad) ? '0 : store[slot][{pc_q[2:0], 6'd0} +: 64];
          pc_q   <= pc_q + {{(PC_BITS-1){1'b0}}, !next_none};
        end
      end
      // The layer's words are all executed: on with the loop's.
      if (running && layering_q && left_q == '0 && !word_valid_q && (!decoded_valid_q || done_word)) begin
        layering_q <= 1'b0;
        pc_q       <= loop_pc_q;
      end

      // ---------------------------------------------------------------- memory
      if (ask_q && fetch_ready_i) ask_q <= 1'b0;
      if (running && !layering_q && !next_here && !ask_q && owed_q == '0) begin
        ask_q        <= 1'b1;
        ask_line_q   <= program_i + MEMORY_BITS'(pc_q[PC_BITS-1:3]);
        ask_lines_q  <= (lines_left > 14'd8) ? 4'd8 : lines_left[3:0];
        owed_q       <= (lines_left > 14'd8) ? 4'd8 : lines_left[3:0];
        owed_layer_q <= 1'b0;
        fill_q       <= pc_q[PC_BITS-1:3];
      end

      if (word_here && !layering_q) begin
        place_q.pc     <= decoded_pc_q;
        place_q.around <= around_q;
        place_q.layer  <= around_q ? layer_q : '0;
        place_q.word   <= decoded_word_q;
      end
      if (beat_valid_i && beat_ready_o) begin
        owed_q <= owed_q - 4'd1;
        if (owed_layer_q) begin
          line_q      <= beat_data_i;
          line_bad_q  <= beat_fault_i;
          line_full_q <= 1'b1;
          line_word_q <= '0;
        end else begin
          store[fill_q[2:0]]  <= beat_data_i;
          tag_q[fill_q[2:0]]  <= fill_q[PC_BITS-4:3];
          held_q[fill_q[2:0]] <= 1'b1;
          bad_q[fill_q[2:0]]  <= beat_fault_i;
          fill_q              <= fill_q + 1'b1;
        end
      end

      // ---------------------------------------------------------------- the end
      if (at_q == AT_SILENT && !issue_valid_q && quiet_i) begin
        at_q            <= silent_i ? AT_DRAIN : AT_WORD;
        decoded_valid_q <= 1'b0;
      end
      if (at_q == AT_END) begin
        log_q.place <= place_q;
        if (!issue_valid_q && quiet_i) at_q <= AT_DRAIN;
      end
      // The step ends between two words. It waits for a word that its unit takes in this very cycle.
      if (failed_i || give_up_i) begin
        issue_valid_q <= 1'b0;
        if (at_q != AT_DRAIN) at_q <= (quiet_i && !issue_taken_i) ? AT_DRAIN : AT_END;
      end
      if (give_up_i && at_q != AT_DRAIN) log_q.fault <= FAULT_MEMORY;
      // Lines of a layer that is given up stand in nobody's way.
      if (draining) line_full_q <= 1'b0;
      if (at_q == AT_DRAIN && !ask_q && owed_q == '0) begin
        at_q   <= AT_IDLE;
        over_o <= 1'b1;
      end
    end
    if (start_i) begin
      at_q             <= AT_WORD;
      held_q           <= '0;
      pc_q             <= '0;
      layering_q       <= 1'b0;
      line_full_q      <= 1'b0;
      word_valid_q     <= 1'b0;
      decoded_valid_q  <= 1'b0;
      shape_set_q      <= '0;
      descriptor_set_q <= '0;
      epsilon_set_q    <= 1'b0;
      factor_set_q     <= 1'b0;
      window_set_q     <= 1'b0;
      source_set_q     <= 1'b0;
      cut_set_q        <= 1'b0;
      sinks_set_q      <= 1'b0;
      around_q         <= 1'b0;
      layer_q          <= '0;
      log_q            <= '0;
    end
    if (!rst_ni) begin
      at_q          <= AT_IDLE;
      ask_q         <= 1'b0;
      owed_q        <= '0;
      issue_valid_q <= 1'b0;
      over_o        <= 1'b0;
      line_full_q   <= 1'b0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (start_i) begin
      if (rst_ni && at_q != AT_IDLE) $fatal(1, "N1 npu_sequencer: a step begins in the middle of one");
    end
    if (beat_valid_i) begin
      if (rst_ni && owed_q == '0) $fatal(1, "N5 npu_sequencer: a line that nobody asked for");
    end
    if (issue_taken_i) begin
      if (rst_ni && !issue_valid_q) $fatal(1, "N3 npu_sequencer: a word is taken that is not there");
    end
  end
`endif
endmodule
