// The kernel's text that posts into a send ring (kernels/nic_ring.cuh), by threads of the CPU, beside a NIC of its own that reads slots and
// payloads by plain accesses: ThreadSanitizer reports each that nothing orders. Arguments: finishers, entries of each, slots, and what is
// planted ("releases": what should be a release is none).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "memory_order.h"

#include "nic_ring.cuh"

// What the names of memory orders, and of threads, ask of the runtime that runs whole kernels: here there is none, and threads are the system's.
namespace cpu {
static bool planted = false;
thread_local Index thread_index, block_index, block_size, grid_size;
// Others come first now and then: there may be fewer processors than threads.
void step() {
  thread_local uint32_t steps = 0;
  if (++steps % 64 == 0) std::this_thread::yield();
}
void progress() {}
void acquires() {}
void releases(Scope) {}
void settle(const void*) {}
bool is_weak() { return false; }
bool has(Fault fault) { return planted && fault == Fault::RelaxesReleases; }
bool is_shared(const void*, size_t) { return true; }
uint32_t below(uint32_t) { return 0; }
void window(Fault) {}
uint64_t load_late(const void*, uint32_t) { return 0; }
void store_late(void*, uint32_t, uint64_t, uint64_t) {}
void yields() {}
void meet_block() {}
uint64_t meet(Meeting, uint32_t, uint64_t value, uint32_t) { return value; }
}  // namespace cpu

static int fail(const char* what, uint64_t at) {
  std::printf("FAILED: %s, entry %llu\n", what, static_cast<unsigned long long>(at));
  std::fflush(stdout);
  std::_Exit(1);
}

int main(int argc, char** argv) {
  const uint32_t finishers = argc > 1 ? std::atoi(argv[1]) : 4, each = argc > 2 ? std::atoi(argv[2]) : 2000;
  const uint32_t slots = argc > 3 ? std::atoi(argv[3]) : 8, key = 0xD00B;
  cpu::planted = argc > 4 && std::string(argv[4]) == "releases";
  const size_t ring_bytes = DOORBELL_NIC_SLOTS_AT + 64ull * slots, region_bytes = 4ull * nic::kPayloadWords * nic::kPayloads * finishers;
  char* const memory = static_cast<char*>(std::aligned_alloc(64, (ring_bytes + 63) / 64 * 64));
  char* const region = static_cast<char*>(std::aligned_alloc(64, (region_bytes + 63) / 64 * 64));
  std::memset(memory, 0, ring_bytes);
  std::memset(region, 0, region_bytes);
  nic::Shared shared{};
  const nic::Ring ring{memory, &shared, slots, key};
  std::vector<uint32_t> outcomes(finishers, 0);
  std::vector<std::thread> threads;
  for (uint32_t finisher = 0; finisher < finishers; finisher++)
    threads.emplace_back([&, finisher] { outcomes[finisher] = nic::finish(ring, region, finisher, each, ~0ull); });
  // The NIC: what nic/src/ring.rs has as Taker.
  std::vector<uint32_t> next(finishers, 0);
  const uint64_t total = static_cast<uint64_t>(finishers) * each;
  uint64_t misses = 0;
  for (uint64_t index = 0; index < total;) {
    const uint64_t bell = __atomic_load_n(ring.word(DOORBELL_NIC_BELL_AT), __ATOMIC_ACQUIRE);
    uint64_t* const slot = ring.slot(index);
    const uint64_t last = bell == index ? 0 : __atomic_load_n(slot + 7, __ATOMIC_ACQUIRE);
    if (last >> 32 == 0 || static_cast<uint32_t>(last) != static_cast<uint32_t>(index)) {
      if (++misses > (1ull << 34)) fail("nothing comes", index);
      if (misses % 64 == 0) std::this_thread::yield();
      continue;
    }
    misses = 0;
    nic::Entry taken;
    for (uint32_t k = 0; k < 7; k++) taken.words[k] = slot[k];
    taken.words[7] = last;
    const doorbell_hw_nic_entry entry = taken.fields;
    nic::seal(taken, key ^ nic::kKey, index);
    if (taken.words[7] != last) fail("the check word does not match", index);
    const uint32_t finisher = static_cast<uint32_t>(entry.user_data >> 32), k = static_cast<uint32_t>(entry.user_data);
    if (finisher >= finishers || entry.poster != finisher || k != next[finisher]) fail("lost, doubled or out of order", index);
    next[finisher]++;
    const uint32_t* const payload = reinterpret_cast<const uint32_t*>(region + entry.offset);
    uint32_t digest = DOORBELL_DIGEST_INIT;
    for (uint32_t j = 0; j < nic::kPayloadWords; j++) {
      if (payload[j] != nic::payload_word(finisher, k, j)) fail("the payload is torn", index);
      digest = (digest ^ payload[j]) * DOORBELL_DIGEST_PRIME;
    }
    if (digest != entry.digest || entry.length != 4 * nic::kPayloadWords) fail("the payload is another", index);
    index++;
    __atomic_store_n(ring.word(DOORBELL_NIC_COMPLETED_AT), index, __ATOMIC_RELEASE);
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint32_t outcome : outcomes)
    if (outcome != each) fail("a finisher gave up", outcome);
  std::printf("modelled NIC: %llu entries of %u finishers taken whole, in order, once\n", static_cast<unsigned long long>(total), finishers);
  return 0;
}
