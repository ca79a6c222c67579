#include "runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#if defined(DOORBELL_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace cpu {

thread_local Index thread_index, block_index, block_size, grid_size;
thread_local Ranges ranges;

namespace {

using Clock = std::chrono::steady_clock;

// Not a power of two: the stacks of all lanes would share a few sets of the processor's caches.
constexpr size_t kStackBytes = (64 << 10) + 5 * 64;
// Rounds in vain before a block rests, and for how long at most.
constexpr uint32_t kLooks = 8;
constexpr auto kRest = std::chrono::microseconds(500);
// Rounds that a host gives every block when it gives the device time: enough for news to pass through all roles and back.
constexpr uint32_t kRounds = 6;
// How long it waits for them at most (R15).
constexpr auto kPatience = std::chrono::seconds(2);
// Stores that a warp, or a block, may know of before anybody else does.
constexpr size_t kMostLate = 512;
// How long a planted fault holds its window open.
constexpr auto kWindow = std::chrono::milliseconds(2);

// ---------------------------------------------------------------- fibres

#if defined(__x86_64__)
// Saves what a function has to keep on the stack, and the stack in `*from`; goes on with that of `to`.
extern "C" void doorbell_cpu_switch(void** from, void* to);
asm(R"(
.text
.globl doorbell_cpu_switch
.hidden doorbell_cpu_switch
.type doorbell_cpu_switch, @function
doorbell_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size doorbell_cpu_switch, .-doorbell_cpu_switch
)");

class Context {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    // As if `entry` had been called: the return address lies 8 bytes below a multiple of 16.
    void** top = reinterpret_cast<void**>(stack + bytes) - 1;
    *--top = reinterpret_cast<void*>(entry);
    for (int k = 0; k < 6; k++) *--top = nullptr;
    stack_ = top;
  }
  void switch_to(Context& to) { doorbell_cpu_switch(&stack_, to.stack_); }
  void prefetch() const { __builtin_prefetch(stack_); }

 private:
  void* stack_ = nullptr;
};
#else
#include <ucontext.h>

class Context {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  void switch_to(Context& to) { swapcontext(&context_, &to.context_); }
  void prefetch() const {}

 private:
  ucontext_t context_{};
};
#endif

// ---------------------------------------------------------------- device

struct Block;

using Memory = std::unique_ptr<void, void (*)(void*)>;

struct Device {
  explicit Device(const doorbell_cpu_options& from) : options(from) {}

  doorbell_cpu_options options;
  Fault fault = Fault::kNone;
  // The kernel's own, and of engine 1 the models, and the keys and values of each block.
  Memory state{nullptr, std::free}, models{nullptr, std::free}, caches{nullptr, std::free}, benches{nullptr, std::free},
      pages{nullptr, std::free};
  uint64_t bench_bytes = 0;
  Ranges ranges;
  std::atomic<uint32_t> readers[3 * 16] = {};  // teams that read the model, by its place
  void* probe = nullptr;  // what its lanes run instead of the kernel, if it is not null
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::thread> threads;
  std::atomic<bool> dead{false};
  std::mutex mutex;
  std::condition_variable wake;
  uint64_t woken = 0;
  std::string complaint;  // the first thing that went wrong

  void complain(const std::string& what) {
    std::lock_guard<std::mutex> guard(mutex);
    if (complaint.empty()) complaint = what;
  }
};

// A load's word as the lane last synchronised with it, or a store that is not visible yet.
struct Seen {
  const void* word;
  uint32_t width;
  uint64_t value;
};
struct Late {
  void* word;
  uint32_t width;
  uint64_t value, last;
};

struct alignas(64) Lane {
  Context context;
  void* fibre = nullptr;  // ThreadSanitizer's
  uint32_t index = 0;     // in the block
  enum { kReady, kMeets, kAtBarrier, kEnded } state = kReady;
  Meeting meeting = Meeting::kSync;
  uint32_t mask = 0, argument = 0;
  uint64_t value = 0, result = 0;
  std::vector<Seen> seen;
  std::vector<Late> late;
};

struct Warp {
  Warp() { late.reserve(2 * kMostLate); }

