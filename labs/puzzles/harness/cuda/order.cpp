// The memory of order.h, and what runs threads on it.
//
// It is the release-acquire part of the memory model of C++ (and of PTX). Each store is kept as a message. A thread has a view: for each word the oldest
// message that it may still read. A release store carries the view of its thread, and an acquire load takes it over.
#include "order.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "check.h"

namespace order {

namespace model {

constexpr size_t kWords = 16;           // at most
constexpr size_t kStack = 64 << 10;
constexpr uint32_t kPatience = 32;      // steps after which a thread reads only what is newest, and lets others run
constexpr uint32_t kSteps = 300;        // of one interleaving

constexpr size_t kMost = 40, kLast = 8; // steps that are shown from the beginning, and from the end
constexpr size_t kPeriod = 12;          // steps that may repeat as one

using View = std::array<uint8_t, kWords>;

struct Message {
  uint32_t value;
  View view;
};

struct Place {
  const Word* word;
  const char* name;
  std::vector<Message> messages;
};

struct Thread {
  const char* name;
  Text text;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  View now{}, taken{}, given{};         // what it sees; what an acquire fence adds; what relaxed stores carry since a release fence
  uint32_t steps = 0;
  uint32_t most = ~0u;                  // steps after which it stops for ever
  bool ended = false;
};

enum class Kind : uint8_t { kLoad, kStore, kFence };

// One access, as the report shows it.
struct Step {
  const char* thread;
  Kind kind;
  size_t place;
  uint32_t value;
  uint32_t newest;                      // what was stored last
  bool is_old;
  const char* how;
};

struct Model {
  bool is_weak = false;                 // loads may return old values
  uint32_t switches = 0;                // away from a thread that could go on
  std::vector<uint32_t> choices, widths;  // of this interleaving, and how many there were each time
  size_t at = 0;
  std::vector<Place> places;
  std::vector<Step> log;
  std::vector<std::unique_ptr<Thread>> threads;
  Thread* runs = nullptr;
  ucontext_t scheduler;

  // One of `width` ways to go on; the first one first.
  uint32_t choose(size_t width) {
    if (width < 2) return 0;
    if (at == choices.size()) {
      choices.push_back(0);
      widths.push_back(static_cast<uint32_t>(width));
    }
    return choices[at++];
  }

  // To the next interleaving; false behind the last.
  bool next() {
    while (!choices.empty() && choices.back() + 1 == widths.back()) {
      choices.pop_back();
      widths.pop_back();
    }
    if (choices.empty()) return false;
    choices.back()++;
    return true;
  }

