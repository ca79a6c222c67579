// One rollout worker: runs a descriptor at one token per cycle (plus wait states) and goes on with the next without
// losing a cycle. Two descriptors may queue behind the running one.
module rollout_worker_fsm
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
#(
  parameter int Id = 0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        clear_i,

  input  logic [15:0] wait_states_i,       // cycles before each token
  input  logic [15:0] eos_threshold_i,     // in 1/32768
  input  logic [31:0] reward_threshold_i,  // Q16.16

  // From the dispatcher.
  input  logic        assign_i,            // take work_i
  input  work_t       work_i,
  input  logic        probe_i,
  input  logic [31:0] probe_rollout_i,
  output logic        holds_o,             // combinational in the probe
  output logic        room_o,
  output logic        wants_o,
  output logic        free_o,

  // To the completion arbiter.
  output logic        item_valid_o,
  output logic        item_has_line_o,
  output beat_t       item_line_o,
  output logic        item_has_done_o,
  output done_t       item_done_o,
  input  logic        item_take_i,

  // Observation, for STATUS and the counters.
  output logic        token_o,
  output logic        wait_o,
  output logic        stall_o
);
  localparam logic [2:0] StIdle  = 3'd0;   // nothing to run
  localparam logic [2:0] StDelay = 3'd1;   // wait states of the next token
  localparam logic [2:0] StRun   = 3'd2;   // a token per cycle, or the end of a descriptor that adds none

  // ---------------------------------------------------------------- queue of assigned descriptors
  /* verilator lint_off UNUSEDSIGNAL */  // the dispatcher alone looks at fence
  work_t       queue_0_q, queue_1_q, next;
  /* verilator lint_on UNUSEDSIGNAL */
  logic        queue_head_q;
  logic [1:0]  queued_q;
  logic        queue_tail, start;

  assign queue_tail = queue_head_q ^ queued_q[0];
  assign next       = queue_head_q ? queue_1_q : queue_0_q;
  assign room_o     = !queued_q[1];

  always_ff @(posedge clk_i) begin
    if (assign_i) begin
      if (queue_tail) queue_1_q <= work_i;
      else            queue_0_q <= work_i;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      queue_head_q <= 1'b0;
      queued_q     <= '0;
    end else if (clear_i) begin
      queue_head_q <= 1'b0;
      queued_q     <= '0;
    end else begin
      if (start) queue_head_q <= !queue_head_q;
      queued_q <= queued_q + 2'(assign_i) - 2'(start);
    end
  end

  // ---------------------------------------------------------------- the descriptor that runs
  logic [2:0]  state_d, state_q;
  logic [7:0]  opcode_q, error_q;
  logic        eos_stops_q, resident_q, irq_q, adds_tokens_q, eos_seen_q;
  logic [31:0] rollout_q, seq_len_q, left_q, checkpoint_q, to_checkpoint_q, digest_q, counter_q, hash_q;
  logic [15:0] reward_model_q, delay_q;
  logic [63:0] user_data_q, token_addr_q;

  logic        next_adds_tokens, ready, running, fire, finish, stop_waits, eos, last;
  logic        at_checkpoint, rejected;
  logic [31:0] token, digest, counter;
  logic [7:0]  status;
  done_t       done;

  assign running = state_q == StRun;
  assign token   = {15'd0, hash_q[16:0]};
  assign eos     = {1'b0, hash_q[31:17]} < eos_threshold_i;
  assign counter = counter_q + GOLDEN;
  assign fire    = running && ready;

  // R8: a STOP of the rollout that runs waits in the queue.
  assign stop_waits = (queue_0_q.opcode == OP_STOP && queue_0_q.error == ERR_NONE && queue_0_q.rollout_id == rollout_q
                       && (queued_q[1] || (queued_q[0] && !queue_head_q)))
                   || (queue_1_q.opcode == OP_STOP && queue_1_q.error == ERR_NONE && queue_1_q.rollout_id == rollout_q
                       && (queued_q[1] || (queued_q[0] && queue_head_q)));

  assign last          = left_q == 32'd1;
  assign at_checkpoint = to_checkpoint_q == 32'd1;

  // What ends the descriptor: the contract's order.
  always_comb begin
    digest   = digest_step(digest_q, token);
    rejected = resident_q && at_checkpoint && score(digest) < reward_threshold_i;
    finish   = 1'b1;
    status   = STATUS_DONE;
    if (!adds_tokens_q) begin
      if (error_q != ERR_NONE)      status = STATUS_ERROR;
      else if (opcode_q == OP_STOP) status = STATUS_STOPPED;
    end
    else if (eos && eos_stops_q)    status = STATUS_DONE;
    else if (last)                  status = STATUS_DONE;
    else if (stop_waits)            status = STATUS_STOPPED;
    else if (at_checkpoint && !resident_q) status = STATUS_REWARD_NEEDED;
    else                            finish = rejected;
  end

  always_comb begin
    done                 = '0;
    done.irq       = irq_q;
    done.status          = status;
    done.error           = error_q;
    done.worker_id       = 16'(Id);
    done.reward_model_id = reward_model_q;
    done.rollout_id      = rollout_q;
    done.user_data       = user_data_q;
    if (adds_tokens_q) begin
      done.result        = digest;
      done.final_seq_len = seq_len_q + 32'd1;
      done.flags[CFLAG_EOS_BIT]      = eos_seen_q || eos;
      done.flags[CFLAG_REJECTED_BIT] = rejected && !(eos && eos_stops_q) && !last && !stop_waits;
    end else begin
      done.result        = digest_q;
      done.final_seq_len = seq_len_q;
    end
  end

  assign start = queued_q != '0 && (state_q == StIdle || (fire && finish));

  always_comb begin
    state_d = state_q;
    case (state_q)
      StIdle:  if (start) state_d = StRun;
      StDelay: if (delay_q == 16'd1) state_d = StRun;
      default: if (fire && finish && !start) state_d = StIdle;
    endcase
    // The wait states of the next token, if there is one.
    if (wait_states_i != '0 && ((start && next_adds_tokens) || (fire && !finish))) state_d = StDelay;
  end

  assign next_adds_tokens = next.opcode == OP_DECODE && next.error == ERR_NONE;

  always_ff @(posedge clk_i) begin
    if (!rst_ni)      state_q <= StIdle;
    else if (clear_i) state_q <= StIdle;
    else              state_q <= state_d;
  end

  always_ff @(posedge clk_i) begin
    delay_q <= (state_q == StDelay) ? delay_q - 16'd1 : wait_states_i;
    if (start) begin
      opcode_q        <= next.opcode;
      error_q         <= next.error;
      eos_stops_q     <= next.eos_stops;
      resident_q      <= next.resident;
      irq_q     <= next.irq;
      adds_tokens_q   <= next_adds_tokens;
      eos_seen_q      <= 1'b0;
      rollout_q       <= next.rollout_id;
      seq_len_q       <= next.seq_len;
      left_q          <= next.max_tokens;
      checkpoint_q    <= next.checkpoint;
      to_checkpoint_q <= next.checkpoint;
      digest_q        <= next_adds_tokens ? DIGEST_INIT : next.result;
      counter_q       <= next.counter;
      hash_q          <= next.hash;
      reward_model_q  <= next.reward_model_id;
      user_data_q     <= next.user_data;
      token_addr_q    <= next.token_addr;
    end else if (fire && !finish) begin
      eos_seen_q      <= eos_seen_q || eos;
      seq_len_q       <= seq_len_q + 32'd1;
      left_q          <= left_q - 32'd1;
      // CHECKPOINT_NEVER exceeds every budget (R10), so it may count down like any other.
      to_checkpoint_q <= at_checkpoint ? checkpoint_q : to_checkpoint_q - 32'd1;
      digest_q        <= digest;
      counter_q       <= counter;
      hash_q          <= mix(counter);
      token_addr_q    <= token_addr_q + 64'd4;
    end
  end

  // ---------------------------------------------------------------- results
  logic result_holds;
  result_buffer u_results (
    .clk_i, .rst_ni, .clear_i,
    .ready_o         (ready),
    .token_i         (fire && adds_tokens_q),
    .token_data_i    (token),
    .token_addr_i    (token_addr_q),
    .done_i          (fire && finish),
    .done_data_i     (done),
    .probe_rollout_i,
    .holds_o         (result_holds),
    .valid_o         (item_valid_o),
    .has_line_o      (item_has_line_o),
    .line_o          (item_line_o),
    .has_done_o      (item_has_done_o),
    .done_o          (item_done_o),
    .take_i          (item_take_i)
  );

  // ---------------------------------------------------------------- what the dispatcher sees
  logic near_end;
  assign near_end = state_q == StIdle || !adds_tokens_q || eos_stops_q
                 || left_q <= NEAR_END || (!resident_q && to_checkpoint_q <= NEAR_END);
  assign free_o   = state_q == StIdle && queued_q == '0;
  assign wants_o  = near_end && (queued_q == '0 || (queued_q == 2'd1 && next.brief));
  assign holds_o  = probe_i
                 && ((state_q != StIdle && rollout_q == probe_rollout_i)
                  || ((queued_q[1] || (queued_q[0] && !queue_head_q)) && queue_0_q.rollout_id == probe_rollout_i)
                  || ((queued_q[1] || (queued_q[0] &&  queue_head_q)) && queue_1_q.rollout_id == probe_rollout_i)
                  || result_holds);

  assign token_o = fire && adds_tokens_q && !clear_i;
  assign wait_o  = state_q == StDelay;
  assign stall_o = running && !ready;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if (assign_i && !room_o) $fatal(1, "R4 rollout_worker_fsm %0d: assigned a descriptor with no place for it", Id);
      if (fire && adds_tokens_q && left_q == '0)
        $fatal(1, "R10 rollout_worker_fsm %0d: rollout %0d exceeds its budget", Id, rollout_q);
      if (start && next.error != ERR_NONE && next_adds_tokens)
        $fatal(1, "R10 rollout_worker_fsm %0d: a malformed descriptor of rollout %0d would run", Id, rollout_q);
    end
  end
`endif
endmodule
