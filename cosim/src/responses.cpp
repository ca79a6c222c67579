#include "responses.h"

#include <bit>

namespace doorbell {

Read* ShuffledReads::choose(uint64_t now, Random& random) {
    if (!reorder_) return queue_.front().ready <= now ? &queue_.front() : nullptr;
    Read* chosen = nullptr;
    uint32_t candidates = 0;
    uint64_t ids = 0;  // of which an earlier one waits
    for (Read& read : queue_) {
        const uint64_t id = uint64_t{1} << read.id;
        if ((ids & id) == 0 && read.ready <= now && random.below(++candidates) == 0) chosen = &read;
        ids |= id;
    }
    return chosen;
}

ShuffledResponses::ShuffledResponses(bool reorder) : reorder_{reorder}, pool_(kOutstanding) { clear(); }

void ShuffledResponses::clear() {
    count_ = 0;
    waiting_ = 0;
    free_.clear();
    for (auto& queue : by_id_) queue.clear();
    for (uint32_t i = 0; i < kOutstanding; ++i) free_.push() = i;
}

Response& ShuffledResponses::push(uint32_t id) {
    const uint32_t slot = free_.front();
    free_.pop();
    by_id_[id].push() = slot;
    waiting_ |= uint64_t{1} << id;
    ++count_;
    return pool_[slot];
}

Response* ShuffledResponses::choose(uint64_t now, Random& random) {
    Response* chosen = nullptr;
    uint32_t candidates = 0;
    for (uint64_t ids = waiting_; ids != 0; ids &= ids - 1) {
        Response& oldest = pool_[by_id_[std::countr_zero(ids)].front()];
        if (reorder_) {
            if (oldest.ready <= now && random.below(++candidates) == 0) chosen = &oldest;
        } else if (chosen == nullptr || oldest.order < chosen->order) {
            chosen = &oldest;
        }
    }
    return chosen != nullptr && chosen->ready <= now ? chosen : nullptr;
}

bool ShuffledResponses::follows(const Response& newest) const {
    const auto& queue = by_id_[newest.id];
    for (uint32_t place = 0; place + 1 < queue.size(); ++place) {
        for (const WriteBeat& earlier : pool_[queue.at(place)].effect) {
            for (const WriteBeat& beat : newest.effect) {
                if (beat.address == earlier.address) return true;
            }
        }
    }
    return false;
}

void ShuffledResponses::drop(const Response& response) {
    auto& queue = by_id_[response.id];
    free_.push() = queue.front();
    queue.pop();
    if (queue.empty()) waiting_ &= ~(uint64_t{1} << response.id);
    --count_;
}

}  // namespace doorbell
