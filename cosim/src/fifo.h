// A queue of fixed capacity without allocation.
#pragma once

#include <cstdint>

namespace doorbell {

template <class T, uint32_t Capacity>
class Fifo {
    static_assert((Capacity & (Capacity - 1)) == 0, "the capacity is a power of two");

public:
    bool empty() const { return head_ == tail_; }
    uint32_t size() const { return tail_ - head_; }
    bool full() const { return size() == Capacity; }
    T& front() { return items_[head_ % Capacity]; }
    const T& front() const { return items_[head_ % Capacity]; }
    const T& at(uint32_t place) const { return items_[(head_ + place) % Capacity]; }  // from the front
    T& push() { return items_[tail_++ % Capacity]; }  // to be filled by the caller; not when full
    void pop() { ++head_; }                           // not when empty
    void clear() { head_ = tail_; }

private:
    T items_[Capacity];
    uint32_t head_ = 0, tail_ = 0;
};

}  // namespace doorbell
