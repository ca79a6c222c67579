// Role: rank of a team of blocks, which takes steps of several rollouts of engine 1 together. Its leader is what a worker is: it takes tickets, and decides.
#ifndef DOORBELL_LANGUAGE_LEAD_CUH
#define DOORBELL_LANGUAGE_LEAD_CUH

#include "language_worker.cuh"

namespace language {

// No lane.
constexpr uint32_t kNoLane = 0xFFFFFFFFu;
// Steps for which a team with a tile of columns leaves what waits to others. With one step, one team often got a ninth rollout while another had seven.
constexpr uint32_t kWaits = 4;

// What the leader does next with what it has taken.
enum Action : uint32_t { kGoesOn, kAdmits, kLetsRunAlone, kGoesHome, kHelpsOthers };

template <typename Team>
class Rank {
 public:
  __device__ Rank(Jobs<Team>& jobs, const Launch& launch, const Ranks& ranks, uint32_t block, uint32_t team, uint32_t worker_id)
      : jobs(jobs), hub(jobs.hub), launch(launch), ranks(ranks), state(ranks.state), team(team), worker_id(worker_id),
        scratch(launch.language.benches + launch.language.bench_bytes * block + kBenchState) {}

  // Does what the leader says until it tells all to end.
  __device__ void role() {
    Block<Team>::open();
    if (ranks.rank == 0) return lead();
    for (;;) {
      ranks.meet();
      const Order& order = state.order;
      if (order.what == kEnds) return;
      follow();
      if (order.what == kTakesAlone) {
        run_alone(0);
      } else if (order.what == kTakesChunks) {
        take_chunks(state, ranks.rank);
      } else if (order.what == kHelps) {
        take_chunks(*order.helped, order.first_chunk + ranks.rank);
      } else {
        take_step();
      }
      // Nobody reads an order any more when the next is given.
      ranks.meet();
    }
  }

 private:
  Jobs<Team>& jobs;
  Hub& hub;
  const Launch& launch;
  Ranks ranks;
  TeamState& state;
  const uint32_t team, worker_id;
  char* const scratch;

  // Of the lane with this number.
  __device__ __forceinline__ Worker<Team> of_lane(uint32_t lane) const {
    return Worker<Team>(jobs, lane, launch, launch.language.columns * team + lane, worker_id);
  }
  __device__ __forceinline__ Place& place_of(const Running& r) const { return launch.state->places[r.queue][r.place_index]; }
  __device__ __forceinline__ const LoadedModel& loaded_of(const Running& r) const {
    return launch.state->models[launch.state->sessions[r.queue].function][launch.state->sequences[r.queue][r.place_index].slot];
  }
  // Lanes that may have a rollout, a bit each.
  __device__ __forceinline__ uint32_t lanes() const {
    const uint32_t most = min(launch.language.columns, hub.tiles * kTileColumns);
    return most >= kColumns ? kEveryLane : (1u << most) - 1;
  }

  // ---------------------------------------------------------------- the leader

  __device__ void lead() {
    if (threadIdx.x == 0) {
      hub.active = hub.held = 0;
      hub.prefill = kNoLane;
      hub.tiles = kTiles;
      hub.image = nullptr;
      hub.waited = 0;
      hub.has_ticket = false;
    }
    __syncthreads();
    for (;;) {
      if (threadIdx.x == 0) find();
      __syncthreads();
      const uint32_t action = hub.action, what = hub.held, lane = hub.lane;
      __syncthreads();
      if (action == kAdmits) {
        admit(what, lane);
        continue;
      }
      if (action == kHelpsOthers) {
        help();
        continue;
      }
      if (action == kLetsRunAlone && let_run_alone(what)) continue;
      if (action == kLetsRunAlone || action == kGoesHome) return tell_end();
      if (hub.prefill != kNoLane) lead_chunks(hub.prefill);
      lead_step();
    }
  }

  __device__ void tell_end() {
    if (threadIdx.x == 0) state.order.what = kEnds;
    ranks.meet();
  }

