// The kernel's text, whole, for the CPU. Its memory orders come first, so that its own are left out; and how it reads weights.
#include "language_memory.h"
#include "memory_order.h"

#include <cstring>

// Few of everything, so that tests run out of it, and counts that wrap early in every session (R13).
#define DOORBELL_FETCH_WARPS 2
#define DOORBELL_PLACES_LOG2 5
#define DOORBELL_FIRST_PLACE (0u - 32)
#define DOORBELL_WORK_SLOTS 2048
#define DOORBELL_SHARE 8
#define DOORBELL_TURN 3

#include "doorbell.cu"

// Shared memory of the block, which is one thread.
thread_local FrontEnd front_end_memory[1];
namespace language {
thread_local uint4 language_memory[kBlockShared / sizeof(uint4)];
}

// With one engine for warps the kernel does not choose. Here is what it will do with more.
namespace several {

template <uint32_t kId>
struct Engine {
  static constexpr uint32_t id() { return kId; }
};
using Engines = engine::Table<Engine<10>, Engine<11>, Engine<12>>;
constexpr uint32_t chosen(uint32_t id) {
  return Engines::with(id, [](auto engine) { return decltype(engine)::Type::id(); });
}
static_assert(chosen(0) == 10 && chosen(1) == 11 && chosen(2) == 12, "an id is a place in the table");
static_assert(Engines::has(2) && !Engines::has(3) && !Engines::has(0xFFFF), "and others are not in it");

}  // namespace several

namespace cpu {

// ptxas of CUDA 13.5 gives an exchange behind the first 4 MB of a structure a wrong address.
static_assert(offsetof(DeviceState, done) < (4u << 20), "what is changed by exchanges stands before `done`");

Sizes kernel_sizes() { return Sizes{sizeof(DeviceState), kBlockThreads, language::Single::kTeams, language::kBenchState, sizeof(language::PageSet)}; }

// A GPU gives a block whatever its shared memory held.
void kernel_prepare_block() {
  std::memset(static_cast<void*>(front_end_memory), 0xA5, sizeof front_end_memory);
  std::memset(static_cast<void*>(language::language_memory), 0xA5, sizeof language::language_memory);
}

void kernel_lane(void* state, void* models, void* caches, void* benches, uint64_t bench_bytes, void* pages, const doorbell_cpu_options& options) {
  DeviceState* const of_device = static_cast<DeviceState*>(state);
  doorbell_mailbox* const mailboxes = static_cast<doorbell_mailbox*>(options.mailboxes);
  if (options.language_blocks == 0) return doorbell_persistent(of_device, mailboxes, options.queues);
  const auto kernel = options.language_small != 0 ? doorbell_language_small : doorbell_language;
  kernel(of_device, mailboxes, options.queues, static_cast<char*>(models), options.model_bytes, static_cast<char*>(caches),
         options.cache_bytes, options.language_blocks, options.language_teams, options.language_columns, static_cast<char*>(benches), bench_bytes,
         static_cast<char*>(pages), options.page_set_bytes, options.page_sets);
}

void kernel_probe(void* arguments) {
  LanguageProbe* const probe = static_cast<LanguageProbe*>(arguments);
  (probe->teams == 1 ? probe_language : probe_language_small)(probe);
}

void kernel_exit(void* mailboxes, uint32_t queues) {
  for (uint32_t queue = 0; queue < queues; queue++)
    __atomic_store_n(&static_cast<doorbell_mailbox*>(mailboxes)[queue].wanted, DOORBELL_SESSION_EXIT, __ATOMIC_RELEASE);
}

}  // namespace cpu
