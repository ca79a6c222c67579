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
    npu_word_t d;
    d       = '0;
    d.fault = unknown(word[63:60], word[16:13]);
    for (int k = 0; k < FORMS; k++) begin
      if ((word & FORM_SELECT[64*k +: 64]) == FORM_VALUE[64*k +: 64]) begin
        d.form  = 6'(k);
        d.fault = ((word & FORM_RESERVED[64*k +: 64]) != '0) ? FAULT_RESERVED_BITS : FAULT_NONE;
      end
    end
    d.memset = word[63:60] == 4'd3;
    d.unit   = 1'b1;
    case (d.form)
      FORM_GEMV:         d.kind = OP_MULTIPLY;
      FORM_MEMCPY_IN:    d.kind = OP_COPY;
      FORM_MEMCPY_GAIN:  d.kind = OP_GAIN;
      FORM_MEMCPY_ROW:   d.kind = OP_ROW;
      FORM_MEMCPY_EMBED: d.kind = OP_EMBED;
      FORM_MEMCPY_KV:    d.kind = OP_APPEND;
      FORM_MEMCPY_OUT:   d.kind = OP_OUT;
      FORM_VEC_ADD:      d.kind = OP_ADD;
      FORM_VEC_MUL:      d.kind = OP_MUL;
      FORM_VEC_ACT:      d.kind = OP_ACT;
      FORM_VEC_SWIGLU:   d.kind = OP_SWIGLU;
      FORM_VEC_NORM:     d.kind = OP_NORM;
      FORM_VEC_ROPE:     d.kind = OP_ROPE;
      FORM_VEC_STORE:    d.kind = OP_STORE;
      FORM_VEC_LEVEL:    d.kind = OP_LEVEL;
      FORM_VEC_TANH:     d.kind = OP_TANH;
      FORM_VEC_GEGLU:    d.kind = OP_GEGLU;
      FORM_VEC_BLEND:    d.kind = OP_BLEND;
      FORM_VEC_CUT:      d.kind = OP_CUT;
      FORM_VEC_RESCALE:  d.kind = OP_RESCALE;
      FORM_VEC_PREDICT:  d.kind = OP_PREDICT;
      FORM_VEC_CORRECT:  d.kind = OP_CORRECT;
      FORM_ATTN:         d.kind = OP_ATTEND;
      FORM_HEAD:         d.kind = OP_HEAD;
      default:           d.unit = 1'b0;
    endcase
    case (word[63:60])
      4'd0: begin
        d.where      = UNIT_GEMV;
        d.dst        = word[59:45];
        d.a          = word[42:28];
        d.odd        = word[44:43] != '0 || word[27:26] != '0;
        d.max        = word[25];
        d.accumulate = word[24];
        d.scaled     = word[23];
        d.desc       = word[19:14];
        d.shape      = word[13:8];
        d.weight     = 1'b1;
      end
      4'd2: begin
        d.where  = UNIT_MEM;
        d.dst    = word[59] ? word[57:43] : '0;
        d.a      = word[59] ? '0 : word[40:26];
        d.odd    = word[59] ? word[42:41] != '0 : word[25:24] != '0;
        d.outer  = word[59] ? word[40:24] : word[57:41];
        d.desc   = word[12:7];
        d.shape  = word[6:1];
        d.weight = d.form == FORM_MEMCPY_EMBED;
        d.sync   = !word[0];
      end
      4'd5: begin
        d.where = UNIT_SFU;
        d.dst   = {2'b00, word[53:41]};
        d.a     = {2'b00, word[40:28]};
        d.b     = {2'b00, word[27:15]};
        d.shape = word[14:9];
      end
      4'd6: begin
        d.where    = UNIT_KV;
        d.dst      = {2'b00, word[59:47]};
        d.a        = {2'b00, word[46:34]};
        d.shape    = word[33:28];
        d.desc     = word[27:22];
        d.windowed = word[21];
        d.sourced  = word[20];
      end
      4'd7: begin
        d.where  = UNIT_GEMV;
        d.a      = {2'b00, word[59:47]};
        d.desc   = word[46:41];
        d.shape  = word[40:35];
        d.first  = word[34];
        d.last   = word[33];
        d.cap    = word[32];
        d.weight = 1'b1;
      end
      4'd8:    d.desc = word[33:28];
      default: ;
    endcase
    decoded = d;
  endfunction

  always_ff @(posedge clk_i) begin
    if (take_i) word_o <= decoded(word_i);
  end
endmodule
