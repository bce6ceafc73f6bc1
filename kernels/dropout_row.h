// The factors by which dropout multiplies the elements of a row. Private to kernels/.
#pragma once

#include "kernels/common.h"
#include "kernels/dropout_mask.h"
#include "kernels/philox.h"

namespace teon {

class DropoutRow {
public:
    // sequence: within the operation.
    __device__ DropoutRow(const DropoutMask& m, int64_t sequence, int64_t row)
        : site_(m.site << 18),
          row_(static_cast<uint32_t>(row)),
          sample_(static_cast<uint64_t>(*m.first_sample + m.first_sequence + sequence)),
          key_(m.seed ^ kDropoutStream),
          below_(static_cast<uint32_t>(m.p * 0x1p32f)),
          factor_(1.0f / (1.0f - m.p)) {}

    // The factors of the columns [column, column + W), 0 or 1 / (1 - p). column is a multiple of W.
    template <int W>
    __device__ Vec<float, W> factors(int column) const {
        Vec<float, W> f;
        if constexpr (W == 1) {
            f[0] = factor(words(column).v[column % 4]);
        } else {
            static_assert(W % 4 == 0);
            for (int k = 0; k < W; k += 4) {
                const PhiloxCounter bits = words(column + k);
                for (int i = 0; i < 4; ++i) f[k + i] = factor(bits.v[i]);
            }
        }
        return f;
    }

private:
    __device__ PhiloxCounter words(int column) const {
        return philox4x32_10({{site_ + static_cast<uint32_t>(column) / 4, row_, static_cast<uint32_t>(sample_),
                               static_cast<uint32_t>(sample_ >> 32)}},
                             {{static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)}});
    }
    __device__ float factor(uint32_t word) const { return word < below_ ? 0.0f : factor_; }

    uint32_t site_, row_;
    uint64_t sample_, key_;
    uint32_t below_;
    float factor_;
};

}  // namespace teon
