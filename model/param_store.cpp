#include "model/param_store.h"

#include <algorithm>

#include "kernels/fill.h"

namespace teon {

ParamBuffer::ParamBuffer(ParamLayout layout, DType dtype, const Stream& stream, bool offload)
    : layout_(std::move(layout)),
      memory_(std::make_shared<OffloadableBuffer<std::byte>>(layout_.size() * size_of(dtype), offload)) {
    zero(memory_->data(), memory_->size(), stream);
}

ParamStore::ParamStore(const ParamTable& table, DType dtype, const Stream& stream, bool gradients,
                       const ParamShard& shard)
    : table_(table), dtype_(dtype), sharding_(shard.sharding), offloads_(shard.offload) {
    const ParamLayouts layouts(table_, dtype, shard);
    const auto make = [&](const ParamLayout& layout, DType type, const ParamBuffer& otherwise) {
        return layout.size() > 0 ? ParamBuffer(layout, type, stream) : otherwise;
    };
    if (gradients || dtype == DType::f32) {
        masters_ = ParamBuffer(layouts.masters, DType::f32, stream, dtype == DType::bf16 && shard.offload);
    } else {
        int64_t staged = 0;
        for (const ParamRow& row : table_.rows())
            staged = std::max(staged, std::min(row.size(), std::max<int64_t>(kStagedElements, row.cols)));
        staging_ = ParamBuffer(ParamLayout::of_parts({{0, staged}}), DType::f32, stream);
    }
    weights_ = make(layouts.copy, DType::bf16, masters_);
    read_ = make(layouts.weight_windows, dtype, weights_);
    if (!gradients) return;
    gradients_ = make(layouts.gradients, DType::f32, {});
    sums_ = make(layouts.sums, DType::f32, gradients_);
}

float* ParamStore::staging(int row, int64_t first) const {
    if (staging_.data<float>() != nullptr) return staging_.data<float>();
    const bool whole = masters_.layout().size() == table_.size();
    return (whole ? masters_ : gradients_).at<float>(table_[row].offset + first);
}

void ParamStore::place(int row, int64_t first, int64_t n, const Stream& stream) {
    const float* from = staging(row, first);
    const int64_t begin = table_[row].offset + first;
    for (const ParamLayout::Piece& p : masters_.layout().pieces({begin, n})) {
        float* master = masters_.data<float>() + p.at;
        if (master != from + p.element - begin) copy(master, from + p.element - begin, p.size, stream);
    }
    if (dtype_ == DType::f32) return;
    for (const ParamLayout::Piece& p : weights_.layout().pieces({begin, n}))
        cast(weights_.data<bf16>() + p.at, from + p.element - begin, p.size, stream);
}

void ParamStore::initialize(uint64_t seed, const Stream& stream) {
    CHECK(staging_.data<float>() == nullptr, "weights without masters are loaded, not initialized");
    for (int i = 0; i < table_.count(); ++i) {
        const ParamRow& row = table_[i];
        if (row.init == Init::normal) {
            fill_normal(staging(i), row.rows, row.cols, row.logical_rows, row.logical_cols, row.init_std, seed, i,
                        stream);
        } else {
            float value = row.init == Init::ones ? 1.0f : 0.0f;
            fill_constant(staging(i), row.rows, row.cols, row.logical_rows, row.logical_cols, value, stream);
        }
        place(i, 0, row.size(), stream);
    }
}

}  // namespace teon
