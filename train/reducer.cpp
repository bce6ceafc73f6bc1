#include "train/reducer.h"

#include "kernels/fill.h"
#include "kernels/reduce.h"

namespace teon {

Reducer::Reducer(const ParamStore& params, const Placement& placement, Context& context, DType exchanged,
                 int64_t bucket_bytes)
    : params_(params),
      context_(context),
      windows_(params.has_gradient_windows()),
      buckets_(gradient_buckets(params.table(), placement, windows_ ? 0 : bucket_bytes)) {
    if (context.comm->size() == 1) {
        own_ = {{0, params.table().size(), 0}};
        return;
    }
    own_ = placement.own_parts(context.comm->rank());
    if (exchanged == DType::f32) return;
    rounded_ = Buffer<bf16>(exchange_elements(buckets_));
    zero(rounded_.data(), rounded_.size(), context.stream);  // with the gaps between parameters
}

void Reducer::ready(int layer, bool accumulate) {
    if (context_.comm->size() == 1) return;
    const std::vector<Part>& parts = buckets_.at(static_cast<size_t>(int64_t{layer} + 1));
    if (parts.empty()) return;
    settle();  // the backward pass is about to write to the other window
    accumulate_ = accumulate && windows_;
    reduce(parts);
    if (layer < 0 && windows_) settle();
}

void Reducer::ready_all(bool accumulate) {
    for (int layer = static_cast<int>(buckets_.size()) - 2; layer >= -1; --layer) ready(layer, accumulate);
}

void Reducer::reduce(const std::vector<Part>& parts) {
    const ParamBuffer& gradients = params_.gradients();
    const bool rounds = rounded_.size() > 0;
    layout_ = rounds ? ParamLayout::of_parts(parts) : gradients.layout();
    if (rounds)
        for (const Part& part : parts)
            for (const ParamLayout::Piece& p : gradients.layout().pieces(part))
                cast(rounded_.data() + layout_.at(p.element), gradients.data<float>() + p.at, p.size, context_.stream);
    void* data = rounds ? static_cast<void*>(rounded_.data()) : gradients.data<void>();
    const DType dtype = rounds ? DType::bf16 : DType::f32;
    const std::vector<Part> in_buffer = layout_.in_buffer(parts);
    context_.comm->reduce_sum(data, dtype, in_buffer, context_.stream);
    if (params_.sharding() == Sharding::none) context_.comm->broadcast(data, dtype, in_buffer, context_.stream);
    if (windows_ || rounds) reducing_ = parts;
}

void Reducer::settle() {
    if (reducing_.empty()) return;
    context_.comm->join(context_.stream);
    const auto take = [&](float* sum, const auto* x, int64_t n) {
        accumulate_ ? add(sum, x, n, context_.stream) : cast(sum, x, n, context_.stream);
    };
    for (const Part& part : reducing_) {
        if (part.root != context_.comm->rank() && params_.sharding() != Sharding::none) continue;
        for (const ParamLayout::Piece& p : params_.gradients().layout().pieces(part)) {
            float* sum = params_.sums().at<float>(p.element);
            if (rounded_.size() > 0)
                take(sum, rounded_.data() + layout_.at(p.element), p.size);
            else
                take(sum, params_.gradients().data<float>() + p.at, p.size);
        }
    }
    reducing_.clear();
}

void Reducer::finish() {
    settle();
    context_.comm->join(context_.stream);
}

void Reducer::sum_squares(float* sum, void* scratch) {
    zero(sum, 1, context_.stream);
    for (const Part& part : own_)
        reduce_sum_squares(sum, scratch, params_.sums().at<float>(part.offset), part.size, true, context_.stream);
    context_.comm->all_reduce_sum(sum, 1, context_.stream);
    context_.comm->join(context_.stream);
}

}  // namespace teon
