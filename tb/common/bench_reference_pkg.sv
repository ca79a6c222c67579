// The contract once more, written from docs/contract.md and not from rtl/: what the benches expect. Shares nothing
// with the device but the generated layouts and code points of desc_pkg.
package bench_reference_pkg;
  import desc_pkg::*;

  function automatic logic [31:0] rotl(input logic [31:0] value, input int by);
    rotl = (value << (by % 32)) | (value >> ((32 - by % 32) % 32));
  endfunction

  function automatic logic [31:0] ref_mix(input logic [31:0] x);
    x ^= x >> 16;
    x *= 32'h7FEB352D;
    x ^= x >> 15;
    x *= 32'h846CA68B;
    x ^= x >> 16;
    ref_mix = x;
  endfunction

  // Engine 0, under a version of the policy.
  function automatic logic [31:0] ref_salted(input logic [31:0] seed, input logic [31:0] rollout,
                                             input logic [31:0] position, input logic [31:0] salt);
    logic [31:0] base;
    base = ref_mix((seed ^ ref_mix(rollout + 32'h9E3779B9)) + salt);
    ref_salted = ref_mix(base + position * 32'h9E3779B9);
  endfunction

  // Under version 0, whose salt is 0.
  function automatic logic [31:0] ref_hash(input logic [31:0] seed, input logic [31:0] rollout,
                                           input logic [31:0] position);
    ref_hash = ref_salted(seed, rollout, position, 32'd0);
  endfunction

  function automatic logic [31:0] ref_digest(input logic [31:0] digest, input logic [31:0] token);
    ref_digest = (digest ^ token) * 32'h01000193;
  endfunction

  function automatic logic [31:0] ref_score(input logic [31:0] digest);
    ref_score = (digest >> 16) ^ (digest & 32'hFFFF);
  endfunction

  // R9: a score below the threshold; both have a sign.
  function automatic logic ref_below(input logic [31:0] digest, input logic [31:0] threshold);
    ref_below = !threshold[31] && ref_score(digest) < threshold;
  endfunction

  // Q16.16 with a sign.
  function automatic logic [31:0] ref_logp(input logic [31:0] hash);
    ref_logp = ~(hash >> 12) + 32'd1;
  endfunction

  // R2
  function automatic logic [31:0] ref_check(input logic [511:0] slot, input logic [31:0] key, input logic [31:0] index);
    logic [31:0] a, b;
    logic [63:0] sum;
    sum = 64'h9E3779B97F4A7C15 * index;
    for (int k = 0; k < 16; k += 2) begin
      a = slot[32*k +: 32];
      b = k == 14 ? 32'd0 : slot[32*k + 32 +: 32];
      a = a + (rotl(key, 2*k + 1) ^ ref_mix((k + 1) * 32'h9E3779B9));
      b = b + (rotl(key, 2*k + 3) ^ ref_mix((k + 2) * 32'h9E3779B9));
      sum = sum + 64'(a) * 64'(b);
    end
    ref_check = sum[63:32] ^ sum[31:0];
    if (ref_check == 0) ref_check = 32'hFFFFFFFF;
  endfunction

  function automatic logic [511:0] ref_seal(input logic [511:0] slot, input logic [31:0] key, input logic [31:0] index);
    ref_seal = {ref_check(slot, key, index), slot[479:0]};
  endfunction

  // A policy's header (R19), its check word last.
  function automatic logic [127:0] ref_policy(input logic [15:0] version, input logic [31:0] salt);
    logic [31:0] check;
    check = ref_mix({16'd0, version} ^ 32'h9E3779B9);
    check = ref_mix(check ^ salt);
    check = ref_mix(check);
    ref_policy = {check, 32'd0, salt, 16'd0, version};
  endfunction

  // R17: what of a group a good descriptor may belong to.
  function automatic logic ref_names_member(input hw_desc_t desc, input int members);
    ref_names_member = (desc.flags & 8'h04) != 0 && (desc.opcode == 8'h01 || desc.opcode == 8'hFF) && int'(desc.member) < members;
  endfunction

  function automatic logic ref_stops_group(input hw_desc_t desc);
    ref_stops_group = desc.opcode == 8'hFF && (desc.flags & 8'h04) != 0 && desc.member == 16'hFFFF;
  endfunction

  // "Which error": the code of a slot that could be read, ERR_NONE for a good one.
  function automatic logic [7:0] ref_error(input hw_desc_t desc, input logic [31:0] key, input logic [31:0] index,
                                           input logic [63:0] token_size, input logic [63:0] logp_size,
                                           input logic [63:0] kv_size,
                                           input logic [31:0] length_limit);
    logic decode, prefill, stop, cow, reward, policy;
    logic [67:0] length, offset;
    reward  = desc.opcode == 8'h02;
    policy  = desc.opcode == 8'h04;
    decode  = desc.opcode == 8'h01;
    prefill = desc.opcode == 8'h03;
    stop    = desc.opcode == 8'hFF;
    cow     = (desc.flags & 8'h04) != 0;
    length  = desc.seq_len;
    if (decode) length = length + desc.max_tokens;
    offset  = desc.max_tokens;
    offset  = offset * 4 + desc.delta_offset;

    if (desc.check != ref_check(desc, key, index)) return ERR_BAD_CHECK;
    if (!decode && !prefill && !reward && !policy && desc.opcode != 8'h00 && desc.opcode != 8'hFF) return ERR_BAD_OPCODE;
    if ((desc.flags & 8'hC0) != 0) return ERR_RESERVED_SET;
    if ((decode || prefill || policy) && desc.model_id != 0) return ERR_BAD_MODEL;
    if (reward && desc.reward_model_id > 1) return ERR_BAD_MODEL;
    if (decode && (desc.flags & 8'h10) != 0 && desc.reward_model_id != 0) return ERR_BAD_MODEL;
    if ((decode || reward) && desc.max_tokens == 0) return ERR_BAD_LENGTH;
    if (reward && desc.max_tokens > length_limit) return ERR_BAD_LENGTH;
    if ((decode || prefill) && length > length_limit) return ERR_BAD_LENGTH;
    if (prefill && desc.max_tokens > 64) return ERR_BAD_LENGTH;
    if ((decode || reward) && (desc.delta_offset % 4 != 0 || offset > token_size)) return ERR_BAD_REGION;
    if (decode && (desc.flags & 8'h20) != 0 && offset > logp_size) return ERR_BAD_REGION;
    if (policy && (desc.delta_offset % 64 != 0 || 65'(desc.delta_offset) + 64 > token_size)) return ERR_BAD_REGION;
    if ((decode || prefill) && desc.kv_offset != 0 && desc.kv_offset >= kv_size) return ERR_BAD_REGION;
    if ((prefill || ((decode || stop) && cow)) && desc.prefix_id == 32'hFFFFFFFF) return ERR_BAD_PREFIX;
    return ERR_NONE;
  endfunction

  // The same behind the lookup of its version: it is in a slot, and resident there.
  function automatic logic [7:0] ref_version(input logic [7:0] code, input hw_desc_t desc, input logic found,
                                             input logic resident);
    ref_version = code;
    if (code == ERR_NONE && ((desc.opcode == 8'h01 && !found) || (desc.opcode == 8'h03 && !(found && resident))))
      ref_version = ERR_BAD_VERSION;
  endfunction
endpackage
