// Role: worker of engine 1. A team, a block or a warp alone, that runs one rollout at a time, from whichever queue: docs/gpu-language.md, "Engine 1".
#ifndef DOORBELL_LANGUAGE_WORKER_CUH
#define DOORBELL_LANGUAGE_WORKER_CUH

#include "language.cuh"
#include "language_image.cuh"
#include "language_pool.cuh"
#include "language_team.cuh"
#include "worker.cuh"

namespace language {

DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, entries) == 4, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, prompt) == 8, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, start) == 16, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, shared) == 20, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, source) == 24, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, generation) == 28, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, draw_key) == 32, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, top_k) == 40, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, top_p) == 44, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, min_p) == 48, "Sequence::begin");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_sequence, reserved_0) == 52, "Sequence::begin");

// What is wrong with a sequence shows as a block that lies nowhere.
constexpr uint64_t kNowhere = 0;

// A sequence while a descriptor of it runs (R26). One thread works on it, and all see it behind the next barrier.
struct Sequence {
  Sampling sampling;
  uint32_t entries;    // of its block table
  uint32_t source;     // block from which it copies
  uint32_t first;      // its first position
  uint32_t end;        // behind the last position of a PREFILL
  uint32_t written;    // entries of the table up to the last whose block it may write
  uint32_t brought;    // blocks that came from the host's memory
  bool is_prefill;
  bool copies;
  bool scores;         // each token but the first gets its log-probability
  bool is_sound;
  uint64_t table;      // bus address
  uint64_t tokens;     // of a PREFILL: bus address of that of position 0
  uint64_t arena_base;
  uint64_t arena_size;
  uint64_t block_bytes;
  Keeping keeping;     // of its blocks (R26)

  // Comes to the sequence of what is at a place, as far as its first step ("Which error", 13).
  __device__ void begin(const Place& place, const SequencePlace& at, const doorbell_session& session,
                        const LoadedModel& model, uint64_t cache_bytes) {
    const uint64_t address = session.kv_base + at.kv_offset;
    uint32_t words[16];
#pragma unroll
    for (uint32_t k = 0; k < 16; k++) words[k] = order::load_relaxed_sys(reinterpret_cast<const uint32_t*>(address) + k);
    uint32_t sum = DOORBELL_GOLDEN, reserved = 0;
#pragma unroll
    for (uint32_t k = 0; k < 15; k++) sum = mix(sum ^ words[k]);
#pragma unroll
    for (uint32_t k = 13; k < 15; k++) reserved |= words[k];
    sampling.sharpness = words[0];
    const bool keyed = (words[8] | words[9]) != 0;
    sampling.seed = keyed ? words[8] : place.seed;
    sampling.rollout = keyed ? words[9] : place.rollout_id;
    sampling.top_k = words[10];
    sampling.top_p = words[11];
    sampling.min_p = words[12];
    entries = words[1];
    const uint64_t prompt = Descriptor::wide(words[2], words[3]);
    const uint32_t start = words[4], shared = words[5];
    source = words[6];
    is_prefill = place.opcode == DOORBELL_OP_PREFILL;
    scores = is_prefill && (place.flags & DOORBELL_FLAG_LOGP) != 0;
    sampling.given = kNoToken;
    end = place.seq_len - 1;
    first = is_prefill ? start : end;
    keeping.generation = words[7];
    table = address + 64;
    arena_base = session.arenas[2 * at.arena];
    arena_size = session.arenas[2 * at.arena + 1];
    block_bytes = model.block_bytes;
    is_sound = sum == words[15] && reserved == 0 && sampling.sharpness <= DOORBELL_SHARPNESS_MAX && sampling.top_p <= 0xFFFF &&
               at.kv_offset + 64 + 4ull * entries <= session.kv_size;
    if (is_prefill) {
      tokens = session.token_base + prompt;
      uint64_t size = session.token_size;
      if (scores && session.logp_size < size) size = session.logp_size;
      // The last token is scored by the step before it.
      const bool lies = prompt % 4 == 0 && prompt <= size && 4ull * (scores ? place.seq_len : end) <= size - prompt;
      is_sound = is_sound && lies && start <= end;
    }
    // What the cache does not hold this device does not run.
    const uint64_t room = room_of(model.vocabulary);
    const uint64_t most = room < cache_bytes ? (cache_bytes - room) / block_bytes : 0;
    if (entries > most) entries = static_cast<uint32_t>(most);
    const uint64_t last = end + (is_prefill ? 0ull : place.max_tokens);
    written = static_cast<uint32_t>(min(uint64_t{entries}, (last + DOORBELL_BLOCK_TOKENS - 1) / DOORBELL_BLOCK_TOKENS));
    // What has nothing to do looks at nothing else.
    copies = shared == first && first % DOORBELL_BLOCK_TOKENS != 0 && !is_idle();
  }

  // Goes on where it was given up: the keys and values below are in its own blocks by now.
  __device__ void resume(uint32_t position) {
    first = position;
    copies = false;
  }

  // Bytes of logits, at the end of the cache.
  __device__ __forceinline__ uint64_t room_of(uint32_t vocabulary) const {
    return sampling.truncates() ? (4ull * vocabulary + 63) / 64 * 64 : 0;
  }

  // A PREFILL of no position.
  __device__ __forceinline__ bool is_idle() const { return is_prefill && first == end; }