  bool looked = false;  // since the last round
  uint32_t met = 0;     // lanes that wait for others of the warp
  char meeting = 0;     // what its lanes synchronise by, for ThreadSanitizer
  // Stores that __syncwarp has made known to every lane of the warp, and to nobody else. Room for all of them is there
  // from the start, as lanes that allocate in turn would race in the eyes of ThreadSanitizer.
  std::vector<Late> late;
};

// Lanes that can go on, each at most once: of a fixed size, as lanes that allocate in turn would race in the eyes of
// ThreadSanitizer.
class Ready {
 public:
  explicit Ready(uint32_t lanes) : ring_(lanes) {}
  bool empty() const { return count_ == 0; }
  uint32_t size() const { return count_; }
  uint32_t& operator[](uint32_t k) { return ring_[wrapped(first_ + k)]; }
  void push(uint32_t lane) { (*this)[count_++] = lane; }
  uint32_t pop() {
    const uint32_t lane = (*this)[0];
    first_ = wrapped(first_ + 1);
    count_--;
    return lane;
  }

 private:
  uint32_t wrapped(uint32_t at) const { return at < ring_.size() ? at : at - static_cast<uint32_t>(ring_.size()); }

  std::vector<uint32_t> ring_;
  uint32_t first_ = 0, count_ = 0;
};

struct Block {
  Block(Device& device, uint32_t index, uint32_t grid, uint32_t lanes)
      : device(device), index(index), grid(grid), random(device.options.seed * 0x1000 + index), lanes(lanes),
        warps(lanes / kLanes), ready(lanes) {
    late.reserve(2 * kMostLate);
  }

  Device& device;
  const uint32_t index, grid;
  uint64_t random;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<Late> late;  // stores that were released to the block, and are known to nobody else
  Ready ready;
  uint32_t current = 0, live = 0, at_barrier = 0;
  Context main;
  void* main_fibre = nullptr;
  char barrier = 0;
  uint32_t quiet = 0;  // rounds without progress
  std::atomic<uint64_t> rounds{0};
  std::atomic<bool> ended{false};
};

thread_local Block* block = nullptr;

void tsan_release([[maybe_unused]] void* at) {
#if defined(DOORBELL_TSAN)
  __tsan_release(at);
#endif
}

void tsan_acquire([[maybe_unused]] void* at) {
#if defined(DOORBELL_TSAN)
  __tsan_acquire(at);
#endif
}

void announce([[maybe_unused]] void* fibre) {
#if defined(DOORBELL_TSAN)
  // Lanes of one thread are as little ordered as any.
  __tsan_switch_to_fiber(fibre, __tsan_switch_to_fiber_no_sync);
#endif
}

Lane& lane() { return block->lanes[block->current]; }
Warp& warp() { return block->warps[block->current / kLanes]; }

const char* name(Meeting meeting) {
  const char* const names[] = {"__syncwarp", "__shfl_sync", "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync",
                               "__match_any_sync", "__reduce_max_sync", "__reduce_add_sync", "__reduce_or_sync"};
  return names[static_cast<uint32_t>(meeting)];
}

// Back to the thread, for good.
[[noreturn]] void abandon() {
  Lane& from = lane();
  announce(block->main_fibre);
  from.context.switch_to(block->main);
  std::abort();
}

void say_deadlock() {
  std::string what = "block " + std::to_string(block->index) + ": every lane waits for another:";
  for (const Lane& each : block->lanes) {
    if (each.index % kLanes > 1 || each.state == Lane::kEnded) continue;
    what += " warp " + std::to_string(each.index / kLanes) + " lane " + std::to_string(each.index % kLanes) + " at " +
            (each.state == Lane::kAtBarrier ? "__syncthreads" : name(each.meeting)) + ";";
  }
  block->device.complain(what);
}

// Lets the next lane go on. The current one is where it belongs: ready, or waiting, or at its end.
void next() {
  if (block->device.dead.load(std::memory_order_relaxed)) abandon();
  if (block->ready.empty()) {
    if (block->live != 0) {
      say_deadlock();
      block->device.dead = true;
    }
    abandon();
  }
  // Under stress any of the first few, not the first.
  if (block->device.options.stress != 0 && block->ready.size() > 1) {
    const uint32_t from = below(std::min(block->ready.size(), kLanes));
    std::swap(block->ready[0], block->ready[from]);
  }
  const uint32_t to = block->ready.pop();
  if (!block->ready.empty()) block->lanes[block->ready[0]].context.prefetch();
  if (to == block->current) return;
  Lane& from = lane();
  block->current = to;
  thread_index.x = to;
  Lane& target = block->lanes[to];
  announce(target.fibre);
  from.context.switch_to(target.context);
}

