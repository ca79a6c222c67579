// The names of kernels/memory_order.cuh on the atomics of a CPU, in its place: same names, same orders, every scope the
// whole machine, but where they count (runtime.h), that of a block.
#ifndef DOORBELL_MEMORY_ORDER_CUH
#define DOORBELL_MEMORY_ORDER_CUH

#include "cuda.h"
#include "doorbell_contract.h"

namespace order {

template <typename T>
inline T load_relaxed(const T* from) {
  cpu::step();
  if (cpu::is_weak()) return static_cast<T>(cpu::load_late(from, sizeof(T)));
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

template <typename T>
inline T load_acquire(const T* from) {
  cpu::step();
  cpu::settle(from);
  const T value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
  cpu::acquires();
  return value;
}

template <typename T>
inline void store_relaxed(T* to, T value) {
  cpu::step();
  if (cpu::is_weak()) return cpu::store_late(to, sizeof(T), value);
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

template <typename T>
inline void store_release(T* to, T value, cpu::Scope scope) {
  if (cpu::has(cpu::Fault::RelaxesReleases)) return store_relaxed(to, value);
  cpu::step();
  cpu::settle(to);
  cpu::releases(scope);
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

template <typename T>
inline T compare_swap_relaxed(T* to, T expected, T value) {
  cpu::step();
  cpu::settle(to);
  if (__atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) cpu::progress();
  return expected;
}

template <typename T>
inline T compare_swap_release(T* to, T expected, T value) {
  if (cpu::has(cpu::Fault::RelaxesReleases)) return compare_swap_relaxed(to, expected, value);
  cpu::step();
  cpu::settle(to);
  cpu::releases(cpu::Scope::kMachine);
  if (__atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) cpu::progress();
  return expected;
}

template <typename T>
inline T compare_swap_acq_rel_block(T* to, T expected, T value) {
  cpu::step();
  cpu::settle(to);
  cpu::releases(cpu::Scope::kBlock);
  if (__atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) cpu::progress();
  cpu::acquires();
  return expected;
}

// ---------------------------------------------------------------- host memory, system scope

template <typename T>
inline const T* shared(const T* address) {
  return cpu::is_shared(address, sizeof(T)) ? address : nullptr;
}

// The elements of a vector in any order.
template <typename Load>
inline uint4 load_vector(const uint4* from, Load load) {
  uint32_t words[4] = {};
  const uint32_t* const at = reinterpret_cast<const uint32_t*>(from);
  const uint32_t first = cpu::below(4);
  for (uint32_t k = 0; k < 4; k++) words[(first + k) % 4] = load(at + (first + k) % 4);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

inline uint4 load_acquire_sys(const uint4* from) {
  if (!shared(from)) return uint4{};
  return load_vector(from, [](const uint32_t* word) { return load_acquire(word); });
}

// Two words of 64 bits, in any order.
inline uint4 load_relaxed_sys(const uint4* from) {
  if (!shared(from)) return uint4{};
  uint64_t words[2] = {};
  const uint64_t* const at = reinterpret_cast<const uint64_t*>(from);
  const uint32_t first = cpu::below(2);
  for (uint32_t k = 0; k < 2; k++) words[(first + k) % 2] = load_relaxed(at + (first + k) % 2);
  return make_uint4(static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[0] >> 32),
                    static_cast<uint32_t>(words[1]), static_cast<uint32_t>(words[1] >> 32));
}

inline uint32_t load_relaxed_sys(const uint32_t* from) { return shared(from) ? load_relaxed(from) : 0; }
inline uint64_t load_relaxed_sys(const uint64_t* from) { return shared(from) ? load_relaxed(from) : 0; }

inline void store_relaxed_sys(uint32_t* to, uint32_t value) {
  if (!shared(to)) return;
  cpu::progress();
  store_relaxed(to, value);
}

inline void store_relaxed_sys(uint16_t* to, uint16_t value) {
  if (shared(to)) store_relaxed(to, value);
}

inline void store_relaxed_sys(uint64_t* to, uint64_t value) {
  if (shared(to)) store_relaxed(to, value);
}

inline void store_release_sys(uint32_t* to, uint32_t value) {
  if (!shared(to)) return;
  cpu::progress();
  store_release(to, value, cpu::Scope::kMachine);
}

inline uint64_t load_acquire_sys(const uint64_t* from) { return shared(from) ? load_acquire(from) : 0; }

inline void store_release_sys(uint64_t* to, uint64_t value) {
  if (!shared(to)) return;
  cpu::progress();
  store_release(to, value, cpu::Scope::kMachine);
}

inline void add_release_sys(uint64_t* to, uint64_t amount) {
  if (!shared(to)) return;
  cpu::step();
  cpu::settle(to);
  cpu::releases(cpu::Scope::kMachine);
  __atomic_fetch_add(to, amount, cpu::has(cpu::Fault::RelaxesReleases) ? __ATOMIC_RELAXED : __ATOMIC_RELEASE);
  cpu::progress();
}

// Half of a completion as a whole: the host looks at the second word first, which thus has to come last.
inline void store_relaxed_sys(ulonglong2* to, ulonglong2 value) {
  if (!shared(to)) return;
  cpu::progress();
  cpu::step();
  if (cpu::has(cpu::Fault::TearsHalves)) {
    __atomic_store_n(&to->y, value.y, __ATOMIC_RELAXED);
    cpu::window(cpu::Fault::TearsHalves);
    __atomic_store_n(&to->x, value.x, __ATOMIC_RELAXED);
    return;
  }
  if (cpu::is_weak()) {
    cpu::store_late(&to->x, 16, value.x, value.y);
    return;
  }
  __atomic_store_n(&to->x, value.x, __ATOMIC_RELAXED);
  __atomic_store_n(&to->y, value.y, __ATOMIC_RELEASE);
}

inline void fence_sys() {
  cpu::step();
  cpu::releases(cpu::Scope::kMachine);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  cpu::acquires();
}

inline uint64_t load_clock() { return static_cast<uint64_t>(cpu::cycles()); }

// ---------------------------------------------------------------- device memory, GPU scope

inline uint64_t load_acquire_gpu(const uint64_t* from) { return load_acquire(from); }
inline uint64_t load_relaxed_gpu(const uint64_t* from) { return load_relaxed(from); }
inline uint32_t load_relaxed_gpu(const uint32_t* from) { return load_relaxed(from); }
inline ulonglong2 load_relaxed_gpu(const ulonglong2* from) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(from);
  return ulonglong2{load_relaxed(words), load_relaxed(words + 1)};
}
inline void store_relaxed_gpu(uint32_t* to, uint32_t value) { store_relaxed(to, value); }
inline void store_relaxed_gpu(uint64_t* to, uint64_t value) { store_relaxed(to, value); }

inline void store_release_gpu(uint64_t* to, uint64_t value) {
  cpu::progress();
  store_release(to, value, cpu::Scope::kMachine);
}

inline uint32_t load_acquire_gpu(const uint32_t* from) { return load_acquire(from); }

inline void store_release_gpu(uint32_t* to, uint32_t value) {
  cpu::progress();
  store_release(to, value, cpu::Scope::kMachine);
}

inline uint32_t compare_swap_acquire_gpu(uint32_t* to, uint32_t expected, uint32_t value) {
  cpu::step();
  cpu::settle(to);
  if (__atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) cpu::progress();
  cpu::acquires();
  return expected;
}

inline void clear_bits_release_gpu(uint32_t* to, uint32_t bits) {
  cpu::step();
  cpu::progress();
  cpu::settle(to);
  cpu::releases(cpu::Scope::kMachine);
  __atomic_fetch_and(to, ~bits, __ATOMIC_RELEASE);
}

inline uint64_t compare_swap_relaxed_gpu(uint64_t* to, uint64_t expected, uint64_t value) {
  return compare_swap_relaxed(to, expected, value);
}
inline uint64_t compare_swap_release_gpu(uint64_t* to, uint64_t expected, uint64_t value) {
  return compare_swap_release(to, expected, value);
}

inline void set_bits_gpu(uint32_t* to, uint32_t bits) {
  cpu::step();
  cpu::progress();
  cpu::settle(to);
  __atomic_fetch_or(to, bits, __ATOMIC_RELAXED);
}

inline void set_bits_gpu(uint64_t* to, uint64_t bits) {
  cpu::step();
  cpu::settle(to);
  __atomic_fetch_or(to, bits, __ATOMIC_RELAXED);
}

inline void add_release_gpu(uint32_t* to, uint32_t amount) {
  cpu::step();
  cpu::progress();
  cpu::settle(to);
  cpu::releases(cpu::Scope::kMachine);
  __atomic_fetch_add(to, amount, __ATOMIC_RELEASE);
}

inline uint32_t compare_swap_relaxed_gpu(uint32_t* to, uint32_t expected, uint32_t value) {
  return compare_swap_relaxed(to, expected, value);
}

inline uint32_t take_tickets_gpu(uint32_t* counter, uint32_t count) {
  cpu::step();
  cpu::progress();
  cpu::settle(counter);
  return __atomic_fetch_add(counter, count, __ATOMIC_RELAXED);
}

inline void count_gpu(uint64_t* counter, uint64_t amount) {
  cpu::step();
  cpu::settle(counter);
  __atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
}

// ---------------------------------------------------------------- shared memory, block scope

inline void fence_block() {
  cpu::step();
  cpu::releases(cpu::Scope::kBlock);
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
  cpu::acquires();
}

inline uint32_t load_acquire_block(const uint32_t* from) { return load_acquire(from); }
inline uint64_t load_acquire_block(const uint64_t* from) { return load_acquire(from); }
inline uint64_t load_relaxed_block(const uint64_t* from) { return load_relaxed(from); }
inline uint32_t load_relaxed_block(const uint32_t* from) { return load_relaxed(from); }

inline uint4 load_relaxed_block(const uint4* from) {
  return load_vector(from, [](const uint32_t* word) { return load_relaxed(word); });
}

inline uint4 load_halves_block(const uint4* from) {
  uint64_t words[2] = {};
  const uint64_t* const at = reinterpret_cast<const uint64_t*>(from);
  const uint32_t first = cpu::below(2);
  for (uint32_t k = 0; k < 2; k++) words[(first + k) % 2] = load_relaxed(at + (first + k) % 2);
  return make_uint4(static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[0] >> 32),
                    static_cast<uint32_t>(words[1]), static_cast<uint32_t>(words[1] >> 32));
}

inline void store_release_block(uint32_t* to, uint32_t value) { store_release(to, value, cpu::Scope::kBlock); }
inline void store_release_block(uint64_t* to, uint64_t value) { store_release(to, value, cpu::Scope::kBlock); }
inline void store_relaxed_block(uint32_t* to, uint32_t value) { store_relaxed(to, value); }
inline void store_relaxed_block(uint64_t* to, uint64_t value) { store_relaxed(to, value); }

inline uint32_t add_acq_rel_block(uint32_t* to, uint32_t amount) {
  cpu::step();
  cpu::progress();
  cpu::releases(cpu::Scope::kBlock);
  const uint32_t old = __atomic_fetch_add(to, amount, __ATOMIC_ACQ_REL);
  cpu::acquires();
  return old;
}

inline uint32_t compare_swap_block(uint32_t* to, uint32_t expected, uint32_t value) {
  return compare_swap_acq_rel_block(to, expected, value);
}
inline uint32_t compare_swap_relaxed_block(uint32_t* to, uint32_t expected, uint32_t value) {
  return compare_swap_relaxed(to, expected, value);
}
inline uint64_t compare_swap_relaxed_block(uint64_t* to, uint64_t expected, uint64_t value) {
  return compare_swap_relaxed(to, expected, value);
}

}  // namespace order

#endif