  // Bus address of a block that is used now, or kNowhere.
  __device__ __forceinline__ uint64_t block(uint32_t number) const {
    const uint64_t start = number * block_bytes;
    return start + block_bytes <= arena_size ? arena_base + start : kNowhere;
  }

  // The number of the block at a bus address.
  __device__ __forceinline__ uint32_t number_of(uint64_t at) const { return static_cast<uint32_t>((at - arena_base) / block_bytes); }

  // The bus address of the block of a position, or kNowhere.
  __device__ __forceinline__ uint64_t block_of(uint32_t position) const {
    uint32_t entry = position / DOORBELL_BLOCK_TOKENS;
    if (entry >= entries) return kNowhere;
    if (DOORBELL_FAULT(SwapsBlocks) && (entry ^ 1) < entries) entry ^= 1;
    return block(order::load_relaxed_sys(reinterpret_cast<const uint32_t*>(table) + entry));
  }
};

// A rollout while a team has it. One thread works on it.
struct Running {
  // A course, which shared memory cannot begin with.
  alignas(8) unsigned char bytes_of_course[sizeof(worker::Course)];
  const char* image;
  long long start_clock;
  uint32_t queue, place_index, error;
  uint32_t made;    // positions, since it came
  uint32_t before;  // tokens, when it came
  bool is_paused, is_prefill, abandoned;

  __device__ __forceinline__ worker::Course& course() { return *reinterpret_cast<worker::Course*>(bytes_of_course); }
};

// What the threads of a team have in common beside what a step needs.
struct Job {
  uint32_t what;  // of the slot of its ticket
  bool mine;
  // What one thread has decided, each read behind its own barrier.
  bool begins, is_whole, steps, goes_on, gives_up;
  bool gone;      // whether the session has ended in the middle of a chunk
  uint8_t taken;  // positions of a chunk: `count`, or as many as have good tokens
  uint32_t token;
  uint32_t position;
  uint32_t count;  // positions that may be taken at a time, from `position` on
  uint64_t block;  // bus address of that of the position
  uint64_t blocks[kWarp];  // of what is brought; then of a chunk's positions the token, and the next one << 32
  Sequence sequence;
};

// Parts of a multiprocessor, each of which runs the warps whose numbers are the same modulo these.
constexpr uint32_t kSchedulers = 4;

// What the leader of a team of blocks has besides.
struct Hub {
  uint32_t active;     // lanes that have a rollout, a bit each
  uint32_t prefill;    // the lane that has a PREFILL, or none: 0xFFFFFFFF
  uint32_t tiles;      // of columns that a step has at most
  uint32_t held;       // what it has taken, and cannot begin with yet; 0: nothing
  uint32_t action, lane;
  uint32_t count;      // columns of a step, or positions of chunks
  bool begins;         // whether the ranks have not begun with the model yet
  const char* image;   // of all rollouts
  bool gone;           // whether the session of a chunk has ended
  uint32_t waited;     // for how many steps, one behind the other, it has let others take what waits
  uint8_t good[kMostChunks];  // positions of each chunk that can be taken
  uint32_t ticket;            // that it waits with while it has nothing, and helps others
  bool has_ticket;
  uint32_t asked;             // teams that help with a prompt
  uint32_t ranks;             // that take its chunks
  uint32_t left;             // lanes whose rollouts leave behind a step, a bit each
  uint32_t pages[kWarp];     // of the blocks that a lane's rollout brings or keeps
};

// Rollouts that the leader of a team of blocks has at a time, or the teams of a block.
template <typename Team>
constexpr uint32_t kLanesOf = Team::kTeams == 1 ? kColumns : Team::kTeams;

// What the teams of a block have in shared memory. Of a team of blocks the first job is that of a rollout that a block runs alone, too.
template <typename Team>
struct Jobs {
  uint32_t waits;  // whether one of them waits for a ticket's rollout
  uint32_t busy[kSchedulers];  // of each part, teams that have a rollout, or have ended
  Job of[kLanesOf<Team>];
  Running running[kLanesOf<Team>];
  Hub hub;
};

// What they have at most, beside kMostShared: the host asks for both before it starts a kernel (gpu/src/info.rs).
constexpr uint32_t kMostJobs = 20 << 10;
static_assert(sizeof(Jobs<Whole>) <= kMostJobs && sizeof(Jobs<Single>) <= kMostJobs, "gpu/src/info.rs, LANGUAGE_BYTES");

// A team, and the queue from which it takes what it runs.
template <typename Team>
class Worker {
  template <typename>
  friend class Rank;

 public:
  // With a job, the cache of that number, and scratch in device memory if it has some.
  __device__ Worker(Jobs<Team>& jobs, uint32_t job, const Launch& launch, uint32_t cache, uint32_t worker_id, char* scratch = nullptr)
      : job(jobs.of[job]), jobs(jobs), state(*launch.state), language(launch.language), worker_id(worker_id),
        cache{launch.language.caches + launch.language.cache_bytes * cache, nullptr}, scratch(scratch) {}

