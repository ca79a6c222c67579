// Records that travel between the blocks of the device. Nothing here is visible on the wire.
package core_pkg;
  import desc_pkg::ARENAS;

  localparam int MAX_WORKERS   = 16;
  localparam int MAX_QUEUES    = 16;
  localparam int MAX_FUNCTIONS = 16;

  // What a queue pair runs with. The register page holds it, checks it and hands it out once, at the start of the queue
  // pair; each block keeps what it needs of it, by queue pair. All of it is locked while the queue pair is active, the
  // function's part too: so no block needs to know which function a queue pair belongs to, but for AxUSER.
  typedef struct packed {
    logic [63:0] sq_base;
    logic [16:0] sq_size;          // slots, a power of two
    logic [31:0] sq_start;
    logic [31:0] sq_key;
    logic [63:0] cq_base;
    logic [16:0] cq_size;
    logic [31:0] cq_start;
    logic [15:0] coalesce_count;   // completions, and cycles, that make an armed one fire (R14); 0: none do
    logic [31:0] coalesce_time;
    logic [63:0] token_base;
    logic [63:0] token_size;
    logic [63:0] kv_size;
    logic [63:0] logp_base;
    logic [63:0] logp_size;
    logic [7:0]  weight;           // descriptors of one turn, at least 1
    // Of its function:
    logic [3:0]  owner;            // its number
    logic [MAX_WORKERS-1:0] workers;     // that may run its descriptors
    logic [31:0] length_limit;
    logic [31:0] checkpoint_default;
    logic [31:0] reward_threshold; // Q16.16 with a sign
    logic [15:0] eos_threshold;    // in 1/32768
    logic        eq_starts;        // none of its queue pairs is active: its event ring starts (R23) …
    logic [63:0] eq_base;
    logic [16:0] eq_size;          // … unless this is 0
    logic        eq_life;          // completions have events
  } queue_config_t;

  // What else it runs with where there is an engine 1 (R25, R26): its KV region, and its function's MODEL region and arenas.
  // A record of its own, so that a device without it does not carry it along.
  typedef struct packed {
    logic [63:0] kv_base;
    logic [63:0] kv_size;
    logic [63:0] model_base;
    logic [63:0] model_size;
    logic [ARENAS-1:0][63:0] arena_base;
    logic [ARENAS-1:0][63:0] arena_size;
  } model_config_t;

  // A model, as the HwImage of its POLICY says it.
  typedef struct packed {
    logic [63:0] offset;           // bytes into the MODEL region
    logic [63:0] length;
    logic [63:0] program_at;
    logic [31:0] words;
    logic [31:0] vocabulary;
    logic [31:0] positions;
    logic [31:0] block_lines;
    logic [31:0] end_0;
    logic [31:0] end_1;
    logic [31:0] end_2;
    logic [31:0] end_3;
  } image_t;

  // What the register page shows of a queue pair's rings and interrupt.
  typedef struct packed {
    logic [31:0] sq_head;
    logic [31:0] sq_tail;
    logic [31:0] cq_head;
    logic [31:0] cq_tail;
    logic [31:0] arm;              // what ARM was written with last
    logic [95:0] message;          // its entry in the table of messages: data, address
  } queue_state_t;

  // Where a register's address lies. The offset is the register's address for function 0 and queue pair 0.
  typedef struct packed {
    logic        known;            // by queue pair and function; it may still be no register
    logic [3:0]  pair;
    logic [3:0]  owner;
    logic        owned;            // the function's page: it must own the queue pair
    logic [17:0] offset;
  } place_t;

  // A checked descriptor as a worker needs it …
  typedef struct packed {
    logic        engine;           // a DECODE or PREFILL without error that engine 1 runs; first, so that the rest lies as without
    logic [3:0]  pair;             // number of its queue pair
    logic        adds_tokens;      // a DECODE without error; anything else ends at once
    logic        eos_stops;
    logic        resident;
    logic        logp;             // a DECODE that writes log-probabilities
    logic [3:0]  start_word;       // where in its 64-byte line the first token goes
    logic [31:0] rollout_id;
    logic [31:0] max_tokens;
    logic [31:0] checkpoint;       // CHECKPOINT_NEVER or at least 1
    logic        slot;             // policy slot of its version
    // Groups (R17):
    logic        seeks;            // group_table is asked about it
    logic        opens;            // a PREFILL with members
    logic        is_stop;
    logic        all;              // a STOP of a whole group
    logic [5:0]  member;           // of its group; of a PREFILL with members the last
    logic        cow_prefix;
    logic [31:0] prefix_id;
  } work_t;

  // … and the rest of it, which waits for the worker's results.
  typedef struct packed {
    logic [3:0]  pair;             // number of its queue pair
    logic        irq;              // asks for an interrupt
    logic        adds_tokens;
    logic [7:0]  status;           // of a descriptor that adds no tokens
    logic [7:0]  error;
    logic [31:0] result;           // of a descriptor that adds no tokens
    logic [15:0] reward_model_id;
    logic [31:0] seq_len;
    logic [31:0] rollout_id;
    logic [63:0] user_data;
    logic [63:0] token_addr;       // bus address of the first token
    logic        names;            // it is a user of a policy slot, …
    logic        slot;             // … of this one
    logic        reads;            // a REWARD, or …
    logic        publishes;        // … a POLICY: result says of what, see readback
  } echo_t;
  localparam int ECHO_BITS = 266;  // see DONE_BITS

  // What group_table says of a descriptor that goes out.
  localparam int GROUPS     = 8;   // groups that a queue pair may have at a time
  localparam int ENTRY_BITS = 3;
  typedef struct packed {
    logic [7:0]            error;      // … but ERR_NONE: it adds no tokens and ends as this
    logic                  belongs;    // to the group of this entry, …
    logic [ENTRY_BITS-1:0] entry;
    logic                  fills;      // … as its PREFILL, …
    logic                  is_stop;    // … as a STOP, …
    logic                  all;        // … of all of it, …
    logic [5:0]            member;     // … or as this member
  } verdict_t;

  // Which engine serves a model_id: number 0, the hash policy, the first, number 1, a language model, the second where it was
  // built, and none serves the others.
  localparam int MAX_ENGINES = 2;
  function automatic logic has_engine(input logic [15:0] model_id, input int engines);
    has_engine = {16'd0, model_id} < 32'(engines);
  endfunction

  // Reward models: reward_model_id below it is known.
  localparam logic [15:0] REWARD_MODELS = 16'd2;

  // Width of what the engine prepares for a descriptor.
  localparam int ENGINE_BITS = 80;
  localparam int NPU_BITS    = 93;    // of engine_npu, with Engines 2

  // How a worker ended a DECODE: {rejected, end of sequence seen, one of these}. What is called off before its first token
  // is rejected as STOPPED or SUPERSEDED.
  localparam logic [1:0] END_DONE          = 2'd0;
  localparam logic [1:0] END_REWARD_NEEDED = 2'd1;
  localparam logic [1:0] END_STOPPED       = 2'd2;
  localparam logic [1:0] END_SUPERSEDED    = 2'd3;
  // Rejected, and that: its engine could not go on. In the place of 'end of sequence seen' whether memory answered with an error.
  localparam logic [1:0] END_FAILED        = END_REWARD_NEEDED;

  // A completion but for sq_head and its phases.
  typedef struct packed {
    logic [3:0]  pair;             // number of its queue pair
    logic        irq;              // asks for an interrupt
    logic [7:0]  status;
    logic [7:0]  flags;
    logic [7:0]  error;
    logic [15:0] worker_id;
    logic [15:0] reward_model_id;
    logic [31:0] result;
    logic [30:0] final_seq_len;    // bit 31 in the slot is the phase of the half
    logic [31:0] rollout_id;
    logic [63:0] user_data;
    logic        names;            // as in echo_t
    logic        slot;
    logic        reads;
    logic        publishes;
    // Groups (R17): the entry of its queue pair that it belongs to, and what becomes of that with this completion.
    logic        belongs;
    logic [ENTRY_BITS-1:0] entry;
    logic        fills;            // a PREFILL: members may start
    logic        ends;             // its member ends, unless a line of it was faulty
    logic        all;              // every member does
    logic [5:0]  member;
  } done_t;
  // Widths of records that lie in memories; the modules that hold them check them.
  localparam int DONE_BITS = 237;

  // AXI IDs: a response that the bus withholds from one tenant stands before nobody else's, as AXI orders those of one ID alone.
  // Of writes: token lines carry their queue pair's number, completions this and that, …
  localparam logic [5:0] COMPLETION_AXI_ID = 6'd16;
  // … messages of interrupts this and that, …
  localparam logic [5:0] MESSAGE_AXI_ID = 6'd32;
  // … and events, and keys and values of engine 1, this and their function's.
  localparam logic [5:0] EVENT_AXI_ID = 6'd48;
  // Of reads: descriptors carry their queue pair's number, readback this and that, …
  localparam logic [5:0] READBACK_AXI_ID = 6'd16;
  // … and engine 1 this and its function's.
  localparam logic [5:0] NPU_READ_AXI_ID = 6'd32;

  // AxCACHE and AxPROT of every burst. Normal, non-cacheable, non-bufferable: a write response comes from the final
  // destination, so that what it acknowledges is visible to the host. Unprivileged, non-secure, data.
  localparam logic [3:0] AXI_CACHE = 4'b0010;
  localparam logic [2:0] AXI_PROT  = 3'b010;

  // Token lines in flight on the write port, at most, and half as many completions; besides a message of each queue pair, 256 events and 32 lines
  // of engine 1.
  localparam int MAX_WRITES = 128;

  // How many cycles before its certain end a worker asks for the next descriptor. Covers the dispatcher's latency, so
  // that a worker changes descriptors without losing a cycle.
  localparam logic [31:0] NEAR_END = 32'd4;

  // The same in tokens: what of a descriptor takes no longer than NEAR_END cycles, with these wait states.
  function automatic logic [31:0] near_tokens(input logic [15:0] wait_states);
    near_tokens = (wait_states == '0) ? NEAR_END : ({16'd0, wait_states} < NEAR_END) ? 32'd1 : 32'd0;
  endfunction

  // Cycles that the oldest descriptor of a queue may wait behind one of another rollout, but for those in which the
  // write port or the engine holds that one up.
  localparam int BOUND_WAIT = int'(NEAR_END) + 1;

  // Icarus 11 counts stale bits in an argument of fewer than 32 bits.
  function automatic logic [4:0] count_ones(input logic [MAX_WORKERS-1:0] bits);
    count_ones = 5'($countones({16'd0, bits}));
  endfunction
endpackage
