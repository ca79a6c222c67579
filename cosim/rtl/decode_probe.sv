// The wire records as RTL sees them, field by field, for the test that compares them with Rust and C++.
module decode_probe
  import desc_pkg::*;
(
  input  logic [511:0] desc_i,
  output logic [7:0]   desc_opcode,
  output logic [7:0]   desc_flags,
  output logic [15:0]  desc_model_id,
  output logic [31:0]  desc_rollout_id,
  output logic [15:0]  desc_kv_arena_id,
  output logic [15:0]  desc_member,
  output logic [31:0]  desc_prefix_id,
  output logic [63:0]  desc_kv_offset,
  output logic [63:0]  desc_delta_offset,
  output logic [31:0]  desc_seq_len,
  output logic [31:0]  desc_max_tokens,
  output logic [31:0]  desc_checkpoint,
  output logic [15:0]  desc_reward_model_id,
  output logic [15:0]  desc_policy_version,
  output logic [63:0]  desc_user_data,
  output logic [31:0]  desc_seed,
  output logic [31:0]  desc_check,

  input  logic [255:0] completion_i,
  output logic [63:0]  completion_user_data,
  output logic [31:0]  completion_rollout_id,
  output logic [31:0]  completion_final_seq_len,
  output logic [31:0]  completion_result,
  output logic [31:0]  completion_sq_head,
  output logic [15:0]  completion_reward_model_id,
  output logic [15:0]  completion_worker_id,
  output logic [7:0]   completion_error,
  output logic [7:0]   completion_flags,
  output logic [7:0]   completion_status,
  output logic [7:0]   completion_phase
);
  hw_desc_t       desc;
  hw_completion_t completion;
  assign desc       = desc_i;
  assign completion = completion_i;

  assign desc_opcode          = desc.opcode;
  assign desc_flags           = desc.flags;
  assign desc_model_id        = desc.model_id;
  assign desc_rollout_id      = desc.rollout_id;
  assign desc_kv_arena_id     = desc.kv_arena_id;
  assign desc_member          = desc.member;
  assign desc_prefix_id       = desc.prefix_id;
  assign desc_kv_offset       = desc.kv_offset;
  assign desc_delta_offset    = desc.delta_offset;
  assign desc_seq_len         = desc.seq_len;
  assign desc_max_tokens      = desc.max_tokens;
  assign desc_checkpoint      = desc.checkpoint;
  assign desc_reward_model_id = desc.reward_model_id;
  assign desc_policy_version  = desc.policy_version;
  assign desc_user_data       = desc.user_data;
  assign desc_seed            = desc.seed;
  assign desc_check           = desc.check;

  assign completion_user_data       = completion.user_data;
  assign completion_rollout_id      = completion.rollout_id;
  assign completion_final_seq_len   = completion.final_seq_len;
  assign completion_result          = completion.result;
  assign completion_sq_head         = completion.sq_head;
  assign completion_reward_model_id = completion.reward_model_id;
  assign completion_worker_id       = completion.worker_id;
  assign completion_error           = completion.error;
  assign completion_flags           = completion.flags;
  assign completion_status          = completion.status;
  assign completion_phase           = completion.phase;
endmodule