void make_ready(uint32_t index) {
  block->lanes[index].state = Lane::kReady;
  block->ready.push(index);
}

// Every lane gets its part.
void conclude(uint32_t first, Meeting meeting, uint32_t mask) {
  Lane* const lanes = &block->lanes[first];
  uint64_t all = 0;
  const auto each = [&](auto what) {
    for (uint32_t k = 0; k < kLanes; k++)
      if (mask >> k & 1) what(k);
  };
  switch (meeting) {
    case Meeting::kSync:
      break;
    case Meeting::kShuffle:
      each([&](uint32_t k) { lanes[k].result = lanes[lanes[k].argument % kLanes].value; });
      return;
    case Meeting::kShuffleXor:
      each([&](uint32_t k) { lanes[k].result = lanes[(k ^ lanes[k].argument) % kLanes].value; });
      return;
    case Meeting::kBallot:
    case Meeting::kAny:
      each([&](uint32_t k) { all |= static_cast<uint64_t>(lanes[k].value != 0) << k; });
      break;
    case Meeting::kAll:
      all = 1;
      each([&](uint32_t k) { all &= lanes[k].value != 0; });
      break;
    case Meeting::kMatch:
      each([&](uint32_t k) {
        lanes[k].result = 0;
        each([&](uint32_t other) { lanes[k].result |= static_cast<uint64_t>(lanes[k].value == lanes[other].value) << other; });
      });
      return;
    case Meeting::kMax:
      each([&](uint32_t k) { all = std::max(all, lanes[k].value); });
      break;
    case Meeting::kAdd:
      each([&](uint32_t k) { all = static_cast<uint32_t>(all + lanes[k].value); });
      break;
    case Meeting::kOr:
      each([&](uint32_t k) { all |= lanes[k].value; });
      break;
  }
  each([&](uint32_t k) { lanes[k].result = all; });
}

void pass_barrier() {
  block->at_barrier = 0;
  for (Lane& each : block->lanes)
    if (each.state == Lane::kAtBarrier) make_ready(each.index);
}

// A round is over once every warp has looked, but for those that wait for the block or have ended.
void look() {
  warp().looked = true;
  for (uint32_t k = 0; k < block->warps.size(); k++) {
    const auto state = block->lanes[k * kLanes].state;
    if (!block->warps[k].looked && state != Lane::kAtBarrier && state != Lane::kEnded) return;
  }
  for (Warp& each : block->warps) each.looked = false;
  block->rounds.fetch_add(1, std::memory_order_relaxed);
  if (++block->quiet <= kLooks) {
    std::this_thread::yield();
    return;
  }
  Device& device = block->device;
  std::unique_lock<std::mutex> guard(device.mutex);
  const uint64_t woken = device.woken;
  device.wake.wait_for(guard, kRest, [&] { return device.woken != woken || device.dead; });
}

// Under stress: every other lane goes first, now and then many times over.
void pause() {
  for (uint32_t k = below(32) == 0 ? below(40) : below(4); k > 0; k--) {
    make_ready(block->current);
    next();
  }
}

