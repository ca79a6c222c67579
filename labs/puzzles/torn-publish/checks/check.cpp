// Publishes two versions while a front end looks, in every interleaving: first with loads that return what is newest, then with all that memory orders allow.
#include <stdio.h>

#include "check.h"
#include "order.h"

#include "../publish.cuh"

static_assert(sizeof(Slot) == 4 * sizeof(order::Word), "a Slot has four words, and nothing beside them");

namespace {

namespace model = order::model;

constexpr uint32_t kMost = 8;           // versions in an interleaving, including the initial one
constexpr uint32_t kAccesses = 20;      // in one look; a look that retries makes more of them, and too many interleavings
const char* const kPublisher = "publisher";
const char* const kReader = "reader";
const char* const kLater = "later";

// The initial version has number 0 here.
Version version_of(uint32_t number) { return {number + 1, 101 * (number + 1), 1001 * (number + 1)}; }

// Of this interleaving: the slot, what the reader has found, and whether it was told so.
Slot* g_slot = nullptr;
Version g_found, g_last;
bool g_is_found, g_is_last;
// Of this run.
uint32_t g_publishes;
bool g_is_weak;
// Accesses after which the publisher stops for ever; none: it goes on.
uint32_t g_most;
constexpr uint32_t kGoesOn = ~0u;

bool is(const Version& one, const Version& other) { return one.version == other.version && one.salt == other.salt && one.offset == other.offset; }

void set_up() {
  delete g_slot;
  g_slot = new Slot;
  model::name(&g_slot->generation, "generation", 0);
  model::name(&g_slot->version, "version", version_of(0).version);
  model::name(&g_slot->salt, "salt", version_of(0).salt);
  model::name(&g_slot->offset, "offset", version_of(0).offset);
  g_found = g_last = {};
  g_is_found = g_is_last = false;
  model::begin(kPublisher, [] { for (uint32_t k = 1; k <= g_publishes; k++) publish(g_slot, version_of(k)); }, g_most);
  model::begin(kReader, [] { g_is_found = look(g_slot, &g_found); });
}

[[noreturn]] void end() {
  model::show();
  check::end();
}

const char* const kWords = "The version is in the words of the slot, and publish() and look() use nothing else: on a GPU other memory has no order, and nobody else finds it.";

// A reader that finds a version must have loaded each of its fields.
void judge_loads(const char* reader, const Version& found) {
  const struct {
    const char* name;
    const order::Word* word;
    uint32_t value;
  } fields[] = {{"version", &g_slot->version, found.version}, {"salt", &g_slot->salt, found.salt}, {"offset", &g_slot->offset, found.offset}};
  for (const auto& field : fields) {
    if (model::has_loaded(reader, field.word, field.value)) continue;
    check::still_wrong(kWords, "look() returns true with %s %u, which it has not loaded from the slot.", field.name, field.value);
    end();
  }
}

void judge() {
  bool is_whole = !g_is_found;
  for (uint32_t k = 0; k <= g_publishes; k++) is_whole = is_whole || is(g_found, version_of(k));
  if (!is_whole) {
    check::still_wrong("R18: every token of a DECODE comes from the version that it names. So a reader gets a version as a whole: number, salt and offset belong together.",
                       "look() returns true with version %u, salt %u, offset %u, which nobody has published.", g_found.version, g_found.salt, g_found.offset);
    printf(g_is_weak ? "The memory orders allow the loads that are marked as old:\n\n" : "One step after the other, and each load returns what is newest:\n\n");
    end();
  }
  if (model::accesses(kReader) > kAccesses) {
    check::still_wrong("R15: every wait is bounded. look() reads the slot once: where it meets a publish it returns false, and its caller looks again.",
                       "look() makes %u accesses in one call; %u are more than enough.", model::accesses(kReader), kAccesses);
    end();
  }
  if (g_is_found) judge_loads(kReader, g_found);
  if (g_most != kGoesOn) return;
  // The report shows it as one more thread.
  model::run_after(kLater, [] { g_is_last = look(g_slot, &g_last); });
  const char* const why = "R19: POLICY makes its version resident. So a reader that begins afterwards finds it; the steps below call it `later`.";
  if (!g_is_last && g_publishes == 0)
    check::still_wrong("R18: the slot holds a version from the beginning. No publish is under way, so a reader finds it.", "look() returns false before the first publish.");
  else if (!g_is_last)
    check::still_wrong(why, "look() returns false after the last publish has ended, and would do so for ever.");
  else if (!is(g_last, version_of(g_publishes)))
    check::still_wrong(why, "after the last publish has ended, look() returns version %u, salt %u, offset %u.", g_last.version, g_last.salt, g_last.offset);
  else
    return judge_loads(kLater, g_last);
  end();
}

// How many interleavings there are.
uint64_t run(bool is_weak, uint32_t switches, uint32_t publishes, uint32_t most = kGoesOn) {
  g_most = most;
  g_is_weak = is_weak;
  g_publishes = publishes;
  return model::explore(is_weak, switches, set_up, judge);
}

}  // namespace

int main() {
  uint64_t count = run(false, 4, 1) + run(false, 3, 2) + run(true, 0, 1) + run(true, 1, 2) + run(false, 0, 0);
  // A reader that sleeps through many publishes must not find the same generation again.
  for (uint32_t publishes = 3; publishes < kMost; publishes++) count += run(false, 1, publishes);
  // A publisher that dies holds up no reader.
  for (uint32_t most = 1; most < 12; most++) run(false, 0, 2, most);
  check::solved("in %llu interleavings, with every order that the memory may show, each look is whole or says that it is not.", static_cast<unsigned long long>(count));
}