  size_t place(const Word* word) {
    for (size_t k = 0; k < places.size(); k++)
      if (places[k].word == word) return k;
    if (places.size() == kWords) {
      check::still_wrong("", "the file uses more words than the check has room for.");
      check::end();
    }
    places.push_back({word, "another word", {{0, {}}}});
    return places.size() - 1;
  }
};

Model& model() {
  static Model model;
  return model;
}

void join(View& into, const View& from) {
  for (size_t k = 0; k < kWords; k++) into[k] = std::max(into[k], from[k]);
}

bool is_same(const Step& one, const Step& other) {
  return one.thread == other.thread && one.kind == other.kind && one.place == other.place && one.value == other.value && one.newest == other.newest &&
         one.is_old == other.is_old && one.how == other.how;
}

void show_step(size_t k) {
  const Model& m = model();
  const Step& step = m.log[k];
  std::printf("  %3zu  %-9s ", k + 1, step.thread);
  if (step.kind == Kind::kFence) std::printf("fence");
  else std::printf("%s %s = %u, %s", step.kind == Kind::kLoad ? "loads " : "stores", m.places[step.place].name, step.value, step.how);
  if (step.is_old) std::printf("   (an old value: %u is stored already)", step.newest);
  std::printf("\n");
}

// How often the `length` steps from `at` on come one after the other.
size_t times_of(size_t at, size_t length) {
  const std::vector<Step>& log = model().log;
  size_t end = at + length;
  while (end < log.size() && is_same(log[end], log[end - length])) end++;
  return (end - at) / length;
}

// Steps that repeat are shown once; of many others, the first and the last ones.
void show() {
  const size_t size = model().log.size();
  size_t at = 0, shown = 0;
  while (at < size) {
    if (shown >= kMost && size - at > kLast) {
      std::printf("       ... %zu steps are left out\n", size - kLast - at);
      at = size - kLast;
    }
    size_t length = 1;
    while (length <= kPeriod && at + length < size && times_of(at, length) <= 3) length++;
    if (length > kPeriod || at + length >= size) length = 1;
    const size_t times = times_of(at, length);
    for (size_t k = at; k < at + length; k++) show_step(k);
    shown += length;
    at += length;
    if (times <= 3) continue;
    at += length * (times - 1);
    if (length == 1) std::printf("       ... and so on: the last step %zu times more, up to step %zu\n", times - 1, at);
    else std::printf("       ... and so on: the last %zu steps %zu times more, up to step %zu\n", length, times - 1, at);
  }
}

// Before each access: another thread may run.
Thread& step() {
  Model& m = model();
  Thread& self = *m.runs;
  if (self.steps == self.most) self.ended = true;
  self.steps++;
  if (m.log.size() > kSteps) {
    check::still_wrong("R15: every wait is bounded. A reader that meets a publish says so, and its caller looks again.", "a loop of the file does not end.");
    for (const auto& thread : m.threads)
      if (thread->steps > thread->most) std::printf("  The %s has stopped after %u accesses.\n\n", thread->name, thread->most);
    show();
    check::end();
  }
  swapcontext(&self.context, &m.scheduler);
  return self;
}

uint32_t load(const Word* from, bool acquires, const char* how) {
  Thread& self = step();
  Model& m = model();
  const size_t at = m.place(from);
  const Place& place = m.places[at];
  const size_t newest = place.messages.size() - 1, oldest = self.now[at];
  size_t number = newest;
  if (m.is_weak && self.steps < kPatience) number = newest - m.choose(newest - oldest + 1);
  const Message& message = place.messages[number];
  self.now[at] = std::max(self.now[at], static_cast<uint8_t>(number));
  join(self.taken, message.view);
  if (acquires) join(self.now, message.view);
  m.log.push_back({self.name, Kind::kLoad, at, message.value, place.messages[newest].value, number != newest, how});
  return message.value;
}

void store(Word* to, uint32_t value, bool releases, const char* how) {
  Thread& self = step();
  Model& m = model();
  const size_t at = m.place(to);
  Place& place = m.places[at];
  const uint8_t number = static_cast<uint8_t>(place.messages.size());
  Message message{value, releases ? self.now : self.given};
  message.view[at] = number;
  self.now[at] = number;
  place.messages.push_back(message);
  m.log.push_back({self.name, Kind::kStore, at, value, value, false, how});
}

void fence() {
  Thread& self = step();
  join(self.now, self.taken);
  self.given = self.now;
  model().log.push_back({self.name, Kind::kFence, 0, 0, 0, false, ""});
}

void enter() {
  Thread& self = *model().runs;
  self.text();
  self.ended = true;
}

// Runs one thread to its next access.
void resume(Thread& thread) {
  Model& m = model();
  m.runs = &thread;
  swapcontext(&m.scheduler, &thread.context);
  m.runs = nullptr;
}

Thread& add(const char* name, Text text) {
  Model& m = model();
  m.threads.push_back(std::make_unique<Thread>());
  Thread& thread = *m.threads.back();
  thread.name = name;
  thread.text = text;
  thread.stack.reset(new char[kStack]);
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStack;
  thread.context.uc_link = &m.scheduler;
  makecontext(&thread.context, enter, 0);
  return thread;
}

void begin(const char* name, Text text, uint32_t most) { add(name, text).most = most; }

// Runs the threads that were begun, with up to `switches` switches away from one that could go on.
void run_all() {
  Model& m = model();
  uint32_t left = m.switches;
  Thread* at = nullptr;
  for (;;) {
    std::vector<Thread*> others;
    for (const auto& thread : m.threads)
      if (!thread->ended && thread.get() != at) others.push_back(thread.get());
    const bool goes_on = at != nullptr && !at->ended;
    if (!goes_on && others.empty()) return;
    const bool yields = goes_on && !others.empty() && at->steps % kPatience == kPatience - 1;
    if (!goes_on || yields) {
      at = others[m.choose(others.size())];
    } else if (left > 0 && !others.empty()) {
      const uint32_t choice = m.choose(others.size() + 1);
      if (choice != 0) {
        left--;
        at = others[choice - 1];
      }
    }
    resume(*at);
  }
}

uint64_t explore(bool is_weak, uint32_t switches, Text setup, Text judge) {
  Model& m = model();
  m.choices.clear();
  m.widths.clear();
  m.is_weak = is_weak;
  m.switches = switches;
  uint64_t count = 0;
  do {
    m.at = 0;
    m.places.clear();
    m.log.clear();
    m.threads.clear();
    setup();
    run_all();
    judge();
    count++;
  } while (m.next());
  return count;
}

void run_after(const char* name, Text text) {
  Model& m = model();
  Thread& thread = add(name, text);
  for (size_t k = 0; k < m.places.size(); k++) thread.now[k] = static_cast<uint8_t>(m.places[k].messages.size() - 1);
  while (!thread.ended) resume(thread);
}

bool has_loaded(const char* name, const Word* word, uint32_t value) {
  Model& m = model();
  const size_t at = m.place(word);
  const auto is_it = [&](const Step& step) { return step.thread == name && step.kind == Kind::kLoad && step.place == at && step.value == value; };
  return std::any_of(m.log.begin(), m.log.end(), is_it);
}

uint32_t accesses(const char* name) {
  const std::vector<Step>& log = model().log;
  return static_cast<uint32_t>(std::count_if(log.begin(), log.end(), [&](const Step& step) { return step.thread == name; }));
}

void name(const Word* word, const char* what, uint32_t value) {
  Place& place = model().places[model().place(word)];
  place.name = what;
  place.messages[0].value = value;
}

}  // namespace model

uint32_t load_relaxed_gpu(const Word* from) { return model::load(from, false, "relaxed"); }
uint32_t load_acquire_gpu(const Word* from) { return model::load(from, true, "acquire"); }
void store_relaxed_gpu(Word* to, uint32_t value) { model::store(to, value, false, "relaxed"); }
void store_release_gpu(Word* to, uint32_t value) { model::store(to, value, true, "release"); }
void fence_gpu() { model::fence(); }

}  // namespace order
