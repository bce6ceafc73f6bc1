// The count of device memory that both backends keep. Private to device_*.
#pragma once

#include <atomic>
#include <cstddef>

namespace teon::detail {

class ByteCount {
public:
    void add(size_t bytes) noexcept {
        size_t now = in_use_ += bytes;
        for (size_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) {}
    }
    void subtract(size_t bytes) noexcept { in_use_ -= bytes; }
    size_t in_use() const { return in_use_; }
    size_t peak() const { return peak_; }

private:
    std::atomic<size_t> in_use_ = 0;
    std::atomic<size_t> peak_ = 0;
};

inline ByteCount device_bytes;

}  // namespace teon::detail
