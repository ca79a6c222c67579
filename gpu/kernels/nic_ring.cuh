// The send ring of the modelled NIC (docs/nic.md), from the GPU: finishers of rollouts share one ring of the GPU's own. The steps are
// those of nic/src/ring.rs.
#ifndef DOORBELL_NIC_RING_CUH
#define DOORBELL_NIC_RING_CUH

#include "descriptor.cuh"

namespace nic {

// What a ring's key is mixed with, so that no descriptor is an entry (W2).
constexpr uint32_t kKey = 0x4E494331u;
constexpr uint32_t kEntryWords = sizeof(doorbell_hw_nic_entry) / 8;

// What the finishers of a GPU share, in its own memory: zero at first. What finishers change for themselves has lines of its own.
struct Shared {
  alignas(128) uint64_t reserved;   // slots that are taken. An atomic operation on host memory would not be one for the host (W3)
  alignas(128) uint64_t completed;  // the NIC's count of completed entries, as the last look across the bus found it
  uint64_t has_stopped;             // whether that look found a fault
  alignas(128) uint32_t looks;      // whether somebody looks
};
static_assert(sizeof(Shared) <= 512, "what gpu/src/probes.rs gives it");

// One GPU's ring. Its memory is the host's.
struct Ring {
  char* memory;
  Shared* shared;
  uint32_t slots;
  uint32_t key;

  __device__ __forceinline__ uint64_t* word(uint32_t at) const { return reinterpret_cast<uint64_t*>(memory + at); }
  __device__ __forceinline__ uint64_t* slot(uint64_t index) const {
    return word(DOORBELL_NIC_SLOTS_AT + 64 * (static_cast<uint32_t>(index) & (slots - 1)));
  }
  // Looks across the bus, unless somebody does. One finisher at a time looks for all: 64 of them that read the same line of host memory again and again wait for
  // each other, and hold up the NIC, which writes it.
  __device__ __forceinline__ void look() const {
    if (order::load_relaxed_gpu(&shared->looks) != 0 || order::compare_swap_acquire_gpu(&shared->looks, 0, 1) != 0) return;
    if (order::load_relaxed_sys(word(DOORBELL_NIC_FAULT_AT)) != 0) order::store_relaxed_gpu(&shared->has_stopped, 1);
    order::store_release_gpu(&shared->completed, order::load_acquire_sys(word(DOORBELL_NIC_COMPLETED_AT)));
    order::store_release_gpu(&shared->looks, 0);
  }
  // Slots and payloads of the entries below it are the GPU's again (W7).
  __device__ __forceinline__ uint64_t completed() const { return order::load_acquire_gpu(&shared->completed); }
  __device__ __forceinline__ bool has_stopped() const { return order::load_relaxed_gpu(&shared->has_stopped) != 0; }
};

enum class Posted : uint32_t { kYes, kFull, kStopped };

// An entry by its fields, as the check word is made of it, and as it is stored.
union Entry {
  doorbell_hw_nic_entry fields;
  uint4 quarter[4];
  uint64_t words[kEntryWords];
};

// The entry with its index and its check word (W2).
__device__ __forceinline__ void seal(Entry& entry, uint32_t key, uint64_t index) {
  entry.fields.index = static_cast<uint32_t>(index);
  entry.fields.check = 0;
  uint64_t shares = 0;
  for (uint32_t k = 0; k < 4; k++) {
    const uint4 part = make_uint4(key_word(key, 4 * k), key_word(key, 4 * k + 1), key_word(key, 4 * k + 2), key_word(key, 4 * k + 3));
    shares += check_share(entry.quarter[k], part, k);
  }
  entry.fields.check = check_word(shares, entry.fields.index);
}

// By one thread, which has written the payload or seen that it was written (a barrier orders the writes of its block before this). It
// waits for nobody.
__device__ __forceinline__ Posted post(const Ring& ring, const doorbell_hw_nic_entry& posted, uint64_t& index) {
  ring.look();
  if (ring.has_stopped()) return Posted::kStopped;
  // Acquired by whoever writes the slot: the NIC has read it before.
  const uint64_t completed = ring.completed();
  // Not below it: what is completed was reserved before.
  uint64_t at = order::load_relaxed_gpu(&ring.shared->reserved);
  // Nothing is read between two exchanges: of finishers that try at a time, one gets on in the time of an exchange.
  for (;;) {
    if (at - completed >= ring.slots) return Posted::kFull;
    const uint64_t seen = order::compare_swap_relaxed_gpu(&ring.shared->reserved, at, at + 1);
    if (seen == at) break;
    at = seen;
  }
  Entry entry{posted};
  seal(entry, ring.key ^ kKey, at);
  uint64_t* const slot = ring.slot(at);
  for (uint32_t k = 0; k + 1 < kEntryWords; k++) order::store_relaxed_sys(slot + k, entry.words[k]);
  order::store_release_sys(slot + kEntryWords - 1, entry.words[kEntryWords - 1]);
  // One step that adds: a store would take back another finisher's bell (W5). Only this GPU changes the word, and the host reads it.
  order::add_release_sys(ring.word(DOORBELL_NIC_BELL_AT), 1);
  index = at;
  return Posted::kYes;
}

// ---------------------------------------------------------------- finishers that are only that

// Words of a payload, and payloads of a finisher that may be on their way.
constexpr uint32_t kPayloadWords = 16, kPayloads = 8;

// Word `j` of payload `k` of a finisher, which the host expects.
__device__ __forceinline__ uint32_t payload_word(uint32_t finisher, uint32_t k, uint32_t j) {
  return mix(finisher * DOORBELL_GOLDEN ^ (k * kPayloadWords + j));
}

// Posts `each` payloads from the finisher's part of the region, and returns how many: less if the ring stopped, or if nothing became free
// in `looks` looks.
__device__ __forceinline__ uint32_t finish(const Ring& ring, char* region, uint32_t finisher, uint32_t each, uint64_t looks) {
  uint64_t posted_at[kPayloads];
  for (uint32_t k = 0; k < each; k++) {
    const uint32_t place = k % kPayloads;
    const uint64_t offset = 4ull * kPayloadWords * (static_cast<uint64_t>(finisher) * kPayloads + place);
    // The payload that was there has to be complete (W4).
    if (k >= kPayloads)
      for (uint64_t look = 0; ring.completed() <= posted_at[place]; look++) {
        if (look == looks || ring.has_stopped()) return k;
        ring.look();
      }
    uint32_t* const payload = reinterpret_cast<uint32_t*>(region + offset);
    uint32_t digest = DOORBELL_DIGEST_INIT;
    for (uint32_t j = 0; j < kPayloadWords; j++) {
      const uint32_t word = payload_word(finisher, k, j);
      digest = (digest ^ word) * DOORBELL_DIGEST_PRIME;
      order::store_relaxed_sys(payload + j, word);
    }
    doorbell_hw_nic_entry entry{};
    entry.opcode = DOORBELL_NIC_OP_SEND;
    entry.flags = DOORBELL_NIC_FLAG_DIGEST;
    entry.poster = static_cast<uint16_t>(finisher);
    entry.length = 4 * kPayloadWords;
    entry.offset = offset;
    entry.user_data = static_cast<uint64_t>(finisher) << 32 | k;
    entry.rollout_id = k;
    entry.digest = digest;
    Posted posted = Posted::kFull;
    for (uint64_t look = 0; posted == Posted::kFull && look < looks; look++) posted = post(ring, entry, posted_at[place]);
    if (posted != Posted::kYes) return k;
  }
  return each;
}

}  // namespace nic

#endif
