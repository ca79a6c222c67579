// Engine 0, the hash policy, behind the seam that every decode engine has. A worker keeps position, checkpoints, digest,
// STOP and end; the engine gives it one token per step.
//
//   prepare  a slot has arrived: what the engine needs of it, as a record that travels with the checked descriptor
//   load     that record comes back with the descriptor's worker and its place there, when it is assigned
//   begin    the descriptor in this place starts, which asks for its first token; ready is early, from a register
//   step     the worker wants one token more; likewise
//   token    the token of the last begin or step, from a register of one entry, which take empties; beside it, if it is
//            wanted, its log-probability
//
// A disable of a queue pair ends what runs of it as a STOP does (R12), so the engine is left alone by it: a worker that
// ends asks for no further token. What the engine needs of the function that a queue pair belongs to it keeps by queue
// pair from its start on, and puts into the record.
//
// Here the record is the end-of-sequence threshold and the policy's first counter and hash, so the first token is there as
// soon as it can be asked for, and the next one as soon as one is taken. An engine of another model_id takes what else it needs (model, arena, kv_offset,
// prefix, token address) in prepare, where the whole slot is at hand.
module engine_hash
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    start_i,           // a queue pair starts, with this configuration
  input  logic [3:0]              start_queue_i,
  input  queue_config_t           start_config_i,

  input  logic                    prepare_i,
  input  logic [3:0]              queue_i,
  input  logic [31:0]             rollout_i,
  input  logic [31:0]             seed_i,
  input  logic [31:0]             seq_len_i,
  input  logic [31:0]             salt_i,            // of the version of the policy (R18)
  output logic [ENGINE_BITS-1:0]  prepared_o,         // four cycles later, as desc_check

  input  logic                    load_i,
  input  logic [4:0]              load_place_i,      // worker, place
  input  logic [ENGINE_BITS-1:0]  load_prepared_i,

  input  logic [Workers-1:0]      begin_i,
  input  logic [Workers-1:0]      begin_place_i,
  output logic [Workers-1:0]      begin_ready_o,
  input  logic [Workers-1:0]      step_i,
  output logic [Workers-1:0]      step_ready_o,

  output logic [Workers-1:0]      token_valid_o,
  output logic [Workers*32-1:0]   token_o,
  output logic [Workers-1:0]      eos_o,             // the token is an end of sequence
  input  logic [Workers-1:0]      logp_i,            // its log-probability is wanted
  output logic [Workers*32-1:0]   logp_o,            // that, Q16.16 with a sign; else 0
  input  logic [Workers-1:0]      token_take_i
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);

  // ---------------------------------------------------------------- prepare: a hash in each of three stages, and a sum
  logic        prepare1_q, prepare2_q, prepare3_q;
  logic [31:0] mixed_id1_q, seed1_q, seq_len1_q, salt1_q, base2_q, offset2_q, counter3_q, counter4_q, hash4_q;
  logic [15:0] threshold1_q, threshold2_q, threshold3_q, threshold4_q;
  logic [Queues-1:0][15:0] threshold_q;     // of an end of sequence, in 1/32768

  logic [QueueBits-1:0] start_pair, prepare_pair;
  assign start_pair   = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign prepare_pair = (Queues == 1) ? '0 : queue_i[QueueBits-1:0];

  assign prepared_o = {threshold4_q, counter4_q, hash4_q};

  always_ff @(posedge clk_i) begin
    if (start_i) threshold_q[start_pair] <= start_config_i.eos_threshold;
  end

  always_ff @(posedge clk_i) begin
    // From its end, so that none is written before it is read: that costs a simulation a copy.
    if (prepare3_q) begin
      counter4_q <= counter3_q;
      hash4_q    <= mix(counter3_q);
      threshold4_q <= threshold3_q;
    end
    if (prepare2_q) begin
      counter3_q   <= base2_q + offset2_q;
      threshold3_q <= threshold2_q;
    end
    if (prepare1_q) begin
      base2_q   <= mix((seed1_q ^ mixed_id1_q) + salt1_q);
      offset2_q <= seq_len1_q * GOLDEN;
      threshold2_q <= threshold1_q;
    end
    if (prepare_i) begin
      mixed_id1_q <= mix(rollout_i + GOLDEN);
      seed1_q     <= seed_i;
      seq_len1_q  <= seq_len_i;
      salt1_q     <= salt_i;
      threshold1_q <= threshold_q[prepare_pair];
    end
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

  // ---------------------------------------------------------------- records of assigned descriptors
  logic [ENGINE_BITS-1:0] queue_mem [0:MAX_WORKERS*2-1];

  always_ff @(posedge clk_i) begin
    if (load_i) queue_mem[load_place_i] <= load_prepared_i;
  end

  // ---------------------------------------------------------------- tokens
  localparam logic [31:0] TokenMask = (32'd1 << VOCAB_BITS) - 32'd1;
  logic [Workers-1:0]    valid_q;
  logic [Workers*32-1:0] counter_q, hash_q;
  logic [Workers*16-1:0] limit_q;             // the threshold of what runs
  logic [Workers-1:0]    limits_q;            // it is not 0

  assign begin_ready_o = '1;
  assign step_ready_o  = '1;
  assign token_valid_o = valid_q;
  assign token_o       = hash_q & {Workers{TokenMask}};

  always_comb begin
    eos_o = '0;
    if (limits_q != '0) begin
      for (int w = 0; w < Workers; w++)
        eos_o[w] = limits_q[w] && {1'b0, hash_q[w*32 + int'(VOCAB_BITS) +: 15]} < limit_q[w*16 +: 16];
    end
  end

  always_comb begin
    logp_o = '0;
    if (logp_i != '0) begin
      for (int w = 0; w < Workers; w++)
        if (logp_i[w]) logp_o[w*32 +: 32] = 32'd0 - {12'd0, hash_q[w*32 + 12 +: 20]};
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else         valid_q <= begin_i | step_i | (valid_q & ~token_take_i);
    // Ahead of the step that will ask for it: a step needs no time, and one that is not asked for is not shown.
    for (int w = 0; w < Workers; w++) begin
      if (token_take_i[w]) begin
        hash_q[w*32 +: 32]    <= mix(counter_q[w*32 +: 32] + GOLDEN);
        counter_q[w*32 +: 32] <= counter_q[w*32 +: 32] + GOLDEN;
      end
    end
    if (begin_i != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (begin_i[w]) begin
          {limit_q[w*16 +: 16], counter_q[w*32 +: 32], hash_q[w*32 +: 32]} <= queue_mem[{4'(w), begin_place_i[w]}];
        end
      end
    end
    if (!rst_ni) limits_q <= '0;
    else if (begin_i != '0) begin
      for (int w = 0; w < Workers; w++)
        if (begin_i[w]) limits_q[w] <= queue_mem[{4'(w), begin_place_i[w]}][64 +: 16] != '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if ((token_take_i & ~valid_q) != '0)
        $fatal(1, "R3 engine_hash: workers %b take a token that is not there", token_take_i & ~valid_q);
      if ((valid_q & ~token_take_i) != '0) begin
        if (((begin_i | step_i) & valid_q & ~token_take_i) != '0)
          $fatal(1, "R3 engine_hash: workers %b ask for a token before they took the last one",
                 (begin_i | step_i) & valid_q & ~token_take_i);
      end
    end
  end
`endif
endmodule
