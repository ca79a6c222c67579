// Checks a descriptor (rules R2, R10, R11): a pipeline of three stages, one descriptor per cycle and never held up. The
// order of the checks is the contract's; the first that applies is the error.
module desc_check
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
(
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic         clear_i,

  input  logic [63:0]  token_base_i,
  input  logic [63:0]  token_size_i,
  input  logic [63:0]  kv_size_i,
  input  logic [31:0]  length_limit_i,
  input  logic [31:0]  checkpoint_default_i,

  input  logic         slot_valid_i,
  input  logic [511:0] slot_data_i,
  input  logic         slot_fault_i,
  input  logic [31:0]  slot_index_i,

  output logic         work_valid_o,
  output work_t        work_o,
  output echo_t        echo_o,
  output logic         fence_o,
  output logic         prefill_o,      // a PREFILL without error
  output logic         stop_o,         // a STOP without error or FENCE: it has its effect before its turn (R8)
  output logic         idle_o          // nothing inside
);
  logic valid1_q, valid2_q, valid3_q;
  assign idle_o = !(valid1_q || valid2_q || valid3_q);

  // ---------------------------------------------------------------- stage 1: integrity
  logic        intact1_q, fault1_q;
  /* verilator lint_off UNUSEDSIGNAL */  // check has done its work; the engine prepares itself
  hw_desc_t    desc1_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [31:0] index1_q;

  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      desc1_q     <= slot_data_i;
      fault1_q    <= slot_fault_i;
      index1_q    <= slot_index_i;
      intact1_q   <= slot_data_i[511:480] == check_word(slot_data_i, slot_index_i);
    end
  end

  // ---------------------------------------------------------------- stage 2: the rules of form
  work_t       work2, work2_q, work3_q;
  echo_t       echo2, echo2_q, echo3_q;
  logic        fence2, fence2_q, fence3_q, prefill2, prefill2_q, prefill3_q, stop2, stop2_q, stop3_q;
  logic        decode, prefill, stop, cow_prefix;
  logic [32:0] end_len;
  logic [64:0] end_offset;
  logic [7:0]  error;

  always_comb begin
    decode     = 1'b0;
    prefill    = 1'b0;
    stop       = 1'b0;
    cow_prefix = 1'b0;
    end_len    = '0;
    end_offset = '0;
    error      = ERR_NONE;
    work2      = '0;
    echo2      = '0;
    fence2     = 1'b0;
    prefill2   = 1'b0;
    stop2      = 1'b0;
    if (valid1_q) begin
      decode     = desc1_q.opcode == OP_DECODE;
      prefill    = desc1_q.opcode == OP_PREFILL;
      stop       = desc1_q.opcode == OP_STOP;
      cow_prefix = desc1_q.flags[FLAG_COW_PREFIX_BIT];
      end_len    = {1'b0, desc1_q.seq_len} + (decode ? {1'b0, desc1_q.max_tokens} : 33'd0);
      end_offset = {1'b0, desc1_q.delta_offset} + {31'd0, desc1_q.max_tokens, 2'b00};

      if      (fault1_q)
        error = ERR_DMA_FAULT;
      else if (!intact1_q)
        error = ERR_BAD_CHECK;
      else if (!decode && !prefill && !stop && desc1_q.opcode != OP_NOP)
        error = ERR_BAD_OPCODE;
      else if ((desc1_q.flags & ~DESC_FLAGS_MASK) != '0 || desc1_q.reserved != '0)
        error = ERR_RESERVED_SET;
      else if (decode || prefill) begin
        if      (!has_engine(desc1_q.model_id) || (decode && desc1_q.flags[FLAG_RESIDENT_BIT] && desc1_q.reward_model_id != '0))
          error = ERR_BAD_MODEL;
        else if ((decode && desc1_q.max_tokens == '0) || end_len > {1'b0, length_limit_i})
          error = ERR_BAD_LENGTH;
        else if ((decode && (desc1_q.delta_offset[1:0] != '0 || end_offset > {1'b0, token_size_i}))
              || (desc1_q.kv_offset != '0 && desc1_q.kv_offset >= kv_size_i))
          error = ERR_BAD_REGION;
        else if ((prefill || cow_prefix) && desc1_q.prefix_id == PREFIX_NONE)
          error = ERR_BAD_PREFIX;
      end

      echo2.error  = error;
      echo2.status = (error != ERR_NONE) ? STATUS_ERROR : stop ? STATUS_STOPPED : STATUS_DONE;
      if (fault1_q) begin
        echo2.result = index1_q;  // nothing of the slot can be trusted: only its index is known
      end else begin
        echo2.reward_model_id = desc1_q.reward_model_id;
        echo2.seq_len         = desc1_q.seq_len;
        echo2.rollout_id      = desc1_q.rollout_id;
        echo2.user_data       = desc1_q.user_data;
      end
      echo2.adds_tokens = decode && error == ERR_NONE;
      echo2.token_addr  = token_base_i + desc1_q.delta_offset;
      // R14: a host that sleeps must learn of an error, whatever the descriptor asked for.
      echo2.irq = error != ERR_NONE || desc1_q.flags[FLAG_INTERRUPT_BIT];

      fence2   = error == ERR_NONE && desc1_q.flags[FLAG_FENCE_BIT];
      prefill2 = error == ERR_NONE && prefill;
      stop2    = error == ERR_NONE && stop && !fence2;

      work2.adds_tokens = echo2.adds_tokens;
      work2.eos_stops   = desc1_q.flags[FLAG_EOS_STOPS_BIT];
      work2.resident    = desc1_q.flags[FLAG_RESIDENT_BIT];
      work2.start_word  = echo2.token_addr[5:2];
      work2.rollout_id  = echo2.rollout_id;
      work2.max_tokens  = desc1_q.max_tokens;
      work2.checkpoint  = (desc1_q.checkpoint != '0) ? desc1_q.checkpoint
                        : (checkpoint_default_i != '0) ? checkpoint_default_i : CHECKPOINT_NEVER;
    end
  end

  always_ff @(posedge clk_i) begin
    if (valid1_q) begin
      work2_q    <= work2;
      echo2_q    <= echo2;
      fence2_q   <= fence2;
      prefill2_q <= prefill2;
      stop2_q    <= stop2;
    end
  end

  // ---------------------------------------------------------------- stage 3: as long as the engine prepares
  assign work_valid_o = valid3_q;
  assign work_o       = work3_q;
  assign echo_o       = echo3_q;
  assign fence_o      = fence3_q;
  assign prefill_o    = prefill3_q;
  assign stop_o       = stop3_q;

  always_ff @(posedge clk_i) begin
    if (valid2_q) begin
      work3_q         <= work2_q;
      echo3_q         <= echo2_q;
      fence3_q        <= fence2_q;
      prefill3_q      <= prefill2_q;
      stop3_q         <= stop2_q;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      valid1_q <= 1'b0;
      valid2_q <= 1'b0;
      valid3_q <= 1'b0;
    end else begin
      valid1_q <= slot_valid_i;
      valid2_q <= valid1_q;
      valid3_q <= valid2_q;
    end
  end
endmodule
