// Keys and values that stay in device memory between descriptors (R26): docs/gpu-language.md, "Kept keys and values".
#ifndef DOORBELL_LANGUAGE_POOL_CUH
#define DOORBELL_LANGUAGE_POOL_CUH

#include "device_state.cuh"
#include "language_memory.cuh"

namespace language {

// What a page holds: a block of an arena.
struct PageTag {
  alignas(32) uint32_t owner;  // function and arena; 0: nothing
  uint32_t era;                // of the arena
  uint32_t number;             // of the block
  uint32_t generation;
  uint32_t valid;  // positions that are as they are in the arena, from the block's first on; 0 while they are being written
  uint32_t pins;   // teams that read it, or the one that writes it
  uint32_t used;   // when last, in microseconds
  uint32_t spare;
};

// Pages that are looked for together: a lane of a warp has each. All have the size of a block of the same model.
struct PageSet {
  alignas(128) uint32_t lock;  // 1: a warp has it
  uint32_t lines;              // of a page
  alignas(128) PageTag tags[kWarp];
};

// Whose blocks they are, and of which generation.
struct Keeping {
  uint32_t owner, era, generation, lines;
};

// The pages, all of them together: sets first. All lanes of a warp call its functions. Without any page nothing is called.
class Pool {
 public:
  static constexpr uint32_t kNoPage = 0xFFFFFFFFu;
  // Of what `find` returns: the page is to be written.
  static constexpr uint32_t kToFill = 1u << 31;

  __device__ __forceinline__ explicit Pool(const LanguageMemory& memory) : memory_(memory) {}

  __device__ __forceinline__ bool is_there() const { return memory_.page_sets != 0; }

  // The era of an arena whose blocks have so many lines. Blocks of another size lie across those that are kept, so a new era begins, in which none
  // of them is known. One thread calls it.
  static __device__ __forceinline__ uint32_t era_of(uint64_t* arena, uint32_t lines) {
    for (;;) {
      const uint64_t seen = order::load_relaxed_gpu(arena);
      if (seen >> 32 == lines) return static_cast<uint32_t>(seen);
      const uint64_t next = static_cast<uint64_t>(lines) << 32 | static_cast<uint32_t>(seen + 1);
      if (order::compare_swap_relaxed_gpu(arena, seen, next) == seen) return static_cast<uint32_t>(next);
    }
  }

  // A page that has the first `needed` positions of a block, for whoever gives it back by `release`; or with kToFill one to write them to, for
  // whoever gives it back by `fill`; or none.
  __device__ __noinline__ uint32_t find(const Keeping& of, uint32_t number, uint32_t needed) const {
    const uint32_t set = lock(of, number);
    PageTag& tag = sets()[set].tags[lane()];
    const bool is_own = is_of(tag, of, number);
    const bool is_new = order::load_relaxed_gpu(&tag.generation) == of.generation || DOORBELL_FAULT(KeepsOldPages);
    const uint32_t valid = order::load_relaxed_gpu(&tag.valid);
    const bool is_whole = valid >= needed || (DOORBELL_FAULT(TakesPartPages) && valid != 0);
    const uint32_t hit = __ballot_sync(kEveryLane, is_own && is_new && is_whole);
    uint32_t page = kNoPage;
    if (hit != 0) {
      const uint32_t way = __ffs(hit) - 1;
      if (lane() == way) {
        order::store_relaxed_gpu(&tag.pins, order::load_relaxed_gpu(&tag.pins) + 1);
        order::store_relaxed_gpu(&tag.used, now());
      }
      page = kWarp * set + way;
    } else {
      page = take(of, number, set);
      if (page != kNoPage) page |= kToFill;
    }
    unlock(set);
    return page;
  }

  // A page to write a block to, or none.
  __device__ __noinline__ uint32_t claim(const Keeping& of, uint32_t number) const {
    const uint32_t set = lock(of, number), page = take(of, number, set);
    unlock(set);
    return page;
  }

  // Gives a page back: one that was written with so many positions, or one that was read.
  __device__ __forceinline__ void fill(uint32_t page, uint32_t valid) const { give_back(page, true, valid); }
  __device__ __forceinline__ void release(uint32_t page) const { give_back(page, false, 0); }

  // A descriptor is to write a block from position `from` of it on: no page has more than what is before.
  __device__ __noinline__ void cut(const Keeping& of, uint32_t number, uint32_t from) const {
    if (DOORBELL_FAULT(OverlooksWriters)) return;
    const uint32_t set = lock(of, number);
    PageTag& tag = sets()[set].tags[lane()];
    if (is_of(tag, of, number) && order::load_relaxed_gpu(&tag.valid) > from) order::store_relaxed_gpu(&tag.valid, from);
    unlock(set);
  }

  __device__ __forceinline__ char* bytes_of(uint32_t page, uint64_t block_bytes) const {
    char* const first = memory_.pages + sizeof(PageSet) * memory_.page_sets + memory_.page_set_bytes * (page / kWarp);
    return first + block_bytes * (page % kWarp);
  }

 private:
  const LanguageMemory& memory_;

  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ uint32_t now() { return static_cast<uint32_t>(ticks() >> 10); }
  __device__ __forceinline__ PageSet* sets() const { return reinterpret_cast<PageSet*>(memory_.pages); }