  // Takes tickets, each in turn of its arrival, until one tells it to end.
  __device__ void role() {
    if (threadIdx.x == 0) {
      jobs.waits = 0;
      for (uint32_t part = 0; part < kSchedulers; part++) jobs.busy[part] = 0;
    }
    Block<Team>::open();
    for (;;) {
      if (Team::thread() == 0) take();
      Team::sync();
      const uint32_t what = job.what;
      const bool mine = job.mine;
      Team::sync();
      if (what == kExit) return;
      if (!mine) continue;
      run(what);
      if (Team::kTeams != 1 && Team::thread() == 0) order::add_acq_rel_block(&jobs.busy[Team::number() % kSchedulers], 0u - 1);
    }
  }

 protected:
  Job& job;
  Jobs<Team>& jobs;
  DeviceState& state;
  const LanguageMemory& language;
  const uint32_t worker_id;
  const Cache cache;
  char* const scratch;

  // Waits for what comes with the next ticket. One thread calls it. Of a block's teams one waits at a time, so that rollouts spread over all
  // blocks: one of two in a block has half of its time at worst, and the others look at nothing that lies outside. It is one of the part that has
  // least to do.
  __device__ void take() {
    if constexpr (Team::kTeams != 1) {
      for (uint32_t spins = 0; !is_next() || order::compare_swap_block(&jobs.waits, 0, 1) != 0;) relax(spins);
    }
    take_ticket();
    if constexpr (Team::kTeams != 1) {
      // One that ends counts, so that nobody expects another of its part.
      if (job.mine || job.what == kExit) order::add_acq_rel_block(&jobs.busy[Team::number() % kSchedulers], 1);
      order::store_release_block(&jobs.waits, 0);
    }
  }

  // Whether no part of the multiprocessor has a team to spare and less to do than this one's.
  __device__ __forceinline__ bool is_next() const {
    const uint32_t own = order::load_relaxed_block(&jobs.busy[Team::number() % kSchedulers]);
    bool is = true;
    for (uint32_t part = 0; part < kSchedulers; part++) {
      const uint32_t busy = order::load_relaxed_block(&jobs.busy[part]), teams = (Team::kTeams + kSchedulers - 1 - part) / kSchedulers;
      is = is && (busy >= own || busy >= teams);
    }
    return is;
  }

  __device__ void take_ticket() { take_ticket(order::take_tickets_gpu(&state.work[kForBlocks].head, 1)); }

  // Takes a ticket if others wait than workers. One thread calls it.
  __device__ bool try_ticket() {
    WorkQueue& work = state.work[kForBlocks];
    const uint32_t ticket = order::load_relaxed_gpu(&work.head);
    if (static_cast<int32_t>(order::load_relaxed_gpu(&work.tail) - ticket) <= 0) return false;
    if (order::compare_swap_relaxed_gpu(&work.head, ticket, ticket + 1) != ticket) return false;
    take_ticket(ticket);
    return true;
  }

  // Gives what tells a worker to end to whoever takes the next ticket. One thread calls it.
  __device__ __forceinline__ void pass_on_exit() {
    WorkQueue& work = state.work[kForBlocks];
    hand_out(work, order::take_tickets_gpu(&work.tail, 1), kExit);
  }

  __device__ void take_ticket(uint32_t ticket) {
    for (uint32_t spins = 0; !look_for(ticket, [] { return true; });) relax(spins);
  }

  // Takes what has come with a ticket, if something has, and may() says so.
  template <typename May>
  __device__ __forceinline__ bool look_for(uint32_t ticket, May may) {
    WorkQueue& work = state.work[kForBlocks];
    uint64_t* const slot = &work.slots[ticket % kWorkSlots];
    // An acquire would empty the first cache at every look, for all teams of the multiprocessor: it comes behind the look that found something.
    uint64_t entry = order::load_relaxed_gpu(slot);
    if (entry >> 32 == work_entry(ticket, 0) >> 32 && static_cast<uint32_t>(entry) > kAwaited) {
      if (!may()) return false;
      entry = order::load_acquire_gpu(slot);
      job.what = static_cast<uint32_t>(entry);
      job.mine = worker::take_over(state, slot, ticket, entry);
      return true;
    }
    if (entry == work_entry(ticket, kVacant)) order::compare_swap_relaxed_gpu(slot, entry, work_entry(ticket, kAwaited));
    return false;
  }

  // What the front end has told the DECODE at a place: to end as kStop or kKeep says, or 0. A PREFILL is told nothing.
  static __device__ __forceinline__ uint32_t told(const Place& place) {
    if (place.opcode == DOORBELL_OP_PREFILL) return 0;
    const uint32_t stop = order::load_relaxed_gpu(&place.stop);
    if ((stop & kStop) != 0 || order::load_relaxed_gpu(&place.abort) == place.index) return kStop;
    return stop;
  }

  // Whether others wait for a block, and a rollout that has made so many steps in its turn gives its own up to them. A turn is as long as a
  // quarter of what has to be brought to where the next one is. One thread calls it.
  __device__ __forceinline__ bool gives_up(uint32_t made) const { return has_had_turn(made) && others_wait(); }
  __device__ __forceinline__ bool has_had_turn(uint32_t made) const { return made >= kTurn && made >= job.sequence.first / 4; }
  __device__ __forceinline__ bool others_wait() const {
    const WorkQueue& work = state.work[kForBlocks];
    return static_cast<int32_t>(order::load_relaxed_gpu(&work.tail) - order::load_relaxed_gpu(&work.head)) > 0;
  }

