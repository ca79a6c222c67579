// Every access of a kernel to memory that somebody else writes or reads at the same time, by name. docs/gpu.md argues
// why each order is enough.
#ifndef DOORBELL_MEMORY_ORDER_CUH
#define DOORBELL_MEMORY_ORDER_CUH

#include "doorbell_contract.h"

namespace order {

// ---------------------------------------------------------------- host memory, system scope

// What the host publishes by a release store: the mailbox.
__device__ __forceinline__ uint4 load_acquire_sys(const uint4* from) {
  uint4 value;
  asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(from) : "memory");
  return value;
}

// Part of a submission slot, in the 64-bit words in which the host writes it: the memory model promises nothing where
// sizes differ. No order is needed: the slot verifies itself (R2).
__device__ __forceinline__ uint4 load_relaxed_sys(const uint4* from) {
  uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
  return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                    static_cast<uint32_t>(high >> 32));
}

__device__ __forceinline__ uint32_t load_relaxed_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_relaxed_sys(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// A token, a counter, a scale: ordered by a fence or a release behind it.
__device__ __forceinline__ void store_relaxed_sys(uint16_t* to, uint16_t value) {
  asm volatile("st.relaxed.sys.global.u16 [%0], %1;" :: "l"(to), "h"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(to), "l"(value) : "memory");
}

// Half of a completion, which the host sees as a whole or not at all.
__device__ __forceinline__ void store_relaxed_sys(ulonglong2* to, ulonglong2 value) {
  asm volatile("{\n\t.reg .b128 half;\n\tmov.b128 half, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], half;\n\t}"
               :: "l"(to), "l"(value.x), "l"(value.y) : "memory");
}

// An acknowledgement: whoever sees it sees what came before.
__device__ __forceinline__ void store_release_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(to), "r"(value) : "memory");
}

// What another agent counts up by a release store.
__device__ __forceinline__ uint64_t load_acquire_sys(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// The last word of a record: whoever sees it sees the others.
__device__ __forceinline__ void store_release_sys(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(to), "l"(value) : "memory");
}

// Counts in host memory what the host only reads: one step for the GPU's threads.
__device__ __forceinline__ void add_release_sys(uint64_t* to, uint64_t amount) {
  asm volatile("red.add.release.sys.global.u64 [%0], %1;" :: "l"(to), "l"(amount) : "memory");
}

// Orders everything that this thread wrote, or saw written, before what it writes from here on, for the host too.
__device__ __forceinline__ void fence_sys() {
#ifndef DOORBELL_WITHOUT_FENCE_SYS  // planted, for the stress test to find
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// The clock of the whole GPU, in nanoseconds. Where it stands in the text it is read: behind a look at what came before.
__device__ __forceinline__ uint64_t load_clock() {
  uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value) :: "memory");
  return value;
}

// ---------------------------------------------------------------- device memory, GPU scope

