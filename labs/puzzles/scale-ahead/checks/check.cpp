// Stores the same positions beside others, in one piece and in two, and compares bytes.
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "warp.h"

#include "../store.cuh"

namespace {

constexpr uint32_t kFew = 8, kMany = 33, kShown = 12;   // positions; channels that are shown
constexpr uint16_t kScaleBehind = 0xEEEE;
constexpr int8_t kMantissaBehind = 0x55;
const char* const kBytes = "R27: the bytes are the same whether one descriptor makes them or several. Nothing looks ahead: no scale depends on later tokens.";
const char* const kPieces =
    "R27: the bytes are the same whether one descriptor makes them or several. So no scale depends on the positions that are stored with it, also not on earlier ones.";
const char* const kFormula = "store(h): scale = max(1, ceil(16 * max |h| / 127)), over the channels of the position; m = [16 * h / scale], halves rounded up.";

// Channels, position by position.
struct Heads {
  int32_t channels[kMany * kWidth];
};

// What positions are stored as, with room for one more.
struct Stored {
  uint16_t scales[kMany + 1];
  int8_t mantissas[(kMany + 1) * kWidth];
};

uint32_t g_state = 1;
int32_t drawn(int32_t bound) {
  g_state = g_state * 1664525 + 1013904223;
  return static_cast<int32_t>(g_state >> 8) % (2 * bound + 1) - bound;
}

// What the lanes are given.
const int32_t* g_heads;
uint32_t g_count;
uint16_t* g_scales;
int8_t* g_mantissas;

// The file, on `count` positions from `first` on.
void run(const Heads& heads, uint32_t first, uint32_t count, Stored& out) {
  const uint32_t end = first + count;
  out.scales[end] = kScaleBehind;
  memset(&out.mantissas[end * kWidth], kMantissaBehind, kWidth);
  g_heads = heads.channels + first * kWidth;
  g_count = count;
  g_scales = out.scales + first;
  g_mantissas = out.mantissas + first * kWidth;
  warp::run([](uint32_t lane) { store(g_heads, g_count, g_scales, g_mantissas, lane); });
  bool is_kept = out.scales[end] == kScaleBehind;
  for (uint32_t k = 0; k < kWidth; k++) is_kept = is_kept && out.mantissas[end * kWidth + k] == kMantissaBehind;
  if (!is_kept) {
    check::still_wrong(kBytes, "store() of %u positions writes behind the last of them.", count);
    check::end();
  }
}

void formula(const Heads& heads, uint32_t positions, Stored& out) {
  for (uint32_t p = 0; p < positions; p++) {
    const int32_t* const head = heads.channels + p * kWidth;
    int64_t largest = 0;
    for (uint32_t k = 0; k < kWidth; k++) largest = max<int64_t>(largest, head[k] < 0 ? -static_cast<int64_t>(head[k]) : head[k]);
    out.scales[p] = static_cast<uint16_t>(max<int64_t>(1, (16 * largest + 126) / 127));
    for (uint32_t k = 0; k < kWidth; k++) {
      const int64_t twice = 32 * static_cast<int64_t>(head[k]) + out.scales[p], by = 2 * out.scales[p];
      out.mantissas[p * kWidth + k] = static_cast<int8_t>((twice >= 0 ? twice : twice - by + 1) / by);
    }
  }
}

bool is_same(const Stored& one, const Stored& other, uint32_t p) {
  return one.scales[p] == other.scales[p] && memcmp(&one.mantissas[p * kWidth], &other.mantissas[p * kWidth], kWidth) == 0;
}

// The bytes as they lie: the scale, and the first mantissas.
void show(const char* name, const Stored& of, uint32_t p) {
  printf("  %-32s scale %02x %02x   mantissas", name, of.scales[p] & 255, of.scales[p] >> 8);
  for (uint32_t k = 0; k < kShown; k++) printf(" %02x", of.mantissas[p * kWidth + k] & 255);
  printf(" …\n");
}

[[noreturn]] void show_both(const char* one_name, const Stored& one, const char* other_name, const Stored& other, uint32_t p) {
  show(one_name, one, p);
  show(other_name, other, p);
  const auto mark = [](bool differs) { return differs ? "^^" : "  "; };
  printf("  %-32s       %s %s            ", "", mark((one.scales[p] & 255) != (other.scales[p] & 255)), mark(one.scales[p] >> 8 != other.scales[p] >> 8));
  for (uint32_t k = 0; k < kShown; k++) printf(" %s", mark(one.mantissas[p * kWidth + k] != other.mantissas[p * kWidth + k]));
  printf("\n");
  check::end();
}

void judge(const Heads& heads, uint32_t positions) {
  static Stored whole, other;
  whole = other = {};
  run(heads, 0, positions, whole);
  // With many positions, check only every eighth.
  const uint32_t step = positions > kFew ? 8 : 1;
  char one[64], two[64];
  // A later token is another one.
  for (uint32_t late = 1; late < positions; late += step) {
    Heads changed = heads;
    for (uint32_t k = 0; k < kWidth; k++) changed.channels[late * kWidth + k] = drawn(400000);
    run(changed, 0, positions, other);
    for (uint32_t p = 0; p < late; p++) {
      if (is_same(whole, other, p)) continue;
      check::still_wrong(kBytes, "the bytes of position %u change when the token of position %u, which comes later, is another one.", p, late);
      snprintf(one, sizeof one, "position %u", p);
      snprintf(two, sizeof two, "the same, another position %u", late);
      show_both(one, whole, two, other, p);
    }
  }
  // Two descriptors for one.
  for (uint32_t cut = 1; cut < positions; cut += step) {
    run(heads, 0, cut, other);
    run(heads, cut, positions - cut, other);
    for (uint32_t p = 0; p < positions; p++) {
      if (is_same(whole, other, p)) continue;
      check::still_wrong(kPieces, "position %u gets other bytes when a second descriptor begins at position %u.", p, cut);
      snprintf(one, sizeof one, "position %u, one descriptor", p);
      snprintf(two, sizeof two, "the same, second descriptor at %u", cut);
      show_both(one, whole, two, other, p);
    }
  }
  formula(heads, positions, other);
  for (uint32_t p = 0; p < positions; p++) {
    if (is_same(whole, other, p)) continue;
    const int32_t* const head = heads.channels + p * kWidth;
    const int8_t* const found = whole.mantissas + p * kWidth;
    const int8_t* const expected = other.mantissas + p * kWidth;
    uint32_t k = 0;
    while (k + 1 < kWidth && found[k] == expected[k]) k++;
    if (whole.scales[p] != other.scales[p])
      check::still_wrong(kFormula, "position %u has the scale %u; the largest of its channels asks for %u.", p, whole.scales[p], other.scales[p]);
    else
      check::still_wrong(kFormula, "channel %u of position %u, %d, is stored as %d · %u / 16; the mantissa is %d.", k, p, head[k], found[k], whole.scales[p], expected[k]);
    printf("  its channels                     ");
    for (uint32_t c = 0; c < kShown; c++) printf(" %d", head[c]);
    printf(" …\n");
    show_both("stored", whole, "the formula", other, p);
  }
}

}  // namespace

int main() {
  for (int32_t round = 0; round < 13; round++) {
    static Heads heads;
    const uint32_t positions = round == 12 ? kMany : kFew;
    for (uint32_t p = 0; p < positions; p++) {
      // Small and large positions, and one of zeros; the largest channel is anywhere.
      const int32_t bound = p == 3 && round % 4 == 0 ? 0 : round == 0 ? 1000 * static_cast<int32_t>(p + 1) : 1 << (10 + drawn(8));
      for (uint32_t k = 0; k < kWidth; k++) heads.channels[p * kWidth + k] = drawn(bound);
    }
    judge(heads, positions);
  }
  // No positions at all.
  static Stored none;
  run({}, 0, 0, none);
  check::solved("every position is stored by its own channels, in one piece or in two.");
}
