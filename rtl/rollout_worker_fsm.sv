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

  // To the result buffer.
  input  logic        ready_i,             // early: there is room for a token and an end
  output logic        token_o,
  output logic [31:0] token_data_o,
  output logic [63:0] token_addr_o,
  output logic [3:0]  first_word_o,        // where the line of this token began
  output logic        line_end_o,
  output logic        done_o,
  output logic [31:0] done_len_o,
  output logic [31:0] done_result_o,
  output logic [31:0] done_how_o,          // {worker, flags, error, status}
  input  logic        delivered_i,         // the oldest end was taken

  // Observation, for STATUS and the counters.
  output logic        wait_o,
  output logic        stall_o
);
  localparam logic [1:0] StIdle  = 2'd0;   // nothing to run
  localparam logic [1:0] StDelay = 2'd1;   // wait states of the next token
  localparam logic [1:0] StRun   = 2'd2;   // a token per cycle, or the end of a descriptor that adds none

  // ---------------------------------------------------------------- queue of assigned descriptors, oldest first
  /* verilator lint_off UNUSEDSIGNAL */  // fence, irq and what the completion echoes matter elsewhere
  work_t       queue_0_q, queue_1_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic        start;
  logic [1:0]  queued_q, queued;          // queued: after a start in this cycle

  assign queued = queued_q - 2'(start);
  assign room_o = !queued_q[1];

  always_ff @(posedge clk_i) begin
    if (start) queue_0_q <= queue_1_q;
    if (assign_i) begin
      if (queued == '0) queue_0_q <= work_i;
      else              queue_1_q <= work_i;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) queued_q <= '0;
    else                    queued_q <= queued + 2'(assign_i);
  end

  // ---------------------------------------------------------------- the descriptor that runs
  logic [1:0]  state_d, state_q;
  logic [7:0]  opcode_q, error_q;
  logic        eos_stops_q, resident_q, adds_tokens_q, eos_seen_q, stop_q, near_end_q;
  logic [31:0] rollout_q, seq_len_q, left_q, checkpoint_q, to_checkpoint_q, digest_q, counter_q, hash_q;
  logic [15:0] delay_q;
  logic [3:0]  first_word_q;
  logic [63:0] token_addr_q;

  logic        running, fire, finish, eos, last, at_checkpoint, line_end;
  logic [31:0] token, digest, counter;
  logic [7:0]  status, flags;

  assign running  = state_q == StRun;
  assign token    = {15'd0, hash_q[16:0]};
  assign eos      = {1'b0, hash_q[31:17]} < eos_threshold_i;
  assign digest   = digest_step(digest_q, token);
  assign counter  = counter_q + GOLDEN;
  assign fire     = running && ready_i && !clear_i;
  assign line_end = token_addr_q[5:2] == 4'd15;

  assign last          = left_q == 32'd1;
  assign at_checkpoint = to_checkpoint_q == 32'd1;

  // What ends the descriptor: the contract's order.
  always_comb begin
    finish = 1'b1;
    status = STATUS_DONE;
    flags  = '0;
    if (!adds_tokens_q) begin
      if (error_q != ERR_NONE)      status = STATUS_ERROR;
      else if (opcode_q == OP_STOP) status = STATUS_STOPPED;
    end else begin
      if (eos || eos_seen_q) flags = CFLAG_EOS;
      if (!(eos && eos_stops_q) && !last) begin
        if (stop_q)              status = STATUS_STOPPED;
        else if (!at_checkpoint) finish = 1'b0;
        else if (!resident_q)    status = STATUS_REWARD_NEEDED;
        else if (score(digest) < reward_threshold_i) flags = flags | CFLAG_REJECTED;
        else                     finish = 1'b0;
      end
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
    if (wait_states_i != '0) begin
      if ((start && queue_0_q.adds_tokens) || (fire && !finish)) state_d = StDelay;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) state_q <= StIdle;
    else                    state_q <= state_d;
  end

  always_ff @(posedge clk_i) begin
    if (state_d == StDelay) delay_q <= (state_q == StDelay) ? delay_q - 16'd1 : wait_states_i;
    if (start) begin
      adds_tokens_q   <= queue_0_q.adds_tokens;
      eos_seen_q      <= 1'b0;
      near_end_q      <= queue_0_q.brief;
      opcode_q        <= queue_0_q.opcode;
      error_q         <= queue_0_q.error;
      eos_stops_q     <= queue_0_q.eos_stops;
      resident_q      <= queue_0_q.resident;
      rollout_q       <= queue_0_q.rollout_id;
      seq_len_q       <= queue_0_q.seq_len;
      left_q          <= queue_0_q.max_tokens;
      checkpoint_q    <= queue_0_q.checkpoint;
      to_checkpoint_q <= queue_0_q.checkpoint;
      digest_q        <= queue_0_q.adds_tokens ? DIGEST_INIT : queue_0_q.result;
      counter_q       <= queue_0_q.counter;
      hash_q          <= queue_0_q.hash;
      token_addr_q    <= queue_0_q.token_addr;
      first_word_q    <= queue_0_q.token_addr[5:2];
    end else if (fire && !finish) begin
      if (eos) eos_seen_q <= 1'b1;
      if (left_q == NEAR_END + 32'd1 || (to_checkpoint_q == NEAR_END + 32'd1 && !resident_q)) near_end_q <= 1'b1;
      seq_len_q       <= seq_len_q + 32'd1;
      left_q          <= left_q - 32'd1;
      // CHECKPOINT_NEVER exceeds every budget (R10), so it may count down like any other.
      to_checkpoint_q <= at_checkpoint ? checkpoint_q : to_checkpoint_q - 32'd1;
      digest_q        <= digest;
      counter_q       <= counter;
      hash_q          <= mix(counter);
      token_addr_q    <= token_addr_q + 64'd4;
      if (line_end) first_word_q <= '0;
    end
  end

  // R8: a STOP of the rollout that runs waits in the queue. Nothing overtakes it there, so the bit holds until the
  // next start.
  always_ff @(posedge clk_i) begin
    if (start)
      stop_q <= (queued_q[1] && queue_1_q.stops && queue_1_q.rollout_id == queue_0_q.rollout_id)
             || (assign_i && work_i.stops && work_i.rollout_id == queue_0_q.rollout_id);
    else if (assign_i && work_i.stops && work_i.rollout_id == rollout_q)
      stop_q <= 1'b1;
  end

  // ---------------------------------------------------------------- results
  assign token_o       = fire && adds_tokens_q;
  assign token_data_o  = token;
  assign token_addr_o  = token_addr_q;
  assign first_word_o  = first_word_q;
  assign line_end_o    = line_end;
  assign done_o        = fire && finish;
  assign done_len_o    = adds_tokens_q ? seq_len_q + 32'd1 : seq_len_q;
  assign done_result_o = adds_tokens_q ? digest : digest_q;
  assign done_how_o    = {8'(Id), flags, error_q, status};

  // R5: rollouts whose end is still in the result buffer, newest first.
  logic [31:0] ended_0_q, ended_1_q;
  logic [1:0]  undelivered_q;
  always_ff @(posedge clk_i) begin
    if (done_o) begin
      ended_0_q <= rollout_q;
      ended_1_q <= ended_0_q;
    end
    if (!rst_ni || clear_i) undelivered_q <= '0;
    else                    undelivered_q <= undelivered_q + 2'(done_o) - 2'(delivered_i);
  end

  // ---------------------------------------------------------------- what the dispatcher sees
  assign free_o   = state_q == StIdle && queued_q == '0;
  assign wants_o  = (near_end_q || state_q == StIdle) && (queued_q == '0 || (queued_q == 2'd1 && queue_0_q.brief));

  always_comb begin
    holds_o = 1'b0;
    if (probe_i) begin
      holds_o = (state_q != StIdle && rollout_q == probe_rollout_i)
             || (queued_q != '0 && queue_0_q.rollout_id == probe_rollout_i)
             || (queued_q[1] && queue_1_q.rollout_id == probe_rollout_i)
             || (undelivered_q != '0 && ended_0_q == probe_rollout_i)
             || (undelivered_q[1] && ended_1_q == probe_rollout_i);
    end
  end

  assign wait_o  = state_q == StDelay;
  assign stall_o = running && !ready_i;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if (assign_i && !room_o) $fatal(1, "R4 rollout_worker_fsm: assigned a descriptor with no place for it (%m)");
      if (token_o) begin
        if (left_q == '0) $fatal(1, "R10 rollout_worker_fsm: rollout %0d exceeds its budget (%m)", rollout_q);
        if (token_addr_q[1:0] != '0) $fatal(1, "R11 rollout_worker_fsm: token address %h (%m)", token_addr_q);
      end
      if (delivered_i && undelivered_q == '0)
        $fatal(1, "R3 rollout_worker_fsm: the end of a descriptor was delivered twice (%m)");
    end
  end
`endif
endmodule
