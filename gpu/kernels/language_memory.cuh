// How engine 1 reads what it streams: weights of the image, which nobody writes while they are read, and copies of the little that a
// layer needs of it into shared memory. The build for the CPU has these names of its own (gpu/cpu/kernel/language_memory.h).
#ifndef DOORBELL_LANGUAGE_MEMORY_CUH
#define DOORBELL_LANGUAGE_MEMORY_CUH

#include "doorbell_contract.h"

namespace stream {

// 16 bytes that are used once: they take no place in the first cache. The compiler's own name, as it knows what to add to an address.
__device__ __forceinline__ uint4 load(const char* from) { return __ldcg(reinterpret_cast<const uint4*>(from)); }

// Brings so many bytes nearer, both multiples of 16: one lane calls it. Before compute capability 9.0 a GPU has an instruction for each line
// alone, which costs the time of a load, and does without.
__device__ __forceinline__ void prefetch([[maybe_unused]] const char* from, [[maybe_unused]] uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
#endif
}

// 16 bytes into shared memory, without waiting for them; both addresses are multiples of 16.
__device__ __forceinline__ void copy(void* to, const char* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
}

// Orders accesses of the generic proxy, loads and stores, and those of the async proxy, by which stretches are copied. A release and
// an acquire order those of one proxy only: where a model has been written by stores and is read by copies of stretches, a proxy fence has to
// stand between (PTX ISA, "Memory Consistency Model", proxy-preserved base causality order).
__device__ __forceinline__ void order_proxies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
// Each thread that has written weights calls it before the release with which it hands them on.
__device__ __forceinline__ void publish() { order_proxies(); }
// Each thread that is to copy stretches calls it behind the acquire with which it came to them.
__device__ __forceinline__ void subscribe() { order_proxies(); }

// What the build for the CPU checks: that no image is replaced by another while a team reads it, nor loaded over one, and that it lies in its
// place.
__device__ __forceinline__ void begins_to_read(const char*) {}
__device__ __forceinline__ void ends_reading(const char*) {}
__device__ __forceinline__ void begins_to_load(const char*, uint64_t) {}
__device__ __forceinline__ void is_replaced(const char*) {}
__device__ __forceinline__ void lies(const char*, uint64_t) {}

// Whether the GPU copies whole stretches of memory at one instruction.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kCopiesStretches = true;
#else
constexpr bool kCopiesStretches = false;
#endif

// Makes a word of shared memory one at which stretches arrive, one at a time. Whoever else waits there does so behind a barrier.
__device__ __forceinline__ void begin_arrivals([[maybe_unused]] uint64_t* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What threads have written to shared memory, seen behind a barrier, comes before stretches that this thread copies there.
__device__ __forceinline__ void order_stretches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Copies a stretch into shared memory, without waiting for it; addresses and bytes are multiples of 16. One lane calls it.
__device__ __forceinline__ void copy_stretch([[maybe_unused]] void* to, [[maybe_unused]] const char* from, [[maybe_unused]] uint32_t bytes,
                                             [[maybe_unused]] uint64_t* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to)), arrival = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrival), "r"(bytes) : "memory");
  if (bytes != 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(address), "l"(from), "r"(bytes), "r"(arrival) : "memory");
#endif
}

// The same of a stretch in several parts: how many bytes it has, by one lane; and behind a __syncwarp a part, by any.
__device__ __forceinline__ void expect_stretch([[maybe_unused]] uint32_t bytes, [[maybe_unused]] uint64_t* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t arrival = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrival), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void copy_part([[maybe_unused]] void* to, [[maybe_unused]] const char* from, [[maybe_unused]] uint32_t bytes,
                                          [[maybe_unused]] uint64_t* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to)), arrival = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(address), "l"(from), "r"(bytes), "r"(arrival) : "memory");
#endif
}

// Waits until the stretch has arrived whose number at `at`, from 0 on, has this parity. All lanes call it.
__device__ __forceinline__ void wait_for_stretch([[maybe_unused]] uint64_t* at, [[maybe_unused]] uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t arrival = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  uint32_t is = 0;
  while (is == 0)
    asm volatile("{\n\t.reg .pred is;\n\tmbarrier.try_wait.parity.shared::cta.b64 is, [%1], %2;\n\tselp.u32 %0, 1, 0, is;\n\t}"
                 : "=r"(is) : "r"(arrival), "r"(parity) : "memory");
#endif
}

// The same of host memory. What a thread has begun to copy since the last time is a group from here on; and it waits for all of its groups but the last so many.
__device__ __forceinline__ void copy_from_host(void* to, uint64_t from) { copy(to, reinterpret_cast<const char*>(from)); }
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint32_t kLast>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" :: "n"(kLast) : "memory");
}

// Waits for this thread's copies; a __syncthreads behind it makes them known to the block.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Sum of the products of four bytes with a sign each, and `sum`.
__device__ __forceinline__ int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
}

// A product of two numbers of 32 bits, and `sum`: one instruction, where the compiler takes five for a byte that has become 64 bits wide.
__device__ __forceinline__ long long multiply_wide(int32_t a, int32_t b, long long sum) {
  asm("mad.wide.s32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
  return sum;
}

// 16 rows by 32 channels times 32 channels by 8 columns, of bytes with a sign; all lanes call it, with what PTX calls the fragments of
// mma.m16n8k32: of rows lane / 4 and 8 behind it four channels each, twice, and the same of a column. The rows' bytes have no sign in the second.
__device__ __forceinline__ void multiply_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

// Adds the same to sums.
__device__ __forceinline__ void add_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  int32_t all[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(all[0]), "=r"(all[1]), "=r"(all[2]), "=r"(all[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(sums[0]), "r"(sums[1]), "r"(sums[2]), "r"(sums[3]));
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) sums[k] = all[k];
}

__device__ __forceinline__ void multiply_unsigned_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

}  // namespace stream

#endif