  // Takes what waits, if there is a lane for it, and decides what becomes of it. What cannot begin yet is held, and then nothing else is taken. One thread calls it.
  __device__ __noinline__ void find() {
    hub.action = kGoesOn;
    hub.lane = 0;
    if (hub.held == 0) {
      const uint32_t free = lanes() & ~hub.active;
      if (hub.active != 0 && free == 0) return;
      // A step of more than a tile of columns takes longer: what waits may be for a team that has fewer, which looks between its own steps. What still waits behind
      // some of this team's is not.
      if (__popc(hub.active) != kTileColumns) {
        hub.waited = 0;
      } else if (hub.waited != kWaits) {
        hub.waited++;
        return;
      }
      Worker<Team> own = of_lane(hub.active == 0 ? 0 : __ffs(free) - 1);
      if (hub.active == 0) {
        // With nothing else to do it waits.
        hub.tiles = kTiles;
        if (!wait_for_ticket(own)) {
          hub.action = kHelpsOthers;
          return;
        }
      } else if (!own.try_ticket()) {
        return;
      }
      if (own.job.what == kExit) {
        hub.action = kGoesHome;
        return;
      }
      if (!own.job.mine) return;
      hub.held = own.job.what;
    }
    const uint32_t queue = hub.held >> 16 & 0xFF, place_index = hub.held & 0xFFFF;
    Worker<Team> any = of_lane(0);
    const char* const image = any.image_of(queue, place_index);
    if (hub.active == 0) {
      hub.tiles = BatchLayout::most_tiles<Team>(Shape::read(image));
      hub.image = image;
      hub.begins = true;
      const uint64_t needed = BatchLayout::scratch_of<Team>(Shape::read(image));
      if (hub.tiles == 0 || needed == 0 || needed > any.room_of_scratch()) {
        hub.action = kLetsRunAlone;
        return;
      }
    }
    const uint32_t free = lanes() & ~hub.active;
    if (free == 0) return;
    const bool is_prefill = launch.state->places[queue][place_index].opcode == DOORBELL_OP_PREFILL;
    const bool begins = image == hub.image && !(is_prefill && hub.prefill != kNoLane);
    // What is to be dropped needs no model.
    if (!begins && !any.is_abandoned(queue, place_index)) return;
    hub.action = kAdmits;
    hub.lane = __ffs(free) - 1;
  }

  // Waits for what comes with a ticket, and meanwhile for a team that asks for help: then false, and the ticket is kept. One thread calls it.
  __device__ __forceinline__ bool wait_for_ticket(Worker<Team>& own) {
    if (!hub.has_ticket) hub.ticket = order::take_tickets_gpu(&launch.state->work[kForBlocks].head, 1);
    hub.has_ticket = true;
    order::store_relaxed_gpu(&state.help, kIsFree);
    for (uint32_t spins = 0;;) {
      if (order::load_relaxed_gpu(&state.help) == kIsTold && order::load_acquire_gpu(&state.help) == kIsTold) return false;
      if (own.look_for(hub.ticket, [&] { return order::compare_swap_relaxed_gpu(&state.help, kIsFree, kIsBusy) == kIsFree; })) break;
      relax(spins);
    }
    hub.has_ticket = false;
    return true;
  }

  // Takes chunks of another team's prompt. All threads call it.
  __device__ __noinline__ void help() {
    if (threadIdx.x == 0) {
      Order& order = state.order;
      order.what = kHelps;
      order.begins = true;
      order.helped = state.helped;
      order.first_chunk = state.first_chunk;
      order.image = state.helped->order.image;
    }
    __syncthreads();
    ranks.meet();
    follow();
    take_chunks(*state.order.helped, state.order.first_chunk);
    ranks.meet();
  }