  // Puts the rollout at a place behind those that wait. One thread calls it, for what all threads have written before a barrier.
  __device__ void give_up(uint32_t queue, uint32_t place_index, const worker::Course& course) {
    WorkQueue& work = state.work[kForBlocks];
    Paused& paused = state.paused[queue][place_index];
    const uint32_t ticket = order::take_tickets_gpu(&work.tail, 1);
    paused.position = job.position + (DOORBELL_FAULT(RepeatsStep) ? 0 : 1);
    paused.token = job.token;
    paused.produced = course.produced;
    paused.checkpoint = course.checkpoint;
    paused.flags = course.flags;
    paused.digest = course.digest.value;
    paused.since = course.since.value;
    order::store_relaxed_gpu(&paused.ticket, ticket);
    // As one to which no worker has come yet it counts for its queue pair's share.
    order::count_gpu(&state.fetched[queue * 16], ~0ull);
    hand_out(work, ticket, kPaused | queue << 16 | place_index);
  }

  // Goes on with `course` where it was given up.
  __device__ void take_up(const Paused& paused, worker::Course& course) {
    job.token = paused.token;
    course.produced = paused.produced;
    course.checkpoint = paused.checkpoint;
    course.flags = paused.flags;
    if (!DOORBELL_FAULT(ForgetsDigest)) course.digest.value = paused.digest;
    course.since.value = paused.since;
  }

  // The model of what is at a place.
  __device__ __forceinline__ const char* image_of(uint32_t queue, uint32_t place_index) const {
    const uint32_t function = state.sessions[queue].function, slot = state.sequences[queue][place_index].slot;
    return language.model(function, state.models[function][slot].place(slot));
  }

  // Whether the session of what is at a place has been ended (R12).
  __device__ __forceinline__ bool is_abandoned(uint32_t queue, uint32_t place_index) const {
    return order::load_relaxed_gpu(&state.abandon[queue * 32]) == state.places[queue][place_index].session;
  }

  // Begins with what a ticket said; `job.begins` says whether there is anything to do. One thread calls it.
  __device__ __noinline__ void come(Running& r, uint32_t what) {
    r.queue = what >> 16 & 0xFF;
    r.place_index = what & 0xFFFF;
    r.is_paused = (what & kPaused) != 0;
    const Place& place = state.places[r.queue][r.place_index];
    const doorbell_session& session = state.sessions[r.queue];
    const SequencePlace& at = state.sequences[r.queue][r.place_index];
    r.is_prefill = place.opcode == DOORBELL_OP_PREFILL;
    r.start_clock = clock64();
    r.course() = worker::Course{place.max_tokens, place.period, (place.flags & DOORBELL_FLAG_RESIDENT) != 0};
    r.error = DOORBELL_ERR_NONE;
    r.made = 0;
    r.abandoned = false;
    if (!r.is_paused) worker::note(state, r.queue, r.place_index, place.flags, &Moments::started, 0);
    job.gives_up = false;
    if (r.is_paused) take_up(state.paused[r.queue][r.place_index], r.course());
    r.before = r.course().produced;
    // With RESIDENT what has begun goes on to its checkpoint (R20).
    uint32_t early = told(place);
    if (early == kKeep && r.is_paused && r.course().resident) early = 0;
    // What has been told to end before it starts, or goes on, looks at no sequence, and adds no token.
    if (early != 0 && !DOORBELL_FAULT(StartsRetired)) {
      r.course().ended_as = early == kStop ? DOORBELL_STATUS_STOPPED : DOORBELL_STATUS_SUPERSEDED;
    } else {
      job.sequence.begin(place, at, session, state.models[session.function][at.slot], language.cache_bytes);
      if (r.is_paused) job.sequence.resume(state.paused[r.queue][r.place_index].position);
      if (!job.sequence.is_sound) r.error = DOORBELL_ERR_BAD_SEQUENCE;
      if (has_pool()) {
        Keeping& keeping = job.sequence.keeping;
        keeping.owner = session.function * DOORBELL_ARENAS + at.arena + 1;
        keeping.lines = static_cast<uint32_t>(job.sequence.block_bytes / 64);
        keeping.era = Pool::era_of(&state.eras[session.function][at.arena], keeping.lines);
      }
    }
    job.begins = r.course().ended_as == 0 && r.error == DOORBELL_ERR_NONE && !job.sequence.is_idle();
    r.image = image_of(r.queue, r.place_index);
    stream::begins_to_read(r.image);
  }

  // Gives the rollout back, at its end or until its next turn. One thread calls it, for what all threads have written before a barrier.
  __device__ __noinline__ void go(Running& r) {
    Place& place = state.places[r.queue][r.place_index];
    const Shape shape = Shape::read(r.image);
    // As if its last step took long.
    for (uint32_t k = 0; r.abandoned && k < 8; k++) DOORBELL_WINDOW(LeavesFunction);
    stream::ends_reading(r.image);
    WorkerCounters& counters = state.counters[r.queue];
    order::count_gpu(&counters.busy, clock64() - r.start_clock);
    order::count_gpu(&counters.wait, static_cast<uint64_t>(place.wait_states) * (r.course().produced - r.before));
    if (job.gives_up) {
      count(place, counters, 0, r.made, shape);
      give_up(r.queue, r.place_index, r.course());
      return;
    }
    worker::note_end(state, r.queue, r.place_index, place.flags, r.course().produced, 0);
    if (!r.abandoned) {
      const uint32_t good = r.is_prefill ? DOORBELL_STATUS_DONE : r.course().ended_as;
      const uint32_t status = r.error != DOORBELL_ERR_NONE ? DOORBELL_STATUS_ERROR : good;
      const uint32_t result = r.is_prefill ? 0 : r.course().digest.value;
      worker::leave_result(place, worker_id, Outcome{status, r.error, r.course().flags, r.course().produced, result});
    }
    count(place, counters, r.course().produced, r.made, shape);
    worker::give_back(state, r.queue, r.place_index);
  }

