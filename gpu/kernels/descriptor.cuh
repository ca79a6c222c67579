// A descriptor in the registers of one lane: its check word (R2), its errors (R10), its completion.
#ifndef DOORBELL_DESCRIPTOR_CUH
#define DOORBELL_DESCRIPTOR_CUH

#include "doorbell_contract.h"
#include "engine.cuh"
#include "mailbox.h"
#include "mix.cuh"

struct Descriptor {
  uint4 quarter[4];

  __device__ __forceinline__ uint32_t opcode() const { return quarter[0].x & 0xFF; }
  __device__ __forceinline__ uint32_t flags() const { return quarter[0].x >> 8 & 0xFF; }
  __device__ __forceinline__ uint32_t model_id() const { return quarter[0].x >> 16; }
  __device__ __forceinline__ uint32_t rollout_id() const { return quarter[0].y; }
  __device__ __forceinline__ uint32_t prefix_id() const { return quarter[0].w; }
  __device__ __forceinline__ uint64_t kv_offset() const { return wide(quarter[1].x, quarter[1].y); }
  __device__ __forceinline__ uint64_t delta_offset() const { return wide(quarter[1].z, quarter[1].w); }
  __device__ __forceinline__ uint32_t seq_len() const { return quarter[2].x; }
  __device__ __forceinline__ uint32_t max_tokens() const { return quarter[2].y; }
  __device__ __forceinline__ uint32_t checkpoint() const { return quarter[2].z; }
  __device__ __forceinline__ uint32_t reward_model_id() const { return quarter[2].w & 0xFFFF; }
  __device__ __forceinline__ uint32_t arena() const { return quarter[0].z & 0xFFFF; }
  __device__ __forceinline__ uint32_t member() const { return quarter[0].z >> 16; }
  __device__ __forceinline__ uint32_t policy_version() const { return quarter[2].w >> 16; }
  __device__ __forceinline__ uint64_t user_data() const { return wide(quarter[3].x, quarter[3].y); }
  __device__ __forceinline__ uint32_t seed() const { return quarter[3].z; }
  __device__ __forceinline__ uint32_t check() const { return quarter[3].w; }
  __device__ __forceinline__ bool has(uint32_t flag) const { return (flags() & flag) != 0; }

  static __device__ __forceinline__ uint64_t wide(uint32_t low, uint32_t high) {
    return static_cast<uint64_t>(high) << 32 | low;
  }
};

DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, rollout_id) == 4, "Descriptor::rollout_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, prefix_id) == 12, "Descriptor::prefix_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, kv_offset) == 16, "Descriptor::kv_offset");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, delta_offset) == 24, "Descriptor::delta_offset");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, seq_len) == 32, "Descriptor::seq_len");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, max_tokens) == 36, "Descriptor::max_tokens");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, checkpoint) == 40, "Descriptor::checkpoint");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, reward_model_id) == 44, "Descriptor::reward_model_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, kv_arena_id) == 8, "Descriptor::arena");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, member) == 10, "Descriptor::member");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, policy_version) == 46, "Descriptor::policy_version");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, user_data) == 48, "Descriptor::user_data");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, seed) == 56, "Descriptor::seed");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_desc, check) == 60, "Descriptor::check");

__device__ __forceinline__ uint32_t rotate_left(uint32_t x, uint32_t by) { return __funnelshift_l(x, x, by); }

// Word `k` of the key of a submission queue, as its check words need it (R2).
__device__ __forceinline__ uint32_t key_word(uint32_t key, uint32_t k) {
  return rotate_left(key, 2 * k + 1) ^ mix((k + 1) * DOORBELL_GOLDEN);
}

// What quarter `k` (words 4k to 4k + 3) adds to the sum of which the check word is made, with its quarter of the key.
__device__ __forceinline__ uint64_t check_share(uint4 words, uint4 key, uint32_t k) {
  return static_cast<uint64_t>(words.x + key.x) * (words.y + key.y) +
         static_cast<uint64_t>(words.z + key.z) * ((k == 3 ? 0 : words.w) + key.w);
}

// The check word of the descriptor with this index, from the shares of its quarters.
__device__ __forceinline__ uint32_t check_word(uint64_t shares, uint32_t index) {
  const uint64_t sum = shares + index * DOORBELL_GOLDEN_64;
  const uint32_t folded = static_cast<uint32_t>(sum >> 32) ^ static_cast<uint32_t>(sum);
  return folded == 0 ? 0xFFFFFFFFu : folded;
}

__device__ __forceinline__ bool verifies(const Descriptor& desc, const uint4 (&key)[4], uint32_t index) {
  uint64_t shares = 0;
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) shares += check_share(desc.quarter[k], key[k], k);
  return check_word(shares, index) == desc.check();
}

// What a function's policy slots hold (R18): of each a word as its register shows it, with its engine, and the salt, or of
// engine 1, where that counts for nothing, how many positions a sequence may have. A front end's copy has a
// tag above each word, another one for each version that is published. While the two differ the copy is not to be used:
// somebody is about to publish, or has not yet written both halves.
struct Versions {
  static constexpr uint32_t kTag = 24, kHeld = 1u << 31, kEngine = 23;
  uint4 slots;

