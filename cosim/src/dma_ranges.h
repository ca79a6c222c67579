// What of its host's memory each function reaches, where functions have hosts of their own: ranges of bus addresses, looked up by
// (AxUSER, address) when data moves. What is in no range is answered DECERR and counted.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "axi.h"

namespace doorbell {

class DmaRanges {
public:
    // `bytes` bytes at host address `host`, seen by the function at `address`. Whole pages, and no two of one function overlap: Rust
    // has seen to that.
    void map(uint32_t function, uint64_t address, uint64_t bytes, uint8_t* host, bool writable);
    // Forgets the ranges that lie in these bytes.
    void unmap(uint32_t function, uint64_t address, uint64_t bytes);
    // Whether the function may move data at all; after a reset it may not.
    void set_master(uint32_t function, bool may) { of(function).may = may; }

    // Where the beat at `address` lies, or null: DECERR.
    uint8_t* find(uint32_t function, uint64_t address, bool is_write) {
        Function& own = of(function);
        const Range& last = own.last;
        const uint64_t offset = address - last.address;
        if (own.may && offset < last.bytes && (last.writable || !is_write)) [[likely]] return last.host + offset;
        return search(own, address, is_write);
    }

    // Accesses of the function that were answered DECERR.
    uint64_t refused(uint32_t function) const { return functions_[function % kFunctions].refused; }

private:
    struct Range {
        uint64_t address = 0, bytes = 0;
        uint8_t* host = nullptr;
        bool writable = false;
    };
    struct Function {
        bool may = false;
        Range last;  // found last; empty where none was
        std::vector<Range> ranges;  // by address
        uint64_t refused = 0;
    };

    Function& of(uint32_t function) { return functions_[function % kFunctions]; }
    static uint8_t* search(Function& own, uint64_t address, bool is_write);

    std::array<Function, kFunctions> functions_;
};

}  // namespace doorbell