  // Runs what a ticket said to its end, or as long as its turn is. All threads call it.
  __device__ __noinline__ void run(uint32_t what) {
    const uint32_t queue = what >> 16 & 0xFF, place_index = what & 0xFFFF;
    Place& place = state.places[queue][place_index];
    const doorbell_session& session = state.sessions[queue];
    const SequencePlace& at = state.sequences[queue][place_index];
    const LoadedModel& loaded = state.models[session.function][at.slot];
    const bool is_prefill = place.opcode == DOORBELL_OP_PREFILL;
    // One thread's.
    Running r;
    if (Team::thread() == 0) come(r, what);
    Team::sync();
    bool goes_on = job.begins;
    const char* const image = image_of(queue, place_index);
    const Shape shape = Shape::read(image);
    if (goes_on) {
      goes_on = gather(shape);
      if (!goes_on && Team::thread() == 0) r.error = DOORBELL_ERR_BAD_SEQUENCE;
    }
    if (goes_on) {
      Block<Team>::begin(image);
      // What has wait states holds nobody else up.
      if (place.wait_states == 0) Block<Team>::fall_in();
    }
    // Whether a prompt goes by chunks: a block takes them where it has scratch for one.
    const uint64_t scratch_bytes = goes_on && is_prefill ? Block<Team>::scratch() : 0;
    const bool has_scratch = scratch != nullptr && scratch_bytes != 0 && scratch_bytes <= room_of_scratch();
    const uint32_t most = ChunkLayout::most_of<Team>(shape);
    uint32_t made = 0;
    while (goes_on) {
      uint32_t ends = 0;
      if (Team::thread() == 0) {
        DOORBELL_YIELD();
        // Looked at behind the step, which hides its latency.
        ends = told(place);
        look(r, place, loaded);
        job.count = has_scratch ? chunk_of(job.position, most) : 1;
      }
      Team::sync();
      if (!job.steps) break;
      const bool begins = made == 0;
      Sampled sampled{0, 0};
      uint32_t count = 1;
      if (Team::kTeams == 1 && job.count > 1) count = read_chunk(loaded.vocabulary);
      if (Team::kTeams == 1 && count > 1) {
        if (!take_chunk(place, queue, session, count)) {
          if (Team::thread() == 0) r.abandoned = true;
          break;
        }
      } else {
        sampled = Block<Team>::step(with_room(loaded.vocabulary), reinterpret_cast<char*>(job.block), job.token, job.position,
                                    !is_prefill || job.sequence.scores, job.sequence.sampling);
      }
      made += count;
      if (DOORBELL_FAULT(SwitchesInStep) && begins) {
        const LoadedModel& other = state.models[session.function][at.slot ^ 1];
        Block<Team>::begin(language.model(session.function, other.place(at.slot ^ 1)));
      }
      if (Team::thread() == 0) {
        r.made = made;
        if (is_prefill) {
          if (count == 1 && job.sequence.scores) score(session, job.position, sampled);
          job.position += count - 1;
          job.goes_on = job.position + 1 != job.sequence.end;
        } else {
          add(place, queue, r.course(), sampled, ends, loaded);
          if (r.course().produced == 1) worker::note(state, queue, place_index, place.flags, &Moments::first_token, 0);
          job.goes_on = r.course().ended_as == 0;
        }
        job.gives_up = job.goes_on && gives_up(made);
      }
      Team::sync();
      goes_on = job.goes_on && !job.gives_up;
    }
    Block<Team>::fall_out();
    // What every thread has written comes before the news of the end.
    Team::sync();
    if (made != 0) keep(made);
    if (Team::thread() == 0) go(r);
  }

  // Before a step: where it is, and `job.steps`, whether anything is wrong with it, or its session has ended. One thread calls it.
  __device__ __forceinline__ void look(Running& r, const Place& place, const LoadedModel& loaded) {
    r.abandoned = order::load_relaxed_gpu(&state.abandon[r.queue * 32]) == place.session;
    prepare(place, r.made, r.is_paused);
    const bool is_known = job.token < loaded.vocabulary && (!job.sequence.scores || job.sequence.sampling.given < loaded.vocabulary);
    if (job.block == kNowhere || !is_known) r.error = DOORBELL_ERR_BAD_SEQUENCE;
    job.steps = r.error == DOORBELL_ERR_NONE && !r.abandoned;
  }

  // The cache, with logits at its end where the rollout has them.
  __device__ __forceinline__ Cache with_room(uint32_t vocabulary) const {
    return Cache{cache.local, reinterpret_cast<int32_t*>(cache.local + language.cache_bytes - job.sequence.room_of(vocabulary))};
  }

