// A word of 64 bits → its kind and its fields, or its error (docs/isa.md, "Words"); one in a cycle, behind a register.
// Kinds are those of npu_pkg's table; only where their fields lie is written down here.
module npu_decode
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
(
  input  logic        clk_i,
  input  logic        take_i,
  input  logic [63:0] word_i,
  output npu_word_t   word_o      // of the last one that was taken
);
  // What is wrong with a word that is of no kind.
  function automatic logic [4:0] unknown(input logic [3:0] opcode, input logic [3:0] copy);
    case (opcode)
      4'd2:    unknown = (copy <= 4'd4) ? FAULT_BAD_ROUTE : FAULT_UNKNOWN_FUNCTION;
      4'd3:    unknown = FAULT_UNKNOWN_REGISTER;
      4'd4, 4'd5, 4'd8: unknown = FAULT_UNKNOWN_FUNCTION;
      default: unknown = FAULT_UNKNOWN_OPCODE;
    endcase
  endfunction

  function automatic npu_word_t decoded(input logic [63:0] word);
    npu_word_t fields;
    fields       = '0;
    fields.fault = unknown(word[63:60], word[16:13]);
    for (int k = 0; k < FORMS; k++) begin
      if ((word & FORM_SELECT[64*k +: 64]) == FORM_VALUE[64*k +: 64]) begin
        fields.form  = 6'(k);
        fields.fault = ((word & FORM_RESERVED[64*k +: 64]) != '0) ? FAULT_RESERVED_BITS : FAULT_NONE;
      end
    end
    fields.memset = word[63:60] == 4'd3;
    fields.unit   = 1'b1;
    case (fields.form)
      FORM_GEMV:         fields.kind = OP_MULTIPLY;
      FORM_MEMCPY_IN:    fields.kind = OP_COPY;
      FORM_MEMCPY_GAIN:  fields.kind = OP_GAIN;
      FORM_MEMCPY_ROW:   fields.kind = OP_ROW;
      FORM_MEMCPY_EMBED: fields.kind = OP_EMBED;
      FORM_MEMCPY_KV:    fields.kind = OP_APPEND;
      FORM_MEMCPY_OUT:   fields.kind = OP_OUT;
      FORM_VEC_ADD:      fields.kind = OP_ADD;
      FORM_VEC_MUL:      fields.kind = OP_MUL;
      FORM_VEC_ACT:      fields.kind = OP_ACT;
      FORM_VEC_SWIGLU:   fields.kind = OP_SWIGLU;
      FORM_VEC_NORM:     fields.kind = OP_NORM;
      FORM_VEC_ROPE:     fields.kind = OP_ROPE;
      FORM_VEC_STORE:    fields.kind = OP_STORE;
      FORM_VEC_LEVEL:    fields.kind = OP_LEVEL;
      FORM_VEC_TANH:     fields.kind = OP_TANH;
      FORM_VEC_GEGLU:    fields.kind = OP_GEGLU;
      FORM_VEC_BLEND:    fields.kind = OP_BLEND;
      FORM_VEC_CUT:      fields.kind = OP_CUT;
      FORM_VEC_RESCALE:  fields.kind = OP_RESCALE;
      FORM_VEC_PREDICT:  fields.kind = OP_PREDICT;
      FORM_VEC_CORRECT:  fields.kind = OP_CORRECT;
      FORM_ATTN:         fields.kind = OP_ATTEND;
      FORM_HEAD:         fields.kind = OP_HEAD;
      default:           fields.unit = 1'b0;
    endcase
    case (word[63:60])
      4'd0: begin
        fields.where      = UNIT_GEMV;
        fields.dst        = word[59:45];
        fields.a          = word[42:28];
        fields.odd        = word[44:43] != '0 || word[27:26] != '0;
        fields.max        = word[25];
        fields.accumulate = word[24];
        fields.scaled     = word[23];
        fields.desc       = word[19:14];
        fields.shape      = word[13:8];
        fields.weight     = 1'b1;
      end
      4'd2: begin
        fields.where  = UNIT_MEM;
        fields.dst    = word[59] ? word[57:43] : '0;
        fields.a      = word[59] ? '0 : word[40:26];
        fields.odd    = word[59] ? word[42:41] != '0 : word[25:24] != '0;
        fields.outer  = word[59] ? word[40:24] : word[57:41];
        fields.desc   = word[12:7];
        fields.shape  = word[6:1];
        fields.weight = fields.form == FORM_MEMCPY_EMBED;
        fields.sync   = !word[0];
      end
      4'd5: begin
        fields.where = UNIT_SFU;
        fields.dst   = {2'b00, word[53:41]};
        fields.a     = {2'b00, word[40:28]};
        fields.b     = {2'b00, word[27:15]};
        fields.shape = word[14:9];
      end
      4'd6: begin
        fields.where    = UNIT_KV;
        fields.dst      = {2'b00, word[59:47]};
        fields.a        = {2'b00, word[46:34]};
        fields.shape    = word[33:28];
        fields.desc     = word[27:22];
        fields.windowed = word[21];
        fields.sourced  = word[20];
        fields.sinked   = word[19];
      end
      4'd7: begin
        fields.where  = UNIT_GEMV;
        fields.a      = {2'b00, word[59:47]};
        fields.desc   = word[46:41];
        fields.shape  = word[40:35];
        fields.first  = word[34];
        fields.last   = word[33];
        fields.cap    = word[32];
        fields.weight = 1'b1;
      end
      4'd8:    fields.desc = word[33:28];
      default: ;
    endcase
    decoded = fields;
  endfunction

  always_ff @(posedge clk_i) begin
    if (take_i) word_o <= decoded(word_i);
  end
endmodule
