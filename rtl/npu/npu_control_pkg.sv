// What travels between decoder, sequencer and scoreboard.
package npu_control_pkg;
  import npu_unit_pkg::*;

  // The units by number, as engines of the interpreter.
  /* verilator lint_off UNUSEDPARAM */  // not every block takes all
  localparam int UNITS = 4;
  localparam logic [1:0] UNIT_MEM  = 2'd0;
  localparam logic [1:0] UNIT_GEMV = 2'd1;
  localparam logic [1:0] UNIT_SFU  = 2'd2;
  localparam logic [1:0] UNIT_KV   = 2'd3;

  localparam int PC_BITS    = 16;
  localparam int LAYER_BITS = 16;

  // A word's fields, addresses in lines; 0 where its kind has none.
  typedef struct packed {
    logic [5:0]           form;     // of npu_pkg; only without fault
    logic [4:0]           fault;
    logic                 memset;     // MEMSET
    logic                 unit;     // a word for a unit: kind says what it does
    npu_kind_t            kind;
    logic [1:0]           where;    // which unit
    logic                 odd;      // an operand is no whole line
    logic [CHIP_BITS-1:0] dst;
    logic [CHIP_BITS-1:0] a;
    logic [CHIP_BITS-1:0] b;
    logic [16:0]          outer;    // line of memory, or of the output region, that MEMCPY names itself
    logic [5:0]           desc;
    logic [5:0]           shape;
    logic                 weight;   // a shape of a matrix
    logic                 max;
    logic                 accumulate;
    logic                 scaled;
    logic                 first;
    logic                 last;
    logic                 cap;
    logic                 windowed;
    logic                 sourced;
    logic                 sinked;
    logic                 sync;     // the words behind it wait until it is done
  } npu_word_t;

  // Lines of on-chip memory, from the first to behind the last.
  typedef struct packed {
    logic                 used;
    logic [CHIP_BITS-1:0] start;
    logic [CHIP_BITS:0]   stop;
  } npu_range_t;

  // Where a word stands, for the log.
  typedef struct packed {
    logic [PC_BITS-1:0]    pc;
    logic                  around;  // in a loop …
    logic [LAYER_BITS-1:0] layer;   // … at this layer
    logic [63:0]           word;    // 0 behind the last one
  } npu_place_t;

  // A word on its way to its unit.
  typedef struct packed {
    npu_place_t  place;
    logic [1:0]  where;
    logic        sync;
    npu_range_t  a;         // what it reads …
    npu_range_t  b;
    npu_range_t  w;         // … and writes
    logic        kv_read;   // keys and values of op.layer
    logic        kv_write;
    npu_op_t     op;
  } npu_issue_t;

  // Why a step ended, and where.
  typedef struct packed {
    npu_place_t place;
    logic [4:0] fault;      // of npu_pkg; FAULT_NONE: it came to its end
  } npu_log_t;
  // Where a context has what, in lines; what memory answers with is addressed from its line 0 on.
  localparam int ADDRESS_BITS = 58;
  typedef struct packed {
    logic [ADDRESS_BITS-1:0] model;           // the model's memory, read alone
    logic [MEMORY_BITS-1:0]  model_lines;
    logic [MEMORY_BITS-1:0]  program_line;    // of the model's memory
    logic [PC_BITS-1:0]      program_words;
    logic [ADDRESS_BITS-1:0] arena;           // keys and values
    logic [MEMORY_BITS-1:0]  arena_lines;
    logic [ADDRESS_BITS-1:0] table_line;      // the block table, 32 bits an entry
    logic [11:0]             table_entries;   // at most 2,048
    logic [ADDRESS_BITS-1:0] region;          // the output region
    logic [15:0]             region_lines;
    logic [3:0]              owner;           // the function whose memory all of it is
  } npu_context_t;

  // What a step gives.
  typedef struct packed {
    logic        sampled;     // there is a token
    logic [31:0] token;
    logic [31:0] logp;        // 16 fraction bits, with a sign
    npu_log_t    log;
    logic        read_fault;  // memory answered a read with an error …
    logic        write_fault; // … a write
  } npu_result_t;
  /* verilator lint_on UNUSEDPARAM */
endpackage