  // Bytes of scratch of a block that is a rank of a team.
  __device__ __forceinline__ uint64_t room_of_scratch() const { return language.bench_bytes - kBenchState; }

  // The position that is next, its token and its block. One thread calls it.
  __device__ void prepare(const Place& place, uint32_t made, bool is_paused) {
    const Sequence& sequence = job.sequence;
    job.position = sequence.first + made;
    if (sequence.is_prefill) {
      const uint32_t* const token = reinterpret_cast<const uint32_t*>(sequence.tokens) + job.position;
      job.token = order::load_relaxed_sys(token);
      if (sequence.scores) job.sequence.sampling.given = order::load_relaxed_sys(token + 1);
    } else if (made == 0 && !is_paused) {
      job.token = order::load_relaxed_sys(reinterpret_cast<const uint32_t*>(place.tokens) - 1);
    }
    if (made == 0 || job.position % DOORBELL_BLOCK_TOKENS == 0) job.block = sequence.block_of(job.position);
  }

  // Puts the log-probability of the token behind a position of a PREFILL where it belongs. One thread calls it.
  __device__ void score(const doorbell_session& session, uint32_t position, const Sampled& sampled) const {
    const uint32_t at = position + (DOORBELL_FAULT(ScoresEarly) ? 0 : 1);
    const uint64_t logps = session.logp_base + (job.sequence.tokens - session.token_base);
    order::store_relaxed_sys(reinterpret_cast<uint32_t*>(logps) + at, sampled.logp);
  }

  // Positions from this one on that a PREFILL may take as a chunk, of at most so many: within one block, so that what is wrong with the table shows at its own position.
  __device__ __forceinline__ uint32_t chunk_of(uint32_t position, uint32_t most) const {
    return min(job.sequence.end - position, most - position % most);
  }

  // Reads the tokens of a chunk. Returns how many of its positions can be taken: those before the first with which something is wrong, which the
  // next chunk begins with, and thus names (BAD_SEQUENCE). `prepare` has looked at the first. All threads call it.
  __device__ uint32_t read_chunk(uint32_t vocabulary) {
    if (Team::thread() < kWarp) {
      const uint32_t lane = Team::thread();
      bool good = true;
      if (lane < job.count) {
        const uint32_t* const token = reinterpret_cast<const uint32_t*>(job.sequence.tokens) + job.position + lane;
        const uint32_t own = order::load_relaxed_sys(token), next = job.sequence.scores ? order::load_relaxed_sys(token + 1) : 0;
        good = own < vocabulary && next < vocabulary;
        job.blocks[lane] = static_cast<uint64_t>(next) << 32 | (good ? own : 0);
      }
      const uint32_t wrong = __ballot_sync(kEveryLane, !good);
      // Other warps may not have read `count` yet.
      const bool cuts = wrong != 0 && !DOORBELL_FAULT(TakesLongChunk);
      if (lane == 0) job.taken = static_cast<uint8_t>(cuts ? max(static_cast<uint32_t>(__ffs(wrong)) - 1, 1u) : job.count);
    }
    Team::sync();
    return job.taken;
  }

  // Whether the session at a place has been ended (R12). All threads call it, with a barrier of their own between two calls.
  __device__ bool is_gone(const Place& place, uint32_t queue) {
    if (Team::thread() == 0) job.gone = order::load_relaxed_gpu(&state.abandon[queue * 32]) == place.session;
    Team::sync();
    return job.gone;
  }

  // Takes the chunk that has been read; false if the session ended in its middle, of which any part may be made then. It is asked in each
  // layer, and before each token that is scored. All threads call it.
  __device__ bool take_chunk(const Place& place, uint32_t queue, const doorbell_session& session, uint32_t count) {
    const Chunk chunk{cache.local + job.sequence.block_bytes * (job.position / kBlock), reinterpret_cast<char*>(job.block), scratch, job.position, count};
    const auto token = [&](uint32_t k) { return static_cast<uint32_t>(job.blocks[k]); };
    if (!Block<Team>::prefill(chunk, cache.local, token, [&] { return is_gone(place, queue); })) return false;
    if (!job.sequence.scores) return true;
#pragma unroll 1
    for (uint32_t k = 0; k < count; k++) {
      if (is_gone(place, queue)) return false;
      Sampling sampling = job.sequence.sampling;
      sampling.given = static_cast<uint32_t>(job.blocks[k] >> 32);
      const Sampled sampled = Block<Team>::score(chunk, k, sampling);
      if (Team::thread() == 0) score(session, job.position + k, sampled);
      Team::sync();
    }
    return true;
  }

  // Adds a token, and decides whether the DECODE ends with it. One thread calls it.
  __device__ void add(const Place& place, uint32_t queue, worker::Course& course, const Sampled& sampled, uint32_t ends,
                      const LoadedModel& loaded) {
    const uint32_t wait_states = place.wait_states, k = course.produced;
    if (wait_states != 0)
      worker::wait_cycles(wait_states, [&] { return order::load_relaxed_gpu(&state.abandon[queue * 32]) == place.session; });
    order::store_relaxed_sys(reinterpret_cast<uint32_t*>(place.tokens) + k, sampled.token);
    if (place.logps != 0) order::store_relaxed_sys(reinterpret_cast<uint32_t*>(place.logps) + k, sampled.logp);
    course.push(sampled.token);
    course.produced++;
    order::count_gpu(&state.counters[queue].tokens, 1);
    bool is_end = false;
#pragma unroll
    for (uint32_t each = 0; each < 4; each++) is_end = is_end || loaded.ends[each] == sampled.token;
    if (is_end) course.flags |= DOORBELL_CFLAG_EOS;
    course.decide(place, is_end && (place.flags & DOORBELL_FLAG_EOS_STOPS) != 0, ends);
    job.token = sampled.token;
  }

