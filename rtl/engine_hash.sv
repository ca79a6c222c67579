// Engine 0, the hash policy, behind the seam that every decode engine has. A worker keeps position, checkpoints, digest,
// STOP and end; the engine gives it one token per step.
//
//   prepare  a slot has arrived: what the engine needs of it, as a record that travels with the checked descriptor
//   load     that record comes back with the descriptor's worker and its place there, when it is assigned
//   start    the descriptor in this place starts, which asks for its first token; ready is early, from a register
//   step     the worker wants one token more; likewise
//   token    the token of the last start or step, from a register of one entry, which take empties
//   idle     nothing is under way: part of the drain of a disable (R12); clear drops everything
//
// Here the record is the policy's first counter and hash, so the first token is there as soon as it can be asked for, and
// the next one as soon as one is taken. An engine of another model_id takes what else it needs (model, arena, kv_offset,
// prefix, token address) in prepare, where the whole slot is at hand.
module engine_hash
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    clear_i,
  input  logic [15:0]             eos_threshold_i,   // in 1/32768

  input  logic                    prepare_i,
  input  logic [31:0]             rollout_i,
  input  logic [31:0]             seed_i,
  input  logic [31:0]             seq_len_i,
  output logic [ENGINE_BITS-1:0]  prepared_o,         // four cycles later, as desc_check

  input  logic                    load_i,
  input  logic [4:0]              load_place_i,      // worker, place
  input  logic [ENGINE_BITS-1:0]  load_prepared_i,

  input  logic [Workers-1:0]      start_i,
  input  logic [Workers-1:0]      start_place_i,
  output logic [Workers-1:0]      start_ready_o,
  input  logic [Workers-1:0]      step_i,
  output logic [Workers-1:0]      step_ready_o,

  output logic [Workers-1:0]      token_valid_o,
  output logic [Workers*32-1:0]   token_o,
  output logic [Workers-1:0]      eos_o,             // the token is an end of sequence
  input  logic [Workers-1:0]      token_take_i,

  output logic                    idle_o
);
  // ---------------------------------------------------------------- prepare: a hash in each of three stages, and a sum
  logic        prepare1_q, prepare2_q, prepare3_q;
  logic [31:0] mixed_id1_q, seed1_q, seq_len1_q, base2_q, offset2_q, counter3_q, counter4_q, hash4_q;

  assign prepared_o = {counter4_q, hash4_q};

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      prepare1_q <= 1'b0;
      prepare2_q <= 1'b0;
      prepare3_q <= 1'b0;
    end else begin
      prepare1_q <= prepare_i;
      prepare2_q <= prepare1_q;
      prepare3_q <= prepare2_q;
    end
    if (prepare_i) begin
      mixed_id1_q <= mix(rollout_i + GOLDEN);
      seed1_q     <= seed_i;
      seq_len1_q  <= seq_len_i;
    end
    if (prepare1_q) begin
      base2_q   <= mix(seed1_q ^ mixed_id1_q);
      offset2_q <= seq_len1_q * GOLDEN;
    end
    if (prepare2_q) counter3_q <= base2_q + offset2_q;
    if (prepare3_q) begin
      counter4_q <= counter3_q;
      hash4_q    <= mix(counter3_q);
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

  assign start_ready_o = '1;
  assign step_ready_o  = '1;
  assign token_valid_o = valid_q;
  assign token_o       = hash_q & {Workers{TokenMask}};
  assign idle_o        = valid_q == '0;

  always_comb begin
    eos_o = '0;
    if (eos_threshold_i != '0) begin
      for (int w = 0; w < Workers; w++) eos_o[w] = {1'b0, hash_q[w*32 + int'(VOCAB_BITS) +: 15]} < eos_threshold_i;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) valid_q <= '0;
    else                    valid_q <= start_i | step_i | (valid_q & ~token_take_i);
    // Ahead of the step that will ask for it: a step needs no time, and one that is not asked for is not shown.
    for (int w = 0; w < Workers; w++) begin
      if (token_take_i[w]) begin
        hash_q[w*32 +: 32]    <= mix(counter_q[w*32 +: 32] + GOLDEN);
        counter_q[w*32 +: 32] <= counter_q[w*32 +: 32] + GOLDEN;
      end
    end
    if (start_i != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (start_i[w]) begin
          {counter_q[w*32 +: 32], hash_q[w*32 +: 32]} <= queue_mem[{4'(w), start_place_i[w]}];
        end
      end
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if ((token_take_i & ~valid_q) != '0)
        $fatal(1, "R3 engine_hash: workers %b take a token that is not there", token_take_i & ~valid_q);
      if (((start_i | step_i) & valid_q & ~token_take_i) != '0)
        $fatal(1, "R3 engine_hash: workers %b ask for a token before they took the last one",
               (start_i | step_i) & valid_q & ~token_take_i);
    end
  end
`endif
endmodule
