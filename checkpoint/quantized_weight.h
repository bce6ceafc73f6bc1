// Weights that other programs store in 8 bits, with scales.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "files/json.h"

namespace teon {

// Throws UsageError naming `path`, the config.json, and its quantization_config if that describes something else than
// weights in 8 bits with scales: transformers' "fp8" and "fbgemm_fp8", and compressed-tensors' formats of 8 bits.
void check_quantization(const Json& quantization, const std::string& path);

// The elements of a tensor in float. They are stored in float, or as F8_E4M3 or I8; then each is multiplied by its
// scale. The scales of X are X_scale or, in DeepSeek's files, X_scale_inv, which is a factor, too: one number, one for
// each row, or one for each block of 128 x 128.
class StoredWeight {
public:
    // Throws UsageError naming file and tensor if it has another type, lacks its scales, or has scales of another shape
    // or beside a type that needs none.
    StoredWeight(const SafetensorsModel& model, const SafetensorsModel::Found& tensor);
    // out (n) = elements [first, first + n).
    void read(int64_t first, int64_t n, float* out) const;
    const std::string& scales() const { return scale_name_; }  // the name of their tensor; empty: none

private:
    float scale_of(int64_t row, int64_t col) const {
        return scales_[static_cast<size_t>(row / block_rows_ * scale_cols_ + col / block_cols_)];
    }

    SafetensorsModel::Found tensor_;
    std::string scale_name_;
    std::vector<float> scales_;
    int64_t cols_ = 1, block_rows_ = 1, block_cols_ = 1, scale_cols_ = 1;
};

}  // namespace teon
