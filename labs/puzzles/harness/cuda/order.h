// The names of gpu/kernels/memory_order.cuh on memory that shows what its orders allow: a relaxed load may return an old value, and stores become
// visible in any order that no release and no fence forbids. `explore` tries every interleaving of a few threads, and every value of each load.
//
// Like the other headers here it includes little: a puzzle is compiled in a fraction of a second.
#ifndef DOORBELL_PUZZLES_ORDER_H
#define DOORBELL_PUZZLES_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define __device__
#define __forceinline__ inline

namespace order {

// A word that several threads use. Only the functions below read and write it.
struct Word {
  Word() = default;
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
};

uint32_t load_relaxed_gpu(const Word* from);
uint32_t load_acquire_gpu(const Word* from);
void store_relaxed_gpu(Word* to, uint32_t value);
void store_release_gpu(Word* to, uint32_t value);
// Orders what this thread did before it against what it does after it: acquire and release.
void fence_gpu();

namespace model {

using Text = void (*)();

// Every interleaving of the threads that `setup` begins, with up to `switches` switches away from one that could go on. `setup` runs before each, then
// the threads, then `judge`. Only with `is_weak` loads return old values. How many interleavings there were.
uint64_t explore(bool is_weak, uint32_t switches, Text setup, Text judge);

// Begins a thread, which stops for ever after `most` accesses; for `setup`.
void begin(const char* name, Text text, uint32_t most = ~0u);

// Names a word, which holds `value` for all; for `setup`.
void name(const Word* word, const char* what, uint32_t value);

// Runs a thread that begins when the others have ended, and sees all that they did; for `judge`.
void run_after(const char* name, Text text);

// Whether a thread has loaded `value` from the word in this interleaving.
bool has_loaded(const char* name, const Word* word, uint32_t value);

// The number of accesses of a thread in this interleaving.
uint32_t accesses(const char* name);

// Prints the steps of this interleaving; those that repeat once.
void show();

}  // namespace model
}  // namespace order

#endif