  // Brings the keys and values below the first position into the cache, and copies those of a shared prefix's last block to the
  // sequence's own (R27). False if the table does not have them all. All threads call it. Not inlined: what it calls would cost the steps of a team
  // registers.
  __device__ __noinline__ bool gather(const Shape& shape) {
    const Sequence& sequence = job.sequence;
    const uint32_t whole = sequence.first / DOORBELL_BLOCK_TOKENS, left = sequence.first % DOORBELL_BLOCK_TOKENS;
    const uint32_t all = whole + (left != 0 ? 1 : 0);
    // First that which is copied, as what is wrong with it comes first.
    if (Team::thread() == 0) {
      job.blocks[0] = sequence.copies ? sequence.block_of(sequence.first) : kNowhere + 1;
      job.blocks[1] = sequence.copies ? sequence.block(sequence.source) : kNowhere + 1;
      job.is_whole = job.blocks[0] != kNowhere && job.blocks[1] != kNowhere;
    }
    Team::sync();
    const uint64_t own = job.blocks[0], source = job.blocks[1];
    bool good = job.is_whole;
    Team::sync();
    if (!good) return false;
    const bool has_pages = has_pool() && sequence.keeping.generation != 0;
    uint32_t brought = 0;
    // With a cap (Shape::seen): blocks of which no step of the descriptor sees a position are neither looked up nor brought.
    const uint32_t window_from = shape.cap_window == 0 || sequence.first < shape.cap_window ? 0 : sequence.first + 1 - shape.cap_window;
    const auto is_unseen = [&](uint32_t entry) {
      return entry >= shape.cap_sinks / DOORBELL_BLOCK_TOKENS && (entry + 1) * DOORBELL_BLOCK_TOKENS <= window_from;
    };
    // All entries before anything else is written.
    for (uint32_t base = 0; base < all && good; base += kWarp) {
      const uint32_t entry = base + Team::thread();
      if (Team::thread() < kWarp && entry < all) job.blocks[Team::thread()] = sequence.block_of(entry * DOORBELL_BLOCK_TOKENS);
      Team::sync();
      const uint32_t here = min(kWarp, all - base);
      for (uint32_t k = 0; k < here; k++) good = good && (job.blocks[k] != kNowhere || is_unseen(base + k));
      const auto positions = [&](uint32_t k) { return left != 0 && base + k + 1 == all ? left : DOORBELL_BLOCK_TOKENS; };
      const auto from = [&](uint32_t k) {
        return positions(k) == left && sequence.copies && !DOORBELL_FAULT(TakesOldPrefix) ? source : job.blocks[k];
      };
      if (good && has_pages) {
        each_page(here, [&](uint32_t k) {
          jobs.hub.pages[k] =
              is_unseen(base + k) ? Pool::kNoPage : Pool(language).find(sequence.keeping, sequence.number_of(from(k)), positions(k));
        });
        // As if it took as long as some steps of another team.
        for (uint32_t k = 0; k < 8; k++) DOORBELL_WINDOW(FreesUnderReader);
      }
      for (uint32_t k = 0; k < here && good; k++) {
        if (is_unseen(base + k)) continue;
        const uint32_t page = has_pages ? jobs.hub.pages[k] : Pool::kNoPage;
        const bool is_kept = (page & Pool::kToFill) == 0;
        char* const to = cache.local + (base + k) * sequence.block_bytes;
        char* const in_pool = page == Pool::kNoPage ? nullptr : Pool(language).bytes_of(page & ~Pool::kToFill, sequence.block_bytes);
        if (is_kept) {
          copy_lines<Team::kThreads>(to, in_pool, sequence.block_bytes, Team::thread());
        } else {
          bring<Team::kThreads>(to, from(k), sequence.block_bytes, Team::thread(), in_pool);
          brought++;
        }
      }
      Team::sync();
      if (good && has_pages) each_page(here, [&](uint32_t k) { give_page_back(k, positions(k)); });
    }
    if (good && sequence.copies && own != source) write_back(own, left - (DOORBELL_FAULT(CopiesShort) ? 1 : 0), shape);
    if (good && has_pool()) cut_pages(sequence.copies && own != source ? 0 : left);
    if (Team::thread() == 0) job.sequence.brought = brought;
    return good;
  }

  // Whether keys and values are kept between descriptors. Where a warp runs a rollout they are few, and nothing is kept.
  __device__ __forceinline__ bool has_pool() const { return Team::kTeams == 1 && Pool(language).is_there(); }

  // Each of so many pages has a warp, which calls do(k), and a barrier behind it. All threads call it.
  template <typename Do>
  __device__ __forceinline__ void each_page(uint32_t count, Do what) const {
    for (uint32_t k = Team::thread() / kWarp; k < count; k += Team::kWarps) what(k);
    Team::sync();
  }

