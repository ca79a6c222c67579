#pragma once

#include <cstdint>

namespace doorbell {

// SplitMix64 of Steele, Lea and Flood: small, seedable, good enough for stalls.
class Random {
public:
    explicit Random(uint64_t seed) : state_{seed} {}

    uint64_t next() {
        uint64_t z = state_ += 0x9E37'79B9'7F4A'7C15;
        z = (z ^ z >> 30) * 0xBF58'476D'1CE4'E5B9;
        z = (z ^ z >> 27) * 0x94D0'49BB'1331'11EB;
        return z ^ z >> 31;
    }

    // Uniform in [0, bound), bound > 0.
    uint64_t below(uint64_t bound) {
        return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
    }

private:
    uint64_t state_;
};

}  // namespace doorbell