uint64_t read(const void* from, uint32_t width) {
  return width == 4 ? __atomic_load_n(static_cast<const uint32_t*>(from), __ATOMIC_RELAXED)
                    : __atomic_load_n(static_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
}

void write(const Late& store) {
  if (store.width == 2) {
    __atomic_store_n(static_cast<uint16_t*>(store.word), static_cast<uint16_t>(store.value), __ATOMIC_RELAXED);
    return;
  }
  if (store.width == 4) {
    __atomic_store_n(static_cast<uint32_t*>(store.word), static_cast<uint32_t>(store.value), __ATOMIC_RELAXED);
    return;
  }
  uint64_t* const words = static_cast<uint64_t*>(store.word);
  __atomic_store_n(words, store.value, __ATOMIC_RELAXED);
  if (store.width == 16) __atomic_store_n(words + 1, store.last, __ATOMIC_RELEASE);
}

void drain(std::vector<Late>& late, const void* word) {
  for (size_t k = 0; k < late.size();) {
    if (late[k].word == word) {
      write(late[k]);
      late.erase(late.begin() + static_cast<std::ptrdiff_t>(k));
    } else {
      k++;
    }
  }
}

// Stores become visible in any order, but for those to one word: what a block knows of is older than what a warp alone
// does, and that than the lane's own.
void drain_one(std::vector<Late>& late) {
  const size_t from = below(static_cast<uint32_t>(late.size()));
  size_t first = 0;
  while (late[first].word != late[from].word) first++;
  const Late store = late[first];
  late.erase(late.begin() + static_cast<std::ptrdiff_t>(first));
  if (&late != &block->late) {
    drain(block->late, store.word);
    if (&late != &warp().late) drain(warp().late, store.word);
  }
  write(store);
}

void drain(std::vector<Late>& late) {
  while (!late.empty()) drain_one(late);
}

// The newest store to a word, or null.
const Late* newest(const std::vector<Late>& late, const void* word) {
  for (size_t k = late.size(); k-- > 0;)
    if (late[k].word == word) return &late[k];
  return nullptr;
}

// What a lane reads that has synchronised with its warp and block.
uint64_t known(const void* word, uint32_t width) {
  for (const std::vector<Late>* late : {&warp().late, &block->late})
    if (const Late* const store = newest(*late, word)) return store->value;
  return read(word, width);
}

// Lets others know of stores: those of a warp, or of a block.
void hand_on(std::vector<Late>& from, std::vector<Late>& to) {
  if (to.size() + from.size() > kMostLate) drain(to);
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

void lane_entry() {
  Device& device = block->device;
  if (device.probe != nullptr) {
    kernel_probe(device.probe);
  } else {
    kernel_lane(device.state.get(), device.models.get(), device.caches.get(), device.benches.get(), device.bench_bytes, device.pages.get(),
                device.options);
  }
  releases(Scope::kMachine);
  Lane& self = lane();
  tsan_release(&block->main);
  self.state = Lane::kEnded;
  block->live--;
  if (block->live != 0 && block->at_barrier == block->live) pass_barrier();
  next();
  std::abort();
}

void run_block(Block& own) {
  block = &own;
  block_index.x = own.index;
  ranges = own.device.ranges;
  grid_size.x = own.grid;
  block_size.x = static_cast<uint32_t>(own.lanes.size());
  kernel_prepare_block();
  const size_t bytes = own.lanes.size() * kStackBytes;
  void* const stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    own.device.complain("no memory for the stacks of a block");
    own.ended = true;
    return;
  }
#if defined(DOORBELL_TSAN)
  own.main_fibre = __tsan_get_current_fiber();
#endif
  for (Lane& each : own.lanes) {
    each.index = static_cast<uint32_t>(&each - own.lanes.data());
    each.context.prepare(static_cast<char*>(stacks) + each.index * kStackBytes, kStackBytes, lane_entry);
#if defined(DOORBELL_TSAN)
    each.fibre = __tsan_create_fiber(0);
#endif
    if (each.index != 0) own.ready.push(each.index);
  }
  own.live = static_cast<uint32_t>(own.lanes.size());
  own.current = 0;
  thread_index.x = 0;
  announce(own.lanes[0].fibre);
  own.main.switch_to(own.lanes[0].context);
  tsan_acquire(&own.main);
  own.ended = true;
#if defined(DOORBELL_TSAN)
  for (Lane& each : own.lanes) __tsan_destroy_fiber(each.fibre);
#endif
  munmap(stacks, bytes);
}

}  // namespace

// ---------------------------------------------------------------- what the kernel calls

