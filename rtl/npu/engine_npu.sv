// Engine 1: language models, on one NPU that the workers share step by step. It has the interface that every engine has
// (see engine_hash), with two additions: a step may fail, and a PREFILL is one begin, which is answered when all of its
// positions are made. A PREFILL with LOGP scores its tokens: after each step the log-probability of the token that
// follows is written, before the next step begins.
//
// For each descriptor the engine keeps, by worker and place, what the sequence in memory does not say. When a descriptor
// begins, and the token lines that its queue pair has sent are answered, the engine reads its HwSequence and keeps it
// by worker. Then the workers that want a step take turns. The engine reads what a step needs: the token, the block
// table (by the NPU) and the program. A turn ends when a gang of the NPU has the step, and another turn begins with the
// result of the step. The NPU keeps nothing between steps.
//
// A gang takes steps of DECODEs of one version and one owner, or of one PREFILL, whose positions follow each other:
// each position writes its keys and values before any position reads them (N3). DECODEs are distributed evenly among
// the gangs. An open gang waits for workers that are likely to want a step soon, because an answer of theirs is there
// or was taken a moment ago. It does not wait long for any of them.
//
// When a queue pair ends (R12, R24), it begins no further step after the turn in progress. Its PREFILL ends with the
// steps that the NPU already has, and the NPU gives up a gang once the queue pairs of all of its steps end. A descriptor
// that has not begun ends without a step, as if it had failed. Nobody sees the failure, because the completion is dropped.
module engine_npu
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Queues   = 1,
  parameter int Workers  = 4,
  parameter int Gangs    = 2,             // of the NPU, 1 to 4
  parameter int Contexts = 4,             // of a gang, 1 to 8
  parameter int Lines    = 1024           // of on-chip memory of each context
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic                    clk_i,
  input  logic                    rst_ni,            // low until the bus owes nothing any more
  input  logic                    bus_rst_ni,

  input  logic                    start_i,           // a queue pair starts, with this configuration
  input  logic [3:0]              start_queue_i,
  input  queue_config_t           start_config_i,
  input  model_config_t           start_models_i,
  input  logic [Queues-1:0]       ending_i,          // R12, R24: active, but no longer on: no further step begins

  input  logic                    prepare_i,
  input  logic [31:0]             seed_i,
  input  logic [63:0]             kv_offset_i,       // a multiple of 64
  input  logic [15:0]             arena_i,
  input  logic                    scores_i,          // flag LOGP
  output logic [NPU_BITS-1:0]     prepared_o,        // four cycles later, as desc_check

  input  logic                    load_i,            // a descriptor of any engine
  input  logic [4:0]              load_place_i,      // worker, place
  input  work_t                   load_work_i,
  input  echo_t                   load_echo_i,
  input  logic [NPU_BITS-1:0]     load_prepared_i,

  input  logic [Workers-1:0]      begin_i,
  input  logic [Workers-1:0]      begin_place_i,
  input  logic [Workers-1:0]      step_i,
  output logic [Workers-1:0]      begins_o,          // of those that begin, what is of this engine …
  output logic [Workers-1:0]      mine_o,            // … and of those that run
  output logic [Workers-1:0]      token_valid_o,
  output logic [Workers*32-1:0]   token_o,
  output logic [Workers-1:0]      eos_o,
  output logic [Workers*32-1:0]   logp_o,
  output logic [Workers-1:0]      fault_o,           // there is no token: the descriptor ends as …
  output logic [Workers-1:0]      fault_memory_o,    // … DMA_FAULT; else as BAD_SEQUENCE
  input  logic [Workers-1:0]      token_take_i,     // of either engine

  // Token lines, of any engine.
  input  logic [Workers-1:0]      items_i,           // the worker's buffer has some, or an end
  input  logic                    line_i,            // one goes to the write port
  input  logic [3:0]              line_queue_i,
  input  logic                    line_ack_i,        // one is answered; those of a queue pair in order
  input  logic [3:0]              line_ack_queue_i,

  // Of the version that a descriptor names.
  output logic [3:0]              image_owner_o,
  output logic                    image_slot_o,
  input  image_t                  image_i,

  // The device's ports, see npu_port.
  output logic                    burst_valid_o,
  output logic [63:0]             burst_addr_o,
  output logic [7:0]              burst_len_o,
  output logic [3:0]              burst_owner_o,
  input  logic                    burst_ready_i,
  input  logic                    beat_i,
  input  logic [3:0]              beat_owner_i,
  input  logic [511:0]            data_i,
  input  logic                    fault_i,
  output logic                    reads_idle_o,
  input  logic [15:0]             read_refused_i,    // R24, see npu_port
  input  logic [15:0]             write_refused_i,
  output logic                    store_valid_o,
  output logic                    store_urgent_o,
  output logic [3:0]              store_owner_o,
  output logic [63:0]             store_addr_o,
  output logic [511:0]            store_data_o,
  output logic [63:0]             store_strobe_o,
  input  logic                    store_ready_i,
  input  logic                    ack_i,
  input  logic                    ack_fault_i,

  output logic                    read_fault_o,      // ERROR, of this queue pair
  output logic                    write_fault_o,
  output logic [3:0]              fault_queue_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int QueueBits  = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots      = 1 << QueueBits;
  localparam int WorkerBits = (Workers == 1) ? 1 : $clog2(Workers);

  // Between turns all but the NPU and the port rests: that is for as long as the NPU works on steps and nobody wants another.
  logic clk_turns;

  // ------------------------------------------------------------------ what a queue pair runs with
  typedef struct packed {
    logic [3:0]   owner;
    logic [63:0]  token_base;
    logic [63:0]  token_size;
    logic [57:0]  kv_line;
    logic [63:0]  kv_size;
    logic [57:0]  model_line;
    logic [255:0] arena_bases;
    logic [255:0] arena_sizes;
    logic [57:0]  logp_line;
    logic [63:0]  logp_size;
  } pair_t;
  logic [$bits(pair_t)-1:0] pair_mem [0:Slots-1];
  logic [QueueBits-1:0]     start_pair, task_pair;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];

  always_ff @(posedge clk_turns) begin
    if (start_i) pair_mem[start_pair] <= {start_config_i.owner, start_config_i.token_base, start_config_i.token_size, start_models_i.kv_base[63:6],
                                          start_models_i.kv_size, start_models_i.model_base[63:6], start_models_i.arena_base, start_models_i.arena_size,
                                          start_config_i.logp_base[63:6], start_config_i.logp_size};
  end

  // ------------------------------------------------------------------ prepare, load
  logic [NPU_BITS-1:0] prepared1_q, prepared2_q, prepared3_q, prepared4_q;
  logic                prepare1_q, prepare2_q, prepare3_q;
  assign prepared_o = prepared4_q;

  always_ff @(posedge clk_turns) begin
    // From its end, so that none is written before it is read.
    if (prepare3_q) prepared4_q <= prepared3_q;
    if (prepare2_q) prepared3_q <= prepared2_q;
    if (prepare1_q) prepared2_q <= prepared1_q;
    if (prepare_i)  prepared1_q <= {seed_i, kv_offset_i[63:6], arena_i[1:0], scores_i};
    if (!rst_ni) begin
      prepare3_q <= 1'b0;
      prepare2_q <= 1'b0;
      prepare1_q <= 1'b0;
    end else begin
      prepare3_q <= prepare2_q;
      prepare2_q <= prepare1_q;
      prepare1_q <= prepare_i;
    end
  end

  // A descriptor at its worker.
  typedef struct packed {
    logic [3:0]  pair;
    logic        slot;
    logic        silent;            // a PREFILL
    logic [31:0] rollout;
    logic [31:0] seq_len;
    logic [63:0] token_addr;
    logic [31:0] seed;
    logic [57:0] kv_line;           // of its HwSequence, in the KV region
    logic [1:0]  arena;
    logic        logp;
  } task_t;
  localparam int TaskBits = $bits(task_t);
  logic [TaskBits-1:0]  task_mem [0:MAX_WORKERS*2-1];
  logic [Workers-1:0]   mine_0_q, mine_1_q;       // in this place

  always_ff @(posedge clk_turns) begin
    if (load_i) begin
      for (int w = 0; w < Workers; w++) begin
        if (int'(load_place_i[4:1]) == w && !load_place_i[0]) mine_0_q[w] <= load_work_i.engine;
        if (int'(load_place_i[4:1]) == w && load_place_i[0])  mine_1_q[w] <= load_work_i.engine;
      end
      if (load_work_i.engine)
        task_mem[load_place_i] <= {load_work_i.pair, load_work_i.slot, !load_work_i.adds_tokens, load_work_i.rollout_id,
                                   load_echo_i.seq_len, load_echo_i.token_addr, load_prepared_i};
    end
  end

  // ------------------------------------------------------------------ workers
  logic [Workers-1:0] mine_q, place_q, fresh_q, want_q, valid_q, eos_q, fault_q, fault_memory_q;
  logic [Workers-1:0] begins, steps;
  logic [31:0]        token_mem [0:(1 << WorkerBits)-1];
  logic [31:0]        logp_mem  [0:(1 << WorkerBits)-1];

  assign begins         = begin_i & ((begin_place_i & mine_1_q) | (~begin_place_i & mine_0_q));
  assign steps          = step_i & mine_q & ~begin_i;
  assign mine_o         = mine_q;
  assign begins_o       = begins;
  assign token_valid_o  = valid_q;
  assign eos_o          = eos_q & valid_q;
  assign fault_o        = fault_q & valid_q;
  assign fault_memory_o = fault_memory_q;

  for (genvar w = 0; w < Workers; w++) begin : gen_worker
    assign token_o[w*32 +: 32] = valid_q[w] ? token_mem[w] : '0;
    assign logp_o[w*32 +: 32]  = valid_q[w] ? logp_mem[w] : '0;
  end

  // ------------------------------------------------------------------ what a descriptor reads is written
  // Its first token, its prompt or its sequence may lie where an earlier descriptor of its rollout has written tokens (R5). So its first turn waits
  // until the lines that its queue pair had sent are answered: when it begins, those of the earlier ones are in its worker's buffer or went before.
  // Once the buffer is empty, those in flight are counted down.
  localparam int FlightBits = $clog2(MAX_WRITES) + 1;
  logic [QueueBits-1:0]  line_pair, ack_pair;
  logic [QueueBits-1:0]  loaded_pair_q [0:MAX_WORKERS*2-1];   // of what is in a place, …
  logic [QueueBits-1:0]  begun_pair_q  [0:Workers-1];     // … and of what a worker runs
  logic [FlightBits-1:0] flight_q [0:Slots-1];                // lines in flight of a queue pair, …
  logic [FlightBits-1:0] left_q   [0:Workers-1];          // … and those of them that a worker waits for
  logic [FlightBits-1:0] flying   [0:Workers-1];
  logic [Workers-1:0]    buffered_q, owed_q;                  // it waits for its buffer, for answers
  logic [Workers-1:0]    acks, counts, some, over, held;
  assign line_pair = (Queues == 1) ? '0 : line_queue_i[QueueBits-1:0];
  assign ack_pair  = (Queues == 1) ? '0 : line_ack_queue_i[QueueBits-1:0];
  assign counts    = buffered_q & ~items_i;
  assign held      = (buffered_q & items_i) | some | owed_q;

  for (genvar w = 0; w < Workers; w++) begin : gen_owed
    assign acks[w]   = line_ack_i && begun_pair_q[w] == ack_pair;
    assign flying[w] = counts[w] ? flight_q[begun_pair_q[w]] - FlightBits'(acks[w]) : '0;
    assign some[w]   = flying[w] != '0;
    assign over[w]   = acks[w] && left_q[w] == FlightBits'(1);
    always_ff @(posedge clk_i) begin
      if (begins[w]) begun_pair_q[w] <= loaded_pair_q[{4'(w), begin_place_i[w]}];
      if (counts[w])                 left_q[w] <= flying[w];
      else if (owed_q[w] && acks[w]) left_q[w] <= left_q[w] - 1'b1;
      if (!rst_ni) owed_q[w] <= 1'b0;
      else         owed_q[w] <= counts[w] ? some[w] : owed_q[w] && !over[w];
    end
  end
  for (genvar q = 0; q < Slots; q++) begin : gen_flight
    logic sends_here, acks_here;
    assign sends_here = line_i && line_pair == QueueBits'(q);
    assign acks_here  = line_ack_i && ack_pair == QueueBits'(q);
    always_ff @(posedge clk_i) begin
      if (!rst_ni)                      flight_q[q] <= '0;
      else if (sends_here != acks_here) flight_q[q] <= sends_here ? flight_q[q] + 1'b1 : flight_q[q] - 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (load_i) loaded_pair_q[load_place_i] <= (Queues == 1) ? '0 : load_work_i.pair[QueueBits-1:0];
    if (!rst_ni) buffered_q <= '0;
    else         buffered_q <= (buffered_q & items_i) | begins;
  end

  // ------------------------------------------------------------------ one worker's turn
  localparam logic [3:0] Idle   = 4'd0;
  localparam logic [3:0] Look   = 4'd1;    // what is kept of the worker and its queue pair is read
  localparam logic [3:0] Header = 4'd2;    // the line of its HwSequence is on its way
  localparam logic [3:0] Fold   = 4'd3;    // … and is held to its check, a word in three cycles
  localparam logic [3:0] Judge  = 4'd4;    // … and to its bounds
  localparam logic [3:0] Token  = 4'd5;    // the line of the step's token is on its way
  localparam logic [3:0] Entry  = 4'd6;    // that of the table's entry of its block, for a copy
  localparam logic [3:0] Bound  = 4'd7;    // both blocks are held to the arena
  localparam logic [3:0] Copy   = 4'd8;    // lines come and go
  localparam logic [3:0] Step   = 4'd9;    // it waits for the NPU to take its step
  localparam logic [3:0] Answer = 4'd10;
  localparam logic [3:0] Given  = 4'd11;   // the line of the token behind it, which is scored, is on its way
  localparam logic [3:0] Score  = 4'd12;   // its log-probability is written

  logic [3:0]            state_q;
  logic [WorkerBits-1:0] worker_q;
  task_t                 task_q;
  pair_t                 pair_q;
  /* verilator lint_off UNUSEDSIGNAL */  // all of it but how many tokens and positions there are
  image_t                image_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [31:0]           position_mem [0:(1 << WorkerBits)-1];
  // Of its HwSequence.
  typedef struct packed {
    logic [27:0] sharpness;
    logic [11:0] entries;           // no more than the NPU has
    logic [63:0] prompt;
    logic [63:0] draw;              // seed, and rollout above it, or its key
  } held_t;
  logic [$bits(held_t)-1:0] held_mem [0:(1 << WorkerBits)-1];
  held_t                 held_q;
  logic [31:0]           position_q, token_q, given_q, logp_q, fold_q, mixed_q, block_q, source_q;
  logic [511:0]          line_q;
  logic [3:0]            word_q;
  logic [1:0]            phase_q;
  logic                  copies_q;                  // the descriptor's first position is that of a copy
  logic                  failed_q, memory_q, over_q, read_bad_q, write_bad_q;
  logic                  awaits_q;                  // more steps of the worker are to come back
  logic [3:0]            out_q;                     // steps that the NPU had of it, this one included
  logic [31:0]           asked_lines_q, copied_q;   // lines of the copy: asked for, taken
  logic [5:0]            unanswered_q;              // writes of the copy

  localparam int GangBits = (Gangs == 1) ? 1 : $clog2(Gangs);
  logic [WorkerBits-1:0] seat_worker [0:(8 << GangBits)-1];   // whose step a context of a gang has
  logic [Workers-1:0]    runs_q;                    // the NPU has its step, or steps
  logic [3:0]            out_mem [0:(1 << WorkerBits)-1];     // steps that the NPU has of it
  logic [Workers-1:0]    bad_q, bad_memory_q;       // an earlier one of them failed
  logic                  returns_q;                 // the turn is that of a result
  /* verilator lint_off UNUSEDSIGNAL */  // whether there is a token is known
  npu_result_t           result_q;
  /* verilator lint_on UNUSEDSIGNAL */

  logic [Workers-1:0]    grant_unused;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most workers
  logic [3:0]            next;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [WorkerBits-1:0] next_worker;
  logic                  picks, gives_back;
  logic [Workers-1:0]    waiting;

  // Workers that want a step, and whose queue pair ends. The end lasts until no worker has work of that queue pair.
  logic [Workers-1:0]    ends_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) ends_q <= '0;
    else if (ending_i != '0 || ends_q != '0) begin
      for (int w = 0; w < Workers; w++) ends_q[w] <= want_q[w] && ending_i[(Queues == 1) ? '0 : begun_pair_q[w]];
    end
  end

  // Steps that nobody waits for, by gang and place. The bit of a place without a step has no meaning.
  logic [Gangs*Contexts-1:0] unwanted;
  always_comb begin
    unwanted = '0;
    if (ends_q != '0) begin
      for (int g = 0; g < Gangs; g++)
        for (int c = 0; c < Contexts; c++) unwanted[g*Contexts + c] = ends_q[seat_worker[{GangBits'(g), 3'(c)}]];
    end
  end

  // Results come first: they free gangs. A worker waits until a gang is free if none would take its step. A worker
  // whose queue pair ends waits for nothing.
  assign waiting     = want_q & ~runs_q & ((~blocked_q & ~held) | ends_q);
  assign gives_back  = state_q == Idle && result_valid;
  assign picks       = state_q == Idle && !result_valid
                    && ((waiting != '0 && (npu_ready || open_steps != '0)) || (waiting & ends_q) != '0);
  assign next_worker = (Workers == 1) ? '0 : next[WorkerBits-1:0];

  round_robin #(.N(Workers)) u_turn (
    .clk_i          (clk_turns),
    .rst_ni, .request_i(waiting), .grant_o(grant_unused), .number_o(next), .accept_i(picks)
  );

  // ------------------------------------------------------------------ the NPU, and reads and writes of one's own beside its
  logic                    npu_ready, result_valid;
  /* verilator lint_off UNUSEDSIGNAL */  // as many bits as for four gangs
  logic [1:0]              step_gang, result_gang;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [2:0]              step_context, result_context;
  logic [3:0]              open_steps;
  npu_step_t               step;
  npu_context_t            context_now;
  /* verilator lint_off UNUSEDSIGNAL */  // addresses are of lines, of words
  npu_result_t             result;
  logic                    read_valid, read_ready, beat_valid, beat_fault, beat_ready, write_valid, write_ready, written, write_fault;
  logic                    npu_write;
  logic [ADDRESS_BITS-1:0] read_line, write_line, npu_write_line, own_line;
  logic [4:0]              read_lines;
  logic [3:0]              read_owner, npu_write_owner;
  logic [LINE_BITS-1:0]    beat_data, write_data, npu_write_data;
  logic [63:0]             write_strobe, npu_write_strobe;
  logic                    asked_q, own_valid, own_ready, own_beat, own_beat_ready, reads_one, copying, scoring, writes, takes_line, seats;
  logic [15:0]             own_lines;
  logic [63:0]             arena_base, arena_size, token_addr, logp_addr;
  logic [MEMORY_BITS-1:0]  arena_lines, model_lines;   // as far as the NPU reaches: 1 TiB less a line
  /* verilator lint_on UNUSEDSIGNAL */
  logic [ADDRESS_BITS-1:0] table_line;
  logic [63:0]             product_q;
  logic [57:0]             to_q, from_q;
  logic [31:0]             left;
  logic [5:0]              npu_unanswered_q;           // writes of the NPU
  logic                    scores;                     // a PREFILL with LOGP

  assign arena_base    = 64'(pair_q.arena_bases >> {task_q.arena, 6'd0});
  assign arena_size    = 64'(pair_q.arena_sizes >> {task_q.arena, 6'd0});
  // The table stands behind the HwSequence.
  assign table_line    = pair_q.kv_line + task_q.kv_line + 58'd1;
  assign image_owner_o = pair_q.owner;
  assign image_slot_o  = task_q.slot;

  assign scores      = task_q.silent && task_q.logp;
  assign step        = {token_q, position_q, task_q.silent && !scores, scores, held_q.sharpness, scores ? given_q : held_q.draw[31:0], held_q.draw[63:32]};
  assign context_now = {pair_q.model_line + image_q.offset[63:6], model_lines,     // the model
                        MEMORY_BITS'(image_q.program_at[63:6]), PC_BITS'(image_q.words),
                        arena_base[63:6], arena_lines,
                        table_line, held_q.entries, {ADDRESS_BITS{1'b0}}, 16'd0,                           // no output region
                        pair_q.owner};
  assign arena_lines  = (arena_size[63:MEMORY_BITS+6] != '0) ? '1 : arena_size[6 +: MEMORY_BITS];
  assign model_lines  = (image_q.length[63:MEMORY_BITS+6] != '0) ? '1 : image_q.length[6 +: MEMORY_BITS];
  // ------------------------------------------------------------------ gangs
  // Of whom a step is to be expected: Expects cycles behind the last answer that was taken. An open gang waits for Patience cycles at most.
  localparam int Expects  = 15;
  localparam int Patience = 255;
  typedef struct packed {
    logic                    silent;
    logic [3:0]              owner;
    logic [ADDRESS_BITS-1:0] model;
    logic [MEMORY_BITS-1:0]  model_lines;
    logic [MEMORY_BITS-1:0]  program_line;
    logic [PC_BITS-1:0]      program_words;
  } gang_key_t;
  gang_key_t          key, open_key_q;            // what steps of one gang have in common
  logic [Workers-1:0] blocked_q, recent_q;
  logic [3:0]         recent_left_q;
  logic [7:0]         patience_q;
  logic [4:0]         active, share;              // DECODEs that there are, and of these a gang's share
  logic               joins, opens, full, leaves, begins_gang, more;

  assign key = {task_q.silent, context_now.owner, context_now.model, context_now.model_lines, context_now.program_line, context_now.program_words};
  always_comb begin
    active = '0;
    for (int w = 0; w < Workers; w++) active = active + 5'(want_q[w] || (mine_q[w] && (valid_q[w] || recent_q[w])));
    share = 5'((int'(active) + Gangs - 1) / Gangs);
    if (int'(share) > Contexts) share = 5'(Contexts);
  end
  assign joins       = open_steps != '0 && key == open_key_q && (int'(open_steps) < Contexts);
  assign opens       = open_steps == '0 && npu_ready;
  assign seats       = state_q == Step && (joins || opens);
  // The open gang makes way for another program's, and a step without a gang for results.
  assign leaves      = state_q == Step && !seats && !(open_steps != '0 && npu_ready);
  // A PREFILL goes on with its next position, as far as the line of its prompt goes. One that scores writes between its steps.
  assign more        = task_q.silent && !scores && !ends_q[worker_q] && position_q + 32'd2 != task_q.seq_len && token_addr[5:2] != 4'd15 && (int'(step_context) + 1 < Contexts);
  assign full        = task_q.silent ? !more : 5'(step_context) + 5'd1 >= share;
  assign begins_gang = seats ? full
                     : open_steps != '0 && (state_q == Step
                        || (state_q == Idle && !result_valid && waiting == '0 && ((valid_q & mine_q) == '0 && recent_q == '0))
                        || patience_q == 8'(Patience));

  always_ff @(posedge clk_turns) begin
    if (!rst_ni) begin
      recent_q  <= '0;
      blocked_q <= '0;
    end else begin
      if ((token_take_i & mine_q) != '0) recent_left_q <= 4'(Expects);
      else if (recent_q != '0) recent_left_q <= recent_left_q - 4'd1;
      if ((token_take_i & mine_q) != '0 || recent_q != '0)
        recent_q <= ((recent_left_q == '0 && (token_take_i & mine_q) == '0) ? '0 : recent_q | (token_take_i & mine_q)) & ~(begins | steps);
      if (gives_back) blocked_q <= '0;
      else if (leaves) blocked_q <= blocked_q | Workers'(16'd1 << worker_q);
    end
    if (seats) begin
      patience_q <= '0;
      if (opens) open_key_q <= key;
    end else if (open_steps != '0) patience_q <= patience_q + 8'd1;
  end

  rest_clock u_rest_clock (
    .clk_i, .rst_ni, .clk_o(clk_turns),
    .moves_i(start_i || prepare_i || load_i || (begin_i | step_i | token_take_i) != '0 || state_q != Idle || gives_back || picks
             || open_steps != '0 || recent_q != '0)
  );

  npu_top #(.Gangs(Gangs), .Contexts(Contexts), .Lines(Lines)) u_npu (
    .clk_i, .rst_ni,
    .step_valid_i       (seats),
    .step_opens_i       (opens),
    .step_begins_i      (begins_gang),
    .step_ready_o       (npu_ready),
    .step_gang_o        (step_gang),
    .step_context_o     (step_context),
    .open_steps_o       (open_steps),
    .step_i             (step),
    .context_i          (context_now),
    .unwanted_i         (unwanted),
    .result_valid_o     (result_valid),
    .result_ready_i     (gives_back),
    .result_gang_o      (result_gang),
    .result_context_o   (result_context),
    .result_o           (result),
    .other_valid_i      (own_valid),
    .other_line_i       (own_line),
    .other_lines_i      (own_lines),
    .other_owner_i      (pair_q.owner),
    .other_ready_o      (own_ready),
    .other_beat_valid_o (own_beat),
    .other_beat_ready_i (own_beat_ready),
    .read_valid_o       (read_valid),
    .read_line_o        (read_line),
    .read_lines_o       (read_lines),
    .read_owner_o       (read_owner),
    .read_ready_i       (read_ready),
    .beat_valid_i       (beat_valid),
    .beat_data_i        (beat_data),
    .beat_fault_i       (beat_fault),
    .beat_ready_o       (beat_ready),
    .write_valid_o      (npu_write),
    .write_line_o       (npu_write_line),
    .write_data_o       (npu_write_data),
    .write_strobe_o     (npu_write_strobe),
    .write_owner_o      (npu_write_owner),
    .write_ready_i      (write_ready && !writes),
    .written_i          (written && !writes),
    .write_fault_i      (write_fault)
  );

  // The word of the step's token: a PREFILL's in its prompt, a DECODE's first before its first answer.
  assign token_addr = task_q.silent ? pair_q.token_base + held_q.prompt + {30'd0, position_q, 2'b00} : task_q.token_addr - 64'd4;

  // The log-probability of the token behind it.
  assign logp_addr  = {pair_q.logp_line, 6'd0} + held_q.prompt + {30'd0, position_q + 32'd1, 2'b00};

  assign left      = image_q.block_lines - asked_lines_q;
  assign own_lines = reads_one ? 16'd1 : (left[31:16] != '0) ? 16'hFFFF : left[15:0];
  assign own_line  = (state_q == Header) ? pair_q.kv_line + task_q.kv_line
                   : (state_q == Token)  ? token_addr[63:6]
                   : (state_q == Given)  ? token_addr[63:6] + 58'd1
                   : (state_q == Entry)  ? table_line + 58'(position_q[31:9])
                   : copying             ? arena_base[63:6] + from_q + 58'(asked_lines_q) : '0;

  assign reads_one = state_q == Header || state_q == Token || (state_q == Given && token_addr[5:2] == 4'd15) || state_q == Entry;
  assign copying   = state_q == Copy;
  assign scoring   = state_q == Score && phase_q != 2'd0;
  assign writes    = copying || scoring;
  assign own_valid = reads_one ? !asked_q : copying && !failed_q && left != '0;
  // The write port is the copy's, or the score's, alone meanwhile: it began when no write of the NPU was there or in flight, and so knows the answers for its own.
  // What is not written, as its read or one before it failed, is taken all the same.
  assign write_valid    = copying ? own_beat && !beat_fault && !failed_q && !unanswered_q[5] : scoring ? phase_q == 2'd1 : npu_write;
  assign takes_line     = copying && own_beat && (beat_fault || failed_q || (write_ready && !unanswered_q[5]));
  assign own_beat_ready = copying ? takes_line : 1'b1;
  assign write_line     = copying ? arena_base[63:6] + to_q + 58'(copied_q) : scoring ? logp_addr[63:6] : npu_write_line;
  assign write_data     = copying ? beat_data : scoring ? {16{logp_q}} : npu_write_data;
  assign write_strobe   = copying ? '1 : scoring ? 64'hF << {logp_addr[5:2], 2'b00} : npu_write_strobe;

  npu_port u_port (
    .clk_i, .rst_ni, .bus_rst_ni,
    .read_valid_i   (read_valid),
    .read_line_i    (read_line),
    .read_lines_i   (read_lines),
    .read_owner_i   (read_owner),
    .read_ready_o   (read_ready),
    .beat_valid_o   (beat_valid),
    .beat_data_o    (beat_data),
    .beat_fault_o   (beat_fault),
    .beat_ready_i   (beat_ready),
    .write_valid_i  (write_valid),
    .write_line_i   (write_line),
    .write_data_i   (write_data),
    .write_strobe_i (write_strobe),
    .write_ready_o  (write_ready),
    .written_o      (written),
    .write_fault_o  (write_fault),
    .write_owner_i  (store_owner_o),
    .read_refused_i, .write_refused_i,
    .burst_valid_o, .burst_addr_o, .burst_len_o, .burst_owner_o, .burst_ready_i, .beat_i, .beat_owner_i, .data_i, .fault_i,
    .idle_o         (reads_idle_o),
    .store_valid_o, .store_urgent_o, .store_addr_o, .store_data_o, .store_strobe_o, .store_ready_i, .ack_i, .ack_fault_i
  );
  assign store_owner_o = writes ? pair_q.owner : npu_write_owner;

  assign task_pair     = (Queues == 1) ? '0 : task_q.pair[QueueBits-1:0];

  // ------------------------------------------------------------------ what a HwSequence must be
  logic [31:0] seq_sharpness, seq_entries, seq_start, first;
  logic [63:0] seq_prompt, seq_key;
  logic [64:0] table_end, prompt_end;
  logic        seq_sound;
  assign seq_sharpness = line_q[HW_SEQUENCE_SHARPNESS_LSB +: 32];
  assign seq_entries   = line_q[HW_SEQUENCE_ENTRIES_LSB +: 32];
  assign seq_prompt    = line_q[HW_SEQUENCE_PROMPT_LSB +: 64];
  assign seq_start     = line_q[HW_SEQUENCE_START_LSB +: 32];
  assign seq_key       = line_q[HW_SEQUENCE_DRAW_KEY_LSB +: 64];
  assign first         = task_q.silent ? seq_start : task_q.seq_len - 32'd1;
  assign table_end     = {1'b0, task_q.kv_line, 6'd0} + 65'd64 + {31'd0, seq_entries, 2'b00};
  // The last token is scored by the step before it.
  assign prompt_end    = {1'b0, seq_prompt} + {31'd0, task_q.seq_len - (scores ? 32'd0 : 32'd1), 2'b00};
  assign seq_sound     = fold_q == line_q[HW_SEQUENCE_CHECK_LSB +: 32] && seq_sharpness <= SHARPNESS_MAX
                      // It truncates no draw, and the rest is reserved.
                      && line_q[HW_SEQUENCE_CHECK_LSB-1:HW_SEQUENCE_TOP_K_LSB] == '0
                      && table_end <= {1'b0, pair_q.kv_size}
                      && (!task_q.silent || (seq_prompt[1:0] == '0 && prompt_end <= {1'b0, pair_q.token_size}
                                             && (!scores || prompt_end <= {1'b0, pair_q.logp_size})
                                             && seq_start <= task_q.seq_len - 32'd1));

  function automatic logic bad_sequence(input logic [4:0] fault);
    bad_sequence = fault == FAULT_BAD_TOKEN || fault == FAULT_BLOCK_MISSING || fault == FAULT_BLOCK_OUT_OF_RANGE;
  endfunction

  // ------------------------------------------------------------------ state
  logic              answers, finishes, goes_on, sends;
  logic [Workers-1:0] answered;
  assign answers  = state_q == Answer;
  // A PREFILL is answered once, after its last position or after the last that its queue pair begins. Its steps come
  // back from a gang one after the other, in the order of the positions.
  assign goes_on  = awaits_q || (task_q.silent && !failed_q && !over_q && !ends_q[worker_q] && position_q + 32'd2 != task_q.seq_len);
  assign finishes = answers && !goes_on;
  assign answered = finishes ? Workers'(16'd1 << worker_q) : '0;
  assign sends    = copying && write_valid && write_ready;

  assign read_fault_o  = answers && read_bad_q;
  assign write_fault_o = answers && write_bad_q;
  assign fault_queue_o = task_q.pair;

  always_ff @(posedge clk_turns) begin
    if (!rst_ni) begin
      mine_q  <= '0;
      want_q  <= '0;
      valid_q <= '0;
      runs_q  <= '0;
    end else if ((begin_i | steps | token_take_i) != '0 || answers || seats) begin
      mine_q  <= (mine_q & ~begin_i) | begins;
      want_q  <= (want_q & ~answered) | begins | steps;
      valid_q <= (valid_q & ~token_take_i) | answered;
      if (answers && !awaits_q) runs_q <= runs_q & ~Workers'(16'd1 << worker_q);
      if (seats)   runs_q <= runs_q | Workers'(16'd1 << worker_q);
    end
    if ((begins | answered) != '0) begin
      place_q <= (place_q & ~begins) | (begin_place_i & begins);
      fresh_q <= fresh_q | begins;
    end
    if (answers) begin
      // Icarus 11 takes no selected bit of what is written whole in the same process.
      fresh_q        <= (fresh_q & ~Workers'(16'd1 << worker_q)) | begins;
      fault_q        <= (fault_q & ~answered) | (answered & {Workers{failed_q}});
      fault_memory_q <= (fault_memory_q & ~answered) | (answered & {Workers{memory_q}});
      eos_q          <= (eos_q & ~answered) | (answered & {Workers{!failed_q && !task_q.silent
                         && (token_q == image_q.end_0 || token_q == image_q.end_1 || token_q == image_q.end_2 || token_q == image_q.end_3)}});
      if (!awaits_q) position_mem[worker_q] <= position_q + 32'd1;
      token_mem[worker_q]    <= token_q;
      logp_mem[worker_q]     <= logp_q;
    end else if (seats || leaves) begin
      position_mem[worker_q] <= position_q;
      token_mem[worker_q]    <= token_q;
    end
    // What begins a descriptor is done.
    if (leaves) fresh_q <= (fresh_q & ~Workers'(16'd1 << worker_q)) | begins;
    if (seats) seat_worker[{step_gang[GangBits-1:0], step_context}] <= worker_q;
    if (seats) out_mem[worker_q] <= (task_q.silent ? 4'(step_context) : 4'd0) + 4'd1;
    else if (state_q == Look && returns_q && phase_q == 2'd2) out_mem[worker_q] <= out_q - 4'd1;
    if (answers) begin
      bad_q        <= awaits_q && failed_q ? bad_q | Workers'(16'd1 << worker_q) : !awaits_q ? bad_q & ~Workers'(16'd1 << worker_q) : bad_q;
      bad_memory_q <= awaits_q && failed_q && memory_q ? bad_memory_q | Workers'(16'd1 << worker_q)
                    : !awaits_q ? bad_memory_q & ~Workers'(16'd1 << worker_q) : bad_memory_q;
    end
    if (!rst_ni) begin
      bad_q        <= '0;
      bad_memory_q <= '0;
    end
  end

  always_ff @(posedge clk_turns) begin
    if (!rst_ni) begin
      state_q      <= Idle;
      unanswered_q <= '0;
    end else if (state_q != Idle || picks || gives_back) begin
      if (own_beat && own_beat_ready && beat_fault) read_bad_q <= 1'b1;
      if (writes && written && write_fault) write_bad_q <= 1'b1;
      if (copying) unanswered_q <= unanswered_q + 6'(sends) - 6'(written);
      if (reads_one && own_ready) asked_q <= 1'b1;
      case (state_q)
        Idle: begin
          worker_q    <= gives_back ? seat_worker[{result_gang[GangBits-1:0], result_context}] : next_worker;
          returns_q   <= gives_back;
          result_q    <= result;
          phase_q     <= '0;
          failed_q    <= 1'b0;
          memory_q    <= 1'b0;
          over_q      <= 1'b0;
          awaits_q    <= 1'b0;
          copies_q    <= 1'b0;
          read_bad_q  <= 1'b0;
          write_bad_q <= 1'b0;
          asked_q     <= 1'b0;
          state_q     <= Look;
        end
        Look: begin
          phase_q <= phase_q + 2'd1;
          if (phase_q == 2'd0) begin
            task_q     <= task_mem[{4'(worker_q), place_q[worker_q]}];
            held_q     <= held_mem[worker_q];
            position_q <= position_mem[worker_q];
            token_q    <= token_mem[worker_q];
            out_q      <= out_mem[worker_q];
          end
          if (phase_q == 2'd1) pair_q <= pair_mem[task_pair];
          if (phase_q == 2'd2) begin
            image_q <= image_i;
            phase_q <= '0;
            state_q <= returns_q ? (scores && result_q.log.fault == FAULT_NONE ? Score : Answer) : fresh_q[worker_q] ? Header : task_q.silent ? Token : Step;
            if (returns_q) begin
              if (!task_q.silent) token_q <= result_q.token;
              logp_q      <= result_q.logp;
              awaits_q    <= out_q != 4'd1;
              // Of several steps the first that failed says why.
              failed_q    <= result_q.log.fault != FAULT_NONE || bad_q[worker_q];
              memory_q    <= bad_q[worker_q] ? bad_memory_q[worker_q] : result_q.log.fault != FAULT_NONE && !bad_sequence(result_q.log.fault);
              read_bad_q  <= result_q.read_fault;
              write_bad_q <= result_q.write_fault;
            end else if (ends_q[worker_q]) begin
              failed_q <= 1'b1;
              state_q  <= Answer;
            end
          end
        end
        Header: if (asked_q && own_beat) begin
          line_q   <= beat_data;
          word_q   <= '0;
          fold_q   <= GOLDEN;
          asked_q  <= 1'b0;
          failed_q <= beat_fault;
          memory_q <= beat_fault;
          state_q  <= beat_fault ? Answer : Fold;
        end
        Fold: begin
          // mix, of policy_pkg, with a register behind each multiplication.
          phase_q <= (phase_q == 2'd2) ? 2'd0 : phase_q + 2'd1;
          if (phase_q == 2'd0) mixed_q <= mix_first(fold_q ^ line_q[{word_q, 5'd0} +: 32]);
          if (phase_q == 2'd1) fold_q  <= mix_second(mixed_q);
          if (phase_q == 2'd2) begin
            fold_q <= mix_last(fold_q);
            word_q <= word_q + 4'd1;
            if (word_q == 4'd14) state_q <= Judge;
          end
        end
        Judge: begin
          held_q               <= {seq_sharpness[27:0], (seq_entries > 32'd2048) ? 12'd2048 : seq_entries[11:0], seq_prompt,
                                   (seq_key != '0) ? seq_key : {task_q.rollout, task_q.seed}};
          held_mem[worker_q]   <= {seq_sharpness[27:0], (seq_entries > 32'd2048) ? 12'd2048 : seq_entries[11:0], seq_prompt,
                                   (seq_key != '0) ? seq_key : {task_q.rollout, task_q.seed}};
          position_q <= first;
          source_q   <= line_q[HW_SEQUENCE_SOURCE_LSB +: 32];
          copies_q   <= line_q[HW_SEQUENCE_SHARED_LSB +: 32] == first && first[4:0] != '0;
          failed_q   <= !seq_sound;
          over_q     <= task_q.silent && first == task_q.seq_len - 32'd1;
          state_q    <= (!seq_sound || (task_q.silent && first == task_q.seq_len - 32'd1)) ? Answer : Token;
        end
        Token: if (asked_q && own_beat) begin
          line_q   <= beat_data;
          token_q  <= beat_data[{token_addr[5:2], 5'd0} +: 32];
          given_q  <= beat_data[{token_addr[5:2] + 4'd1, 5'd0} +: 32];
          asked_q  <= 1'b0;
          failed_q <= beat_fault;
          memory_q <= beat_fault;
          // A sequence without an entry for the position fails in its step, too.
          state_q  <= beat_fault ? Answer : copies_q ? Entry : Step;
          if (copies_q && !beat_fault && position_q[31:5] >= 27'(held_q.entries)) begin
            failed_q <= 1'b1;
            state_q  <= Answer;
          end else if (scores && !beat_fault) state_q <= Given;
        end
        Given: begin
          // In the next line, or it is there.
          if (token_addr[5:2] == 4'd15) begin
            if (asked_q && own_beat) begin
              given_q  <= beat_data[31:0];
              asked_q  <= 1'b0;
              failed_q <= beat_fault || beat_data[31:0] >= image_q.vocabulary;
              memory_q <= beat_fault;
              state_q  <= (beat_fault || beat_data[31:0] >= image_q.vocabulary) ? Answer : copies_q ? Entry : Step;
            end
          end else begin
            failed_q <= given_q >= image_q.vocabulary;
            state_q  <= (given_q >= image_q.vocabulary) ? Answer : copies_q ? Entry : Step;
          end
        end
        Entry: if (asked_q && own_beat) begin
          block_q  <= beat_data[{position_q[8:5], 5'd0} +: 32];
          asked_q  <= 1'b0;
          failed_q <= beat_fault;
          memory_q <= beat_fault;
          state_q  <= beat_fault ? Answer : Bound;
        end
        Bound: begin
          phase_q   <= (phase_q == 2'd3) ? phase_q : phase_q + 2'd1;
          product_q <= {32'd0, block_q} * {32'd0, image_q.block_lines};
          block_q   <= source_q;
          if (phase_q != 2'd0 && product_q + 64'(image_q.block_lines) > 64'(arena_size[63:6])) begin
            failed_q <= 1'b1;
            state_q  <= Answer;
          end else if (phase_q == 2'd1) to_q <= product_q[57:0];
          else if (phase_q != 2'd0) begin
            from_q <= product_q[57:0];
            if (!npu_write && npu_unanswered_q == '0) begin
              phase_q <= '0;
              state_q <= Copy;
            end
          end
          asked_lines_q <= '0;
          copied_q      <= '0;
        end
        Copy: begin
          if (own_valid && own_ready) asked_lines_q <= asked_lines_q + 32'(own_lines);
          if (takes_line) copied_q <= copied_q + 32'd1;
          if ((takes_line && beat_fault) || (written && write_fault)) begin
            failed_q <= 1'b1;
            memory_q <= 1'b1;
          end
          if (ends_q[worker_q]) failed_q <= 1'b1;
          if (copied_q == asked_lines_q && (failed_q || left == '0) && unanswered_q == '0) state_q <= failed_q ? Answer : Step;
        end
        Step: if (seats && more) begin
          position_q <= position_q + 32'd1;
          token_q    <= line_q[{token_addr[5:2] + 4'd1, 5'd0} +: 32];
        end else if (seats || leaves) state_q <= Idle;
        Score: begin
          if (phase_q == 2'd0 && !npu_write && npu_unanswered_q == '0) phase_q <= 2'd1;
          if (phase_q == 2'd1 && write_ready) phase_q <= 2'd2;
          if (phase_q == 2'd2 && written) begin
            phase_q  <= '0;
            failed_q <= write_fault;
            memory_q <= write_fault;
            state_q  <= Answer;
          end
        end
        default: state_q <= Idle;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) npu_unanswered_q <= '0;
    else if (!writes && ((npu_write && write_ready) || written)) npu_unanswered_q <= npu_unanswered_q + 6'(npu_write && write_ready) - 6'(written);
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_turns) begin
    if (rst_ni && (begins | steps | token_take_i) != '0) begin
      if ((token_take_i & mine_q & ~valid_q) != '0) $fatal(1, "R3 engine_npu: workers %b take an answer that is not there", token_take_i & mine_q & ~valid_q);
      if (((begins | steps) & want_q) != '0) $fatal(1, "R3 engine_npu: workers %b ask twice", (begins | steps) & want_q);
    end
    if (rst_ni && picks && own_beat) $fatal(1, "N5 engine_npu: a turn begins with lines of the last one on their way");
    if (rst_ni && own_beat && !asked_q && !copying) $fatal(1, "N5 engine_npu: a line that was not asked for");
  end
`endif
endmodule
