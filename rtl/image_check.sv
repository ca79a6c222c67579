// Judges what a POLICY of engine 1 names (rule R25, and "Which error", 12): an HwImage, a line of the token region, and then the
// header of the image, the line of the MODEL region that it names. One at a time, a step in a cycle, with one multiplier, which
// the check of the one and the products of the other take in turn: a version is published once in a long while.
module image_check
  import desc_pkg::*;
  import core_pkg::*;
(
  input  logic         clk_i,
  input  logic         run_i,           // the line lies there; low for a cycle at least between two
  input  logic         header_i,        // it is the header, else the HwImage
  input  logic [511:0] line_i,
  input  logic [63:0]  model_size_i,    // of the MODEL region
  output logic         done_o,          // it is known whether it is sound, until run_i falls
  output logic         sound_o,
  output image_t       image_o          // the last HwImage that was sound
);
  localparam logic [63:0] Magic     = 64'h004D_4C62_726F_6F44;    // "DoorbLM" and a 0, in memory order
  localparam logic [31:0] Layout    = 32'd2;
  localparam logic [5:0]  HashSteps = 6'd30;    // two for each of the 15 words
  localparam logic [5:0]  HeadSteps = 6'd13;    // a bit of the number of heads each

  // The header of an image (docs/engine.md, The image). Byte 0 of memory is bits [7:0].
  typedef struct packed {
    logic [31:0] entries;
    logic [31:0] epsilon;
    logic [31:0] positions;
    logic [31:0] vocabulary;
    logic [31:0] hidden;
    logic [31:0] head_width;
    logic [31:0] kv_heads;
    logic [31:0] heads;
    logic [15:0] own;        // layers with keys and values of their own; 0: all
    logic [15:0] layers;
    logic [31:0] width;
    logic [63:0] length;
    logic [31:0] check;
    logic [31:0] version;
    logic [63:0] magic;
  } header_t;

  /* verilator lint_off UNUSEDSIGNAL */  // how many entries the directory has is not looked at
  header_t   header;
  /* verilator lint_on UNUSEDSIGNAL */
  hw_image_t record;
  assign record = line_i;
  assign header = line_i;

  // ---------------------------------------------------------------- steps
  logic [5:0]  step_q;
  logic [33:0] acc_q;                   // the hash; the product so far: lines of a block take up to 33 bits
  logic [12:0] rest_q;                  // of the heads, divided by those of keys and values
  logic [33:0] factor, other, product;
  logic [31:0] word, folded, heads;
  logic [12:0] rest;
  logic [15:0] kv_layers;
  logic        bit_now;

  assign done_o = run_i && step_q == (header_i ? HeadSteps : HashSteps);

  // mix, in two steps: see policy_pkg.
  assign word    = run_i ? line_i[{step_q[4:1], 5'd0} +: 32] : '0;
  assign folded  = ((step_q == '0) ? GOLDEN : acc_q[31:0]) ^ word;
  assign factor  = header_i ? ((step_q == '0) ? {18'd0, kv_layers} : acc_q)
                            : {2'd0, step_q[0] ? acc_q[31:0] : folded ^ (folded >> 16)};
  assign other   = header_i ? ((step_q == '0) ? {2'd0, header.kv_heads} : {2'd0, header.head_width} + 34'd2)
                            : {2'd0, step_q[0] ? MIX_MUL_2 : MIX_MUL_1};
  assign product = factor * other;

  assign kv_layers = (header.own == '0) ? header.layers : header.own;

  // A block has, for each such layer and head of keys and values, 2 · (64 + 32 · head_width) bytes: 2 + head_width lines.
  assign heads   = header.heads;
  assign bit_now = heads[5'd12 - step_q[4:0]];
  assign rest    = {rest_q[11:0], bit_now};

  always_ff @(posedge clk_i) begin
    if (!run_i) begin
      step_q <= '0;
      rest_q <= '0;
    end else if (!done_o) begin
      step_q <= step_q + 6'd1;
      rest_q <= (rest >= header.kv_heads[12:0]) ? rest - header.kv_heads[12:0] : rest;
      if (!header_i) acc_q <= {2'd0, product[31:0] ^ (product[31:0] >> (step_q[0] ? 16 : 15))};
      else if (step_q < 6'd2) acc_q <= product;
    end
  end

  // ---------------------------------------------------------------- an HwImage
  function automatic logic is_end(input logic [31:0] token, input logic [31:0] vocabulary);
    is_end = token == TOKEN_NONE || token < vocabulary;
  endfunction

  logic sound_record;
  assign sound_record = record.check == acc_q[31:0]
    && {record.offset[5:0], record.length[5:0], record.program_at[5:0]} == '0
    && {1'b0, record.offset} + {1'b0, record.length} <= {1'b0, model_size_i}
    && record.words != '0 && {record.words[31:16], record.program_at[63:40]} == '0    // what the NPU counts with
    && {1'b0, record.program_at} + {30'd0, record.words, 3'd0} <= {1'b0, record.length}
    && is_end(record.end_0, record.vocabulary) && is_end(record.end_1, record.vocabulary)
    && is_end(record.end_2, record.vocabulary) && is_end(record.end_3, record.vocabulary);

  // ---------------------------------------------------------------- the header, against the HwImage before it
  image_t      image_q;
  logic [31:0] check_q;

  function automatic logic in_range(input logic [31:0] value, input logic [31:0] most);
    in_range = value != '0 && value <= most;
  endfunction

  // What a device runs: no sum of such a shape leaves its bits.
  logic sound_shape, sound_header;
  assign sound_shape = {header.width[4:0], header.head_width[4:0], header.hidden[4:0]} == '0
    && in_range(header.width, 32'd4096) && in_range(header.head_width, 32'd256) && in_range(header.hidden, 32'd65536)
    && in_range({16'd0, header.layers}, 32'd4096) && header.own <= header.layers && in_range(header.heads, 32'd4096) && in_range(header.kv_heads, 32'd4096)
    && in_range(header.vocabulary, 32'h10_0000) && in_range(header.positions, 32'd65536) && rest_q == '0;
  assign sound_header = header.magic == Magic && header.version == Layout && header.epsilon[31:20] == '0 && sound_shape
    && header.length <= image_q.program_at && header.check == check_q && header.vocabulary == image_q.vocabulary
    && header.positions == image_q.positions && acc_q == {2'd0, image_q.block_lines};

  assign sound_o = done_o && (header_i ? sound_header : sound_record);
  assign image_o = image_q;

  always_ff @(posedge clk_i) begin
    if (sound_o && !header_i) begin
      image_q <= {record.offset, record.length, record.program_at, record.words, record.vocabulary, record.positions,
                  record.block_lines, record.end_0, record.end_1, record.end_2, record.end_3};
      check_q <= record.image_check;
    end
  end
endmodule
