// Shared by the implementations of attention in rows.cu and tiled.cu. Private to them.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels/common.h"

namespace teon {

inline constexpr float kAttentionInfinity = std::numeric_limits<float>::infinity();
// Scores are accessed kScoreWidth at a time; their rows begin at multiples of it.
inline constexpr int kScoreWidth = kVecWidth<float>;
using ScoreVec = Vec<float, kScoreWidth>;

// Divides memory into arrays that begin at multiples of ALIGNMENT bytes.
template <size_t ALIGNMENT>
class Pieces {
public:
    explicit Pieces(void* base) : base_(base) {}
    template <typename E>
    E* take(int64_t elements) {
        auto* const piece = reinterpret_cast<E*>(reinterpret_cast<uintptr_t>(base_) + bytes_);
        bytes_ += round_up(static_cast<size_t>(elements) * sizeof(E), ALIGNMENT);
        return piece;
    }
    // Takes an array for `floats` rounded to T, which is `floats` itself if T is float.
    template <typename T>
    T* take_rounded(float* floats, int64_t elements) {
        if constexpr (std::is_same_v<T, float>) {
            return floats;
        } else {
            return take<T>(elements);
        }
    }
    size_t bytes() const { return bytes_; }

private:
    void* base_;
    size_t bytes_ = 0;
};

TEON_D float largest_of(ScoreVec x) {
    for (int half = kScoreWidth / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
    }
    return x[0];
}

// The parts of the dot product of x and y (n) in vectors at `begin` and every `stride` elements after it.
template <typename T>
TEON_D ScoreVec partial_dot(const T* x, const T* y, int n, int begin, int stride) {
    ScoreVec partial{};
    for (int c = begin; c < n; c += stride) {
        if (n - c >= kScoreWidth) {
            FOR_VEC(i, kScoreWidth) partial[i] += static_cast<float>(x[c + i]) * static_cast<float>(y[c + i]);
        } else {
            for (int i = 0; i < n - c; ++i) partial[i] += static_cast<float>(x[c + i]) * static_cast<float>(y[c + i]);
        }
    }
    return partial;
}

}  // namespace teon
