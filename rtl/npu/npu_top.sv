// The NPU: a step comes in, with where its program and its memories lie, and a token goes out, or the word that stopped it. Memory is one
// read client and one write client, in lines.
//
// As many steps run at a time as there are gangs. Each has a sequencer, a scoreboard, a block table and lines of on-chip memory to itself,
// and so no hazard with another's; what they share is the units, a word at a time, and the way to memory. A chain of HEADs has the sampler to itself.
//
// Nothing of a step reaches the next one but what it wrote to on-chip memory, which programs write before they read, and to the arena.
module npu_top
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Gangs = 1,            // 1 to 4
  parameter int Lines = 1024          // of on-chip memory for each gang; of all at most 32,768
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    step_valid_i,
  output logic                    step_ready_o,
  output logic [1:0]              step_gang_o,    // which takes it
  input  npu_step_t               step_i,
  input  npu_context_t            context_i,
  output logic                    result_valid_o,
  input  logic                    result_ready_i,
  output logic [1:0]              result_gang_o,
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

  localparam int GangBits = (Gangs == 1) ? 1 : $clog2(Gangs);

  // ------------------------------------------------------------------ steps
  localparam logic [1:0] Idle   = 2'd0;
  localparam logic [1:0] Begin  = 2'd1;
  localparam logic [1:0] Run    = 2'd2;
  localparam logic [1:0] Result = 2'd3;

  // By gang. Each is an npu_step_t, npu_context_t, npu_result_t.
  logic [1:0]                       state_q   [0:Gangs-1];
  logic [$bits(npu_step_t)-1:0]     step_q    [0:Gangs-1];
  logic [$bits(npu_context_t)-1:0]  context_q [0:Gangs-1];
  logic [$bits(npu_result_t)-1:0]   result_q  [0:Gangs-1];

  logic [Gangs-1:0]    free, ended, start, over, quiet, failed, sequencer_idle, asks, granted;
  logic [Gangs-1:0][1:0] where;
  logic [Gangs-1:0]    heads;                          // its word is a HEAD
  logic [GangBits-1:0] taker, giver;
  logic                sample_valid;
  logic [31:0]         sample_token, sample_logp;

  always_comb begin
    taker = '0;
    giver = '0;
    for (int g = Gangs - 1; g >= 0; g--) begin
      free[g]  = state_q[g] == Idle;
      ended[g] = state_q[g] == Result;
      start[g] = state_q[g] == Begin;
      if (free[g])  taker = GangBits'(g);
      if (ended[g]) giver = GangBits'(g);
    end
  end

  assign step_ready_o   = free != '0;
  assign step_gang_o    = 2'(taker);
  assign result_valid_o = ended != '0;
  assign result_gang_o  = 2'(giver);
  always_comb result_o  = result_q[giver];

  // ------------------------------------------------------------------ words
  logic [UNITS-1:0]                      unit_start, unit_idle, unit_done, unit_busy_q;
  logic [UNITS-1:0][$bits(npu_op_t)-1:0] unit_op;
  logic [UNITS-1:0][3:0]                 unit_end;
  logic [UNITS-1:0][GangBits-1:0]        unit_gang_q;               // whose word it has, or had last
  logic [Gangs-1:0]                      unit_grant [0:UNITS-1];
  logic [UNITS-1:0]                      gang_start [0:Gangs-1];
  logic [UNITS-1:0][$bits(npu_op_t)-1:0] gang_op [0:Gangs-1];

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
  logic                sampler_begin, sampler_begun, sampler_idle;
  logic [GangBits-1:0] head_q, head;                   // whose chain of HEADs the sampler has

  // Whether a word gives logits.
  /* verilator lint_off UNUSEDSIGNAL */
  function automatic logic is_head(input npu_op_t op);
  /* verilator lint_on UNUSEDSIGNAL */
    is_head = op.kind == OP_HEAD;
  endfunction

  for (genvar g = 0; g < Gangs; g++) begin : gen_gang
    /* verilator lint_off UNUSEDSIGNAL */  // what the units take of both stands where those are
    npu_context_t                          place;
    npu_step_t                             now;
    /* verilator lint_on UNUSEDSIGNAL */
    logic                                  issue_valid, issue_taken;
    npu_issue_t                            issue;
    npu_log_t                              sequencer_log, scoreboard_log;
    logic [UNITS-1:0]                      done;
    assign place     = context_q[g];
    assign now       = step_q[g];
    assign where[g]  = issue.where;
    assign heads[g]  = issue.where == UNIT_GEMV && is_head(issue.op);

    always_comb
      for (int u = 0; u < UNITS; u++) done[u] = unit_done[u] && unit_gang_q[u] == GangBits'(g);

    npu_sequencer #(.Lines(Lines)) u_sequencer (
      .clk_i, .rst_ni,
      .start_i        (start[g]),
      .program_i      (place.program_line),
      .words_i        (place.program_words),
      .memory_lines_i (place.model_lines),
      .silent_i       (now.silent),
      .idle_o         (sequencer_idle[g]),
      .over_o         (over[g]),
      .log_o          (sequencer_log),
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
      .failed_i       (failed[g])
    );

    npu_scoreboard u_scoreboard (
      .clk_i, .rst_ni,
      .start_i       (start[g]),
      .issue_valid_i (issue_valid),
      .issue_i       (issue),
      .issue_taken_o (issue_taken),
      .asks_o        (asks[g]),
      .granted_i     (granted[g]),
      .start_o       (gang_start[g]),
      .op_o          (gang_op[g]),
      .idle_i        (unit_idle),
      .done_i        (done),
      .end_i         (unit_end),
      .quiet_o       (quiet[g]),
      .failed_o      (failed[g]),
      .log_o         (scoreboard_log)
    );

    // Only its own units ask of its table.
    assign gang_block_ask[g] = {block_ask[1] && unit_gang_q[UNIT_KV] == GangBits'(g), block_ask[0] && unit_gang_q[UNIT_MEM] == GangBits'(g)};

    npu_blocks u_blocks (
      .clk_i, .rst_ni,
      .forget_i      (start[g]),
      .table_i       (MEMORY_BITS'(0)),
      .entries_i     (place.table_entries),
      .arena_lines_i (place.arena_lines),
      .ask_i         (gang_block_ask[g]),
      .entry_i       (block_entry),
      .stride_i      (block_stride),
      .answer_o      (gang_block_answer[g]),
      .line_o        (gang_block_line[g]),
      .end_o         (gang_block_end[g]),
      .fetch_valid_o (fetch_valid[TABLES+g]),
      .fetch_line_o  (fetch_line[TABLES+g]),
      .fetch_lines_o (fetch_lines[TABLES+g]),
      .fetch_ready_i (fetch_ready[TABLES+g]),
      .beat_valid_i  (beat_valid[TABLES+g]),
      .beat_data_i   (beat_data),
      .beat_fault_i  (beat_fault),
      .beat_ready_o  (beat_ready[TABLES+g])
    );

    assign fetch_base[g]         = place.model;
    assign fetch_owner[g]        = place.owner;
    assign fetch_base[TABLES+g]  = place.table_line;
    assign fetch_owner[TABLES+g] = place.owner;

    // A line of its own that was answered with an error, or of the word that a unit has of it.
    logic read_fails, write_fails;
    assign read_fails  = beat_fault && (beat_taken[g] || beat_taken[TABLES+g]
                      || (beat_taken[COPIES]  && unit_gang_q[UNIT_MEM] == GangBits'(g))
                      || (beat_taken[WEIGHTS] && unit_gang_q[UNIT_GEMV] == GangBits'(g))
                      || (beat_taken[VALUES]  && unit_gang_q[UNIT_KV] == GangBits'(g)));
    assign write_fails = written_i && write_fault_i && unit_gang_q[UNIT_MEM] == GangBits'(g);

    // What others read is written behind them, which spares a simulation a copy in each cycle.
    npu_result_t result;
    assign result_q[g] = result;
    always_ff @(posedge clk_i) begin
      case (state_q[g])
        Idle: if (step_valid_i && taker == GangBits'(g)) begin
          state_q[g]   <= Begin;
          step_q[g]    <= step_i;
          context_q[g] <= context_i;
          result       <= '0;
        end
        Begin: state_q[g] <= Run;
        Run: begin
          if (read_fails)  result.read_fault  <= 1'b1;
          if (write_fails) result.write_fault <= 1'b1;
          if (sample_valid && head_q == GangBits'(g)) begin
            result.sampled <= 1'b1;
            result.token   <= sample_token;
            result.logp    <= sample_logp;
          end
          if (over[g]) begin
            state_q[g] <= Result;
            // A unit's word stands before what the sequencer was at.
            result.log <= failed[g] ? scoreboard_log : sequencer_log;
          end
        end
        default: if (result_ready_i && giver == GangBits'(g)) state_q[g] <= Idle;
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

  // ------------------------------------------------------------------ whose word a unit takes
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
                   && !(u == int'(UNIT_GEMV) && heads[g] && sampler_begun && head_q != GangBits'(g));
    assign takes = requests != '0;

    round_robin #(.N(Gangs)) u_turn (
      .clk_i, .rst_ni, .request_i(requests), .grant_o(grant), .number_o(number), .accept_i(takes)
    );
    assign unit_grant[u] = grant & requests;

    always_ff @(posedge clk_i) begin
      if (takes) unit_gang_q[u] <= number[GangBits-1:0];
      if (takes || unit_done[u]) unit_busy_q[u] <= takes;
      if (!rst_ni) begin
        unit_busy_q[u] <= 1'b0;
        unit_gang_q[u] <= '0;
      end
    end
    // Icarus 11 misses changes of an array's word in a continuous assignment that chooses it.
    always_comb unit_op[u] = gang_op[unit_gang_q[u]][u];
  end
  always_comb begin
    granted    = '0;
    unit_start = '0;
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

  /* verilator lint_off UNUSEDSIGNAL */  // each takes some of it
  npu_context_t mem_place, gemv_place, kv_place;
  npu_step_t    mem_step, kv_step, head_step;
  /* verilator lint_on UNUSEDSIGNAL */
  always_comb begin
    mem_place  = context_q[unit_gang_q[UNIT_MEM]];
    gemv_place = context_q[unit_gang_q[UNIT_GEMV]];
    kv_place   = context_q[unit_gang_q[UNIT_KV]];
    mem_step   = step_q[unit_gang_q[UNIT_MEM]];
    kv_step    = step_q[unit_gang_q[UNIT_KV]];
    head_step  = step_q[head];
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
  assign mem_op  = unit_op[UNIT_MEM];
  assign gemv_op = unit_op[UNIT_GEMV];
  assign sfu_op  = unit_op[UNIT_SFU];
  assign kv_op   = unit_op[UNIT_KV];

  assign block_stride = {kv_op.block, mem_op.block};
  // A gang is answered what its own unit has asked.
  always_comb begin
    block_answer = '0;
    for (int g = 0; g < Gangs; g++) block_answer |= gang_block_answer[g];
  end

  npu_mem u_mem (
    .clk_i, .rst_ni,
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

  logic        logit_valid, logit_last, logit_ready, forget;
  logic [31:0] logit;

  npu_gemv u_gemv (
    .clk_i, .rst_ni,
    .start_i         (unit_start[UNIT_GEMV]),
    .op_i            (gemv_op),
    .idle_o          (unit_idle[UNIT_GEMV]),
    .done_o          (unit_done[UNIT_GEMV]),
    .end_o           (unit_end[UNIT_GEMV]),
    .read_valid_o    (read_valid[UNIT_GEMV]),
    .read_line_o     (read_line[UNIT_GEMV]),
    .read_ready_i    (read_ready[UNIT_GEMV]),
    .read_answer_i   (read_answer[UNIT_GEMV]),
    .read_data_i     (read_data),
    .write_valid_o   (write_valid[UNIT_GEMV]),
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
    .sampler_begun_i (sampler_begun && head_q == unit_gang_q[UNIT_GEMV]),
    .sampler_idle_i  (sampler_idle),
    .logit_valid_o   (logit_valid),
    .logit_o         (logit),
    .logit_last_o    (logit_last),
    .logit_ready_i   (logit_ready)
  );

  // A chain is of the gang that began it, until its step is over at the latest. One that has its last logit is nobody's: the step that it was of
  // may be over when another gang's begins.
  assign head   = sampler_begin ? unit_gang_q[UNIT_GEMV] : head_q;
  assign forget = over[head_q] && sampler_begun;
  always_ff @(posedge clk_i) begin
    if (sampler_begin) head_q <= unit_gang_q[UNIT_GEMV];
    if (!rst_ni)       head_q <= '0;
  end

  npu_sampler u_sampler (
    .clk_i, .rst_ni,
    .step_i         (head_step),
    .forget_i       (forget),
    .begin_i        (sampler_begin),
    .begun_o        (sampler_begun),
    .idle_o         (sampler_idle),
    .logit_valid_i  (logit_valid),
    .logit_i        (logit),
    .logit_last_i   (logit_last),
    .logit_ready_o  (logit_ready),
    .done_i         (unit_done[UNIT_GEMV] && unit_gang_q[UNIT_GEMV] == head_q),
    .end_i          (unit_end[UNIT_GEMV]),
    .sample_valid_o (sample_valid),
    .sample_token_o (sample_token),
    .sample_logp_o  (sample_logp)
  );

  npu_sfu u_sfu (
    .clk_i, .rst_ni,
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
    .clk_i, .rst_ni,
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

  // Each gang has lines of its own.
  logic [UNITS-1:0][CHIP_BITS-1:0] chip_read_line, chip_write_line;
  always_comb
    for (int u = 0; u < UNITS; u++) begin
      chip_read_line[u]  = read_line[u] + CHIP_BITS'(Lines) * CHIP_BITS'(unit_gang_q[u]);
      chip_write_line[u] = write_line[u] + CHIP_BITS'(Lines) * CHIP_BITS'(unit_gang_q[u]);
    end

  npu_chip #(.Lines(Gangs * Lines)) u_chip (
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
