// The NPU: steps come in, with where their program and their memories lie, and tokens go out, or the word that stopped one. Memory is one
// read client and one write client, in lines.
//
// A gang is up to Contexts steps of the same program that share each word of it: GEMV takes a line of weights once for all of them, other units
// run the word for one after the other. A context that cannot finish a word stops, and the others go on.
//
// Gangs run beside each other. Each has a sequencer, a scoreboard, block tables and lines of on-chip memory to itself,
// and so no hazard with another's; what they share is the units, a word at a time, and the way to memory. A chain of HEADs has the samplers to itself.
//
// Nothing of a step reaches the next one but what it wrote to on-chip memory, which programs write before they read, and to the arena.
module npu_top
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Gangs    = 1,         // 1 to 4
  parameter int Contexts = 1,         // of a gang, 1 to 8
  parameter int Lines    = 1024       // of on-chip memory for each context; of all at most 32,768
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  // A step takes the first place of a free gang, which is open from then on, or the next one of the gang that is open; it has the program and the
  // owner of those that are there, and is silent where they are. The open gang begins with step_begins_i, beside its last step or later.
  input  logic                    step_valid_i,
  input  logic                    step_opens_i,
  input  logic                    step_begins_i,
  output logic                    step_ready_o,   // a gang is free
  output logic [1:0]              step_gang_o,    // which takes it
  output logic [2:0]              step_context_o, // … and its place there
  output logic [3:0]              open_steps_o,   // of the open gang; 0: none is open
  input  npu_step_t               step_i,
  input  npu_context_t            context_i,
  // Steps that nobody waits for any more, by gang and place. Once nobody waits for any step of a gang, no further word of
  // it begins, words that units have end early, and the results are FAULT_MEMORY. A bit stays 1 until the result is taken.
  input  logic [Gangs*Contexts-1:0] unwanted_i,
  // Results of a gang come one after the other.
  output logic                    result_valid_o,
  input  logic                    result_ready_i,
  output logic [1:0]              result_gang_o,
  output logic [2:0]              result_context_o,
  output npu_result_t             result_o,       // stays until it is taken

  // Lines that somebody else reads between those of the NPU.
  input  logic                    other_valid_i,
  input  logic [ADDRESS_BITS-1:0] other_line_i,
  input  logic [15:0]             other_lines_i,
  input  logic [3:0]              other_owner_i,
  output logic                    other_ready_o,
  output logic                    other_beat_valid_o,   // of beat_data_i, beat_fault_i
  input  logic                    other_beat_ready_i,

  // Lines that follow each other, none over a multiple of 16, come in the order of asking.
  output logic                    read_valid_o,
  output logic [ADDRESS_BITS-1:0] read_line_o,
  output logic [4:0]              read_lines_o,   // 1 to 16
  output logic [3:0]              read_owner_o,
  input  logic                    read_ready_i,
  input  logic                    beat_valid_i,
  input  logic [LINE_BITS-1:0]    beat_data_i,
  input  logic                    beat_fault_i,
  output logic                    beat_ready_o,

  // Each is answered, in any order.
  output logic                    write_valid_o,
  output logic [ADDRESS_BITS-1:0] write_line_o,
  output logic [LINE_BITS-1:0]    write_data_o,
  output logic [63:0]             write_strobe_o,
  output logic [3:0]              write_owner_o,
  input  logic                    write_ready_i,
  input  logic                    written_i,
  input  logic                    write_fault_i
);
  if (Gangs < 1 || Gangs > 4) begin : gen_bad_gangs
    localparam bit GangsMustBe1To4 = {-1{1'b1}};   // ends the elaboration
  end
  if (Contexts < 1 || Contexts > 8) begin : gen_bad_contexts
    localparam bit ContextsMustBe1To8 = {-1{1'b1}};
  end
  if (Gangs * Contexts * Lines > 1 << CHIP_BITS) begin : gen_bad_lines
    localparam bit LinesOfAllMustBe32768AtMost = {-1{1'b1}};
  end

  localparam int GangBits = (Gangs == 1) ? 1 : $clog2(Gangs);
  localparam int Seats    = Gangs * Contexts;     // a gang's contexts lie behind each other
  localparam int SeatBits = (Seats == 1) ? 1 : $clog2(Seats);

  function automatic logic [SeatBits-1:0] seat(input logic [GangBits-1:0] gang, input logic [2:0] place);
    seat = SeatBits'(int'(gang) * Contexts + int'(place));
  endfunction

  // The lowest of a gang's contexts.
  function automatic logic [2:0] lowest(input logic [Contexts-1:0] mask);
    lowest = '0;
    for (int c = Contexts - 1; c >= 0; c--) if (mask[c]) lowest = 3'(c);
  endfunction

  // … and those without it.
  function automatic logic [Contexts-1:0] others(input logic [Contexts-1:0] mask);
    others = mask & (mask - Contexts'(1));
  endfunction

  // ------------------------------------------------------------------ steps
  localparam logic [1:0] Idle   = 2'd0;
  localparam logic [1:0] Begin  = 2'd1;
  localparam logic [1:0] Run    = 2'd2;
  localparam logic [1:0] Result = 2'd3;

  // By gang; by seat, each an npu_step_t, npu_context_t.
  logic [1:0]                       state_q   [0:Gangs-1];
  logic [Contexts-1:0]              seated_q  [0:Gangs-1];   // those that take part
  logic [Contexts-1:0]              left_q    [0:Gangs-1];   // those whose result is to be taken
  logic [$bits(npu_step_t)-1:0]     step_q    [0:Seats-1];
  logic [$bits(npu_context_t)-1:0]  context_q [0:Seats-1];

  // Results, by seat.
  logic [Seats-1:0]                 sampled_q, read_fault_q, write_fault_q;
  logic [31:0]                      token_q [0:Seats-1];
  logic [31:0]                      logp_q  [0:Seats-1];
  logic [$bits(npu_log_t)-1:0]      log_q   [0:Seats-1];

  logic [Gangs-1:0]    free, ended, start, over, quiet, failed, sequencer_idle, asks, granted;
  logic [Gangs-1:0][1:0] where;
  logic [Gangs-1:0]    heads;                          // its word is a HEAD
  logic [Gangs-1:0]    give_up_q;                      // nobody waits for any step of it
  logic [GangBits-1:0] taker, giver, seat_gang, open_gang_q;
  logic [2:0]          seat_context, open_context_q, giver_context;    // of the open gang: the next place
  logic                open_q, seats, begins;
  logic [Contexts-1:0] sample_valid;
  logic [Contexts-1:0][31:0] sample_token, sample_logp;

  always_comb begin
    taker = '0;
    giver = '0;
    for (int g = Gangs - 1; g >= 0; g--) begin
      free[g]  = state_q[g] == Idle && !(open_q && open_gang_q == GangBits'(g));
      ended[g] = state_q[g] == Result;
      start[g] = state_q[g] == Begin;
      if (free[g])  taker = GangBits'(g);
      if (ended[g]) giver = GangBits'(g);
    end
  end

  assign seats          = step_valid_i && (!step_opens_i || free != '0);
  assign begins         = step_begins_i && (seats || open_q);
  assign seat_gang      = (step_valid_i && step_opens_i) ? taker : open_gang_q;
  assign seat_context   = step_opens_i ? '0 : open_context_q;
  assign step_ready_o   = free != '0;
  assign step_gang_o    = 2'(seat_gang);
  assign step_context_o = seat_context;
  assign open_steps_o   = !open_q ? '0 : (open_context_q == '0) ? 4'd8 : {1'b0, open_context_q};
  always_comb giver_context = lowest(left_q[giver]);
  assign result_valid_o   = ended != '0;
  assign result_gang_o    = 2'(giver);
  assign result_context_o = giver_context;
  logic [SeatBits-1:0] result_seat;
  always_comb result_seat = seat(giver, giver_context);
  always_comb result_o    = {sampled_q[result_seat], token_q[result_seat], logp_q[result_seat], log_q[result_seat],
                             read_fault_q[result_seat], write_fault_q[result_seat]};

  always_ff @(posedge clk_i) begin
    if (seats || begins) begin
      open_q <= !begins;
      if (seats) begin
        open_gang_q    <= seat_gang;
        open_context_q <= seat_context + 3'd1;
      end
    end
    if (!rst_ni) open_q <= 1'b0;
  end

  always_ff @(posedge clk_i) begin
    if (seats) begin
      step_q[seat(seat_gang, seat_context)]    <= step_i;
      context_q[seat(seat_gang, seat_context)] <= context_i;
    end
  end

`ifndef SYNTHESIS
  // What the steps of a gang have in common.
  /* verilator lint_off UNUSEDSIGNAL */
  function automatic logic [$bits(npu_context_t):0] common(input npu_context_t context_now, input npu_step_t step);
  /* verilator lint_on UNUSEDSIGNAL */
    common = '0;
    common[ADDRESS_BITS+2*MEMORY_BITS+PC_BITS+4:0] = {context_now.model, context_now.model_lines, context_now.program_line, context_now.program_words,
                                                      context_now.owner, step.silent};
  endfunction

  always_ff @(posedge clk_i) begin
    if (rst_ni && step_valid_i) begin
      if (step_opens_i && open_q) $fatal(1, "N8 npu_top: a gang is opened beside an open one");
      if (!step_opens_i) begin
        if (!open_q || int'(open_steps_o) == Contexts) $fatal(1, "N8 npu_top: a step joins a gang that is not open, or full");
        if (common(context_q[seat(open_gang_q, 3'd0)], step_q[seat(open_gang_q, 3'd0)]) != common(context_i, step_i))
          $fatal(1, "N8 npu_top: a step joins a gang of another program");
      end
    end
  end
`endif

  // ------------------------------------------------------------------ words
  logic [UNITS-1:0]                      unit_start, unit_idle, unit_done, unit_busy_q;
  logic [UNITS-1:0][3:0]                 unit_end;
  logic [UNITS-1:0][GangBits-1:0]        unit_gang_q;               // whose word it has, or had last …
  logic [UNITS-1:0][2:0]                 unit_context_q;            // … and for which context
  logic [UNITS-1:0][Contexts-1:0]        unit_left_q;               // those for which it is still to run
  logic [UNITS-1:0]                      again_q, word_done;        // it starts with the word's next context; the word is done for all
  logic [UNITS-1:0][Contexts-1:0]        unit_fails;                // contexts for which it just found that it cannot finish its word
  logic [Contexts-1:0]                   gemv_mask_q;               // contexts of GEMV's word
  // What a unit has of its word and of the context: registers, so that nothing is chosen anew in each cycle. An npu_op_t, npu_context_t and
  // npu_step_t each, and the first of the lines that are the context's; of GEMV, of the gang's first.
  logic [$bits(npu_op_t)-1:0]            unit_op_q    [0:UNITS-1];
  logic [$bits(npu_context_t)-1:0]       unit_place_q [0:UNITS-1];
  logic [$bits(npu_step_t)-1:0]          unit_step_q  [0:UNITS-1];
  logic [CHIP_BITS-1:0]                  unit_chip_q  [0:UNITS-1];
  logic [Gangs-1:0][Contexts-1:0]        alive;
  logic [Gangs-1:0]                      asker;                     // whose block is looked up: KV's, else MEM's
  logic [Contexts-1:0]                   stopped       [0:Gangs-1];
  logic [$bits(npu_log_t)-1:0]           sequencer_log [0:Gangs-1];
  logic [Contexts-1:0][$bits(npu_log_t)-1:0] scoreboard_log [0:Gangs-1];
  logic [Gangs-1:0]                      unit_grant [0:UNITS-1];
  logic [UNITS-1:0]                      gang_start [0:Gangs-1];
  logic [$bits(npu_op_t)-1:0]            gang_op    [0:Gangs-1];     // of the word that asks

  /* verilator lint_off UNUSEDSIGNAL */  // each takes some of it
  npu_context_t mem_place, gemv_place, kv_place;
  npu_step_t    mem_step, kv_step;
  /* verilator lint_on UNUSEDSIGNAL */

  // Clients of memory: what asks for lines. Each gang's program and block table is one.
  localparam int COPIES   = Gangs;
  localparam int WEIGHTS  = Gangs + 1;
  localparam int VALUES   = Gangs + 2;
  localparam int TABLES   = Gangs + 3;
  localparam int OTHERS   = 2 * Gangs + 3;
  localparam int CLIENTS  = 2 * Gangs + 4;
  logic [CLIENTS-1:0]                    fetch_valid, fetch_ready, beat_valid, beat_ready, beat_taken;
  logic [CLIENTS-1:0][MEMORY_BITS-1:0]   fetch_line;
  logic [CLIENTS-1:0][15:0]              fetch_lines;
  logic [CLIENTS-1:0][ADDRESS_BITS-1:0]  fetch_base;     // where their lines are
  logic [CLIENTS-1:0][3:0]               fetch_owner;
  logic [LINE_BITS-1:0]                  beat_data;
  logic                                  beat_fault;

  logic [Gangs-1:0][1:0]                 gang_block_ask, gang_block_answer;
  logic [Gangs-1:0][MEMORY_BITS-1:0]     gang_block_line;
  logic [Gangs-1:0][3:0]                 gang_block_end;
  logic [1:0]                            block_ask, block_answer;
  logic [1:0][10:0]                      block_entry;
  logic [1:0][31:0]                      block_stride;

  logic                write_q;                        // a line waits for the port
  logic                sampler_begin;
  logic [Contexts-1:0] sampler_begun, sampler_idle;
  logic [GangBits-1:0] head_q;                         // whose chain of HEADs the samplers have
  logic [$bits(npu_step_t)-1:0] head_step_q [0:Contexts-1];

  // Whether a word gives logits.
  /* verilator lint_off UNUSEDSIGNAL */
  function automatic logic is_head(input npu_op_t op);
    is_head = op.kind == OP_HEAD;
  endfunction

  // … and begins a chain.
  function automatic logic is_first(input npu_op_t op);
  /* verilator lint_on UNUSEDSIGNAL */
    is_first = op.kind == OP_HEAD && op.first;
  endfunction

  for (genvar g = 0; g < Gangs; g++) begin : gen_gang
    /* verilator lint_off UNUSEDSIGNAL */  // what is a context's own stands where that is
    npu_context_t                          place_q;       // of what all its contexts have in common
    /* verilator lint_on UNUSEDSIGNAL */
    logic                                  silent_q;
    logic                                  issue_valid, issue_taken;
    npu_issue_t                            issue;
    logic [UNITS-1:0]                      done, runs;
    logic [3:0]                            block_end;
    logic [UNITS-1:0][Contexts-1:0]        fails;
    logic                                  sequencer_moves, moves, clk_gang;

    // Without a step, and while its next words wait for units, nothing of a gang moves.
    assign moves = start[g] || sequencer_moves || runs != '0 || granted[g] || gang_block_ask[g] != '0 || give_up_q[g];
    rest_clock u_rest_clock (.clk_i, .rst_ni, .moves_i(moves), .clk_o(clk_gang));

    always_ff @(posedge clk_i) begin
      if (seats && step_opens_i && seat_gang == GangBits'(g)) begin
        place_q  <= context_i;
        silent_q <= step_i.silent;
      end
    end

    assign where[g]    = issue.where;
    assign gang_op[g]  = issue.op;
    assign heads[g]    = issue.where == UNIT_GEMV && is_head(issue.op);

    always_comb
      for (int u = 0; u < UNITS; u++) begin
        runs[u]  = unit_done[u] && unit_gang_q[u] == GangBits'(g);
        done[u]  = word_done[u] && unit_gang_q[u] == GangBits'(g);
        fails[u] = runs[u] ? unit_fails[u] : '0;
      end

    npu_sequencer #(.Lines(Lines)) u_sequencer (
      .clk_i          (clk_gang),
      .rst_ni,
      .start_i        (start[g]),
      .program_i      (place_q.program_line),
      .words_i        (place_q.program_words),
      .memory_lines_i (place_q.model_lines),
      .silent_i       (silent_q),
      .idle_o         (sequencer_idle[g]),
      .moves_o        (sequencer_moves),
      .over_o         (over[g]),
      .log_o          (sequencer_log[g]),
      .fetch_valid_o  (fetch_valid[g]),
      .fetch_line_o   (fetch_line[g]),
      .fetch_lines_o  (fetch_lines[g]),
      .fetch_ready_i  (fetch_ready[g]),
      .beat_valid_i   (beat_valid[g]),
      .beat_data_i    (beat_data),
      .beat_fault_i   (beat_fault),
      .beat_ready_o   (beat_ready[g]),
      .issue_valid_o  (issue_valid),
      .issue_o        (issue),
      .issue_taken_i  (issue_taken),
      .quiet_i        (quiet[g]),
      .failed_i       (failed[g]),
      .give_up_i      (give_up_q[g])
    );

    npu_scoreboard #(.Contexts(Contexts)) u_scoreboard (
      .clk_i         (clk_gang),
      .rst_ni,
      .start_i       (start[g]),
      .contexts_i    (seated_q[g]),
      .issue_valid_i (issue_valid),
      .issue_i       (issue),
      .issue_taken_o (issue_taken),
      .asks_o        (asks[g]),
      .granted_i     (granted[g]),
      .start_o       (gang_start[g]),
      .idle_i        (unit_idle),
      .done_i        (done),
      .fails_i       (fails),
      .end_i         (unit_end),
      .quiet_o       (quiet[g]),
      .alive_o       (alive[g]),
      .failed_o      (failed[g]),
      .stopped_o     (stopped[g]),
      .log_o         (scoreboard_log[g])
    );

    // A gang that is given up gets no further block, because a word of KV may read thousands.
    assign gang_block_end[g] = give_up_q[g] ? UNIT_MEMORY : block_end;

    // While a gang runs, no step joins it.
    always_ff @(posedge clk_i) begin
      if (!rst_ni)                                  give_up_q[g] <= 1'b0;
      else if (unwanted_i != '0 || give_up_q != '0) give_up_q[g] <= state_q[g] == Run && (seated_q[g] & ~unwanted_i[g*Contexts +: Contexts]) == '0;
    end

    // Only its own units ask of its tables.
    assign gang_block_ask[g] = {block_ask[1] && unit_gang_q[UNIT_KV] == GangBits'(g), block_ask[0] && unit_gang_q[UNIT_MEM] == GangBits'(g)};

    npu_blocks #(.Contexts(Contexts)) u_blocks (
      .clk_i         (clk_gang),
      .rst_ni,
      .forget_i      (start[g]),
      .asker_o       (asker[g]),
      .entries_i     (asker[g] ? kv_place.table_entries : mem_place.table_entries),
      .arena_lines_i (asker[g] ? kv_place.arena_lines : mem_place.arena_lines),
      .ask_i         (gang_block_ask[g]),
      .context_i     ({unit_context_q[UNIT_KV], unit_context_q[UNIT_MEM]}),
      .entry_i       (block_entry),
      .stride_i      (block_stride),
      .answer_o      (gang_block_answer[g]),
      .line_o        (gang_block_line[g]),
      .end_o         (block_end),
      .fetch_valid_o (fetch_valid[TABLES+g]),
      .fetch_line_o  (fetch_line[TABLES+g]),
      .fetch_lines_o (fetch_lines[TABLES+g]),
      .fetch_ready_i (fetch_ready[TABLES+g]),
      .beat_valid_i  (beat_valid[TABLES+g]),
      .beat_data_i   (beat_data),
      .beat_fault_i  (beat_fault),
      .beat_ready_o  (beat_ready[TABLES+g])
    );

    assign fetch_base[g]         = place_q.model;
    assign fetch_owner[g]        = place_q.owner;
    assign fetch_base[TABLES+g]  = asker[g] ? kv_place.table_line : mem_place.table_line;
    assign fetch_owner[TABLES+g] = place_q.owner;

    // What others read is written behind them, which spares a simulation a copy in each cycle.
    always_ff @(posedge clk_i) begin
      case (state_q[g])
        Idle: begin
          if (seats && seat_gang == GangBits'(g))  seated_q[g] <= (step_opens_i ? '0 : seated_q[g]) | Contexts'(8'd1 << seat_context);
          if (begins && seat_gang == GangBits'(g)) state_q[g]  <= Begin;
        end
        Begin: state_q[g] <= Run;
        Run: if (over[g]) begin
          state_q[g] <= Result;
          left_q[g]  <= seated_q[g];
        end
        default: if (result_ready_i && giver == GangBits'(g)) begin
          left_q[g] <= others(left_q[g]);
          if (others(left_q[g]) == '0) state_q[g] <= Idle;
        end
      endcase
      if (!rst_ni) state_q[g] <= Idle;
    end

`ifndef SYNTHESIS
    always_ff @(posedge clk_i) begin
      if (over[g]) begin
        if (rst_ni && !quiet[g])                                        $fatal(1, "N6 npu_top: a step is over with words in flight");
        if (rst_ni && (fetch_valid[g] || fetch_valid[TABLES+g]))        $fatal(1, "N6 npu_top: a step is over while something is asked of memory");
        if (rst_ni && Gangs == 1 && (fetch_valid[OTHERS-1:0] != '0 || write_q)) $fatal(1, "N6 npu_top: a step is over while something is asked of memory");
      end
      if (start[g]) begin
        if (rst_ni && !sequencer_idle[g])                               $fatal(1, "N6 npu_top: a step begins in the middle of one");
        if (rst_ni && Gangs == 1 && unit_idle != '1)                    $fatal(1, "N6 npu_top: a step begins in the middle of one");
      end
    end
`endif
  end

  // ------------------------------------------------------------------ results
  always_ff @(posedge clk_i) begin
    // A line that was answered with an error, of a gang's program or weights or of a context's own.
    if (beat_fault && beat_taken != '0) begin
      for (int g = 0; g < Gangs; g++)
        for (int c = 0; c < Contexts; c++)
          if (beat_taken[g] || (beat_taken[WEIGHTS] && unit_gang_q[UNIT_GEMV] == GangBits'(g) && gemv_mask_q[c])
              || (beat_taken[COPIES] && is_at(UNIT_MEM, GangBits'(g), 3'(c))) || (beat_taken[VALUES] && is_at(UNIT_KV, GangBits'(g), 3'(c)))
              || (beat_taken[TABLES+g] && is_at(asker[g] ? UNIT_KV : UNIT_MEM, GangBits'(g), 3'(c))))
            read_fault_q[g*Contexts+c] <= 1'b1;
    end
    if (written_i && write_fault_i) write_fault_q[seat(unit_gang_q[UNIT_MEM], unit_context_q[UNIT_MEM])] <= 1'b1;
    if (sample_valid != '0) begin
      for (int c = 0; c < Contexts; c++)
        if (sample_valid[c]) begin
          sampled_q[seat(head_q, 3'(c))] <= 1'b1;
          token_q[seat(head_q, 3'(c))]   <= sample_token[c];
          logp_q[seat(head_q, 3'(c))]    <= sample_logp[c];
        end
    end
    // A unit's word stands before what the sequencer was at.
    if (over != '0) begin
      for (int g = 0; g < Gangs; g++)
        for (int c = 0; c < Contexts; c++)
          if (over[g]) log_q[g*Contexts+c] <= stopped[g][c] ? scoreboard_log[g][c] : sequencer_log[g];
    end
    if (seats) begin
      sampled_q[seat(seat_gang, seat_context)]     <= 1'b0;
      read_fault_q[seat(seat_gang, seat_context)]  <= 1'b0;
      write_fault_q[seat(seat_gang, seat_context)] <= 1'b0;
    end
  end

  // ------------------------------------------------------------------ whose word a unit takes
  // A unit is at this context.
  function automatic logic is_at(input logic [1:0] u, input logic [GangBits-1:0] g, input logic [2:0] c);
    is_at = unit_gang_q[u] == g && unit_context_q[u] == c;
  endfunction

  for (genvar u = 0; u < UNITS; u++) begin : gen_unit
    logic [Gangs-1:0] requests, grant;
    /* verilator lint_off UNUSEDSIGNAL */  // as wide as for 16
    logic [3:0]       number;
    /* verilator lint_on UNUSEDSIGNAL */
    logic             takes;

    always_comb
      for (int g = 0; g < Gangs; g++)
        // A chain of HEADs that has begun is nobody else's to go on with.
        requests[g] = asks[g] && where[g] == 2'(u) && !unit_busy_q[u] && unit_idle[u]
                   && !(u == int'(UNIT_GEMV) && heads[g] && sampler_begun != '0 && head_q != GangBits'(g));
    assign takes = requests != '0;

    round_robin #(.N(Gangs)) u_turn (
      .clk_i, .rst_ni, .request_i(requests), .grant_o(grant), .number_o(number), .accept_i(takes)
    );
    assign unit_grant[u] = grant & requests;

    // GEMV runs a word for all contexts at once, the others for one after the other.
    logic [Contexts-1:0] takes_part;
    logic [SeatBits-1:0] next_seat;
    assign takes_part   = alive[number[GangBits-1:0]];
    assign word_done[u] = unit_done[u] && unit_left_q[u] == '0;
    always_comb unit_fails[u] = (unit_end[u] == UNIT_FINE) ? '0 : (u == int'(UNIT_GEMV)) ? gemv_mask_q : Contexts'(8'd1 << unit_context_q[u]);

    always_comb next_seat = takes ? seat(number[GangBits-1:0], (u == int'(UNIT_GEMV)) ? 3'd0 : lowest(takes_part))
                                  : seat(unit_gang_q[u], lowest(unit_left_q[u]));

    always_ff @(posedge clk_i) begin
      again_q[u] <= 1'b0;
      if (takes || (unit_done[u] && unit_left_q[u] != '0)) begin
        unit_place_q[u] <= context_q[next_seat];
        unit_step_q[u]  <= step_q[next_seat];
        unit_chip_q[u]  <= CHIP_BITS'(Lines) * CHIP_BITS'(next_seat);
      end
      if (unit_done[u] && unit_left_q[u] != '0) begin
        again_q[u]        <= 1'b1;
        unit_context_q[u] <= lowest(unit_left_q[u]);
        unit_left_q[u]    <= others(unit_left_q[u]);
      end
      // A word that is given up ends with the context that its unit is at.
      if (unit_busy_q[u] && give_up_q[unit_gang_q[u]]) unit_left_q[u] <= '0;
      if (takes) begin
        unit_op_q[u]      <= gang_op[number[GangBits-1:0]];
        unit_gang_q[u]    <= number[GangBits-1:0];
        unit_context_q[u] <= (u == int'(UNIT_GEMV)) ? '0 : lowest(takes_part);
        unit_left_q[u]    <= (u == int'(UNIT_GEMV)) ? '0 : others(takes_part);
      end
      if (takes || word_done[u]) unit_busy_q[u] <= takes;
      if (!rst_ni) begin
        unit_busy_q[u]    <= 1'b0;
        unit_gang_q[u]    <= '0;
        unit_context_q[u] <= '0;
        unit_left_q[u]    <= '0;
      end
    end
    if (u == int'(UNIT_GEMV)) begin : gen_mask
      always_ff @(posedge clk_i) begin
        if (takes) gemv_mask_q <= takes_part;
        // The samplers go by the steps of the gang that begins a chain.
        if (takes && is_first(gang_op[number[GangBits-1:0]])) begin
          for (int c = 0; c < Contexts; c++) head_step_q[c] <= step_q[seat(number[GangBits-1:0], 3'(c))];
        end
      end
    end
  end
  always_comb begin
    granted    = '0;
    unit_start = again_q;
    for (int u = 0; u < UNITS; u++) granted |= unit_grant[u];
    for (int g = 0; g < Gangs; g++) unit_start |= gang_start[g];
  end

  // ------------------------------------------------------------------ memories
  logic [UNITS-1:0]                read_valid, read_ready, read_answer, write_valid, write_ready;
  logic [UNITS-1:0][CHIP_BITS-1:0] read_line, write_line;
  logic [UNITS-1:0][LINE_BITS-1:0] write_data;
  logic [LINE_BITS-1:0]            read_data;

  npu_reader #(.Clients(CLIENTS)) u_reader (
    .clk_i, .rst_ni,
    .fetch_valid_i (fetch_valid),
    .fetch_line_i  (fetch_line),
    .fetch_lines_i (fetch_lines),
    .base_i        (fetch_base),
    .owner_i       (fetch_owner),
    .fetch_ready_o (fetch_ready),
    .beat_valid_o  (beat_valid),
    .beat_data_o   (beat_data),
    .beat_fault_o  (beat_fault),
    .beat_ready_i  (beat_ready),
    .read_valid_o,
    .read_line_o,
    .read_lines_o,
    .read_owner_o,
    .read_ready_i,
    .beat_valid_i,
    .beat_data_i,
    .beat_fault_i,
    .beat_ready_o
  );

  // Icarus 11 misses changes of an array's word in a continuous assignment.
  always_comb begin
    mem_place  = unit_place_q[UNIT_MEM];
    gemv_place = unit_place_q[UNIT_GEMV];
    kv_place   = unit_place_q[UNIT_KV];
    mem_step   = unit_step_q[UNIT_MEM];
    kv_step    = unit_step_q[UNIT_KV];
  end

  assign fetch_base[COPIES]   = mem_place.model;
  assign fetch_owner[COPIES]  = mem_place.owner;
  assign fetch_base[WEIGHTS]  = gemv_place.model;
  assign fetch_owner[WEIGHTS] = gemv_place.owner;
  assign fetch_base[VALUES]   = kv_place.arena;
  assign fetch_owner[VALUES]  = kv_place.owner;

  assign fetch_valid[OTHERS]  = other_valid_i;
  assign fetch_base[OTHERS]   = other_line_i;
  assign fetch_line[OTHERS]   = '0;
  assign fetch_lines[OTHERS]  = other_lines_i;
  assign fetch_owner[OTHERS]  = other_owner_i;
  assign other_ready_o        = fetch_ready[OTHERS];
  assign other_beat_valid_o   = beat_valid[OTHERS];
  assign beat_ready[OTHERS]   = other_beat_ready_i;

  assign beat_taken = beat_valid & beat_ready;

  // Only copies write; a line stands in a register in front of the port.
  logic                    store_valid, store_region;
  logic [MEMORY_BITS-1:0]  store_line;
  logic [LINE_BITS-1:0]    store_data;
  logic [63:0]             store_strobe;
  logic [ADDRESS_BITS-1:0] write_line_q;
  logic [LINE_BITS-1:0]    write_data_q;
  logic [63:0]             write_strobe_q;
  logic [3:0]              write_owner_q;

  assign write_valid_o  = write_q;
  assign write_line_o   = write_line_q;
  assign write_data_o   = write_data_q;
  assign write_strobe_o = write_strobe_q;
  assign write_owner_o  = write_owner_q;

  always_ff @(posedge clk_i) begin
    if (write_ready_i) write_q <= 1'b0;
    if (store_valid && !write_q) begin
      write_q        <= 1'b1;
      write_line_q   <= (store_region ? mem_place.region : mem_place.arena) + ADDRESS_BITS'(store_line);
      write_data_q   <= store_data;
      write_strobe_q <= store_strobe;
      write_owner_q  <= mem_place.owner;
    end
    if (!rst_ni) write_q <= 1'b0;
  end

  // ------------------------------------------------------------------ units
  npu_op_t mem_op, gemv_op, sfu_op, kv_op;
  always_comb begin
    mem_op  = unit_op_q[UNIT_MEM];
    gemv_op = unit_op_q[UNIT_GEMV];
    sfu_op  = unit_op_q[UNIT_SFU];
    kv_op   = unit_op_q[UNIT_KV];
  end

  assign block_stride = {kv_op.block, mem_op.block};
  // A gang is answered what its own unit has asked.
  always_comb begin
    block_answer = '0;
    for (int g = 0; g < Gangs; g++) block_answer |= gang_block_answer[g];
  end

  // Units rest while they have no word; GEMV seldom has none.
  logic clk_mem, clk_sfu, clk_kv, clk_samplers;
  rest_clock u_rest_mem (.clk_i, .rst_ni, .moves_i(unit_start[UNIT_MEM] || !unit_idle[UNIT_MEM]), .clk_o(clk_mem));
  rest_clock u_rest_sfu (.clk_i, .rst_ni, .moves_i(unit_start[UNIT_SFU] || !unit_idle[UNIT_SFU]), .clk_o(clk_sfu));
  rest_clock u_rest_kv  (.clk_i, .rst_ni, .moves_i(unit_start[UNIT_KV]  || !unit_idle[UNIT_KV]),  .clk_o(clk_kv));
  rest_clock u_rest_samplers (
    .clk_i, .rst_ni, .moves_i(sampler_begin || sampler_begun != '0 || sampler_idle != '1), .clk_o(clk_samplers)
  );

  npu_mem u_mem (
    .clk_i          (clk_mem),
    .rst_ni,
    .start_i        (unit_start[UNIT_MEM]),
    .op_i           (mem_op),
    .idle_o         (unit_idle[UNIT_MEM]),
    .done_o         (unit_done[UNIT_MEM]),
    .end_o          (unit_end[UNIT_MEM]),
    .token_i        (mem_step.token),
    .position_i     (mem_step.position),
    .output_lines_i (mem_place.region_lines),
    .read_valid_o   (read_valid[UNIT_MEM]),
    .read_line_o    (read_line[UNIT_MEM]),
    .read_ready_i   (read_ready[UNIT_MEM]),
    .read_answer_i  (read_answer[UNIT_MEM]),
    .read_data_i    (read_data),
    .write_valid_o  (write_valid[UNIT_MEM]),
    .write_line_o   (write_line[UNIT_MEM]),
    .write_data_o   (write_data[UNIT_MEM]),
    .write_ready_i  (write_ready[UNIT_MEM]),
    .fetch_valid_o  (fetch_valid[COPIES]),
    .fetch_line_o   (fetch_line[COPIES]),
    .fetch_lines_o  (fetch_lines[COPIES]),
    .fetch_ready_i  (fetch_ready[COPIES]),
    .beat_valid_i   (beat_valid[COPIES]),
    .beat_data_i    (beat_data),
    .beat_fault_i   (beat_fault),
    .beat_ready_o   (beat_ready[COPIES]),
    .store_valid_o  (store_valid),
    .store_output_o (store_region),
    .store_line_o   (store_line),
    .store_data_o   (store_data),
    .store_strobe_o (store_strobe),
    .store_ready_i  (!write_q),
    .stored_i       (written_i),
    .store_fault_i  (write_fault_i),
    .block_ask_o    (block_ask[0]),
    .block_entry_o  (block_entry[0]),
    .block_answer_i (block_answer[0]),
    .block_line_i   (gang_block_line[unit_gang_q[UNIT_MEM]]),
    .block_end_i    (gang_block_end[unit_gang_q[UNIT_MEM]])
  );

  logic                logit_last;
  logic [Contexts-1:0] logit_valid, logit_ready;
  logic [Contexts-1:0][31:0] logit;
  logic [2:0]          gemv_read_context, gemv_write_context;

  npu_gemv #(.Contexts(Contexts)) u_gemv (
    .clk_i, .rst_ni,
    .start_i         (unit_start[UNIT_GEMV]),
    .op_i            (gemv_op),
    .mask_i          (gemv_mask_q),
    .give_up_i       (give_up_q[unit_gang_q[UNIT_GEMV]]),
    .idle_o          (unit_idle[UNIT_GEMV]),
    .done_o          (unit_done[UNIT_GEMV]),
    .end_o           (unit_end[UNIT_GEMV]),
    .read_valid_o    (read_valid[UNIT_GEMV]),
    .read_context_o  (gemv_read_context),
    .read_line_o     (read_line[UNIT_GEMV]),
    .read_ready_i    (read_ready[UNIT_GEMV]),
    .read_answer_i   (read_answer[UNIT_GEMV]),
    .read_data_i     (read_data),
    .write_valid_o   (write_valid[UNIT_GEMV]),
    .write_context_o (gemv_write_context),
    .write_line_o    (write_line[UNIT_GEMV]),
    .write_data_o    (write_data[UNIT_GEMV]),
    .write_ready_i   (write_ready[UNIT_GEMV]),
    .fetch_valid_o   (fetch_valid[WEIGHTS]),
    .fetch_line_o    (fetch_line[WEIGHTS]),
    .fetch_lines_o   (fetch_lines[WEIGHTS]),
    .fetch_ready_i   (fetch_ready[WEIGHTS]),
    .beat_valid_i    (beat_valid[WEIGHTS]),
    .beat_data_i     (beat_data),
    .beat_fault_i    (beat_fault),
    .beat_ready_o    (beat_ready[WEIGHTS]),
    .sampler_begin_o (sampler_begin),
    .sampler_begun_i ((sampler_begun & gemv_mask_q) != '0 && head_q == unit_gang_q[UNIT_GEMV]),
    .sampler_idle_i  (sampler_idle == '1),
    .logit_valid_o   (logit_valid),
    .logit_o         (logit),
    .logit_last_o    (logit_last),
    .logit_ready_i   (logit_ready)
  );

  // A chain is of the gang that began it, until its step is over at the latest. One that has its last logit is nobody's: the step that it was of
  // may be over when another gang's begins.
  always_ff @(posedge clk_i) begin
    if (sampler_begin) head_q <= unit_gang_q[UNIT_GEMV];
    if (!rst_ni)       head_q <= '0;
  end

  for (genvar c = 0; c < Contexts; c++) begin : gen_sampler
    npu_step_t head_step;
    always_comb head_step = head_step_q[c];

    npu_sampler u_sampler (
      .clk_i          (clk_samplers),
      .rst_ni,
      .step_i         (head_step),
      .forget_i       (over[head_q] && sampler_begun[c]),
      .begin_i        (sampler_begin && gemv_mask_q[c]),
      .begun_o        (sampler_begun[c]),
      .idle_o         (sampler_idle[c]),
      .logit_valid_i  (logit_valid[c]),
      .logit_i        (logit[c]),
      .logit_last_i   (logit_last),
      .logit_ready_o  (logit_ready[c]),
      .done_i         (unit_done[UNIT_GEMV] && unit_gang_q[UNIT_GEMV] == head_q && gemv_mask_q[c]),
      .end_i          (unit_end[UNIT_GEMV]),
      .sample_valid_o (sample_valid[c]),
      .sample_token_o (sample_token[c]),
      .sample_logp_o  (sample_logp[c])
    );
  end

  npu_sfu u_sfu (
    .clk_i         (clk_sfu),
    .rst_ni,
    .start_i       (unit_start[UNIT_SFU]),
    .op_i          (sfu_op),
    .idle_o        (unit_idle[UNIT_SFU]),
    .done_o        (unit_done[UNIT_SFU]),
    .end_o         (unit_end[UNIT_SFU]),
    .read_valid_o  (read_valid[UNIT_SFU]),
    .read_line_o   (read_line[UNIT_SFU]),
    .read_ready_i  (read_ready[UNIT_SFU]),
    .read_answer_i (read_answer[UNIT_SFU]),
    .read_data_i   (read_data),
    .write_valid_o (write_valid[UNIT_SFU]),
    .write_line_o  (write_line[UNIT_SFU]),
    .write_data_o  (write_data[UNIT_SFU]),
    .write_ready_i (write_ready[UNIT_SFU])
  );

  npu_attend u_attend (
    .clk_i          (clk_kv),
    .rst_ni,
    .start_i        (unit_start[UNIT_KV]),
    .op_i           (kv_op),
    .idle_o         (unit_idle[UNIT_KV]),
    .done_o         (unit_done[UNIT_KV]),
    .end_o          (unit_end[UNIT_KV]),
    .position_i     (kv_step.position),
    .read_valid_o   (read_valid[UNIT_KV]),
    .read_line_o    (read_line[UNIT_KV]),
    .read_ready_i   (read_ready[UNIT_KV]),
    .read_answer_i  (read_answer[UNIT_KV]),
    .read_data_i    (read_data),
    .write_valid_o  (write_valid[UNIT_KV]),
    .write_line_o   (write_line[UNIT_KV]),
    .write_data_o   (write_data[UNIT_KV]),
    .write_ready_i  (write_ready[UNIT_KV]),
    .fetch_valid_o  (fetch_valid[VALUES]),
    .fetch_line_o   (fetch_line[VALUES]),
    .fetch_lines_o  (fetch_lines[VALUES]),
    .fetch_ready_i  (fetch_ready[VALUES]),
    .beat_valid_i   (beat_valid[VALUES]),
    .beat_data_i    (beat_data),
    .beat_fault_i   (beat_fault),
    .beat_ready_o   (beat_ready[VALUES]),
    .block_ask_o    (block_ask[1]),
    .block_entry_o  (block_entry[1]),
    .block_answer_i (block_answer[1]),
    .block_line_i   (gang_block_line[unit_gang_q[UNIT_KV]]),
    .block_end_i    (gang_block_end[unit_gang_q[UNIT_KV]])
  );

  // Each context has lines of its own.
  logic [UNITS-1:0][CHIP_BITS-1:0] chip_read_line, chip_write_line;
  always_comb
    for (int u = 0; u < UNITS; u++) begin
      chip_read_line[u]  = read_line[u] + unit_chip_q[u] + ((u == int'(UNIT_GEMV)) ? CHIP_BITS'(Lines) * CHIP_BITS'(gemv_read_context) : '0);
      chip_write_line[u] = write_line[u] + unit_chip_q[u] + ((u == int'(UNIT_GEMV)) ? CHIP_BITS'(Lines) * CHIP_BITS'(gemv_write_context) : '0);
    end

  npu_chip #(.Lines(Seats * Lines)) u_chip (
    .clk_i, .rst_ni,
    .read_valid_i  (read_valid),
    .read_line_i   (chip_read_line),
    .read_ready_o  (read_ready),
    .read_answer_o (read_answer),
    .read_data_o   (read_data),
    .write_valid_i (write_valid),
    .write_line_i  (chip_write_line),
    .write_data_i  (write_data),
    .write_ready_o (write_ready)
  );
endmodule