__device__ __forceinline__ uint64_t load_acquire_gpu(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_relaxed_gpu(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ uint32_t load_relaxed_gpu(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Two words, each of which is whole.
__device__ __forceinline__ ulonglong2 load_relaxed_gpu(const ulonglong2* from) {
  ulonglong2 value;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.x), "=l"(value.y) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void store_relaxed_gpu(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_gpu(uint64_t* to, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" :: "l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(to), "l"(value) : "memory");
}

// Decides who of two has a slot of the work queue; orders nothing.
__device__ __forceinline__ uint64_t compare_swap_relaxed_gpu(uint64_t* to, uint64_t expected, uint64_t value) {
  uint64_t old;
  asm volatile("atom.cas.relaxed.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "l"(to), "l"(expected), "l"(value) : "memory");
  return old;
}

// The same, of who hands something over.
__device__ __forceinline__ uint64_t compare_swap_release_gpu(uint64_t* to, uint64_t expected, uint64_t value) {
  uint64_t old;
  asm volatile("atom.cas.release.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "l"(to), "l"(expected), "l"(value) : "memory");
  return old;
}

__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void store_release_gpu(uint32_t* to, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(value) : "memory");
}

// Takes what its holder gives back by a release.
__device__ __forceinline__ uint32_t compare_swap_acquire_gpu(uint32_t* to, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.cas.acquire.gpu.global.b32 %0, [%1], %2, %3;"
               : "=r"(old) : "l"(to), "r"(expected), "r"(value) : "memory");
  return old;
}

// Clears bits that others change too.
__device__ __forceinline__ void clear_bits_release_gpu(uint32_t* to, uint32_t bits) {
  asm volatile("red.and.release.gpu.global.b32 [%0], %1;" :: "l"(to), "r"(~bits) : "memory");
}

// Sets bits that others set too; orders nothing.
__device__ __forceinline__ void set_bits_gpu(uint32_t* to, uint32_t bits) {
  asm volatile("red.or.relaxed.gpu.global.b32 [%0], %1;" :: "l"(to), "r"(bits) : "memory");
}

__device__ __forceinline__ void set_bits_gpu(uint64_t* to, uint64_t bits) {
  asm volatile("red.or.relaxed.gpu.global.b64 [%0], %1;" :: "l"(to), "l"(bits) : "memory");
}

// Counts an arrival: whoever sees it sees what came before.
__device__ __forceinline__ void add_release_gpu(uint32_t* to, uint32_t amount) {
  asm volatile("red.add.release.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(amount) : "memory");
}

// Takes a ticket, if nobody else has; orders nothing.
__device__ __forceinline__ uint32_t compare_swap_relaxed_gpu(uint32_t* to, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.cas.relaxed.gpu.global.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(to), "r"(expected), "r"(value) : "memory");
  return old;
}

// Takes the next of a sequence of tickets; orders nothing.
__device__ __forceinline__ uint32_t take_tickets_gpu(uint32_t* counter, uint32_t count) {
  uint32_t first;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(first) : "l"(counter), "r"(count) : "memory");
  return first;
}

__device__ __forceinline__ void count_gpu(uint64_t* counter, uint64_t amount) {
  asm volatile("red.add.relaxed.gpu.global.u64 [%0], %1;" :: "l"(counter), "l"(amount) : "memory");
}

// ---------------------------------------------------------------- shared memory, block scope

// compute-sanitizer's racecheck knows barriers and atomic operations, and no acquire or release. For it, with
// DOORBELL_RACECHECK, every access by one of the names below is atomic: what it then reports is accessed by no name.
#ifdef DOORBELL_RACECHECK
#define DOORBELL_LOAD_BLOCK(order, bits) "atom." order ".cta.shared.or.b" bits " %0, [%1], 0;"
#define DOORBELL_STORE_BLOCK(order, bits) \
  "{\n\t.reg .b" bits " old;\n\tatom." order ".cta.shared.exch.b" bits " old, [%0], %1;\n\t}"
#else
#define DOORBELL_LOAD_BLOCK(order, bits) "ld." order ".cta.shared.u" bits " %0, [%1];"
#define DOORBELL_STORE_BLOCK(order, bits) "st." order ".cta.shared.u" bits " [%0], %1;"
#endif

__device__ __forceinline__ void fence_block() {
  asm volatile("fence.acq_rel.cta;" ::: "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint32_t load_acquire_block(const uint32_t* from) {
  uint32_t value;
  asm volatile(DOORBELL_LOAD_BLOCK("acquire", "32") : "=r"(value) : "r"(shared_address(from)) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_relaxed_block(const uint64_t* from) {
  uint64_t value;
  asm volatile(DOORBELL_LOAD_BLOCK("relaxed", "64") : "=l"(value) : "r"(shared_address(from)) : "memory");
  return value;
}

__device__ __forceinline__ uint32_t load_relaxed_block(const uint32_t* from) {
  uint32_t value;
  asm volatile(DOORBELL_LOAD_BLOCK("relaxed", "32") : "=r"(value) : "r"(shared_address(from)) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_relaxed_block(const uint4* from) {
#ifdef DOORBELL_RACECHECK
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(from);
  return make_uint4(load_relaxed_block(words), load_relaxed_block(words + 1), load_relaxed_block(words + 2),
                    load_relaxed_block(words + 3));
#else
  uint4 value;
  asm volatile("ld.relaxed.cta.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(shared_address(from)) : "memory");
  return value;
#endif
}

// The same in two words of 64 bits, each of which is whole.
__device__ __forceinline__ uint4 load_halves_block(const uint4* from) {
  uint64_t low, high;
#ifdef DOORBELL_RACECHECK
  const uint64_t* const halves = reinterpret_cast<const uint64_t*>(from);
  low = load_relaxed_block(halves);
  high = load_relaxed_block(halves + 1);
#else
  asm volatile("ld.relaxed.cta.shared.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "r"(shared_address(from)) : "memory");
#endif
  return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                    static_cast<uint32_t>(high >> 32));
}

__device__ __forceinline__ void store_release_block(uint32_t* to, uint32_t value) {
  asm volatile(DOORBELL_STORE_BLOCK("release", "32") :: "r"(shared_address(to)), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_block(uint64_t* to, uint64_t value) {
  asm volatile(DOORBELL_STORE_BLOCK("release", "64") :: "r"(shared_address(to)), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_block(uint32_t* to, uint32_t value) {
  asm volatile(DOORBELL_STORE_BLOCK("relaxed", "32") :: "r"(shared_address(to)), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t add_acq_rel_block(uint32_t* to, uint32_t amount) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.cta.shared.u32 %0, [%1], %2;"
               : "=r"(old) : "r"(shared_address(to)), "r"(amount) : "memory");
  return old;
}

__device__ __forceinline__ uint32_t compare_swap_block(uint32_t* to, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.cas.acq_rel.cta.shared.b32 %0, [%1], %2, %3;"
               : "=r"(old) : "r"(shared_address(to)), "r"(expected), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ uint64_t load_acquire_block(const uint64_t* from) {
  uint64_t value;
  asm volatile(DOORBELL_LOAD_BLOCK("acquire", "64") : "=l"(value) : "r"(shared_address(from)) : "memory");
  return value;
}

// Hands out numbers, and no memory with them.
__device__ __forceinline__ uint32_t compare_swap_relaxed_block(uint32_t* to, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.cas.relaxed.cta.shared.b32 %0, [%1], %2, %3;"
               : "=r"(old) : "r"(shared_address(to)), "r"(expected), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ uint64_t compare_swap_relaxed_block(uint64_t* to, uint64_t expected, uint64_t value) {
  uint64_t old;
  asm volatile("atom.cas.relaxed.cta.shared.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "r"(shared_address(to)), "l"(expected), "l"(value) : "memory");
  return old;
}

__device__ __forceinline__ void store_relaxed_block(uint64_t* to, uint64_t value) {
  asm volatile(DOORBELL_STORE_BLOCK("relaxed", "64") :: "r"(shared_address(to)), "l"(value) : "memory");
}

}  // namespace order

#endif
