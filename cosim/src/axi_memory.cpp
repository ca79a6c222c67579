#include "axi_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

namespace doorbell {
namespace {

std::string at_address(const char* what, uint64_t address) {
    char buffer[160];
    std::snprintf(buffer, sizeof buffer, "%s at 0x%" PRIx64, what, address);
    return buffer;
}

[[noreturn]] void bad_burst(const char* channel, uint64_t address, uint32_t size, uint32_t burst, bool crosses) {
    const auto because = [&](const char* what) { return at_address((std::string{channel} + ": " + what).c_str(), address); };
    if (size != kSize64) fail_memory("AXI", because("a burst of beats that are not 64 bytes"));
    if (burst != kIncr) fail_memory("AXI", because("a burst that is not INCR"));
    if (address % kBeatBytes != 0) fail_memory("AXI", because("an unaligned burst"));
    if (crosses) fail_memory("AXI", because("a burst across a 4-KiB boundary"));
    fail_memory("R11", because("an access outside of the shared memory"));
}

void flip(uint32_t* data, uint64_t strobe, uint32_t bit) {
    // The bit counts over the bytes that are really written.
    uint32_t byte = bit / 8 % static_cast<uint32_t>(__builtin_popcountll(strobe));
    while (byte-- > 0) strobe &= strobe - 1;
    reinterpret_cast<uint8_t*>(data)[__builtin_ctzll(strobe)] ^= static_cast<uint8_t>(1U << bit % 8);
}

uint64_t wide(const uint32_t* words) { return uint64_t{words[1]} << 32 | words[0]; }

// The host reads the block at any time, on any thread, so every store is atomic; release, so that it sees the tokens
// once it sees the completion. By the compiler's builtin: std::atomic_ref is not in every standard library.
template <class Word>
void store_release(uint8_t* place, Word value) {
    __atomic_store_n(reinterpret_cast<Word*>(place), value, __ATOMIC_RELEASE);
}

template <bool Chaos>
auto make_reads([[maybe_unused]] const SimulatorConfig& config) {
    if constexpr (Chaos) {
        return ShuffledReads{config.reorder};
    } else {
        return OrderedReads{};
    }
}

template <bool Chaos>
auto make_responses([[maybe_unused]] const SimulatorConfig& config) {
    if constexpr (Chaos) {
        return ShuffledResponses{config.reorder};
    } else {
        return OrderedResponses{};
    }
}

}  // namespace

template <bool Chaos>
AxiMemory<Chaos>::AxiMemory(const SimulatorConfig& config, uint32_t queues, uint32_t engines)
    : latency_min_{config.latency_min},
      engines_{engines},
      reads_{make_reads<Chaos>(config)},
      responses_{make_responses<Chaos>(config)},
      monitor_{queues, config.hostile},
      latency_max_{config.latency_max},
      random_{config.seed},
      faults_{config.faults.begin(), config.faults.end()},
      by_function_{config.by_function},
      keeps_moments_{config.moments} {
    for (uint32_t channel = 0; channel < 5; ++channel) {
        stall_limit_[channel] = config.stall_percent[channel] * 4096U / 100;
    }
}

template <bool Chaos>
void AxiMemory<Chaos>::reset() {
    reads_.clear();
    bursts_.clear();
    early_.clear();
    responses_.clear();
    shown_ = nullptr;
    read_ = nullptr;
    showing_r_ = showing_b_ = false;
    held_ar_ = held_aw_ = held_w_ = false;
    effect_.clear();
    monitor_.reset();
}

template <bool Chaos>
void AxiMemory<Chaos>::set_weather(const Weather& weather) {
    latency_min_ = weather.latency[0];
    latency_max_ = weather.latency[1];
    for (uint32_t channel = 0; channel < 5; ++channel) {
        stall_limit_[channel] = weather.stall_percent[channel] * 4096U / 100;
    }
    withholds_reads_ = weather.withholds_reads;
    withholds_writes_ = weather.withholds_writes;
    faulty_.assign(weather.faults.begin(), weather.faults.end());
}

// The answer to a beat, of which the bytes of `strobe` count.
template <bool Chaos>
uint32_t AxiMemory<Chaos>::draw_error(uint64_t address, uint64_t strobe, bool is_write) {
    const uint64_t first = address + static_cast<uint64_t>(__builtin_ctzll(strobe));
    const uint64_t last = address + 63 - static_cast<uint64_t>(__builtin_clzll(strobe));
    for (const FaultyRange& range : faulty_) {
        if (first < range.first || first > range.last) continue;
        if (random_.below(range.one_in) != 0) return kOkay;
        const bool is_decerr = random_.below(2) != 0;
        injected_.push_back(Injected{first, static_cast<uint32_t>(last - first + 1), is_write, is_decerr});
        return is_decerr ? kDecerr : kSlverr;
    }
    return kOkay;
}

template <bool Chaos>
uint64_t AxiMemory<Chaos>::latency() {
    if constexpr (Chaos) return latency_min_ + random_.below(latency_max_ - latency_min_ + 1);
    return latency_min_;
}

template <bool Chaos>
const Fault* AxiMemory<Chaos>::find_fault(FaultKind kind, uint64_t at) const {
    const auto found = std::find_if(faults_.begin(), faults_.end(),
                                    [&](const Fault& fault) { return fault.kind == kind && fault.at == at; });
    return found == faults_.end() ? nullptr : &*found;
}

template <bool Chaos>
inline void AxiMemory<Chaos>::check_burst(const char* channel, uint64_t address, uint32_t length, uint32_t size,
                                          uint32_t burst) const {
    const uint64_t bytes = (uint64_t{length} + 1) * kBeatBytes, offset = address - bus_;
    // An offset that is negative is huge.
    if (size != kSize64 || burst != kIncr || address % kBeatBytes != 0 || address % 4096 + bytes > 4096 ||
        (!is_by_function() && (offset >= bytes_ || bytes > bytes_ - offset))) [[unlikely]] {
        bad_burst(channel, address, size, burst, address % 4096 + bytes > 4096);
    }
}

template <bool Chaos>
void AxiMemory<Chaos>::check_id(uint32_t id, uint64_t address) const {
    if (id < kEventId && id % kQueues >= monitor_.queues()) fail_memory("AXI", at_address("AW: an unknown AWID", address));
}

template <bool Chaos>
void AxiMemory<Chaos>::check_form(uint64_t address, uint32_t length, uint32_t size, uint32_t burst) const {
    if (size != kSize64 || burst != kIncr || address % kBeatBytes != 0) bad_burst("AW", address, size, burst, false);
    if (length != 0) fail_memory("AXI", at_address("AW: a message of more than one beat", address));
}

template <bool Chaos>
void AxiMemory<Chaos>::accept_message(uint64_t address, uint32_t id, uint32_t size, uint32_t burst, uint32_t user,
                                      const uint32_t* data, uint64_t strobe) {
    check_form(address, 0, size, burst);
    check_id(id, address);
    monitor_.message(id - kMessageId, address, strobe, data, user);
    const bool here = lies(address);
    if (here) {
        store(place(user, address, true), data, strobe);
        message_came(id);
    }
    respond(id, 0, here ? kOkay : kDecerr);
}

template <bool Chaos>
void AxiMemory<Chaos>::accept_read(uint64_t address, uint32_t id, uint32_t length, uint32_t size, uint32_t burst,
                                   uint32_t user) {
    check_burst("AR", address, length, size, burst);
    if (fault(FaultKind::OtherFunction, transferred_.read_bursts) != nullptr) user ^= 1;
    monitor_.burst("AR", address, length + 1, user);
    // What an ID says of whose it is holds of the address, too; of that of engine 1 it is the function.
    const bool is_back = id >= kReadbackId && id < kNpuId;
    if (id < kNpuId ? id % kQueues >= monitor_.queues() : engines_ == 1 || id >= kNoId || id - kNpuId != user) {
        fail_memory("AXI", at_address("AR: an ARID that is none, or another function's", address));
    }
    if (is_back && length != 0) fail_memory("AXI", at_address("AR: a burst of what is read back", address));
    if (is_back) {
        monitor_.token_read(address, id - kReadbackId, user);
    } else if (id < kReadbackId) {
        monitor_.read_burst(address, length + 1, id, user);
    }
    Read& read = reads_.push();
    read = {address, now_ + 1 + latency(), length + 1, id, user};
    if constexpr (Chaos) {
        const bool hangs = std::any_of(faults_.begin(), faults_.end(), [this](const Fault& fault) {
            return fault.kind == FaultKind::HangReads && fault.at <= transferred_.read_bursts;
        });
        if (hangs) read.ready = UINT64_MAX;
    }
    ++transferred_.read_bursts;
}

template <bool Chaos>
void AxiMemory<Chaos>::accept_address(uint64_t address, uint32_t id, uint32_t length, uint32_t size, uint32_t burst,
                                      uint32_t user) {
    if (id >= kMessageId && !is_store(id, address) && !(id >= kEventId && lies(address))) {
        check_form(address, length, size, burst);
        if (id >= kEventId) monitor_.burst("AW", address, length + 1, user);
    } else {
        check_burst("AW", address, length, size, burst);
        monitor_.burst("AW", address, length + 1, user);
    }
    check_id(id, address);
    bursts_.push() = {address, id, length + 1, 0, kOkay, user};
    while (!early_.empty() && !bursts_.empty()) {
        const WriteBeat beat = early_.front();
        early_.pop();
        accept_beat(beat.data, beat.strobe, beat.last);
    }
}

template <bool Chaos>
void AxiMemory<Chaos>::accept_beat(const uint32_t* data, uint64_t strobe, bool last) {
    Burst& burst = bursts_.front();
    const uint64_t address = burst.address + uint64_t{burst.done} * kBeatBytes;
    ++burst.done;
    if (last != (burst.done == burst.beats)) {
        fail_memory("AXI", at_address(last ? "W: WLAST before the last beat" : "W: no WLAST on the last beat", address));
    }
    uint32_t completions = 0;
    const bool is_message = AxiMemory::is_message(burst.id), is_store = AxiMemory::is_store(burst.id, address);
    const bool is_event = burst.id >= kEventId && !is_store;
    const bool is_completion = burst.id >= kCompletionId && burst.id < kMessageId;
    // A message, or an event, may be sent to where there is no memory.
    const bool is_there = burst.id < kMessageId || is_store || lies(address);
    if (is_store) {
        monitor_.store(address, strobe, burst.user);
    } else if (is_event) {
        monitor_.event(burst.id - kEventId, address, strobe, data, burst.user);
    } else if (is_message) {
        monitor_.message(burst.id - kMessageId, address, strobe, data, burst.user);
    } else if (is_completion) {
        completions = monitor_.completion_beat(burst.id - kCompletionId, address, strobe, data, burst.user);
    } else {
        monitor_.token_beat(address, strobe, burst.id, burst.user);
    }

    if constexpr (Chaos) {
        WriteBeat beat;
        std::memcpy(beat.data, data, kBeatBytes);
        beat.strobe = strobe;
        beat.address = address;
        beat.user = burst.user;
        if (is_completion) {
            for (uint32_t i = 0; i < completions; ++i) {
                const uint64_t half = (i == 1 || (strobe & 0xFFFF'FFFF) == 0) ? 0xFFFF'FFFF'0000'0000 : 0xFFFF'FFFF;
                const uint64_t index = transferred_.completions + i;
                const Fault* const corrupt = fault(FaultKind::CorruptCompletion, index);
                if (corrupt != nullptr) flip(beat.data, half, corrupt->bit);
                if (fault(FaultKind::CompletionWriteError, index) != nullptr) burst.code = kSlverr;
            }
        } else if (strobe != 0 && !is_message && !is_event && !is_store) {
            const Fault* const corrupt = fault(FaultKind::CorruptToken, transferred_.token_beats);
            if (corrupt != nullptr) flip(beat.data, strobe, corrupt->bit);
            if (fault(FaultKind::TokenWriteError, transferred_.token_beats) != nullptr) burst.code = kSlverr;
        }
        if (!is_there) burst.code = kDecerr;
        if (burst.code == kOkay && strobe != 0 && !is_message && !faulty_.empty()) burst.code = draw_error(address, strobe, true);
        if (is_there) effect_.push_back(beat);
    } else if (is_there) {
        store(place(burst.user, address, true), data, strobe);
        if (is_message) message_came(burst.id);
    }
    transferred_.completions += completions;
    transferred_.token_beats += is_completion || is_message || is_event || is_store ? 0 : 1;

    // Only completions of the last beat are counted for the burst: the device writes them in single beats.
    if (last) finish_burst(completions, is_there ? burst.code : kDecerr);
}

template <bool Chaos>
void AxiMemory<Chaos>::accept_single(uint64_t address, uint32_t id, uint32_t size, uint32_t burst, uint32_t user,
                                     const uint32_t* data, uint64_t strobe) {
    if (is_message(id)) [[unlikely]] return accept_message(address, id, size, burst, user, data, strobe);
    if (id >= kEventId && !is_store(id, address) && !lies(address)) [[unlikely]] {
        check_form(address, 0, size, burst);
        monitor_.burst("AW", address, 1, user);
        monitor_.event(id - kEventId, address, strobe, data, user);
        respond(id, 0, kDecerr);
        return;
    }
    check_burst("AW", address, 0, size, burst);
    monitor_.burst("AW", address, 1, user);
    check_id(id, address);
    uint32_t completions = 0;
    if (is_store(id, address)) [[unlikely]] {
        monitor_.store(address, strobe, user);
    } else if (id >= kEventId) [[unlikely]] {
        monitor_.event(id - kEventId, address, strobe, data, user);
    } else if (id >= kCompletionId) {
        completions = monitor_.completion_beat(id - kCompletionId, address, strobe, data, user);
        transferred_.completions += completions;
    } else {
        monitor_.token_beat(address, strobe, id, user);
        ++transferred_.token_beats;
    }
    store(place(user, address, true), data, strobe);
    respond(id, completions, kOkay);
}

template <bool Chaos>
Response& AxiMemory<Chaos>::respond(uint32_t id, uint32_t completions, uint32_t code) {
    Response& response = responses_.push(id);
    response.ready = now_ + 1 + latency();
    response.order = order_++;
    response.id = id;
    response.code = code;
    response.completions = code == kOkay ? completions : 0;
    return response;
}

template <bool Chaos>
void AxiMemory<Chaos>::finish_burst(uint32_t completions, uint32_t code) {
    [[maybe_unused]] Response& response = respond(bursts_.front().id, completions, code);
    bursts_.pop();
    if constexpr (Chaos) {
        response.effect.clear();
        if (code == kOkay) std::swap(response.effect, effect_);
        effect_.clear();
        // A memory may show a write long before it acknowledges it, or only just then; but not before an earlier one of
        // the same ID to the same place: AXI keeps these in order.
        if (random_.below(2) == 0 && !responses_.follows(response)) apply(response);
    }
}

template <bool Chaos>
void AxiMemory<Chaos>::apply(Response& response) {
    for (const WriteBeat& beat : response.effect) {
        // A message by function wakes its host in another way than by its memory.
        if (beat.strobe == 0 || (is_by_function() && is_message(response.id))) continue;
        if (uint8_t* const to = place(beat.user, beat.address, true)) {
            store(to, beat.data, beat.strobe);
            if (is_by_function()) note_move(to, beat.address, response.id, true);
        } else {
            response.code = kDecerr;
            response.completions = 0;
        }
    }
    if (is_message(response.id) && !response.effect.empty()) message_came(response.id);
    response.effect.clear();
}

template <bool Chaos>
bool AxiMemory<Chaos>::spurious_response_due() {
    const auto due = std::find_if(faults_.begin(), faults_.end(), [this](const Fault& fault) {
        return fault.kind == FaultKind::SpuriousResponse && fault.at <= now_;
    });
    if constexpr (Chaos) {
        if (due == faults_.end() || responses_.pending(kCompletionId)) return false;
        faults_.erase(due);
        return true;
    }
    return false;
}

template <bool Chaos>
void AxiMemory<Chaos>::store(uint8_t* place, const uint32_t* data, uint64_t strobe) {
    if (strobe == UINT64_MAX) {
        for (uint32_t word = 0; word < kBeatWords; word += 2) store_release(place + word * 4, wide(data + word));
        return;
    }
    for (uint32_t word = 0; word < kBeatWords; word += 2, strobe >>= 8) {
        // Completions are read in words of 64 bits, tokens in words of 32.
        if ((strobe & 0xFF) == 0xFF) {
            store_release(place + word * 4, wide(data + word));
            continue;
        }
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t enabled = strobe >> (4 * half) & 0xF;
            uint8_t* const bytes = place + (word + half) * 4;
            if (enabled == 0xF) {
                store_release(bytes, data[word + half]);
                continue;
            }
            for (uint32_t byte = 0; byte < 4; ++byte) {
                if ((enabled >> byte & 1) != 0) store_release(bytes + byte, static_cast<uint8_t>(data[word + half] >> (8 * byte)));
            }
        }
    }
}

template class AxiMemory<false>;
template class AxiMemory<true>;

}  // namespace doorbell
