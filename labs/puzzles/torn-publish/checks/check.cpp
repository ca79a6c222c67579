// Publishes two versions while a front end looks, in every interleaving: first with loads that return what is newest, then with all that memory orders allow.
#include "order.h"

#include "../publish.cuh"

namespace {

using namespace order;

const Version kVersions[3] = {{1, 101, 1001}, {2, 202, 2002}, {3, 303, 3003}};
const char* const kWhole = "R18: every token of a DECODE comes from the version that it names. So a reader gets a version as a whole: number, salt and offset belong together.";

bool is(const Version& one, const Version& other) { return one.version == other.version && one.salt == other.salt && one.offset == other.offset; }

std::string told(const Version& of) { return check::text("version %u, salt %u, offset %u", of.version, of.salt, of.offset); }

// How many interleavings there are with `publishes` publishes.
uint64_t run(bool is_weak, uint32_t switches, int publishes) {
  std::unique_ptr<Slot> slot;
  Version found{};
  bool is_read = false;
  const auto setup = [&] {
    slot = std::make_unique<Slot>();
    model::name(&slot->generation, "generation", 0);
    model::name(&slot->version, "version", kVersions[0].version);
    model::name(&slot->salt, "salt", kVersions[0].salt);
    model::name(&slot->offset, "offset", kVersions[0].offset);
    found = {};
    is_read = false;
    model::begin("publisher", [&] { for (int k = 1; k <= publishes; k++) publish(slot.get(), kVersions[k]); });
    model::begin("reader", [&] { is_read = look(slot.get(), &found); });
  };
  const auto judge = [&] {
    if (is_read) {
      bool is_whole = false;
      for (int k = 0; k <= publishes; k++) is_whole |= is(found, kVersions[k]);
      if (!is_whole)
        check::still_wrong("look() returns true with " + told(found) + ", which nobody has published.", kWhole,
                           std::string(is_weak ? "The memory orders allow the loads that are marked as old:\n\n"
                                               : "One step after the other, and each load returns what is newest:\n\n") + model::shown());
    }
    Version last{};
    bool is_last = false;
    model::run_after("later", [&] { is_last = look(slot.get(), &last); });
    if (!is_last || !is(last, kVersions[publishes]))
      check::still_wrong(is_last ? "after the last publish has ended, look() returns " + told(last) + "." : "look() returns false after the last publish has ended, and would do so for ever.",
                         "R19: POLICY makes its version resident: whoever looks afterwards finds it.", model::shown());
  };
  return model::explore(is_weak, switches, setup, judge);
}

}  // namespace

int main() {
  const uint64_t count = run(false, 4, 1) + run(false, 3, 2) + run(true, 0, 1) + run(true, 1, 2);
  check::solved(check::text("in %llu interleavings, with every order that the memory may show, each look is whole or says that it is not.", static_cast<unsigned long long>(count)));
}
