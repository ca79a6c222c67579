// One rollout worker: runs a descriptor at one token per cycle (plus wait states) and goes on with the next without
// losing a cycle. Two descriptors may queue behind the running one.
module rollout_worker_fsm
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
(
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
  output logic [31:0] position_o,          // in words, from the start of the descriptor's first line
  output logic        finish_o,            // the line is full, or the descriptor ends
  output logic        done_o,              // the descriptor ends
  output logic [31:0] digest_o,
  output logic [3:0]  how_o,
  input  logic        delivered_i,         // the oldest end was taken

  // Observation, for STATUS and the counters.
  output logic        run_o,
  output logic        wait_o
);
  localparam logic [1:0] StIdle  = 2'd0;   // nothing to run
  localparam logic [1:0] StDelay = 2'd1;   // wait states of the next token
  localparam logic [1:0] StRun   = 2'd2;   // a token per cycle, or the end of a descriptor that adds none

  // ---------------------------------------------------------------- queue of assigned descriptors, oldest first
  /* verilator lint_off UNUSEDSIGNAL */  // 'stops' matters only for those behind the first
  work_t       queue_0_q, queue_1_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic        start;
  logic        open_q;                    // nothing is queued, or one that will not take long
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
    if (!rst_ni || clear_i) begin
      queued_q <= '0;
      open_q   <= 1'b1;
    end else if (assign_i || start) begin
      queued_q <= queued + 2'(assign_i);
      if (queued == '0)    open_q <= !assign_i || work_i.brief;
      else if (assign_i)   open_q <= 1'b0;
      else                 open_q <= start ? queue_1_q.brief : queue_0_q.brief;
    end
  end

  // ---------------------------------------------------------------- the descriptor that runs
  logic [1:0]  state_d, state_q;
  logic        eos_stops_q, resident_q, adds_tokens_q, eos_seen_q, stop_q, near_end_q;
  logic [31:0] rollout_q, checkpoint_q, digest_q, counter_q, hash_q;
  logic [15:0] delay_q;
  // Positions of tokens: the next one; the last that the budget allows; the next at which something is to be decided
  // (a checkpoint or the last).
  logic [31:0] position_q, last_q, event_q;

  logic        fire, finish, eos;
  logic [31:0] token, digest, reward, counter, first_position;
  logic [3:0]  how;

  assign token   = {15'd0, hash_q[16:0]};
  assign eos     = {1'b0, hash_q[31:17]} < eos_threshold_i;
  assign digest  = digest_step(digest_q, token);
  // Not in the block below: Icarus 11 wakes every always_comb that calls a package function when any other calls it.
  assign reward  = score(digest);
  assign counter = counter_q + GOLDEN;

  always_comb begin
    fire    = 1'b0;
    finish  = 1'b0;
    start   = 1'b0;
    how     = {2'b00, END_DONE};
    state_d = state_q;
    case (state_q)
      StIdle:  start = queued_q != '0;
      StDelay: if (delay_q == 16'd1) state_d = StRun;
      default: begin
        if (ready_i && !clear_i) begin
          fire = 1'b1;
          // What ends the descriptor: the contract's order.
          if (position_q == event_q || stop_q || (eos && eos_stops_q)) begin
            finish = 1'b1;
            how[2] = eos || eos_seen_q;
            if (position_q != last_q && !(eos && eos_stops_q)) begin
              if (stop_q)                                  how[1:0] = END_STOPPED;
              else if (!resident_q)                        how[1:0] = END_REWARD_NEEDED;
              else if (reward < reward_threshold_i) how[3]   = 1'b1;
              else                                         finish   = 1'b0;
            end
          end
          if (finish) begin
            start   = queued_q != '0;
            state_d = StIdle;
          end else if (wait_states_i != '0) begin
            state_d = StDelay;
          end
        end
      end
    endcase
    if (start) state_d = (wait_states_i != '0 && queue_0_q.adds_tokens) ? StDelay : StRun;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) state_q <= StIdle;
    else                    state_q <= state_d;
    if (state_d == StDelay) delay_q <= (state_q == StDelay) ? delay_q - 16'd1 : wait_states_i;
  end

  assign first_position = {28'd0, queue_0_q.start_word};

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      near_end_q <= 1'b1;
    end else if (start) begin
      adds_tokens_q <= queue_0_q.adds_tokens;
      eos_stops_q   <= queue_0_q.eos_stops;
      resident_q    <= queue_0_q.resident;
      rollout_q     <= queue_0_q.rollout_id;
      checkpoint_q  <= queue_0_q.checkpoint;
      counter_q     <= queue_0_q.counter;
      hash_q        <= queue_0_q.hash;
      near_end_q    <= queue_0_q.brief;
      eos_seen_q    <= 1'b0;
      digest_q      <= DIGEST_INIT;
      position_q    <= first_position;
      if (queue_0_q.adds_tokens) begin
        last_q  <= first_position + queue_0_q.max_tokens - 32'd1;
        event_q <= first_position - 32'd1
                 + ((queue_0_q.checkpoint < queue_0_q.max_tokens) ? queue_0_q.checkpoint : queue_0_q.max_tokens);
      end else begin
        last_q  <= first_position;  // ends at once
        event_q <= first_position;
      end
    end else if (fire) begin
      // After the end of a descriptor without a successor these values are not looked at.
      if (eos) eos_seen_q <= 1'b1;
      position_q <= position_q + 32'd1;
      digest_q   <= digest;
      counter_q  <= counter;
      hash_q     <= mix(counter);
      if (event_q - position_q == NEAR_END) begin
        if (!resident_q || event_q == last_q) near_end_q <= 1'b1;
      end
      if (finish) near_end_q <= 1'b1;
      // Only a resident rollout goes on behind a checkpoint.
      if (position_q == event_q) event_q <= (checkpoint_q < last_q - position_q) ? position_q + checkpoint_q : last_q;
    end
  end

  // R8: a STOP of the rollout that runs waits in the queue. Nothing overtakes it there, so the bit holds until the
  // next start.
  always_ff @(posedge clk_i) begin
    if (start)
      stop_q <= (queued_q[1] && queue_1_q.stops && queue_1_q.rollout_id == queue_0_q.rollout_id)
             || (assign_i && work_i.stops && work_i.rollout_id == queue_0_q.rollout_id);
    else if (assign_i) begin
      if (work_i.stops && work_i.rollout_id == rollout_q) stop_q <= 1'b1;
    end
  end

  // ---------------------------------------------------------------- results
  assign token_o      = fire && adds_tokens_q;
  assign token_data_o = token;
  assign position_o   = position_q;
  assign done_o       = fire && finish;
  assign finish_o     = fire && (finish || position_q[3:0] == 4'd15);
  assign digest_o     = digest;
  assign how_o        = how;

  // R5: rollouts whose end is still in the result buffer, newest first.
  logic [31:0] ended_0_q, ended_1_q;
  logic [1:0]  undelivered_q;
  always_ff @(posedge clk_i) begin
    if (done_o) begin
      ended_0_q <= rollout_q;
      ended_1_q <= ended_0_q;
    end
    if (!rst_ni || clear_i)         undelivered_q <= '0;
    else if (done_o != delivered_i) undelivered_q <= done_o ? undelivered_q + 2'd1 : undelivered_q - 2'd1;
  end

  // ---------------------------------------------------------------- what the dispatcher sees
  assign free_o  = state_q == StIdle && queued_q == '0;
  assign wants_o = near_end_q && open_q;

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

  assign run_o  = state_q == StRun;
  assign wait_o = state_q == StDelay;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if (assign_i) begin
        if (!room_o) $fatal(1, "R4 rollout_worker_fsm: assigned a descriptor with no place for it (%m)");
      end
      if (delivered_i) begin
        if (undelivered_q == '0) $fatal(1, "R3 rollout_worker_fsm: an end was delivered twice (%m)");
      end
      if (done_o) begin
        if (adds_tokens_q && position_q > last_q)
          $fatal(1, "R10 rollout_worker_fsm: rollout %0d exceeds its budget (%m)", rollout_q);
      end
    end
  end
`endif
endmodule
