// What travels between the blocks of the NPU. The words and their fields are npu_pkg's; here are words made ready: shapes and
// descriptors read, operands checked (docs/isa.md, "Errors"), addresses in lines of 64 bytes.
package npu_unit_pkg;
  /* verilator lint_off UNUSEDPARAM */
  localparam int LINE_BITS    = 512;
  localparam int CHIP_BITS    = 15;   // an address of a line of on-chip memory
  localparam int MEMORY_BITS  = 34;   // an address of a line of model memory, or of an arena, from its first one

  // What a unit does: the kinds of `Work` of the interpreter.
  typedef enum logic [3:0] {
    OP_COPY     = 4'd0,    // MEM: lines lines of model memory at from → dst
    OP_GAIN     = 4'd1,    // MEM: a line with exponent, then lines - 1 lines at from → dst
    OP_ROW      = 4'd2,    // MEM: lines lines at from + position · stride → dst; position ≥ rows is a fault
    OP_EMBED    = 4'd3,    // MEM: row token of the matrix → columns integers at dst; token ≥ rows is a fault
    OP_APPEND   = 4'd4,    // MEM: 2 · kv_heads stored heads of width at a → the position's block
    OP_OUT      = 4'd5,    // MEM: lines lines at a → the output region, from line from on
    OP_MULTIPLY = 4'd6,    // GEMV: matrix · activation of columns at a → rows integers at dst
    OP_HEAD     = 4'd7,    // GEMV: the same, into the sampler
    OP_ADD      = 4'd8,    // SFU, of count = heads · width integers at a, and what lies at b
    OP_MUL      = 4'd9,
    OP_ACT      = 4'd10,
    OP_SWIGLU   = 4'd11,
    OP_NORM     = 4'd12,   // value is ε
    OP_ROPE     = 4'd13,
    OP_STORE    = 4'd14,
    OP_ATTEND   = 4'd15    // KV: heads stored queries of width at a, kv_heads of keys and values → dst; value is the factor
  } npu_kind_t;

  // A word, made ready. What its kind does not name is 0.
  typedef struct packed {
    npu_kind_t               kind;
    logic                    accumulate;  // OP_MULTIPLY: to what is at dst
    logic                    scaled;      // OP_MULTIPLY: requantised; else the sums as they are
    logic                    first;       // OP_HEAD: the sampler begins …
    logic                    last;        // … and gives its token
    logic [CHIP_BITS-1:0]    dst;
    logic [CHIP_BITS-1:0]    a;
    logic [CHIP_BITS-1:0]    b;
    logic [15:0]             lines;       // 1 to 32,768
    logic [20:0]             rows;        // 1 to 2^20
    logic [15:0]             columns;     // a multiple of 32, 32 to 65,504
    logic [12:0]             heads;       // 1 to 4,096; of vectors without heads 1
    logic [12:0]             kv_heads;
    logic [16:0]             width;       // of a head 32 to 256, else count; a multiple of 32
    logic signed [7:0]       exponent;
    logic [MEMORY_BITS-1:0]  from;        // first line of what is read; of a matrix its rows; OP_OUT: where it goes
    logic [31:0]             scales;      // first line of a matrix's rows' scales
    logic [14:0]             stride;      // OP_ROW: lines from a row to the next
    logic [31:0]             block;       // lines from a block of keys and values to the next …
    logic [30:0]             layer;       // … and of the layer in it
    logic [31:0]             value;       // ε, or the factor
  } npu_op_t;

  // What a context brings along for a step.
  typedef struct packed {
    logic [31:0] token;       // whose successor is wanted
    logic [31:0] position;    // where it stands
    logic        silent;      // no token is wanted
    logic [27:0] sharpness;   // docs/engine.md, "Sampling"; 0 is the most likely token
    logic [31:0] seed;
    logic [31:0] rollout;
  } npu_step_t;

  // Why a unit did not finish: what a context brings along, and memory that answers with an error.
  typedef enum logic [3:0] {
    UNIT_FINE        = 4'd0,
    UNIT_TOKEN       = 4'd1,   // BadToken
    UNIT_POSITION    = 4'd2,   // BadPosition
    UNIT_MISSING     = 4'd3,   // BlockMissing
    UNIT_BLOCK       = 4'd4,   // BlockOutOfRange
    UNIT_OUTPUT      = 4'd5,   // OutputOutOfRange
    UNIT_NO_FIRST    = 4'd6,   // NoFirst
    UNIT_MEMORY      = 4'd7    // a read or write was answered with an error
  } npu_end_t;
  /* verilator lint_on UNUSEDPARAM */
endpackage
