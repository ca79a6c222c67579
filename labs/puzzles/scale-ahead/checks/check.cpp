// Stores the same positions beside others, in one piece and in two, and compares bytes.
#include <array>
#include <cstring>
#include <vector>

#include "warp.h"

#include "../store.cuh"

namespace {

constexpr uint32_t kPositions = 8;
const char* const kBytes = "R27: the bytes are the same whether one descriptor makes them or several. Nothing looks ahead: no scale depends on later tokens.";
const char* const kFormula = "store(h): scale = max(1, ceil(16 * max |h| / 127)), over the channels of the position; m = [16 * h / scale], halves rounded up.";

using Heads = std::vector<int32_t>;

// What a position is stored as.
struct Stored {
  uint16_t scale = 0;
  std::array<int8_t, kWidth> mantissas{};
  bool operator==(const Stored& other) const { return scale == other.scale && mantissas == other.mantissas; }
};

uint32_t g_state = 1;
int32_t drawn(int32_t bound) {
  g_state = g_state * 1664525 + 1013904223;
  return static_cast<int32_t>(g_state >> 8) % (2 * bound + 1) - bound;
}

// The file, on the positions from `first` on.
void run(const Heads& heads, uint32_t first, uint32_t count, std::vector<Stored>& out) {
  std::vector<uint16_t> scales(count + 1, 0xEEEE);
  std::vector<int8_t> mantissas((count + 1) * kWidth, 0x55);
  warp::run([&](uint32_t lane) { store(heads.data() + first * kWidth, count, scales.data(), mantissas.data(), lane); });
  for (uint32_t k = 0; k < kWidth; k++)
    if (mantissas[count * kWidth + k] != 0x55 || scales[count] != 0xEEEE)
      check::still_wrong(check::text("store() of %u positions writes behind the last of them.", count), kBytes, "");
  for (uint32_t p = 0; p < count; p++) {
    out[first + p].scale = scales[p];
    std::memcpy(out[first + p].mantissas.data(), &mantissas[p * kWidth], kWidth);
  }
}

Stored formula(const int32_t* head) {
  int64_t largest = 0;
  for (uint32_t k = 0; k < kWidth; k++) largest = std::max<int64_t>(largest, std::abs(static_cast<int64_t>(head[k])));
  Stored out;
  out.scale = static_cast<uint16_t>(std::max<int64_t>(1, (16 * largest + 126) / 127));
  for (uint32_t k = 0; k < kWidth; k++) {
    const int64_t twice = 32 * static_cast<int64_t>(head[k]) + out.scale, by = 2 * out.scale;
    out.mantissas[k] = static_cast<int8_t>((twice >= 0 ? twice : twice - by + 1) / by);
  }
  return out;
}

// The bytes as they lie: the scale, and the first mantissas.
std::string bytes(const char* name, const Stored& of) {
  std::string line = check::text("  %-32s scale %02x %02x   mantissas", name, of.scale & 255, of.scale >> 8);
  for (uint32_t k = 0; k < 12; k++) line += check::text(" %02x", of.mantissas[k] & 255);
  return line + " …\n";
}

std::string marks(const Stored& one, const Stored& other) {
  std::string line = check::text("  %-32s       %s %s            ", "", (one.scale & 255) != (other.scale & 255) ? "^^" : "  ", one.scale >> 8 != other.scale >> 8 ? "^^" : "  ");
  for (uint32_t k = 0; k < 12; k++) line += one.mantissas[k] != other.mantissas[k] ? " ^^" : "   ";
  return line + "\n";
}

std::string channels(const int32_t* head) {
  std::string line = "  its channels                     ";
  for (uint32_t k = 0; k < 12; k++) line += check::text(" %d", head[k]);
  return line + " …\n";
}

std::string both(const char* one_name, const Stored& one, const char* other_name, const Stored& other) {
  return bytes(one_name, one) + bytes(other_name, other) + marks(one, other);
}

void judge(const Heads& heads) {
  std::vector<Stored> whole(kPositions), other(kPositions);
  run(heads, 0, kPositions, whole);
  // A later token is another one.
  for (uint32_t late = 1; late < kPositions; late++) {
    Heads changed = heads;
    for (uint32_t k = 0; k < kWidth; k++) changed[late * kWidth + k] = drawn(400000);
    run(changed, 0, kPositions, other);
    for (uint32_t p = 0; p < late; p++)
      if (!(whole[p] == other[p]))
        check::still_wrong(check::text("the bytes of position %u change when the token of position %u, which comes later, is another one.", p, late), kBytes,
                           both(check::text("position %u", p).c_str(), whole[p], check::text("position %u, with another %u", p, late).c_str(), other[p]));
  }
  // Two descriptors for one.
  for (uint32_t cut = 1; cut < kPositions; cut++) {
    run(heads, 0, cut, other);
    run(heads, cut, kPositions - cut, other);
    for (uint32_t p = 0; p < kPositions; p++)
      if (!(whole[p] == other[p]))
        check::still_wrong(check::text("position %u gets other bytes when a second descriptor begins at position %u.", p, cut), kBytes,
                           both("one descriptor", whole[p], check::text("two, cut at %u", cut).c_str(), other[p]));
  }
  for (uint32_t p = 0; p < kPositions; p++) {
    const Stored expected = formula(&heads[p * kWidth]);
    if (!(whole[p] == expected)) {
      uint32_t k = 0;
      while (k + 1 < kWidth && whole[p].mantissas[k] == expected.mantissas[k]) k++;
      const std::string what =
          whole[p].scale != expected.scale ? check::text("position %u has the scale %u; the largest of its channels asks for %u.", p, whole[p].scale, expected.scale)
                                           : check::text("channel %u of position %u, %d, is stored as %d · %u / 16; the mantissa is %d.", k, p, heads[p * kWidth + k], whole[p].mantissas[k], whole[p].scale, expected.mantissas[k]);
      check::still_wrong(what, kFormula, channels(&heads[p * kWidth]) + both("stored", whole[p], "the formula", expected));
    }
  }
}

}  // namespace

int main() {
  for (uint32_t round = 0; round < 12; round++) {
    Heads heads(kPositions * kWidth);
    for (uint32_t p = 0; p < kPositions; p++) {
      // Small and large positions, and one of zeros; the largest channel is anywhere.
      const int32_t bound = p == 3 && round % 4 == 0 ? 0 : round == 0 ? 1000 * static_cast<int32_t>(p + 1) : 1 << (2 + drawn(8) + 8);
      for (uint32_t k = 0; k < kWidth; k++) heads[p * kWidth + k] = drawn(bound);
    }
    judge(heads);
  }
  check::solved("every position is stored by its own channels, in one piece or in two.");
}
