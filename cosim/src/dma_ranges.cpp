#include "dma_ranges.h"

#include <algorithm>

namespace doorbell {
namespace {

constexpr auto kByAddress = [](const auto& range, uint64_t address) { return range.address < address; };

}  // namespace

void DmaRanges::map(uint32_t function, uint64_t address, uint64_t bytes, uint8_t* host, bool writable) {
    std::vector<Range>& ranges = of(function).ranges;
    ranges.insert(std::lower_bound(ranges.begin(), ranges.end(), address, kByAddress), Range{address, bytes, host, writable});
}

void DmaRanges::unmap(uint32_t function, uint64_t address, uint64_t bytes) {
    Function& own = of(function);
    own.last = {};
    const auto first = std::lower_bound(own.ranges.begin(), own.ranges.end(), address, kByAddress);
    const auto end = std::find_if(first, own.ranges.end(), [&](const Range& range) { return range.address - address >= bytes; });
    own.ranges.erase(first, end);
}

uint8_t* DmaRanges::search(Function& own, uint64_t address, bool is_write) {
    if (own.may) {
        const auto behind = std::upper_bound(own.ranges.begin(), own.ranges.end(), address,
                                             [](uint64_t value, const Range& range) { return value < range.address; });
        if (behind != own.ranges.begin()) {
            const Range& range = *(behind - 1);
            if (address - range.address < range.bytes && (range.writable || !is_write)) {
                own.last = range;
                return range.host + (address - range.address);
            }
        }
    }
    ++own.refused;
    return nullptr;
}

}  // namespace doorbell