  __device__ __forceinline__ void give_page_back(uint32_t k, uint32_t positions) const {
    const uint32_t page = jobs.hub.pages[k];
    if (page == Pool::kNoPage) return;
    if ((page & Pool::kToFill) != 0) {
      Pool(language).fill(page & ~Pool::kToFill, positions);
    } else {
      Pool(language).release(page);
    }
  }

  // No page has any more what the descriptor may write: of the first such block only the positions before. All threads call it.
  __device__ __noinline__ void cut_pages(uint32_t before) {
    const Sequence& sequence = job.sequence;
    const uint32_t first = sequence.first / DOORBELL_BLOCK_TOKENS;
    for (uint32_t base = first; base < sequence.written; base += kWarp) {
      const uint32_t here = min(kWarp, sequence.written - base);
      if (Team::thread() < here) job.blocks[Team::thread()] = sequence.block_of((base + Team::thread()) * DOORBELL_BLOCK_TOKENS);
      Team::sync();
      each_page(here, [&](uint32_t k) {
        if (job.blocks[k] != kNowhere) Pool(language).cut(sequence.keeping, sequence.number_of(job.blocks[k]), base + k == first ? before : 0);
      });
    }
  }

  // Keeps the blocks in which it has made positions, from its first one on. All threads call it, at the end of what it makes.
  __device__ __noinline__ void keep(uint32_t made) {
    const Sequence& sequence = job.sequence;
    if (!has_pool() || sequence.keeping.generation == 0 || made == 0) return;
    const uint32_t end = sequence.first + made, behind = (end + DOORBELL_BLOCK_TOKENS - 1) / DOORBELL_BLOCK_TOKENS;
    for (uint32_t base = sequence.first / DOORBELL_BLOCK_TOKENS; base < behind; base += kWarp) {
      const uint32_t here = min(kWarp, behind - base);
      if (Team::thread() < here) job.blocks[Team::thread()] = sequence.block_of((base + Team::thread()) * DOORBELL_BLOCK_TOKENS);
      Team::sync();
      each_page(here, [&](uint32_t k) {
        // With a cap entries may name one block: the last one has what lies in it. Two warps must not claim its page.
        bool comes_again = false;
        for (uint32_t later = k + 1; later < here; later++) comes_again = comes_again || job.blocks[later] == job.blocks[k];
        // What has been made has had a block; the host may have changed the table since.
        const uint32_t page = job.blocks[k] == kNowhere || comes_again ? Pool::kNoPage : Pool(language).claim(sequence.keeping, sequence.number_of(job.blocks[k]));
        jobs.hub.pages[k] = page == Pool::kNoPage ? page : page | Pool::kToFill;
      });
      for (uint32_t k = 0; k < here; k++) {
        const uint32_t page = jobs.hub.pages[k];
        if (page == Pool::kNoPage) continue;
        copy_lines<Team::kThreads>(Pool(language).bytes_of(page & ~Pool::kToFill, sequence.block_bytes),
                                   cache.local + (base + k) * sequence.block_bytes, sequence.block_bytes, Team::thread());
      }
      Team::sync();
      each_page(here, [&](uint32_t k) { give_page_back(k, min(end - (base + k) * DOORBELL_BLOCK_TOKENS, uint32_t{DOORBELL_BLOCK_TOKENS})); });
    }
  }

  // Writes the first `count` positions of the cache's last block to the block at `to`. All threads call it.
  __device__ void write_back(uint64_t to, uint32_t count, const Shape& shape) const {
    const char* const from = cache.local + job.sequence.first / DOORBELL_BLOCK_TOKENS * job.sequence.block_bytes;
    const uint32_t parts = 2 * shape.kv_layers() * shape.kv_heads, width = shape.head_width;
    const uint32_t part_bytes = 64 + DOORBELL_BLOCK_TOKENS * width, words = count * width / 8;
    for (uint32_t k = Team::thread(); k < parts * words; k += Team::kThreads) {
      const uint64_t at = static_cast<uint64_t>(k / words) * part_bytes + 64 + 8 * (k % words);
      order::store_relaxed_sys(reinterpret_cast<uint64_t*>(to + at), *reinterpret_cast<const uint64_t*>(from + at));
    }
    for (uint32_t k = Team::thread(); k < parts * count; k += Team::kThreads) {
      const uint64_t at = static_cast<uint64_t>(k / count) * part_bytes + 2 * (k % count);
      order::store_relaxed_sys(reinterpret_cast<uint16_t*>(to + at), *reinterpret_cast<const uint16_t*>(from + at));
    }
  }

  // Counts the lines that it has read and written. One thread calls it.
  __device__ void count(const Place& place, WorkerCounters& counters, uint32_t produced, uint32_t made,
                        const Shape& shape) const {
    const uint64_t of_tokens = produced == 0 ? 0 : lines_of(place.tokens, produced) * (place.logps != 0 ? 2ull : 1ull);
    const uint64_t of_a_position = 2ull * shape.kv_layers() * shape.kv_heads * (1 + (shape.head_width + 63) / 64);
    order::count_gpu(&counters.lines, of_tokens + made * of_a_position);
    if (made != 0) {
      order::count_gpu(&counters.read, 1 + uint64_t{job.sequence.brought} * shape.kv_block() / 64);
    }
  }
};

}  // namespace language

#endif
