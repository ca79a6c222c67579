// The rollout workers. Each runs a descriptor at one token per cycle (plus wait states) and goes on with the next
// without losing a cycle; two descriptors may queue behind the running one: of its own rollout, or bound when its
// certain end was near.
//
// Control is one bit per worker in vectors, so that a decision is taken for all workers at once. One test guards
// what happens seldom (a start, an end, a checkpoint). Data is one lane of 32 bits per worker.
module rollout_worker_fsm
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4,
  parameter int Engines = 1           // 2: a step may take long, and fail, and a PREFILL may be one
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  start_i,             // a queue pair starts, with this configuration
  input  logic [3:0]            start_queue_i,
  input  queue_config_t         start_config_i,
  input  logic [Queues-1:0]     drain_i,             // R12: what is here of these queue pairs ends as by a STOP
  input  logic [15:0]           wait_states_i,       // cycles before each token

  // From the dispatcher.
  input  logic [Workers-1:0]    assign_i,            // one-hot: takes work_i
  input  logic [3:0]            assign_worker_i,     // the same as a number
  input  work_t                 work_i,
  input  logic                  stopped_i,           // R8, R20: it adds no tokens
  input  logic                  refused_i,           // R17: likewise
  input  logic                  stop_i,              // R8: ends what is here of this rollout …
  input  logic [3:0]            stop_queue_i,
  input  logic                  stop_group_i,        // … or with this prefix, copy-on-write
  input  logic [31:0]           stop_rollout_i,
  input  logic                  abort_i,             // R8: so does an ABORT, beside a STOP of anybody's (R28)
  input  logic [3:0]            abort_queue_i,
  input  logic [31:0]           abort_rollout_i,
  input  logic                  retire_i,            // R20: the version in this policy slot of these queue pairs is retired:
  input  logic [Queues-1:0]     retire_pairs_i,      // in this cycle what is assigned knows of it already
  input  logic                  retire_slot_i,
  input  logic                  retire_abort_i,      // with ABORT; else with KEEP
  input  logic                  probe_i,
  input  logic [3:0]            probe_queue_i,
  input  logic [31:0]           probe_rollout_i,
  output logic [Workers-1:0]    holds_o,             // combinational in the probe
  output logic [Workers-1:0]    joins_o,             // likewise
  output logic [Workers-1:0]    wants_o,
  output logic [Workers-1:0]    free_o,
  output logic [Workers-1:0]    begun_o,             // started a descriptor
  output logic [Workers-1:0]    moved_o,             // started a descriptor, or its oldest end was taken

  // The engine (see engine_hash): it keeps what it prepared for an assigned descriptor by worker and place.
  output logic                  load_o,              // work_i is a DECODE, and goes to this place
  output logic [4:0]            load_place_o,
  output logic [Workers-1:0]    begin_o,             // asks for the first token of the DECODE in this place
  output logic [Workers-1:0]    begin_place_o,
  input  logic [Workers-1:0]    begin_ready_i,       // early
  output logic [Workers-1:0]    step_o,              // asks for the next token
  input  logic [Workers-1:0]    step_ready_i,
  input  logic [Workers-1:0]    token_valid_i,       // early
  input  logic [Workers*32-1:0] engine_token_i,
  input  logic [Workers-1:0]    eos_i,
  input  logic [Workers-1:0]    slow_i,              // what runs is of an engine whose steps take long
  input  logic [Workers-1:0]    fault_i,             // with token_valid_i: there is none, the descriptor ends in an error …
  input  logic [Workers-1:0]    fault_memory_i,      // … DMA_FAULT, else BAD_SEQUENCE
  output logic [Workers-1:0]    token_take_o,

  // To the result buffer.
  input  logic [Workers-1:0]    ready_i,             // early: there is room for a token and an end
  output logic [Workers-1:0]    token_o,
  output logic [Workers-1:0]    line_o,              // with finish_o: the item has tokens
  output logic [Workers*32-1:0] token_data_o,
  output logic [Workers-1:0]    logp_o,              // its log-probability goes with it, from the engine
  output logic [Workers*32-1:0] position_o,          // in words, from the start of the descriptor's first line
  output logic [Workers-1:0]    finish_o,            // the line is full, or the descriptor ends
  output logic [Workers-1:0]    done_o,              // the descriptor ends
  output logic [Workers*32-1:0] digest_o,            // with done_o
  output logic [Workers*4-1:0]  how_o,               // with done_o
  input  logic [Workers-1:0]    delivered_i,         // the oldest end was taken

  // Observation, for STATUS and the counters.
  output logic [Workers-1:0]    run_o,
  output logic [Workers-1:0]    wait_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  // A worker is idle, waits (wait states of the next token), or runs: a token per cycle, or the end of a descriptor
  // that adds none.
  logic [Workers-1:0] run_q, wait_q, start, fire, done, close, near, passed, eos, ask, look, pause, resume;
  // Of the descriptor that runs. near_end: the worker is idle or will soon be.
  logic [Workers-1:0] adds_tokens_q, eos_stops_q, resident_q, logp_q, eos_seen_q, stop_q, near_end_q;

  // Positions from the last word of a line to the last one for which an event may be near in the next line.
  localparam logic [31:0] Here = 32'd16 + NEAR_END;
  localparam int Row = (Workers % 4 == 0) ? 4 : 1;   // lanes that one test skips

  // A rollout is known by its queue pair and its number there. With one queue pair the number is enough.
  localparam int QueueBits = (Queues == 1) ? 0 : $clog2(Queues);
  localparam int KeyBits   = 32 + QueueBits;
  localparam int Slots     = 1 << QueueBits;
  logic [KeyBits-1:0] new_key, stop_key, abort_key, probe_key;
  assign new_key   = KeyBits'({work_i.pair, work_i.rollout_id});
  assign stop_key  = KeyBits'({stop_queue_i, stop_rollout_i});
  assign abort_key = KeyBits'({abort_queue_i, abort_rollout_i});
  assign probe_key = KeyBits'({probe_queue_i, probe_rollout_i});

  // R9: the threshold of each queue pair, Q16.16 with a sign.
  logic [Queues-1:0][31:0] threshold_q;
  always_ff @(posedge clk_i) begin
    if (start_i) threshold_q[(Queues == 1) ? 0 : int'(start_queue_i)] <= start_config_i.reward_threshold;
  end

  // ---------------------------------------------------------------- queues of assigned descriptors
  // The rest of an entry: log-probabilities, here, eos_stops, resident, first position (see below), checkpoint, last position, event.
  localparam int EntryBits = 104;
  // Two places per worker; head says which one is oldest. Index: worker, place.
  logic [KeyBits-1:0]     queue_rollout [0:MAX_WORKERS*2-1];
  logic [EntryBits-1:0]   queue_mem     [0:MAX_WORKERS*2-1];
  logic [KeyBits-1:0]     queue_prefix  [0:MAX_WORKERS*2-1];   // with its queue pair, of one with COW_PREFIX

  logic [Workers-1:0] head_q, some_q, two_q;      // at least one is queued; two are
  logic [Workers-1:0] other, tail;                // the place that is not the oldest; where the next one goes
  logic [Workers-1:0] behind;                     // one is queued after a start in this cycle
  logic [Workers-1:0] open_q;                     // nothing is queued, or one that will not take long
  logic [Workers-1:0] brief_0_q, brief_1_q;       // the descriptor in this place will not take long
  logic [Workers-1:0] head_brief, youngest_brief_q;
  logic [Workers-1:0] adds_0_q, adds_1_q, head_adds;
  // A PREFILL of an engine: the engine is asked, once, and there is no token.
  logic [Workers-1:0] silent_0_q, silent_1_q, head_silent, silent_q, asks, failed, filled_q;
  logic [4:0]         place;
  logic [31:0]        new_last, new_event, near_by;
  logic               new_brief, new_adds, new_silent, new_here;

  assign other  = ~head_q;
  assign tail   = head_q ^ some_q;
  assign behind = (start & two_q) | (~start & some_q);
  assign head_brief = (head_q & brief_1_q) | (~head_q & brief_0_q);
  assign head_adds  = ((head_q & adds_1_q) | (~head_q & adds_0_q)) & ~head_void;
  assign new_adds   = work_i.adds_tokens && !stopped_i && !refused_i;
  assign new_silent = (Engines == 1) ? 1'b0 : work_i.engine && !work_i.adds_tokens && !refused_i;
  assign head_silent = (Engines == 1) ? '0 : (head_q & silent_1_q) | (~head_q & silent_0_q);
  assign asks       = (Engines == 1) ? adds_tokens_q : adds_tokens_q | silent_q;
  assign failed     = (Engines == 1) ? '0 : fire & asks & fault_i;
  assign near_by    = near_tokens(wait_states_i);

  always_comb begin
    place     = '0;
    new_last  = '0;
    new_event = '0;
    new_brief = 1'b1;
    new_here  = 1'b1;
    if (assign_i != '0) begin
      place     = {assign_worker_i, (assign_i & tail) != '0};
      new_last  = {28'd0, work_i.start_word};
      new_event = {28'd0, work_i.start_word};    // without tokens it ends at once
      if (new_adds) begin
        new_event = {28'd0, work_i.start_word} - 32'd1
                  + ((work_i.checkpoint < work_i.max_tokens) ? work_i.checkpoint : work_i.max_tokens);
        new_last  = {28'd0, work_i.start_word} - 32'd1 + work_i.max_tokens;
        // Behind a resident checkpoint it may go on.
        new_brief = work_i.max_tokens <= near_by || (work_i.checkpoint <= near_by && !work_i.resident);
        new_here  = new_event - {28'd0, work_i.start_word} <= Here;
      end
      if (Engines > 1 && work_i.engine) new_brief = 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin
    if (assign_i != '0) begin
      queue_rollout[place] <= new_key;
      queue_prefix[place]  <= KeyBits'({work_i.pair, work_i.prefix_id});
      queue_mem[place]     <= {work_i.logp, new_here, work_i.eos_stops, work_i.resident, work_i.start_word, work_i.checkpoint,
                               new_last, new_event};
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      head_q <= '0;
      some_q <= '0;
      two_q  <= '0;
      open_q <= '1;
    end else if ((start | assign_i) != '0) begin
      open_q <= (~(start | assign_i) & open_q)
              | (~behind & assign_i & {Workers{new_brief}})
              | (~behind & ~assign_i)
              | (behind & ~assign_i & start & youngest_brief_q);
      two_q  <= (two_q & ~start) | (behind & assign_i);
      some_q <= behind | assign_i;
      head_q <= head_q ^ start;
    end
  end

  always_ff @(posedge clk_i) begin
    if (assign_i != '0) begin
      youngest_brief_q <= (youngest_brief_q & ~assign_i) | (assign_i & {Workers{new_brief}});
      adds_0_q         <= (adds_0_q & ~(assign_i & ~tail)) | (assign_i & ~tail & {Workers{new_adds}});
      adds_1_q         <= (adds_1_q & ~(assign_i & tail))  | (assign_i & tail & {Workers{new_adds}});
      if (Engines > 1) begin
        silent_0_q     <= (silent_0_q & ~(assign_i & ~tail)) | (assign_i & ~tail & {Workers{new_silent}});
        silent_1_q     <= (silent_1_q & ~(assign_i & tail))  | (assign_i & tail & {Workers{new_silent}});
      end
      brief_0_q        <= (brief_0_q & ~(assign_i & ~tail)) | (assign_i & ~tail & {Workers{new_brief}});
      brief_1_q        <= (brief_1_q & ~(assign_i & tail))  | (assign_i & tail & {Workers{new_brief}});
    end
  end

  // ---------------------------------------------------------------- the tokens of this cycle
  // Positions of tokens: the next one; the last that the budget allows; the next at which something is to be decided
  // (a checkpoint or the last).
  logic [Workers*32-1:0] position_q, last_q, event_q;
  logic [Workers*32-1:0] checkpoint_q, digest_q;
  logic [Workers*32-1:0] since_q, since;   // RESIDENT: the digest of the tokens since the last checkpoint (R9)
  logic [Workers*KeyBits-1:0] rollout_q;
  logic [Workers-1:0]    low_0_q, low_1_q, low_2_q, low_3_q;   // the lowest four bits of position_q, once more
  logic [Workers-1:0]    here_q, ends;   // the next event is no further than Here; a line is full

  assign fire         = run_q & ready_i & (token_valid_i | ~asks);
  assign ask          = stop_now | void_q | (kept_now & ~resident_q) | (eos & eos_stops_q) | failed;
  assign token_data_o = engine_token_i;
  assign eos          = eos_i & adds_tokens_q;

  for (genvar w = 0; w < Workers; w++) begin : gen_worker
    assign digest_o[w*32 +: 32] = (Engines > 1 && failed[w]) ? digest_q[w*32 +: 32] : digest_step(digest_q[w*32 +: 32], token_data_o[w*32 +: 32]);
    // Without a token the last word of the item is the one before.
    assign position_o[w*32 +: 32] = (Engines > 1 && failed[w]) ? position_q[w*32 +: 32] - 32'd1 : position_q[w*32 +: 32];
  end

  // A token needs a closer look when the next event is close, or somebody asks. Whether the event falls into the next
  // line or just behind it is decided once a line, on all bits; only then a cycle compares the lower ones.
  always_comb begin
    close = '0;
    if (here_q != '0) begin
      for (int row = 0; row < Workers; row = row + Row) begin
        if (here_q[row +: Row] != '0) begin
          for (int w = row; w < row + Row; w++)
            if (here_q[w]) close[w] = event_q[w*32 +: 5] - position_q[w*32 +: 5] <= NEAR_END[4:0];
        end
      end
    end
  end
  assign ends = fire & low_0_q & low_1_q & low_2_q & low_3_q;
  assign look = fire & (close | ask);

  // R20: the version that it names is retired. What runs ends with the token of this cycle, or at its next checkpoint;
  // what has not started, in a place or on its way out of one, adds none.
  logic [Workers-1:0] slot_run_q, slot_0_q, slot_1_q, retiring, retire_0, retire_1;   // the queue pair is one of them
  logic [Workers-1:0] hit_run, hit_0, hit_1, head_void, stop_now, kept_now;
  logic [Workers-1:0] kept_q, kept_0_q, kept_1_q, void_q, void_0_q, void_1_q;
  logic               retire_aborts, retire_keeps;
  /* verilator lint_off UNUSEDSIGNAL */  // of several queue pairs
  logic [Slots-1:0]   retires;
  /* verilator lint_on UNUSEDSIGNAL */
  assign retires       = Slots'(retire_pairs_i);
  assign retire_aborts = retire_i && retire_abort_i;
  assign retire_keeps  = retire_i && !retire_abort_i;

  always_comb begin
    hit_run = '0;
    hit_0   = '0;
    hit_1   = '0;
    if (retire_i) begin
      hit_run = retiring & ~(slot_run_q ^ {Workers{retire_slot_i}});
      hit_0   = retire_0 & ~(slot_0_q ^ {Workers{retire_slot_i}});
      hit_1   = retire_1 & ~(slot_1_q ^ {Workers{retire_slot_i}});
    end
  end
  assign stop_now  = stop_q | (hit_run & {Workers{retire_aborts}});
  assign kept_now  = kept_q | (hit_run & {Workers{retire_keeps}});
  assign head_void = (head_q & (void_1_q | hit_1)) | (~head_q & (void_0_q | hit_0));

  always_ff @(posedge clk_i) begin
    if (retire_i || (start | assign_i) != '0) begin
      slot_0_q   <= (slot_0_q & ~(assign_i & ~tail)) | (assign_i & ~tail & {Workers{work_i.slot}});
      slot_1_q   <= (slot_1_q & ~(assign_i & tail)) | (assign_i & tail & {Workers{work_i.slot}});
      slot_run_q <= (start & ((head_q & slot_1_q) | (~head_q & slot_0_q))) | (~start & slot_run_q);
      void_0_q   <= (void_0_q | hit_0) & ~(assign_i & ~tail);
      void_1_q   <= (void_1_q | hit_1) & ~(assign_i & tail);
      void_q     <= (start & head_void) | (~start & void_q);
      kept_0_q   <= (kept_0_q | (hit_0 & {Workers{retire_keeps}})) & ~(assign_i & ~tail);
      kept_1_q   <= (kept_1_q | (hit_1 & {Workers{retire_keeps}})) & ~(assign_i & tail);
      kept_q     <= (start & ((head_q & (kept_1_q | (hit_1 & {Workers{retire_keeps}})))
                            | (~head_q & (kept_0_q | (hit_0 & {Workers{retire_keeps}}))))) | (~start & kept_now);
    end
  end

  // Of the rollout that runs.
  logic [Workers*32-1:0] threshold;
  // What runs, and what is queued in either place, belongs to a queue pair that is being disabled.
  logic [Workers-1:0]    draining, drain_0, drain_1;
  /* verilator lint_off UNUSEDSIGNAL */  // of several queue pairs
  logic [Slots-1:0]      drains;
  /* verilator lint_on UNUSEDSIGNAL */
  assign drains = Slots'(drain_i);
  if (Queues == 1) begin : gen_one
    assign threshold = '0;              // there is only one
    assign draining  = {Workers{drain_i[0]}};
    assign drain_0   = draining;
    assign drain_1   = draining;
    assign retiring  = {Workers{retire_pairs_i[0]}};
    assign retire_0  = retiring;
    assign retire_1  = retiring;
  end else begin : gen_many
    for (genvar w = 0; w < Workers; w++) begin : gen_own
      logic [QueueBits-1:0] queue, queue_0, queue_1;
      assign queue                 = rollout_q[w*KeyBits + 32 +: QueueBits];
      assign queue_0               = drain_i != '0 ? queue_rollout[{4'(w), 1'b0}][32 +: QueueBits] : '0;
      assign queue_1               = drain_i != '0 ? queue_rollout[{4'(w), 1'b1}][32 +: QueueBits] : '0;
      assign threshold[w*32 +: 32] = (look[w] && resident_q[w]) ? threshold_q[queue] : '0;
      assign draining[w]           = drain_i != '0 && drains[queue];
      assign drain_0[w]            = drain_i != '0 && drains[queue_0];
      assign drain_1[w]            = drain_i != '0 && drains[queue_1];
      assign retiring[w]           = retire_i && retires[queue];
      assign retire_0[w]           = retire_i && retires[queue_rollout[{4'(w), 1'b0}][32 +: QueueBits]];
      assign retire_1[w]           = retire_i && retires[queue_rollout[{4'(w), 1'b1}][32 +: QueueBits]];
    end
  end

  // No function call and no variable of its own: for either, Icarus 11 wakes an always_comb forever.
  always_comb begin
    near   = '0;
    passed = '0;
    done   = '0;
    how_o  = '0;
    since  = '0;
    if (look != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (look[w]) begin
          near[w] = event_q[w*32 +: 32] - position_q[w*32 +: 32] <= ((Engines > 1 && slow_i[w]) ? 32'd0 : near_by)
                 && (!resident_q[w] || event_q[w*32 +: 32] == last_q[w*32 +: 32]);
          // What ends the descriptor: the contract's order.
          if (position_q[w*32 +: 32] == event_q[w*32 +: 32] || ask[w]) begin
            how_o[w*4 + 2] = eos[w] || eos_seen_q[w];
            if (Engines > 1 && failed[w]) begin
              done[w] = 1'b1;
              how_o[w*4 +: 4] = {1'b1, fault_memory_i[w], END_FAILED};
            end else if (void_q[w] && !(Engines > 1 && silent_q[w])) begin
              done[w] = 1'b1;
              how_o[w*4 +: 4] = {2'b10, stop_q[w] ? END_STOPPED : END_SUPERSEDED};
            end else if (position_q[w*32 +: 32] == last_q[w*32 +: 32] || (eos[w] && eos_stops_q[w])) begin
              done[w] = 1'b1;
              how_o[w*4 +: 2] = END_DONE;
            end else if (stop_now[w]) begin
              done[w] = 1'b1;
              how_o[w*4 +: 2] = END_STOPPED;
            end else if (!resident_q[w]) begin
              done[w] = 1'b1;
              how_o[w*4 +: 2] = kept_now[w] ? END_SUPERSEDED : END_REWARD_NEEDED;
            end else begin
              // Its score, which is never negative, against a threshold that may be.
              since[w*32 +: 32] = (since_q[w*32 +: 32] ^ token_data_o[w*32 +: 32]) * DIGEST_PRIME;
              if ($signed({16'd0, since[w*32 + 16 +: 16] ^ since[w*32 +: 16]})
                  < $signed((Queues == 1) ? threshold_q[0] : threshold[w*32 +: 32])) begin
                done[w] = 1'b1;
                how_o[w*4 + 3] = 1'b1;
              end else if (kept_now[w]) begin
                done[w] = 1'b1;
                how_o[w*4 +: 2] = END_SUPERSEDED;
              end else begin
                passed[w] = 1'b1;
              end
            end
          end
        end
      end
    end
  end

  // ---------------------------------------------------------------- state
  logic [Workers-1:0] owes_q, waited, last_wait;      // last_wait: near the end of the last token's wait states
  logic [Workers*16-1:0] delay_q;

  assign start  = some_q & (done | ~(run_q | wait_q)) & (begin_ready_i | ~(head_adds | head_silent));
  assign pause  = (wait_states_i == '0) ? '0 : (fire & ~done) | (start & head_adds);
  assign resume = wait_q & waited;

  always_comb begin
    waited    = '0;
    last_wait = '0;
    if (wait_q != '0) begin
      for (int w = 0; w < Workers; w++) begin
        waited[w]    = delay_q[w*16 +: 16] == 16'd1 || draining[w];
        last_wait[w] = {16'd0, delay_q[w*16 +: 16]} <= NEAR_END && position_q[w*32 +: 32] == event_q[w*32 +: 32]
                    && (!resident_q[w] || event_q[w*32 +: 32] == last_q[w*32 +: 32]);
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      run_q      <= '0;
      wait_q     <= '0;
      near_end_q <= '1;
    end else if ((look | wait_q | start | pause) != '0) begin
      near_end_q <= ((near_end_q | near | (wait_q & last_wait) | done) & ~start) | (head_brief & start);
      run_q      <= ((run_q & ~done) | start | resume) & ~pause;
      wait_q     <= (wait_q & ~resume) | pause;
    end
    if ((wait_q | pause) != '0) begin
      for (int w = 0; w < Workers; w++)
        delay_q[w*16 +: 16] <= wait_q[w] ? delay_q[w*16 +: 16] - 16'd1 : wait_states_i;
    end
  end

  always_ff @(posedge clk_i) begin
    // After the end of a descriptor without a successor these values are not looked at.
    // Each is written behind those that look at it, which costs a simulation no copy.
    if ((ends | passed) != '0) begin
      for (int row = 0; row < Workers; row = row + Row) begin
        if ((ends[row +: Row] | passed[row +: Row]) != '0) begin
          for (int w = row; w < row + Row; w++) begin
            if (passed[w])
              here_q[w] <= checkpoint_q[w*32 +: 32] <= Here || last_q[w*32 +: 32] - position_q[w*32 +: 32] <= Here;
            else if (ends[w])
              here_q[w] <= event_q[w*32 +: 32] - position_q[w*32 +: 32] <= Here;
          end
        end
      end
    end
    // Only a resident rollout goes on behind a checkpoint.
    if (passed != '0) begin
      for (int w = 0; w < Workers; w++) if (passed[w])
        event_q[w*32 +: 32] <= (checkpoint_q[w*32 +: 32] < last_q[w*32 +: 32] - position_q[w*32 +: 32])
                             ? position_q[w*32 +: 32] + checkpoint_q[w*32 +: 32] : last_q[w*32 +: 32];
    end
    if ((fire & resident_q) != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (fire[w] && resident_q[w])
          since_q[w*32 +: 32] <= passed[w] ? DIGEST_INIT : digest_step(since_q[w*32 +: 32], token_data_o[w*32 +: 32]);
      end
    end
    for (int w = 0; w < Workers; w++) begin
      if (fire[w]) begin
        digest_q[w*32 +: 32]   <= digest_o[w*32 +: 32];
        position_q[w*32 +: 32] <= position_q[w*32 +: 32] + 32'd1;
      end
    end
    low_3_q <= low_3_q ^ (fire & low_0_q & low_1_q & low_2_q);
    low_2_q <= low_2_q ^ (fire & low_0_q & low_1_q);
    low_1_q <= low_1_q ^ (fire & low_0_q);
    low_0_q <= low_0_q ^ fire;
    if (eos != '0) eos_seen_q <= eos_seen_q | (fire & eos);
    if (start != '0) begin
      adds_tokens_q <= (start & head_adds) | (~start & adds_tokens_q);
      if (Engines > 1) silent_q <= (start & head_silent) | (~start & silent_q);
      for (int w = 0; w < Workers; w++) begin
        if (start[w]) begin
          eos_seen_q[w]            <= 1'b0;
          rollout_q[w*KeyBits +: KeyBits] <= queue_rollout[{4'(w), head_q[w]}];
          digest_q[w*32 +: 32]     <= DIGEST_INIT;
          since_q[w*32 +: 32]      <= DIGEST_INIT;
          position_q[w*32 +: 32]   <= {28'd0, queue_mem[{4'(w), head_q[w]}][96 +: 4]};
          {eos_stops_q[w], resident_q[w]} <= queue_mem[{4'(w), head_q[w]}][100 +: 2];
          checkpoint_q[w*32 +: 32] <= queue_mem[{4'(w), head_q[w]}][64 +: 32];
          last_q[w*32 +: 32]       <= queue_mem[{4'(w), head_q[w]}][32 +: 32];
          event_q[w*32 +: 32]      <= queue_mem[{4'(w), head_q[w]}][0 +: 32];
          {low_3_q[w], low_2_q[w], low_1_q[w], low_0_q[w]} <= queue_mem[{4'(w), head_q[w]}][96 +: 4];
          here_q[w]                <= queue_mem[{4'(w), head_q[w]}][102];
          logp_q[w]                <= queue_mem[{4'(w), head_q[w]}][103];
        end
      end
    end
  end

  // R8: everything here of the STOP's queue pair is older than it; what is assigned in the same cycle knows of it already.
  logic [Workers-1:0] stop_run, stop_0, stop_1, stop_0_q, stop_1_q;
  logic               stops;
  // Of what runs and of what is queued in either place: it has COW_PREFIX; and the prefix of what runs.
  logic [Workers-1:0] cow_q, cow_0_q, cow_1_q;
  logic [Workers*KeyBits-1:0] prefix_q;

  always_ff @(posedge clk_i) begin
    if (assign_i != '0) begin
      cow_0_q <= (cow_0_q & ~(assign_i & ~tail)) | (assign_i & ~tail & {Workers{work_i.cow_prefix}});
      cow_1_q <= (cow_1_q & ~(assign_i & tail))  | (assign_i & tail & {Workers{work_i.cow_prefix}});
    end
    if (start != '0) begin
      cow_q <= (start & ((head_q & cow_1_q) | (~head_q & cow_0_q))) | (~start & cow_q);
      if ((start & ((head_q & cow_1_q) | (~head_q & cow_0_q))) != '0) begin
        for (int w = 0; w < Workers; w++)
          if (start[w]) prefix_q[w*KeyBits +: KeyBits] <= queue_prefix[{4'(w), head_q[w]}];
      end
    end
  end

  assign stops = stop_i || abort_i || drain_i != '0 || retire_aborts;
  always_comb begin
    stop_run = '0;
    stop_0   = '0;
    stop_1   = '0;
    if (stop_i) begin
      if (stop_group_i) begin
        for (int w = 0; w < Workers; w++) begin
          stop_run[w] = cow_q[w]   && prefix_q[w*KeyBits +: KeyBits] == stop_key;
          stop_0[w]   = cow_0_q[w] && queue_prefix[{4'(w), 1'b0}] == stop_key;
          stop_1[w]   = cow_1_q[w] && queue_prefix[{4'(w), 1'b1}] == stop_key;
        end
      end else begin
        for (int w = 0; w < Workers; w++) begin
          stop_run[w] = rollout_q[w*KeyBits +: KeyBits] == stop_key;
          stop_0[w]   = queue_rollout[{4'(w), 1'b0}] == stop_key;
          stop_1[w]   = queue_rollout[{4'(w), 1'b1}] == stop_key;
        end
      end
    end
    if (abort_i) begin
      for (int w = 0; w < Workers; w++) begin
        if (rollout_q[w*KeyBits +: KeyBits] == abort_key) stop_run[w] = 1'b1;
        if (queue_rollout[{4'(w), 1'b0}] == abort_key) stop_0[w] = 1'b1;
        if (queue_rollout[{4'(w), 1'b1}] == abort_key) stop_1[w] = 1'b1;
      end
    end
    if (drain_i != '0) begin
      stop_run = stop_run | draining;
      stop_0   = stop_0 | drain_0;
      stop_1   = stop_1 | drain_1;
    end
    if (retire_aborts) begin
      stop_run = stop_run | hit_run;
      stop_0   = stop_0 | hit_0;
      stop_1   = stop_1 | hit_1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (stops || (start | assign_i) != '0) begin
      stop_0_q <= (stop_0_q | stop_0) & ~(assign_i & ~tail);
      stop_1_q <= (stop_1_q | stop_1) & ~(assign_i & tail);
      stop_q   <= (start & ((head_q & (stop_1_q | stop_1)) | (~head_q & (stop_0_q | stop_0)))) | (~start & (stop_q | stop_run));
    end
  end

  // ---------------------------------------------------------------- the engine
  // A step that the engine did not take at once is owed.
  assign load_o        = assign_i != '0 && (new_adds || new_silent);
  assign load_place_o  = place;
  assign begin_o       = start & (head_adds | head_silent);
  assign begin_place_o = head_q;
  assign step_o        = owes_q | (fire & adds_tokens_q & ~done);
  assign token_take_o  = fire & asks;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) owes_q <= '0;
    else                    owes_q <= step_o & ~step_ready_i;
  end

  // ---------------------------------------------------------------- results
  assign token_o    = (Engines == 1) ? token_take_o : fire & adds_tokens_q & ~failed;
  assign logp_o     = logp_q;
  assign done_o     = done;
  assign finish_o   = done | ends;
  assign line_o     = (Engines == 1) ? token_o : token_o | (failed & filled_q);

  // Of an item that ends without a token: whether it has any.
  if (Engines > 1) begin : gen_filled
    always_ff @(posedge clk_i) begin
      if ((start | fire) != '0) filled_q <= ((filled_q & ~finish_o) | (token_o & ~finish_o)) & ~start;
    end
  end else begin : gen_full
    assign filled_q = '0;
  end

  // R5: rollouts whose end is still in the result buffer, newest first.
  logic [Workers*KeyBits-1:0] ended_0_q, ended_1_q;
  logic [Workers-1:0]    ended_some_q, ended_two_q, more, fewer;

  assign more  = done & ~delivered_i;
  assign fewer = delivered_i & ~done;

  always_ff @(posedge clk_i) begin
    if (done != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (done[w]) begin
          ended_1_q[w*KeyBits +: KeyBits] <= ended_0_q[w*KeyBits +: KeyBits];
        end
      end
      for (int w = 0; w < Workers; w++) begin
        if (done[w]) begin
          ended_0_q[w*KeyBits +: KeyBits] <= rollout_q[w*KeyBits +: KeyBits];
        end
      end
    end
    if (!rst_ni) begin
      ended_some_q <= '0;
      ended_two_q  <= '0;
    end else if ((done | delivered_i) != '0) begin
      ended_two_q  <= (ended_two_q & ~fewer) | (ended_some_q & more);
      ended_some_q <= (ended_some_q & ~(fewer & ~ended_two_q)) | more;
    end
  end

  // ---------------------------------------------------------------- what the dispatcher sees
  assign run_o   = run_q;
  assign wait_o  = wait_q;
  assign free_o  = ~(run_q | wait_q | some_q);
  assign wants_o = near_end_q & open_q;
  assign begun_o = start;
  assign moved_o = start | delivered_i;

  // Rollout of the descriptor that was assigned last.
  logic [Workers*KeyBits-1:0] youngest_q;
  always_ff @(posedge clk_i) begin
    if (assign_i != '0) begin
      for (int w = 0; w < Workers; w++) if (assign_i[w]) youngest_q[w*KeyBits +: KeyBits] <= new_key;
    end
  end

  always_comb begin
    holds_o = '0;
    joins_o = '0;
    if (probe_i) begin
      for (int w = 0; w < Workers; w++) begin
        joins_o[w] = !free_o[w] && !two_q[w] && youngest_q[w*KeyBits +: KeyBits] == probe_key;
        holds_o[w] = ((run_q[w] || wait_q[w]) && rollout_q[w*KeyBits +: KeyBits] == probe_key)
                  || (some_q[w] && queue_rollout[{4'(w), head_q[w]}] == probe_key)
                  || (two_q[w] && queue_rollout[{4'(w), other[w]}] == probe_key)
                  || (ended_some_q[w] && ended_0_q[w*KeyBits +: KeyBits] == probe_key)
                  || (ended_two_q[w] && ended_1_q[w*KeyBits +: KeyBits] == probe_key);
      end
    end
  end

`ifndef SYNTHESIS
  // Work conservation: cycles that the oldest in the queue has waited, but those of the write port and of the engine.
  // Bit b of every worker's count is in waited_q[b]: all workers count in a few operations.
  logic [4:0][Workers-1:0] waited_q, waits_on;
  logic [Workers-1:0]      carry, late;
  always_comb begin
    late     = '1;
    waits_on = waited_q;
    carry    = '0;
    if (some_q != '0) begin
      for (int b = 0; b < 5; b++) late = late & (((BOUND_WAIT >> b) & 1) == 1 ? waited_q[b] : ~waited_q[b]);
      carry = (fire | wait_q) & ~late;
      for (int b = 0; b < 5; b++) begin
        waits_on[b] = (waited_q[b] ^ carry) & some_q & ~start;
        carry       = carry & waited_q[b];
      end
    end
  end
  always_ff @(posedge clk_i) begin
    if (!rst_ni) waited_q <= '0;
    else if (some_q != '0) begin
      waited_q <= waits_on;
      if ((some_q & ~start & late) != '0) begin
        for (int w = 0; w < Workers; w++) begin
          if (some_q[w] && !start[w] && late[w] && queue_rollout[{4'(w), head_q[w]}] != rollout_q[w*KeyBits +: KeyBits])
            $fatal(1, "rollout_worker_fsm: rollout %0d waits behind rollout %0d of worker %0d",
                   queue_rollout[{4'(w), head_q[w]}], rollout_q[w*KeyBits +: KeyBits], w);
        end
      end
    end else if (waited_q != '0) waited_q <= '0;
  end
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if (assign_i != '0) begin
        if ((assign_i & two_q) != '0)
          $fatal(1, "R4 rollout_worker_fsm: workers %b are assigned a descriptor with no place for it", assign_i & two_q);
      end
      if (stop_q != '0) begin
        if ((fire & adds_tokens_q & stop_q & ~done) != '0)
          $fatal(1, "R8 rollout_worker_fsm: workers %b run on behind a STOP", fire & adds_tokens_q & stop_q & ~done);
      end
      if (kept_now != '0) begin
        if ((fire & adds_tokens_q & kept_now & ~resident_q & ~done) != '0)
          $fatal(1, "R20 rollout_worker_fsm: workers %b run on under a version that is retired", fire & kept_now & ~done);
      end
      if (delivered_i != '0) begin
        if ((delivered_i & ~ended_some_q) != '0)
          $fatal(1, "R3 rollout_worker_fsm: an end of workers %b was delivered twice", delivered_i & ~ended_some_q);
      end
      if (done != '0) begin
        for (int w = 0; w < Workers; w++)
          if (done[w] && adds_tokens_q[w] && position_q[w*32 +: 32] > last_q[w*32 +: 32])
            $fatal(1, "R10 rollout_worker_fsm: rollout %0d exceeds its budget", rollout_q[w*KeyBits +: KeyBits]);
      end
    end
  end
`endif
endmodule
