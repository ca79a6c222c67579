// Reads and write responses that are due: in the order in which they were asked for, or in any order that AXI allows.
#pragma once

#include <cstdint>
#include <vector>

#include "axi.h"
#include "fifo.h"
#include "random.h"

namespace doorbell {

// A burst that is read.
struct Read {
    uint64_t address;
    uint64_t ready;  // first cycle in which the next beat may be presented
    uint32_t beats;  // left
    uint32_t id;
    uint32_t user;  // AxUSER: the function
};

// All in the order of their addresses.
class OrderedReads {
public:
    bool empty() const { return queue_.empty(); }
    bool full() const { return queue_.full(); }
    Read& push() { return queue_.push(); }
    // The burst of the beat to present in cycle `now`, or nullptr.
    Read* choose(uint64_t now, Random&) { return queue_.front().ready <= now ? &queue_.front() : nullptr; }
    void drop(const Read&) { queue_.pop(); }
    void clear() { queue_.clear(); }
    // Beats that are left of all.
    uint64_t beats() const {
        uint64_t beats = 0;
        for (uint32_t place = 0; place < queue_.size(); ++place) beats += queue_.at(place).beats;
        return beats;
    }

private:
    Fifo<Read, kOutstanding> queue_;
};

// Those of one ID in order, else, if `reorder`, beat by beat at random.
class ShuffledReads {
public:
    explicit ShuffledReads(bool reorder) : reorder_{reorder} { queue_.reserve(kOutstanding); }
    bool empty() const { return queue_.empty(); }
    bool full() const { return queue_.size() == kOutstanding; }
    Read& push() { return queue_.emplace_back(); }
    Read* choose(uint64_t now, Random& random);
    void drop(const Read& read) { queue_.erase(queue_.begin() + (&read - queue_.data())); }
    void clear() { queue_.clear(); }
    uint64_t beats() const {
        uint64_t beats = 0;
        for (const Read& read : queue_) beats += read.beats;
        return beats;
    }

private:
    bool reorder_;
    std::vector<Read> queue_;
};

// A write whose last beat is in.
struct Response {
    uint64_t ready;  // first cycle in which it may be presented
    uint64_t order;
    uint32_t id, code, completions;
    std::vector<WriteBeat> effect;  // beats that are not yet in memory; keeps its capacity
};

// All in the order of the writes.
class OrderedResponses {
public:
    bool empty() const { return queue_.empty(); }
    // An address and a beat may each complete a write in one cycle.
    bool room() const { return queue_.size() + 2 <= kOutstanding; }
    Response& push(uint32_t) { return queue_.push(); }
    // The response to present in cycle `now`, or nullptr.
    Response* choose(uint64_t now, Random&) {
        return !queue_.empty() && queue_.front().ready <= now ? &queue_.front() : nullptr;
    }
    void drop(const Response&) { queue_.pop(); }
    void clear() { queue_.clear(); }
    uint64_t count() const { return queue_.size(); }

private:
    Fifo<Response, kOutstanding> queue_;
};

// Those of one ID in order, else, if `reorder`, at random.
class ShuffledResponses {
public:
    explicit ShuffledResponses(bool reorder);
    bool empty() const { return count_ == 0; }
    bool room() const { return count_ + 2 <= kOutstanding; }
    Response& push(uint32_t id);
    Response* choose(uint64_t now, Random& random);
    void drop(const Response& response);
    void clear();
    uint64_t count() const { return count_; }
    bool pending(uint32_t id) const { return !by_id_[id].empty(); }
    // An earlier one of its ID has beats that are not yet in memory where it has some.
    bool follows(const Response& newest) const;

private:
    bool reorder_;
    uint32_t count_ = 0;
    static_assert(kIds <= 64);
    uint64_t waiting_ = 0;  // IDs of which one waits, a bit each
    std::vector<Response> pool_;
    Fifo<uint32_t, kOutstanding> free_, by_id_[kIds];
};

}  // namespace doorbell
