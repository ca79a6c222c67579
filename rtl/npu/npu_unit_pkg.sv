// What travels between the blocks of the NPU. The words and their fields are npu_pkg's; here are words made ready: shapes and
// descriptors read, operands checked (docs/isa.md, "Errors"), addresses in lines of 64 bytes.
package npu_unit_pkg;
  /* verilator lint_off UNUSEDPARAM */
  localparam int LINE_BITS    = 512;
  localparam int CHIP_BITS    = 15;   // an address of a line of on-chip memory
  localparam int MEMORY_BITS  = 34;   // an address of a line of model memory, or of an arena, from its first one

  // What a unit does: the kinds of `Work` of the interpreter.
  typedef logic [4:0] npu_kind_t;
  localparam npu_kind_t OP_COPY     = 5'd0;    // MEM: lines lines of model memory at from → dst
  localparam npu_kind_t OP_GAIN     = 5'd1;    // MEM: a line with exponent, then lines - 1 lines at from → dst
  localparam npu_kind_t OP_ROW      = 5'd2;    // MEM: lines lines at from + position · stride → dst; position ≥ rows is a fault
  localparam npu_kind_t OP_EMBED    = 5'd3;    // MEM: row token of the matrix → columns integers at dst; token ≥ rows is a fault
  localparam npu_kind_t OP_APPEND   = 5'd4;    // MEM: 2 · kv_heads stored heads of width at a → the position's block
  localparam npu_kind_t OP_OUT      = 5'd5;    // MEM: lines lines at a → the output region, from line from on
  localparam npu_kind_t OP_MULTIPLY = 5'd6;    // GEMV: matrix · activation of columns at a → rows integers at dst
  localparam npu_kind_t OP_HEAD     = 5'd7;    // GEMV: the same, into the sampler
  localparam npu_kind_t OP_ADD      = 5'd8;    // SFU, of count = heads · width integers at a, and what lies at b
  localparam npu_kind_t OP_MUL      = 5'd9;
  localparam npu_kind_t OP_ACT      = 5'd10;
  localparam npu_kind_t OP_SWIGLU   = 5'd11;
  localparam npu_kind_t OP_NORM     = 5'd12;   // value is ε
  localparam npu_kind_t OP_ROPE     = 5'd13;
  localparam npu_kind_t OP_STORE    = 5'd14;
  localparam npu_kind_t OP_ATTEND   = 5'd15;    // KV: heads stored queries of width at a, kv_heads of keys and values → dst; value is the factor
  localparam npu_kind_t OP_LEVEL    = 5'd16;   // SFU, of Gemma 3N: heads of width at a, a gain at b; value is ε
  localparam npu_kind_t OP_TANH     = 5'd17;
  localparam npu_kind_t OP_GEGLU    = 5'd18;
  localparam npu_kind_t OP_BLEND    = 5'd19;
  localparam npu_kind_t OP_CUT      = 5'd20;   // value is the deviations
  localparam npu_kind_t OP_RESCALE  = 5'd21;   // value is ε
  localparam npu_kind_t OP_PREDICT  = 5'd22;   // heads streams of width at a, their coefficients at b
  localparam npu_kind_t OP_CORRECT  = 5'd23;   // heads streams of width at dst, what was found at a, coefficients at b

  // A word, made ready. What its kind does not name is 0.
  typedef struct packed {
    npu_kind_t               kind;
    logic                    accumulate;  // OP_MULTIPLY: to what is at dst
    logic                    scaled;      // OP_MULTIPLY: requantised; else the sums as they are
    logic                    first;       // OP_HEAD: the sampler begins …
    logic                    last;        // … and gives its token
    logic                    cap;         // OP_HEAD: logits pass through softcap
    logic [CHIP_BITS-1:0]    dst;
    logic [CHIP_BITS-1:0]    a;
    logic [CHIP_BITS-1:0]    b;
    logic [15:0]             lines;       // 1 to 32,768
    logic [20:0]             rows;        // 1 to 2^20
    logic [15:0]             columns;     // a multiple of 32, 32 to 65,504
    logic [12:0]             heads;       // 1 to 4,096; of vectors without heads 1; streams
    logic [12:0]             kv_heads;
    logic [16:0]             width;       // of a head 32 to 256, else count; a multiple of 32
    logic signed [7:0]       exponent;
    logic [MEMORY_BITS-1:0]  from;        // first line of what is read; of a matrix its rows; OP_OUT: where it goes
    logic [31:0]             scales;      // first line of a matrix's rows' scales
    logic [14:0]             stride;      // OP_ROW: lines from a row to the next
    logic [31:0]             block;       // lines from a block of keys and values to the next …
    logic [30:0]             layer;       // … and of the layer in it
    logic [31:0]             value;       // ε, the factor or the deviations
    logic [16:0]             window;      // OP_ATTEND: positions that it sees, 1 to 65,536; 0: all
    logic [11:0]             sinks;       // OP_ATTEND: blocks that it sees besides, from the first on
  } npu_op_t;

  // What a context brings along for a step.
  typedef struct packed {
    logic [31:0] token;       // whose successor is wanted
    logic [31:0] position;    // where it stands
    logic        silent;      // no token is wanted
    logic        scores;      // of a given one, which stands in the place of the seed, the log-probability
    logic [27:0] sharpness;   // docs/engine.md, "Sampling"; 0 is the most likely token
    logic [31:0] seed;
    logic [31:0] rollout;
  } npu_step_t;

  // Why a unit did not finish: what a context brings along, and memory that answers with an error.
  typedef logic [3:0] npu_end_t;
  localparam npu_end_t UNIT_FINE        = 4'd0;
  localparam npu_end_t UNIT_TOKEN       = 4'd1;   // BadToken
  localparam npu_end_t UNIT_POSITION    = 4'd2;   // BadPosition
  localparam npu_end_t UNIT_MISSING     = 4'd3;   // BlockMissing
  localparam npu_end_t UNIT_BLOCK       = 4'd4;   // BlockOutOfRange
  localparam npu_end_t UNIT_OUTPUT      = 4'd5;   // OutputOutOfRange
  localparam npu_end_t UNIT_NO_FIRST    = 4'd6;   // NoFirst
  localparam npu_end_t UNIT_MEMORY      = 4'd7;    // a read or write was answered with an error
  /* verilator lint_on UNUSEDPARAM */
endpackage