  __device__ __forceinline__ bool settled() const { return (slots.x ^ slots.z) >> kTag == 0; }

  static __device__ __forceinline__ uint4 tagged(const uint4& slots, uint32_t number) {
    const uint32_t tag = (number & 0x7F) << kTag, words = (1u << kTag) - 1;
    return make_uint4((slots.x & words) | tag, slots.y, (slots.z & words) | tag, slots.w);
  }

  static __device__ __forceinline__ uint32_t word(uint32_t version, uint32_t engine, uint32_t slot_state) {
    return engine << kEngine | slot_state << 16 | version;
  }
  static __device__ __forceinline__ uint32_t state_of(uint32_t word) { return word >> 16 & 0x7F; }
  static __device__ __forceinline__ uint32_t engine_of(uint32_t word) { return word >> kEngine & 1; }

  // The slot that holds this version, resident or retired. No two do.
  __device__ __forceinline__ bool is_in(uint32_t slot, uint32_t version) const {
    const uint32_t word = slot == 0 ? slots.x : slots.z;
    return (word & 0xFFFF) == version && state_of(word) != DOORBELL_SLOT_EMPTY;
  }
};

// A version that a descriptor names.
struct Version {
  uint32_t salt;   // or positions
  uint32_t slot;
  uint32_t state;  // of its slot; EMPTY: it is in none
  uint32_t engine;

  __device__ __forceinline__ Version(const Versions& versions, uint32_t version) {
    const bool second = versions.is_in(1, version), found = second || versions.is_in(0, version);
    slot = second ? 1 : 0;
    salt = second ? versions.slots.w : versions.slots.y;
    const uint32_t word = second ? versions.slots.z : versions.slots.x;
    state = found ? Versions::state_of(word) : DOORBELL_SLOT_EMPTY;
    engine = Versions::engine_of(word);
  }
};

// The first error of a REWARD or POLICY, but for RESERVED_SET.
__device__ __forceinline__ uint32_t error_of_reader(uint32_t opcode, uint32_t model_id, uint32_t reward_model_id,
                                                 uint32_t count, uint64_t offset, uint64_t token_size,
                                                 uint32_t length_limit, uint32_t engines) {
  if (opcode == DOORBELL_OP_POLICY) {
    if (model_id >= engines) return DOORBELL_ERR_BAD_MODEL;
    const uint32_t bytes = model_id == engine::kLanguageModel ? 128 : 64;
    const bool within = offset % 64 == 0 && offset <= token_size && bytes <= token_size - offset;
    return within ? DOORBELL_ERR_NONE : DOORBELL_ERR_BAD_REGION;
  }
  if (!engine::RewardModels::has(reward_model_id)) return DOORBELL_ERR_BAD_MODEL;
  if (count == 0 || count > length_limit) return DOORBELL_ERR_BAD_LENGTH;
  const bool within = offset % 4 == 0 && offset <= token_size && 4ull * count <= token_size - offset;
  return within ? DOORBELL_ERR_NONE : DOORBELL_ERR_BAD_REGION;
}