uint64_t meet(Meeting meeting, uint32_t mask, uint64_t value, uint32_t argument) {
  Lane& self = lane();
  const uint32_t first = block->current / kLanes * kLanes;
  if (meeting == Meeting::kSync) {
    if (block->device.options.scoped != 0) {
      hand_on(self.late, warp().late);
    } else {
      releases(Scope::kMachine);
    }
    tsan_release(&warp().meeting);
  }
  self.meeting = meeting;
  self.mask = mask;
  self.value = value;
  self.argument = argument;
  self.state = Lane::kMeets;
  uint32_t& met = warp().met;
  met |= 1u << block->current % kLanes;
  // Most lanes come when others are still missing: only the last one looks at all of them.
  bool complete = (mask & ~met) == 0;
  for (uint32_t k = 0; complete && k < kLanes; k++) {
    const Lane& other = block->lanes[first + k];
    if ((mask >> k & 1) == 0) continue;
    if (other.mask != mask) {
      complete = false;
    } else if (other.meeting != meeting) {
      block->device.complain("warp " + std::to_string(first / kLanes) + ": a lane comes to " + name(meeting) +
                             " where another came to " + name(other.meeting));
      block->device.dead = true;
      abandon();
    }
  }
  if (complete) {
    met &= ~mask;
    conclude(first, meeting, mask);
    for (uint32_t k = 0; k < kLanes; k++)
      if ((mask >> k & 1) != 0 && first + k != block->current) make_ready(first + k);
    self.state = Lane::kReady;
  } else {
    next();
  }
  if (block->device.options.stress != 0 && below(32) == 0) pause();
  if (meeting == Meeting::kSync) {
    tsan_acquire(&warp().meeting);
    acquires();
  }
  return self.result;
}

void meet_block() {
  releases(Scope::kBlock);
  tsan_release(&block->barrier);
  Lane& self = lane();
  self.state = Lane::kAtBarrier;
  if (++block->at_barrier == block->live) pass_barrier();
  next();
  tsan_acquire(&block->barrier);
  acquires();
}

void yields() {
  Lane& self = lane();
  if (!self.late.empty()) drain_one(self.late);
  if (!warp().late.empty() && below(16) == 0) drain_one(warp().late);
  if (!block->late.empty() && below(64) == 0) drain_one(block->late);
  // Where a warp looks its first lane does.
  if (block->current % kLanes == 0) look();
  make_ready(block->current);
  next();
}

void step() {
  const doorbell_cpu_options& options = block->device.options;
  if (options.weak != 0) {
    Lane& self = lane();
    if (!self.late.empty() && (self.late.size() >= 8 || below(4) == 0)) drain_one(self.late);
    if (!warp().late.empty() && below(256) == 0) drain_one(warp().late);
    if (!block->late.empty() && below(1024) == 0) drain_one(block->late);
  }
  if (options.stress != 0 && below(16) == 0) pause();
}

void progress() { block->quiet = 0; }

long long cycles() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// splitmix64 of S. Vigna (public domain).
uint32_t below(uint32_t bound) {
  uint64_t z = block->random += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return static_cast<uint32_t>(((z ^ z >> 31) & 0xFFFFFFFF) * bound >> 32);
}

bool has(Fault fault) { return block->device.fault == fault; }

void window(Fault fault) {
  const auto start = Clock::now();
  while (has(fault) && Clock::now() - start < kWindow) {
    progress();
    yields();
  }
}

bool is_shared(const void* address, size_t bytes) {
  const doorbell_cpu_options& options = block->device.options;
  const auto within = [&](const void* base, size_t size) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base);
    return at < size && bytes <= size - at;
  };
  if (within(options.memory, options.memory_bytes) || within(options.mailboxes, 4096 * size_t{options.queues})) return true;
  char text[96];
  std::snprintf(text, sizeof text, "R11: block %u accesses %zu bytes at %p, which nobody shares", block->index, bytes, address);
  block->device.complain(text);
  return false;
}

// The place of a model, or none.
static std::atomic<uint32_t>* readers_of(const void* image) {
  const uint64_t at = reinterpret_cast<uintptr_t>(image) - ranges.models;
  Device& device = block->device;
  const uint64_t place = ranges.model_bytes == 0 || at >= ranges.models_bytes ? ~0ull : at / ranges.model_bytes;
  return device.probe != nullptr || place >= sizeof device.readers / sizeof device.readers[0] ? nullptr : &device.readers[place];
}

void begins_to_read(const void* image) {
  if (auto* const readers = readers_of(image)) readers->fetch_add(1);
}

void ends_reading(const void* image) {
  if (auto* const readers = readers_of(image)) readers->fetch_sub(1);
}

static void expect_no_reader(const void* image, const char* what) {
  const auto* const readers = readers_of(image);
  if (readers == nullptr || readers->load() == 0) return;
  block->device.complain("R19: block " + std::to_string(block->index) + what);
  block->device.dead = true;
}

