// The contract once more, written from docs/contract.md and not from rtl/: what the benches expect. Shares nothing
// with the device but the generated layouts and code points of desc_pkg.
package bench_reference_pkg;
  import desc_pkg::*;
  import bench_pkg::*;

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

  // The same of any engine, with what belongs to it behind it.
  function automatic logic [127:0] ref_header(input logic [15:0] version, input logic [15:0] model, input logic [31:0] salt,
                                              input logic [31:0] length);
    logic [31:0] check;
    check = ref_mix({model, version} ^ 32'h9E3779B9);
    check = ref_mix(check ^ salt);
    check = ref_mix(check ^ length);
    ref_header = {check, length, salt, model, version};
  endfunction

  // ---------------------------------------------------------------- engine 1 (R25)
  // The check of an HwImage or HwSequence.
  function automatic logic [31:0] ref_fold(input logic [511:0] record);
    ref_fold = 32'h9E3779B9;
    for (int k = 0; k < 15; k++) ref_fold = ref_mix(ref_fold ^ record[32*k +: 32]);
  endfunction

  function automatic logic [511:0] ref_fold_seal(input logic [511:0] record);
    ref_fold_seal = {ref_fold(record), record[479:0]};
  endfunction

  // "Which error", 12: an HwImage is sound, in a MODEL region of so many bytes.
  function automatic logic ref_image_sound(input logic [511:0] record, input logic [63:0] model_size);
    logic [63:0] offset, length, program_at;
    logic [67:0] end_of_it, end_of_program;
    logic [31:0] words, vocabulary, token;
    offset         = record[63:0];
    length         = record[127:64];
    program_at     = record[191:128];
    words          = record[223:192];
    vocabulary     = record[287:256];
    end_of_it      = 68'(offset) + 68'(length);
    end_of_program = 68'(program_at) + 68'(words) * 8;
    ref_image_sound = record[511:480] == ref_fold(record) && offset % 64 == 0 && length % 64 == 0 && program_at % 64 == 0
                   && end_of_it <= 68'(model_size) && words > 0 && end_of_program <= 68'(length)
                   && words < 32'd65536 && program_at < 64'h100_0000_0000;      // what the RTL's NPU counts with
    for (int k = 0; k < 4; k++) begin
      token = record[352 + 32*k +: 32];
      if (token != 32'hFFFFFFFF && token >= vocabulary) ref_image_sound = 1'b0;
    end
  endfunction

  // Word k of the shape in an image's header: width, layers, heads, heads of keys and values, width of a head, hidden,
  // vocabulary, context.
  function automatic logic [31:0] ref_shape(input logic [511:0] header, input int k);
    ref_shape = header[192 + 32*k +: 32];
  endfunction

  // Lines of a block of keys and values: 32 tokens of all layers, of each head a line of scales and 32 of its width, twice.
  function automatic logic [63:0] ref_block_lines(input logic [511:0] header);
    // Of the layers' word the upper half counts those with keys and values of their own; 0: all of them.
    ref_block_lines = 64'((header[240 +: 16] == 0) ? header[224 +: 16] : header[240 +: 16]) * 64'(ref_shape(header, 3)) * 64'(2 * (64 + 32 * ref_shape(header, 4))) / 64;
  endfunction

  function automatic logic ref_runs(input logic [511:0] header);
    ref_runs = 1'b1;
    for (int k = 0; k < 8; k++) if (ref_shape(header, k) == 0) ref_runs = 1'b0;
    if (ref_shape(header, 0) % 32 != 0 || ref_shape(header, 4) % 32 != 0 || ref_shape(header, 5) % 32 != 0) ref_runs = 1'b0;
    if (ref_runs && ref_shape(header, 2) % ref_shape(header, 3) != 0) ref_runs = 1'b0;
    if (ref_shape(header, 0) > 4096 || header[224 +: 16] == 0 || header[224 +: 16] > 4096 || header[240 +: 16] > header[224 +: 16] || ref_shape(header, 2) > 4096 || ref_shape(header, 4) > 256
        || ref_shape(header, 5) > 65536 || ref_shape(header, 6) > 1048576 || ref_shape(header, 7) > 65536) ref_runs = 1'b0;
  endfunction

  // And the header of the image that a sound HwImage names.
  function automatic logic ref_model_sound(input logic [511:0] header, input logic [511:0] record);
    ref_model_sound = header[95:0] == {32'd2, 8'd0, "M", "L", "b", "r", "o", "o", "D"} && header[479:448] < 1048576 && ref_runs(header)
                   && header[191:128] <= record[191:128] && header[127:96] == record[255:224]
                   && ref_shape(header, 6) == record[287:256] && ref_shape(header, 7) == record[319:288]
                   && ref_block_lines(header) == 64'(record[351:320]);
  endfunction

  // A header of a random shape that a device runs, with the check and length given; small ones and the largest.
  function automatic logic [511:0] ref_random_model();
    logic [31:0] kv_heads, sharing;
    ref_random_model         = '0;
    ref_random_model[95:0]   = {32'd2, 8'd0, "M", "L", "b", "r", "o", "o", "D"};
    ref_random_model[127:96] = rnd();
    ref_random_model[191:128] = {32'd0, rnd() >> (4 + below(20))};
    kv_heads = chance(20) ? 32'd1 << below(13) : between(1, 40);
    sharing  = chance(30) ? 4096 / kv_heads : between(1, 4096 / kv_heads);
    ref_random_model[223:192] = chance(20) ? 4096 : 32 * between(1, 128);
    ref_random_model[255:224] = (chance(20) && kv_heads < 4096) ? 4096 : between(1, 64);   // lines of a block have 32 bits
    if (chance(40)) ref_random_model[255:240] = 16'(between(1, int'(ref_random_model[239:224])));
    ref_random_model[287:256] = kv_heads * sharing;
    ref_random_model[319:288] = kv_heads;
    ref_random_model[351:320] = 32 * between(1, 8);
    ref_random_model[383:352] = chance(20) ? 65536 : 32 * between(1, 2048);
    ref_random_model[415:384] = chance(20) ? 1048576 : between(1, 100000);
    ref_random_model[447:416] = chance(20) ? 65536 : between(1, 2048);
    ref_random_model[479:448] = chance(20) ? 32'hF_FFFF : below(100);
    ref_random_model[511:480] = rnd();
  endfunction

  // The HwImage of such a model, at this offset: where the file ends its program begins.
  function automatic logic [511:0] ref_record_of(input logic [511:0] header, input logic [63:0] offset);
    hw_image_t image;
    image             = '0;
    image.offset      = offset;
    image.program_at  = (header[191:128] + 63) & ~64'd63;
    image.words       = between(1, 200);
    image.length      = (image.program_at + 8 * 64'(image.words) + 63) & ~64'd63;
    image.image_check = header[127:96];
    image.vocabulary  = ref_shape(header, 6);
    image.positions   = ref_shape(header, 7);
    image.block_lines = 32'(ref_block_lines(header));
    image.end_0       = below(int'(image.vocabulary));
    image.end_1       = chance(50) ? 32'hFFFFFFFF : image.vocabulary - 1;
    image.end_2       = 32'hFFFFFFFF;
    image.end_3       = chance(50) ? 32'hFFFFFFFF : 32'd0;
    ref_record_of     = ref_fold_seal(image);
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
                                           input logic [31:0] length_limit, input int engines);
    logic decode, prefill, stop, cow, reward, policy, language;
    logic [67:0] length, offset;
    reward  = desc.opcode == 8'h02;
    policy  = desc.opcode == 8'h04;
    decode  = desc.opcode == 8'h01;
    prefill = desc.opcode == 8'h03;
    stop    = desc.opcode == 8'hFF;
    cow     = (desc.flags & 8'h04) != 0;
    language = desc.model_id == 1;
    length  = desc.seq_len;
    if (decode) length = length + desc.max_tokens;
    offset  = desc.max_tokens;
    offset  = offset * 4 + desc.delta_offset;

    if (desc.check != ref_check(desc, key, index)) return ERR_BAD_CHECK;
    if (!decode && !prefill && !reward && !policy && desc.opcode != 8'h00 && desc.opcode != 8'hFF) return ERR_BAD_OPCODE;
    if ((desc.flags & 8'hC0) != 0) return ERR_RESERVED_SET;
    if ((decode || prefill || policy) && desc.model_id >= engines) return ERR_BAD_MODEL;
    if (reward && desc.reward_model_id > 1) return ERR_BAD_MODEL;
    if (decode && (desc.flags & 8'h10) != 0 && desc.reward_model_id != 0) return ERR_BAD_MODEL;
    if ((decode || reward) && desc.max_tokens == 0) return ERR_BAD_LENGTH;
    if (reward && desc.max_tokens > length_limit) return ERR_BAD_LENGTH;
    if ((decode || prefill) && length > length_limit) return ERR_BAD_LENGTH;
    if (prefill && desc.max_tokens > 64) return ERR_BAD_LENGTH;
    if ((decode || prefill) && language && desc.seq_len == 0) return ERR_BAD_LENGTH;
    if ((decode || reward) && (desc.delta_offset % 4 != 0 || offset > token_size)) return ERR_BAD_REGION;
    if (decode && (desc.flags & 8'h20) != 0 && offset > logp_size) return ERR_BAD_REGION;
    if (policy && (desc.delta_offset % 64 != 0 || 65'(desc.delta_offset) + (language ? 128 : 64) > token_size)) return ERR_BAD_REGION;
    if ((decode || prefill) && desc.kv_offset != 0 && desc.kv_offset >= kv_size) return ERR_BAD_REGION;
    if ((decode || prefill) && language && (desc.kv_offset % 64 != 0 || 65'(desc.kv_offset) + 64 > kv_size
                                            || desc.kv_arena_id > 3)) return ERR_BAD_REGION;
    if (decode && language && desc.delta_offset == 0) return ERR_BAD_REGION;
    if ((prefill || ((decode || stop) && cow)) && desc.prefix_id == 32'hFFFFFFFF) return ERR_BAD_PREFIX;
    return ERR_NONE;
  endfunction

  // The same behind the lookup of its version: it is in a slot, resident there, and whose it is: of engine 1, with sequences
  // of so many positions.
  function automatic logic [7:0] ref_version(input logic [7:0] code, input hw_desc_t desc, input logic found,
                                             input logic resident, input logic engine, input logic [31:0] positions);
    logic        decode, prefill;
    logic [32:0] length;
    decode  = desc.opcode == 8'h01;
    prefill = desc.opcode == 8'h03;
    length  = 33'(desc.seq_len) + (decode ? 33'(desc.max_tokens) : 33'd0);
    ref_version = code;
    if (code == ERR_NONE) begin
      if ((decode && !found) || (prefill && !(found && resident)))               ref_version = ERR_BAD_VERSION;
      else if ((decode || prefill) && desc.model_id != 16'(engine))              ref_version = ERR_BAD_MODEL;
      else if ((decode || prefill) && engine && length > 33'(positions))          ref_version = ERR_BAD_LENGTH;
    end
  endfunction
endpackage