// The first error in the order of docs/contract.md, "Which error", but for BAD_CHECK and those of its admission;
// DOORBELL_ERR_NONE if none. The last that is tested here wins, so they are tested from the last to the first: lanes of a
// warp differ, and a chain of selections costs all of them less than branches. Without `kAnyEngine` as on a device that has engine 0
// alone: what names another is then not for who asks.
template <bool kAnyEngine>
__device__ __forceinline__ uint32_t error_of(const Descriptor& desc, const Version& version,
                                             const doorbell_session& config, uint32_t engines) {
  const uint32_t opcode = desc.opcode();
  const bool decode = opcode == DOORBELL_OP_DECODE, prefill = opcode == DOORBELL_OP_PREFILL;
  const bool stop = opcode == DOORBELL_OP_STOP, plain = opcode == DOORBELL_OP_NOP || stop;
  const bool reader = opcode == DOORBELL_OP_REWARD || opcode == DOORBELL_OP_POLICY;
  const uint64_t added = decode ? desc.max_tokens() : 0, offset = desc.delta_offset();
  const bool unprefixed =
      (prefill || desc.has(DOORBELL_FLAG_COW_PREFIX)) && desc.prefix_id() == DOORBELL_PREFIX_NONE;
  uint32_t error = DOORBELL_ERR_NONE;
  const bool sequence = kAnyEngine && desc.model_id() == engine::kLanguageModel && (decode || prefill);
  if (sequence && desc.seq_len() + added > version.salt) error = DOORBELL_ERR_BAD_LENGTH;
  if (kAnyEngine && (decode || prefill) && version.engine != desc.model_id()) error = DOORBELL_ERR_BAD_MODEL;
  // A retired version ends a DECODE (R20), and is an error to a PREFILL.
  if (version.state != DOORBELL_SLOT_RESIDENT && (prefill || version.state == DOORBELL_SLOT_EMPTY))
    error = DOORBELL_ERR_BAD_VERSION;
  if (unprefixed) error = DOORBELL_ERR_BAD_PREFIX;
  if (desc.kv_offset() != 0 && desc.kv_offset() >= config.kv_size) error = DOORBELL_ERR_BAD_REGION;
  // Written so that nothing wraps.
  if (decode && (offset % 4 != 0 || offset > config.token_size || 4 * added > config.token_size - offset))
    error = DOORBELL_ERR_BAD_REGION;
  if (decode && desc.has(DOORBELL_FLAG_LOGP) && (offset > config.logp_size || 4 * added > config.logp_size - offset))
    error = DOORBELL_ERR_BAD_REGION;
  if (sequence) {
    const bool lies = desc.kv_offset() % 64 == 0 && 64 <= config.kv_size && desc.kv_offset() <= config.kv_size - 64;
    if (!lies || desc.arena() >= DOORBELL_ARENAS || (decode && offset == 0)) error = DOORBELL_ERR_BAD_REGION;
  }
  if ((decode && added == 0) || (prefill && desc.max_tokens() > DOORBELL_MEMBERS_MAX) ||
      desc.seq_len() + added > config.length_limit || (sequence && desc.seq_len() == 0))
    error = DOORBELL_ERR_BAD_LENGTH;
  if (desc.model_id() >= (kAnyEngine ? engines : 1) ||
      (decode && desc.has(DOORBELL_FLAG_RESIDENT) && !engine::DigestModels::has(desc.reward_model_id())))
    error = DOORBELL_ERR_BAD_MODEL;
  if (plain) error = stop && unprefixed ? DOORBELL_ERR_BAD_PREFIX : DOORBELL_ERR_NONE;
  if (reader)
    error = error_of_reader(opcode, desc.model_id(), desc.reward_model_id(), desc.max_tokens(), offset,
                            config.token_size, config.length_limit, kAnyEngine ? engines : 1);
  if ((desc.flags() & ~DOORBELL_DESC_FLAGS_MASK) != 0) error = DOORBELL_ERR_RESERVED_SET;
  if (!decode && !prefill && !plain && !reader) error = DOORBELL_ERR_BAD_OPCODE;
  return error;
}

// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
__device__ __forceinline__ uint32_t period_of(uint32_t checkpoint, uint32_t checkpoint_default) {
  const uint32_t chosen = checkpoint == 0 ? checkpoint_default : checkpoint;
  return chosen == 0 ? DOORBELL_CHECKPOINT_NEVER : chosen;
}

// How a descriptor ended; with the descriptor this makes its completion.
struct Outcome {
  uint32_t status;
  uint32_t error;
  uint32_t flags;
  uint32_t added;  // tokens
  uint32_t result;
};

__device__ __forceinline__ Outcome ended(uint32_t status, uint32_t error = DOORBELL_ERR_NONE) {
  return Outcome{status, error, 0, 0, 0};
}

// The completion, but for sq_head and its phases. Of a length that only an echo may have 31 bits are left.
__device__ __forceinline__ void write_completion(ulonglong2 (&halves)[2], uint64_t user_data, uint32_t rollout_id,
                                                 uint32_t seq_len, uint32_t reward_model_id, uint32_t worker_id,
                                                 const Outcome& outcome) {
  halves[0].x = user_data;
  halves[0].y = static_cast<uint64_t>((seq_len + outcome.added) & DOORBELL_LENGTH_LIMIT_MAX) << 32 | rollout_id;
  halves[1].x = outcome.result;
  halves[1].y = static_cast<uint64_t>(outcome.status << 16 | outcome.flags << 8 | outcome.error) << 32 |
                worker_id << 16 | reward_model_id;
}

DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, rollout_id) == 8, "write_completion: rollout_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, final_seq_len) == 12, "write_completion: final_seq_len");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, result) == 16, "write_completion: result");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, sq_head) == 20, "write_completion: sq_head");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, reward_model_id) == 24, "write_completion: reward_model_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, worker_id) == 26, "write_completion: worker_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, error) == 28, "write_completion: error");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, flags) == 29, "write_completion: flags");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, status) == 30, "write_completion: status");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_completion, phase) == 31, "phase_of");

// The phase of the completion with running index `index`, as either half carries it in its second word (R4).
__device__ __forceinline__ uint64_t phase_of(uint32_t index, uint32_t cq_size) {
  return (index & cq_size) == 0 ? 1ull << 63 : 0;
}

// Adds what its slot decides to a completion.
__device__ __forceinline__ void place_completion(ulonglong2 (&halves)[2], uint32_t sq_head, uint64_t phase) {
  halves[0].y |= phase;
  halves[1].x |= static_cast<uint64_t>(sq_head) << 32;
  halves[1].y |= phase;
}

// 64-byte lines that `count` tokens (at least 1) from `offset` bytes on touch.
__device__ __forceinline__ uint32_t lines_of(uint64_t offset, uint32_t count) {
  return static_cast<uint32_t>((offset + 4ull * count - 4) / 64 - offset / 64) + 1;
}

#endif