void begins_to_load(const void* to, uint64_t bytes) {
  if (is_of_device(to, bytes)) expect_no_reader(to, " loads a model over one that a rollout reads");
}

void is_replaced(const void* image) { expect_no_reader(image, " replaces a model that a rollout reads"); }

bool is_of_another(const void* address, uint64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const uint64_t in_models = at - ranges.models, in_caches = at - ranges.caches;
  if (in_models < ranges.models_bytes && bytes <= ranges.model_bytes - in_models % ranges.model_bytes) {
    ranges.last = at - in_models % ranges.model_bytes;
    return true;
  }
  if (in_caches < ranges.caches_bytes && bytes <= ranges.caches_bytes - in_caches) return true;
  if (at - ranges.pages < ranges.pages_bytes && bytes <= ranges.pages_bytes - (at - ranges.pages)) return true;
  if (at - ranges.benches < ranges.benches_bytes && bytes <= ranges.benches_bytes - (at - ranges.benches)) return true;
  char text[128];
  std::snprintf(text, sizeof text, "block %u accesses %llu bytes at %p, which is no model, no cache, no page and no team's", block->index,
                static_cast<unsigned long long>(bytes), address);
  block->device.complain(text);
  // Before it follows what it read there.
  block->device.dead = true;
  return false;
}

bool is_weak() { return block->device.options.weak != 0; }

uint64_t load_late(const void* from, uint32_t width) {
  Lane& self = lane();
  if (const Late* const own = newest(self.late, from)) return own->value;
  for (Seen& each : self.seen) {
    if (each.word != from) continue;
    if (below(3) != 0) each.value = known(from, width);
    return each.value;
  }
  const uint64_t value = known(from, width);
  // The oldest goes: then there is nothing to say of it.
  if (self.seen.size() == 16) self.seen.erase(self.seen.begin());
  self.seen.push_back(Seen{from, width, value});
  return value;
}

void store_late(void* to, uint32_t width, uint64_t value, uint64_t last) {
  Lane& self = lane();
  for (size_t k = 0; k < self.seen.size(); k++) {
    if (self.seen[k].word == to) self.seen.erase(self.seen.begin() + static_cast<std::ptrdiff_t>(k--));
  }
  self.late.push_back(Late{to, width, value, last});
}

void settle(const void* word) {
  if (!is_weak()) return;
  Lane& self = lane();
  drain(block->late, word);
  drain(warp().late, word);
  drain(self.late, word);
  for (size_t k = 0; k < self.seen.size(); k++) {
    if (self.seen[k].word == word) self.seen.erase(self.seen.begin() + static_cast<std::ptrdiff_t>(k--));
  }
}

void acquires() {
  if (!is_weak()) return;
  for (Seen& each : lane().seen) each.value = known(each.word, each.width);
}

void releases(Scope scope) {
  if (!is_weak()) return;
  hand_on(warp().late, block->late);
  hand_on(lane().late, block->late);
  if (scope == Scope::kMachine || block->device.options.scoped == 0) drain(block->late);
}

}  // namespace cpu

// ---------------------------------------------------------------- what the host calls

using cpu::Device;

extern "C" const char* doorbell_cpu_fault(uint32_t index) {
  static const char* const names[] = {
#define DOORBELL_FAULT_NAME(name) #name,
      DOORBELL_FAULTS(DOORBELL_FAULT_NAME)
#undef DOORBELL_FAULT_NAME
  };
  return index < sizeof names / sizeof names[0] ? names[index] : nullptr;
}

namespace cpu {

// Plants the fault of this name, if there is one.
static void plant(Device& device, const char* fault) {
  for (uint32_t k = 0; fault != nullptr && doorbell_cpu_fault(k) != nullptr; k++) {
    if (std::strcmp(fault, doorbell_cpu_fault(k)) == 0) device.fault = static_cast<Fault>(k + 1);
  }
}

}  // namespace cpu

