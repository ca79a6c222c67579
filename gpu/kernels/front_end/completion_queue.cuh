// The completion queue as the device fills it: reservation of slots, completions, interrupts (R4, R14).
// Called by whoever has the turn, and by the completion warp. Waits for nothing. Orders: `cq_head` is acquired before a slot is reserved.
// Planted fault: ReservesBlindly.
#ifndef DOORBELL_FRONT_END_COMPLETION_QUEUE_CUH
#define DOORBELL_FRONT_END_COMPLETION_QUEUE_CUH

#include "front_end/state.cuh"

namespace front_end {

// Reserves up to `wanted` slots of the completion queue, all or none unless `some` will do. Returns how many, the index
// of the first and the sq_head that goes with them. One lane calls it.
struct Reservation {
  uint32_t count;
  uint32_t first;
  uint32_t sq_head;
};

__device__ __forceinline__ Reservation reserve(FrontEnd& f, uint32_t wanted, bool some, uint32_t advance_sq_head_to,
                                               bool advances) {
  uint64_t old = order::load_relaxed_block(&f.posted);
  for (;;) {
    const uint32_t tail = static_cast<uint32_t>(old);
    const uint32_t sq_head = advances ? advance_sq_head_to : static_cast<uint32_t>(old >> 32);
    // R4: never beyond what the host has released.
    uint32_t room = f.config.cq_size - (tail - order::load_acquire_block(&f.cq_head));
    if (DOORBELL_FAULT(ReservesBlindly)) room = wanted;
    const uint32_t count = wanted <= room ? wanted : (some ? room : 0);
    if (count < wanted && !some) return Reservation{0, tail, sq_head};
    const uint64_t next = static_cast<uint64_t>(sq_head) << 32 | (tail + count);
    const uint64_t seen = order::compare_swap_relaxed_block(&f.posted, old, next);
    if (seen == old) return Reservation{count, tail, sq_head};
    old = seen;
  }
}

// Writes the completions that lanes 0 to `count` - 1 have in `stage` as neighbours, two lanes to a completion.
__device__ __forceinline__ void write_completions(const FrontEnd& f, const ulonglong2* stage, uint32_t count,
                                                  uint32_t first, uint32_t lane) {
  const uint32_t mask = f.config.cq_size - 1;
  char* const queue = reinterpret_cast<char*>(f.config.cq_base);
  for (uint32_t base = 0; base < 2 * count; base += kWarp) {
    const uint32_t half = base + lane;
    if (half < 2 * count) {
      ulonglong2* const to =
          reinterpret_cast<ulonglong2*>(queue + 32ull * ((first + half / 2) & mask) + 16 * (half & 1));
      order::store_relaxed_sys(to, stage[half]);
    }
  }
}

// R14: notes that the completion with this index asked for an interrupt.
__device__ __forceinline__ void note_ask(FrontEnd& f, uint32_t index) {
  uint32_t newest = order::load_relaxed_block(&f.asked);
  // Unless a newer one has: those that are not released lie within the queue's size.
  while (newest - index - 1 >= f.config.cq_size) {
    const uint32_t seen = order::compare_swap_block(&f.asked, newest, index);
    if (seen == newest) break;
    newest = seen;
  }
  order::add_acq_rel_block(&f.asks, 1);
}

}  // namespace front_end

#endif