  // The first block of a team, among those of engine 1.
  __device__ __forceinline__ uint32_t first_of(uint32_t number) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(number) * launch.language.blocks / launch.language.teams);
  }
  __device__ __forceinline__ TeamState& state_of(uint32_t number) const {
    return *reinterpret_cast<TeamState*>(launch.language.benches + launch.language.bench_bytes * first_of(number));
  }

  // Asks teams that have nothing to help with so many chunks. Returns how many ranks take some; `hub.asked` teams help. One thread calls it.
  __device__ __noinline__ uint32_t ask_for_help(uint32_t chunks) {
    uint32_t all = ranks.count;
    hub.asked = 0;
    for (uint32_t k = 1; k < launch.language.teams && all < chunks; k++) {
      const uint32_t number = (team + k) % launch.language.teams, of_team = first_of(number + 1) - first_of(number);
      if (all + of_team > kMostChunks) break;
      uint32_t* const word = &state_of(number).help;
      if (order::load_relaxed_gpu(word) != kIsFree || order::compare_swap_relaxed_gpu(word, kIsFree, kIsAsked) != kIsFree) continue;
      state.asked[hub.asked++] = number;
      all += of_team;
    }
    return all;
  }

  // Tells them to help with the order, or that there is nothing to do. One thread calls it.
  __device__ __noinline__ void tell_helpers(bool goes_on) const {
    uint32_t first = ranks.count;
    for (uint32_t k = 0; k < hub.asked; k++) {
      const uint32_t number = state.asked[k];
      TeamState& other = state_of(number);
      other.helped = &state;
      other.first_chunk = first + (DOORBELL_FAULT(HelpsElsewhere) ? 1 : 0);
      first += first_of(number + 1) - first_of(number);
      order::store_release_gpu(&other.help, goes_on ? kIsTold : kIsFree);
    }
  }

  // Begins with a rollout on a lane. All threads call it.
  __device__ __noinline__ void admit(uint32_t what, uint32_t lane) {
    Worker<Team> own = of_lane(lane);
    Running& r = jobs.running[lane];
    if (threadIdx.x == 0) {
      hub.held = 0;
      own.come(r, what);
      if (r.image != hub.image) {
        r.abandoned = true;
        own.job.begins = false;
      }
    }
    __syncthreads();
    bool goes_on = own.job.begins;
    if (goes_on) goes_on = own.gather(Shape::read(r.image));
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (!goes_on) {
      if (own.job.begins) r.error = DOORBELL_ERR_BAD_SEQUENCE;
      own.go(r);
      return;
    }
    hub.active |= 1u << lane;
    if (r.is_prefill) hub.prefill = lane;
  }

  // A lane's rollout has ended, or gives its lane up. One thread calls it; several do at a time.
  __device__ __forceinline__ void leave(uint32_t lane) { of_lane(lane).go(jobs.running[lane]); }

  // Whether the rollout of a lane is to leave it to others: they wait, and there is no lane for them, or they cannot begin with this model.
  __device__ __forceinline__ bool gives_up(const Worker<Team>& own, const Running& r) const {
    if (!own.has_had_turn(r.made)) return false;
    if (hub.held != 0) return true;
    return (lanes() & ~hub.active) == 0 && own.others_wait();
  }

  // What is told to the ranks with every order. One thread calls it.
  __device__ __forceinline__ void begin_order(uint32_t what, uint32_t count) const {
    Order& order = state.order;
    order.what = what;
    order.begins = hub.begins;
    order.count = count;
    order.image = hub.image;
    hub.begins = false;
  }

  // Takes what a PREFILL has left, as far as the ranks take it at a time: a chunk of positions each, of as many as one has at most. All threads call it.
  __device__ __noinline__ void lead_chunks(uint32_t lane) {
    Worker<Team> own = of_lane(lane);
    Running& r = jobs.running[lane];
    Job& job = own.job;
    const Sequence& sequence = job.sequence;
    const Place& place = place_of(r);
    const uint32_t vocabulary = loaded_of(r).vocabulary, most = ChunkLayout::most_of<Team>(Shape::read(hub.image));
    if (threadIdx.x == 0) {
      r.abandoned = own.is_abandoned(r.queue, r.place_index);
      job.position = sequence.first + r.made;
      job.steps = !r.abandoned;
      hub.ranks = ask_for_help(r.abandoned ? 0 : (sequence.end - job.position / most * most + most - 1) / most);
    }
    __syncthreads();
    const uint32_t position = job.position, base = position / most * most;
    const uint32_t end = min(sequence.end, base + most * hub.ranks), chunks = (end - base + most - 1) / most;
    bool goes_on = job.steps;
    const uint32_t lane_in_warp = threadIdx.x % kWarp;
    for (uint32_t chunk = threadIdx.x / kWarp; goes_on && chunk < chunks; chunk += Team::kWarps) {
      const uint32_t at = base + most * chunk + lane_in_warp;
      bool is_wrong = false;
      if (lane_in_warp < most && at >= position && at < end) {
        const uint32_t* const token = reinterpret_cast<const uint32_t*>(sequence.tokens) + at;
        const uint32_t token_of = order::load_relaxed_sys(token), next = sequence.scores ? order::load_relaxed_sys(token + 1) : 0;
        is_wrong = token_of >= vocabulary || next >= vocabulary;
        state.tokens[at - base] = is_wrong ? 0 : token_of;
        state.following[at - base] = next;
      }
      uint32_t wrong = __ballot_sync(kEveryLane, is_wrong);
      if (DOORBELL_FAULT(TakesLongChunk)) wrong = 0;
      if (lane_in_warp == 0) {
        const uint64_t block = sequence.block_of(base + most * chunk);
        state.blocks[chunk] = block;
        hub.good[chunk] = static_cast<uint8_t>(block == kNowhere ? 0 : wrong != 0 ? __ffs(wrong) - 1 : most);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      // What is wrong with a token, or with the table, ends the chunks before it. The next ones begin there, and thus name it (BAD_SEQUENCE).
      uint32_t stop = base;
      for (uint32_t chunk = 0; goes_on && chunk < chunks; chunk++) {
        stop = base + most * chunk + hub.good[chunk];
        if (hub.good[chunk] != most) break;
      }
      stop = min(stop, end);
      hub.count = stop > position ? stop - position : 0;
      if (goes_on && hub.count == 0) r.error = DOORBELL_ERR_BAD_SEQUENCE;
      begin_order(kTakesChunks, hub.count);
      Order& order = state.order;
      order.position = position;
      order.local = own.cache.local;
      order.scores = sequence.scores;
      order.sampling = sequence.sampling;
      order.logps = launch.state->sessions[r.queue].logp_base + (sequence.tokens - launch.state->sessions[r.queue].token_base) + 4ull * position;
      order.abandon = &launch.state->abandon[r.queue * 32];
      order.session = place.session;
      order.ranks = hub.ranks;
      order.of_chunk = most;
      order.met = order::load_relaxed_gpu(&state.together);
    }
    __syncthreads();
    goes_on = hub.count != 0;
    // Behind the barrier all of the order is there.
    if (threadIdx.x == 0) tell_helpers(goes_on);
    if (goes_on) {
      ranks.meet();
      follow();
      goes_on = take_chunks(state, 0);
      ranks.meet();
    }
    if (threadIdx.x == 0) {
      if (goes_on) r.made += hub.count;
      job.position = sequence.first + r.made;
      if (hub.count != 0 && !goes_on) r.abandoned = true;
      const bool has_more = goes_on && job.position != sequence.end;
      // It goes on at the next position, as one whose last step was at the one before.
      job.gives_up = has_more && gives_up(own, r);
      if (job.gives_up) job.position--;
      hub.left = !has_more || job.gives_up;
    }
    __syncthreads();
    if (hub.left == 0) return;
    own.keep(r.made);
    if (threadIdx.x == 0) {
      own.go(r);
      hub.active &= ~(1u << lane);
      hub.prefill = kNoLane;
    }
    __syncthreads();
  }

  // Takes a step of all lanes that have a DECODE. All threads call it.
  __device__ __noinline__ void lead_step() {
    ranks.step_begins();
    const uint32_t lane = threadIdx.x;
    bool steps = false;
    uint32_t told = 0, number = 0;
    if (threadIdx.x < kWarp) {
      const bool has = (hub.active >> lane & 1) != 0 && lane != hub.prefill;
      DOORBELL_YIELD();
      if (has) {
        Worker<Team> own = of_lane(lane);
        Running& r = jobs.running[lane];
        const Place& place = place_of(r);
        // Looked at ahead of the step, which hides its latency.
        told = own.told(place);
        own.look(r, place, loaded_of(r));
        steps = own.job.steps;
        if (!steps) own.go(r);
      }
      const uint32_t gone = __ballot_sync(kEveryLane, has && !steps), step = __ballot_sync(kEveryLane, steps);
      number = __popc(step & ((1u << lane) - 1));
      bool truncates = false;
      if (steps && !(DOORBELL_FAULT(JoinsLate) && jobs.running[lane].made == 0)) {
        Worker<Team> own = of_lane(lane);
        const Cache cache = own.with_room(loaded_of(jobs.running[lane]).vocabulary);
        truncates = own.job.sequence.sampling.truncates();
        state.columns[number] = Column{cache.local, reinterpret_cast<char*>(own.job.block), cache.logits, own.job.token, own.job.position,
                                       own.job.sequence.sampling};
      }
      const uint32_t kept = __ballot_sync(kEveryLane, truncates);
      // Of columns, not of lanes.
      const uint32_t columns_kept = truncates ? 1u << number : 0;
      const uint32_t all_kept = __reduce_or_sync(kEveryLane, columns_kept);
      for (uint32_t k = lane; k < kColumns; k += kWarp) state.totals[kOfInput][k] = Total{0, 0};
      // A vote orders no memory: all lanes have read who is active.
      __syncwarp();
      if (lane == 0) {
        hub.active &= ~gone;
        hub.count = __popc(step);
        if (step != 0) {
          begin_order(kTakesStep, hub.count);
          state.order.truncates = kept != 0 ? all_kept : 0;
        }
      }
    }
    __syncthreads();
    if (hub.count == 0) {
      // All have read it before the next step counts anew.
      __syncthreads();
      return;
    }
    ranks.lap(kDecides);
    ranks.meet();
    follow();
    ranks.lap(kMeets);
    take_step();
    ranks.meet();
    ranks.lap(kMeets);
    join_ranks(hub.count);
    if (DOORBELL_FAULT(SwitchesInStep)) begin_with_other();
    if (threadIdx.x < kWarp) {
      bool goes_on = false;
      if (steps) {
        Worker<Team> own = of_lane(lane);
        Running& r = jobs.running[lane];
        const Place& place = place_of(r);
        r.made++;
        own.add(place, r.queue, r.course(), state.sampled[number], told, loaded_of(r));
        if (r.course().produced == 1) worker::note(*launch.state, r.queue, r.place_index, place.flags, &Moments::first_token, 0);
        goes_on = r.course().ended_as == 0;
        own.job.gives_up = goes_on && gives_up(own, r);
        goes_on = goes_on && !own.job.gives_up;
      }
      const uint32_t left = __ballot_sync(kEveryLane, steps && !goes_on);
      if (lane == 0) {
        hub.active &= ~left;
        hub.left = left;
      }
    }
    __syncthreads();
    if (hub.left != 0) let_leave(hub.left);
    ranks.lap(kJoins);
    ranks.step_ends(hub.count);
  }

  // The rollouts of lanes leave them, a bit each. All threads call it.
  __device__ __noinline__ void let_leave(uint32_t left) {
    for (uint32_t more = left; more != 0; more &= more - 1) {
      const uint32_t lane = __ffs(more) - 1;
      of_lane(lane).keep(jobs.running[lane].made);
    }
    __syncthreads();
    if (threadIdx.x < kWarp && (left >> threadIdx.x & 1) != 0) leave(threadIdx.x);
    __syncthreads();
  }

  // What is planted: the leader's weights are the other version's from here on.
  __device__ __noinline__ void begin_with_other() const {
    const Running& r = jobs.running[__ffs(hub.active) - 1];
    const uint32_t function = launch.state->sessions[r.queue].function, slot = launch.state->sequences[r.queue][r.place_index].slot ^ 1;
    Block<Team>::begin(launch.language.model(function, launch.state->models[function][slot].place(slot)));
  }

  // The tokens of columns, of what all ranks have found: a warp for each, whose lanes bring what ranks have. Those that are truncated are there. All threads call it.
  __device__ __noinline__ void join_ranks(uint32_t count) const {
    const uint32_t lane = threadIdx.x % kWarp;
    for (uint32_t number = threadIdx.x / kWarp; number < count; number += Team::kWarps) {
      const Sampling& sampling = state.columns[number].sampling;
      if (sampling.truncates()) continue;
      Sampler sampler(Block<Team>::constants(), sampling.sharpness, Draw{});
      for (uint32_t rank = lane; rank < ranks.count; rank += kWarp) sampler.join(state.candidates[rank][number]);
      sampler.join_lanes();
      if (lane == 0) state.sampled[number] = sampler.sampled();
    }
    __syncthreads();
  }

  // Runs a rollout of a model whose rollouts do not share steps; all ranks run such, a block each, until there are none. False if one of them was told to
  // end. All threads call it.
  __device__ __noinline__ bool let_run_alone(uint32_t what) {
    if (threadIdx.x == 0) {
      hub.held = 0;
      begin_order(kTakesAlone, 0);
      state.order.begins = false;
      state.is_over = 0;
      order::store_relaxed_gpu(&state.alone, 1);
    }
    ranks.meet();
    run_alone(what);
    ranks.meet();
    return order::load_relaxed_gpu(&state.exits) == 0;
  }

  // ---------------------------------------------------------------- every rank

  // Begins with the model that the leader has named, if the ranks have not.
  __device__ __forceinline__ void follow() const {
    if (state.order.begins == 0) return;
    Block<Team>::begin(state.order.image);
    // The same for all ranks.
    const uint64_t needed = OneLayout::scratch_of<Team>(Shape::read(state.order.image));
    const bool takes_one = needed != 0 && needed <= launch.language.bench_bytes - kBenchState;
    if (threadIdx.x == 0) reinterpret_cast<Tables*>(language_memory)->takes_one = takes_one;
    __syncthreads();
    if (!takes_one) return;
    One<Team>::clear(reinterpret_cast<char*>(&state) + kBenchState, ranks.rank, ranks.count);
    ranks.meet();
  }

  // A chunk of the positions that a team's order names, the rank's of all that take some. False if the session ended in the middle. All threads call it.
  __device__ __noinline__ bool take_chunks(TeamState& of, uint32_t number) {
    Helpers helpers(of, number, of.order.ranks);
    const bool goes_on = take_chunk(of, number, helpers);
    // Those that help have made their keys and values.
    helpers.meet();
    return goes_on;
  }

  __device__ __forceinline__ bool take_chunk(TeamState& of, uint32_t number, Helpers& helpers) {
    const Order& order = of.order;
    const uint32_t most = order.of_chunk, base = order.position / most * most, end = order.position + order.count;
    const uint32_t begin = max(order.position, base + most * number), stop = min(end, base + most * (number + 1));
    const uint32_t session = order.session;
    const uint32_t* const abandon = order.abandon;
    const auto ends = [&] { return helpers.meet_for([&] { return order::load_relaxed_gpu(abandon) == session ? 1u : 0u; }); };
    if (begin >= stop) {
      const uint32_t layers = Shape::read(order.image).layers;
      for (uint32_t layer = 0; layer < layers; layer++)
        if (ends()) return false;
      return true;
    }
    const uint64_t block_bytes = Shape::read(order.image).kv_block();
    const Chunk chunk{order.local + block_bytes * (begin / kBlock), reinterpret_cast<char*>(of.blocks[number]), scratch, begin, stop - begin};
    const uint32_t* const tokens = of.tokens + (begin - base);
    if (!Block<Team>::prefill(chunk, order.local, [&](uint32_t k) { return tokens[k]; }, ends)) return false;
    if (order.scores == 0) return true;
    for (uint32_t k = 0; k < chunk.count; k++) {
      if (threadIdx.x == 0) hub.gone = order::load_relaxed_gpu(abandon) == session;
      __syncthreads();
      if (hub.gone) return false;
      Sampling sampling = order.sampling;
      sampling.given = of.following[begin - base + k];
      const Sampled sampled = Block<Team>::score(chunk, k, sampling);
      const uint32_t at = begin + k - order.position + (DOORBELL_FAULT(ScoresEarly) ? 0 : 1);
      if (threadIdx.x == 0) order::store_relaxed_sys(reinterpret_cast<uint32_t*>(order.logps) + at, sampled.logp);
      __syncthreads();
    }
    return true;
  }

  // A step of the columns. All threads call it.
  __device__ __noinline__ void take_step() {
    const uint32_t count = state.order.count, truncates = state.order.truncates;
    char* const of_leader = reinterpret_cast<char*>(&state) + kBenchState;
    if (count == 1 && Block<Team>::constants().takes_one != 0) {
      One<Team>::run(ranks, of_leader);
    } else if (count <= kTileColumns) {
      Batch<Team, 1>::run(ranks, of_leader, count);
    } else if (count <= 2 * kTileColumns) {
      Batch<Team, 2>::run(ranks, of_leader, count);
    } else {
      Batch<Team, kTiles>::run(ranks, of_leader, count);
    }
    if (truncates == 0) return;
    ranks.meet();
    for (uint32_t number = ranks.rank; number < count; number += ranks.count) {
      if ((truncates >> number & 1) == 0) continue;
      const Sampled sampled = Block<Team>::draw(state.columns[number], &state.candidates[0][number], ranks.count);
      if (threadIdx.x == 0) state.sampled[number] = sampled;
      __syncthreads();
    }
  }

  // Runs rollouts alone, `what` first if it is not 0, as long as any rank of the team does. All threads call it.
  __device__ __noinline__ void run_alone(uint32_t what) {
    // There is a cache for each lane.
    Worker<Team> own(jobs, 0, launch, launch.language.columns * team + ranks.rank, worker_id, scratch);
    const bool has_cache = ranks.rank < launch.language.columns;
    for (uint32_t next = what;;) {
      if (next != 0) {
        own.run(next);
        __syncthreads();
      }
      if (threadIdx.x == 0) {
        own.job.what = 0;
        // Whoever begins counts before it looks whether it is too late for that.
        if (next != 0) order::take_tickets_gpu(&state.alone, 0u - 1);
        for (uint32_t spins = 0;;) {
          // A team ends by one ticket. What tells another one to end is that one's.
          if (has_cache && order::load_relaxed_gpu(&state.exits) == 0) {
            order::take_tickets_gpu(&state.alone, 1);
            const bool took = own.try_ticket();
            if (took && own.job.what == kExit) {
              if (order::take_tickets_gpu(&state.exits, 1) != 0) own.pass_on_exit();
              own.job.what = 0;
            } else if (took && own.job.mine) {
              break;
            }
            own.job.what = 0;
            order::take_tickets_gpu(&state.alone, 0u - 1);
          }
          if (order::load_relaxed_gpu(&state.is_over) != 0) break;
          if (ranks.rank == 0 && order::load_relaxed_gpu(&state.alone) == 0) {
            order::store_relaxed_gpu(&state.is_over, 1);
            break;
          }
          relax(spins);
        }
      }
      __syncthreads();
      next = own.job.what;
      __syncthreads();
      if (next == 0) return;
    }
  }
};

// The part of a block, the `number`-th of those of engine 1, kept apart from what the other roles hold in registers. Each of its teams is a worker; they count
// from `first_id` on.
template <typename Team>
__device__ __noinline__ void work(Jobs<Team>& jobs, const Launch& launch, uint32_t number, uint32_t first_id) {
  const uint32_t team = Team::kTeams * number + Team::number();
  if constexpr (Team::kTeams == 1) {
    // Blocks are dealt to teams, neighbours to each.
    const LanguageMemory& language = launch.language;
    const uint32_t of = ((number + 1) * language.teams - 1) / language.blocks;
    const uint32_t first = of * language.blocks / language.teams, end = (of + 1) * language.blocks / language.teams;
    TeamState& state = *reinterpret_cast<TeamState*>(language.benches + language.bench_bytes * first);
    Rank<Team>(jobs, launch, Ranks(state, number - first, end - first), number, of, first_id + number).role();
  } else {
    Worker<Team>(jobs, Team::number(), launch, team, first_id + team).role();
  }
}

}  // namespace language

#endif