  // Whether a page is of this block, whatever its generation.
  static __device__ __forceinline__ bool is_of(const PageTag& tag, const Keeping& of, uint32_t number) {
    const uint32_t owner = order::load_relaxed_gpu(&tag.owner);
    const bool is_owner = owner == of.owner || (DOORBELL_FAULT(SharesPages) && owner != 0);
    return is_owner && order::load_relaxed_gpu(&tag.era) == of.era && order::load_relaxed_gpu(&tag.number) == number;
  }

  // Waits for the set of a block. A block has one page at most, so whoever writes it finds all that is kept of it.
  __device__ __forceinline__ uint32_t lock(const Keeping& of, uint32_t number) const {
    // With the fault the functions meet in a set, too.
    const uint32_t owner = DOORBELL_FAULT(SharesPages) ? 0 : of.owner;
    const uint32_t set = mix(owner << 24 ^ number) % memory_.page_sets;
    if (lane() == 0) {
      for (uint32_t spins = 0; order::compare_swap_acquire_gpu(&sets()[set].lock, 0, 1) != 0;) relax(spins);
    }
    __syncwarp();
    return set;
  }
  __device__ __forceinline__ void unlock(uint32_t set) const {
    __syncwarp();
    if (lane() == 0) order::store_release_gpu(&sets()[set].lock, 0);
    __syncwarp();
  }

  // Takes a page of the locked set to be written: that of the block itself, or the one that nobody has used for longest. None if that is being used.
  __device__ __forceinline__ uint32_t take(const Keeping& of, uint32_t number, uint32_t set) const {
    PageSet& at = sets()[set];
    PageTag& tag = at.tags[lane()];
    const uint32_t pins = DOORBELL_FAULT(FreesUnderReader) ? 0 : order::load_relaxed_gpu(&tag.pins);
    bool is_vacant = order::load_relaxed_gpu(&tag.owner) == 0;
    if (order::load_relaxed_gpu(&at.lines) != of.lines) {
      // Pages of another size, all of them or none.
      if (__any_sync(kEveryLane, pins != 0)) return kNoPage;
      order::store_relaxed_gpu(&tag.owner, 0);
      is_vacant = true;
      __syncwarp();
      if (lane() == 0) order::store_relaxed_gpu(&at.lines, of.lines);
    }
    const uint64_t ways = memory_.page_set_bytes / (64ull * of.lines);
    const uint32_t own = __ballot_sync(kEveryLane, !is_vacant && is_of(tag, of, number));
    const bool is_eligible = lane() < ways && pins == 0 && (own == 0 || (own >> lane() & 1) != 0);
    // From 1 on: what is vacant goes first, then the oldest.
    const uint32_t age = min(now() - order::load_relaxed_gpu(&tag.used), kEveryLane - 2) + 1;
    const uint32_t rank = !is_eligible ? 0 : is_vacant ? kEveryLane : age;
    const uint32_t most = __reduce_max_sync(kEveryLane, rank);
    if (most == 0) return kNoPage;
    const uint32_t way = __ffs(__ballot_sync(kEveryLane, rank == most)) - 1;
    if (lane() == way) {
      order::store_relaxed_gpu(&tag.owner, of.owner);
      order::store_relaxed_gpu(&tag.era, of.era);
      order::store_relaxed_gpu(&tag.number, number);
      order::store_relaxed_gpu(&tag.generation, of.generation);
      order::store_relaxed_gpu(&tag.valid, 0);
      order::store_relaxed_gpu(&tag.pins, 1);
      order::store_relaxed_gpu(&tag.used, now());
    }
    return kWarp * set + way;
  }

  __device__ __noinline__ void give_back(uint32_t page, bool was_written, uint32_t valid) const {
    const uint32_t set = page / kWarp;
    if (lane() == 0) {
      for (uint32_t spins = 0; order::compare_swap_acquire_gpu(&sets()[set].lock, 0, 1) != 0;) relax(spins);
      PageTag& tag = sets()[set].tags[page % kWarp];
      order::store_relaxed_gpu(&tag.pins, order::load_relaxed_gpu(&tag.pins) - 1);
      if (was_written) order::store_relaxed_gpu(&tag.valid, valid);
    }
    unlock(set);
  }
};

// Copies whole lines within device memory: each of so many threads calls it, with its number.
template <uint32_t kThreads>
__device__ __forceinline__ void copy_lines(char* to, const char* from, uint64_t bytes, uint32_t thread) {
  constexpr uint32_t kParts = 8;
  const uint64_t all = bytes / sizeof(uint4);
#pragma unroll 1
  for (uint64_t first = thread; first < all; first += kParts * kThreads) {
    uint4 part[kParts];
#pragma unroll
    for (uint32_t k = 0; k < kParts; k++)
      if (first + k * kThreads < all) part[k] = stream::load(from + sizeof(uint4) * (first + k * kThreads));
#pragma unroll
    for (uint32_t k = 0; k < kParts; k++)
      if (first + k * kThreads < all) reinterpret_cast<uint4*>(to)[first + k * kThreads] = part[k];
  }
}

}  // namespace language

#endif