extern "C" Device* doorbell_cpu_start(const doorbell_cpu_options* options) {
  auto device = std::make_unique<Device>(*options);
  cpu::plant(*device, options->fault);
  const cpu::Sizes sizes = cpu::kernel_sizes();
  const uint64_t caches = options->language_small != 0 ? options->language_blocks * sizes.teams : options->language_teams * options->language_columns;
  const uint64_t pages = options->page_sets * (sizes.page_set + options->page_set_bytes);
  // Scratch of each block, as a GPU's has it.
  device->bench_bytes = sizes.bench + (2 << 20);
  const auto allocate = [](cpu::Memory& memory, uint64_t bytes) {
    const size_t whole = (bytes + 127) / 128 * 128;
    memory.reset(std::aligned_alloc(128, whole));
    if (memory != nullptr) std::memset(memory.get(), 0, whole);
    return memory != nullptr;
  };
  if (!allocate(device->state, sizes.state) || !allocate(device->models, 3 * options->queues * options->model_bytes + 1) ||
      !allocate(device->caches, caches * options->cache_bytes + 1) ||
      !allocate(device->benches, options->language_blocks * device->bench_bytes + 1) || !allocate(device->pages, pages + 1))
    return nullptr;
  device->ranges = cpu::Ranges{reinterpret_cast<uintptr_t>(device->models.get()), reinterpret_cast<uintptr_t>(device->caches.get()),
                               3 * options->queues * options->model_bytes, options->model_bytes,
                               caches * options->cache_bytes, reinterpret_cast<uintptr_t>(device->models.get()),
                               reinterpret_cast<uintptr_t>(device->pages.get()), pages,
                               reinterpret_cast<uintptr_t>(device->benches.get()), options->language_blocks * device->bench_bytes};
  const uint32_t grid = options->queues + options->worker_blocks + options->language_blocks;
  for (uint32_t k = 0; k < grid; k++)
    device->blocks.push_back(std::make_unique<cpu::Block>(*device, k, grid, sizes.block_threads));
  for (auto& block : device->blocks) device->threads.emplace_back([&block] { cpu::run_block(*block); });
  return device.release();
}

// Runs `options->worker_blocks` blocks of a probe to their end. False, with what has gone wrong in `text`, if something has.
extern "C" bool doorbell_cpu_probe(const doorbell_cpu_options* options, void* arguments, char* text, size_t bytes) {
  Device device(*options);
  device.probe = arguments;
  cpu::plant(device, options->fault);
  for (uint32_t k = 0; k < options->worker_blocks; k++)
    device.blocks.push_back(std::make_unique<cpu::Block>(device, k, options->worker_blocks, cpu::kernel_sizes().block_threads));
  for (auto& block : device.blocks) device.threads.emplace_back([&block] { cpu::run_block(*block); });
  for (std::thread& thread : device.threads) thread.join();
  std::snprintf(text, bytes, "%s", device.complaint.c_str());
  return device.complaint.empty();
}

// Lets every block look at what the others have done. False, with what has gone wrong in `text`, if something has.
extern "C" bool doorbell_cpu_check(Device* device, char* text, size_t bytes) {
  const auto start = cpu::Clock::now();
  for (const auto& block : device->blocks) {
    const uint64_t goal = block->rounds.load(std::memory_order_relaxed) + cpu::kRounds;
    while (block->rounds.load(std::memory_order_relaxed) < goal && !block->ended && !device->dead &&
           cpu::Clock::now() - start < cpu::kPatience) {
      {
        std::lock_guard<std::mutex> guard(device->mutex);
        device->woken++;
      }
      device->wake.notify_all();
      std::this_thread::yield();
    }
  }
  std::lock_guard<std::mutex> guard(device->mutex);
  std::snprintf(text, bytes, "%s", device->complaint.c_str());
  return device->complaint.empty();
}

// Asks the kernel to end, waits for it, and frees the device. False if it had to be cut off.
extern "C" bool doorbell_cpu_stop(Device* device) {
  cpu::kernel_exit(device->options.mailboxes, device->options.queues);
  const auto start = cpu::Clock::now();
  bool ended = false;
  while (!ended && !device->dead && cpu::Clock::now() - start < cpu::kPatience) {
    ended = true;
    for (const auto& block : device->blocks) ended = ended && block->ended;
    {
      std::lock_guard<std::mutex> guard(device->mutex);
      device->woken++;
    }
    device->wake.notify_all();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  device->dead = true;
  device->wake.notify_all();
  for (std::thread& thread : device->threads) thread.join();
  delete device;
  return ended;
}
