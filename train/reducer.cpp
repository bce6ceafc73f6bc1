#include "train/reducer.h"

#include <utility>

#include "kernels/reduce.h"

namespace teon {

Reducer::Reducer(const ParamStore& params, const Ownership& ownership, Context& context, int64_t bucket_bytes)
    : params_(params),
      context_(context),
      windows_(params.has_gradient_windows()),
      bucket_elements_(windows_ ? 0 : bucket_bytes / static_cast<int64_t>(sizeof(float))) {
    const ParamTable& table = params.table();
    for (const std::vector<int>& rows : rows_by_window(table)) layers_.push_back(ownership.parts(rows));
    if (context.comm->size() == 1) {
        own_ = {{0, table.size(), 0}};
        return;
    }
    for (const Part& part : ownership.all())
        if (part.root == context.comm->rank()) own_.push_back(part);
}

void Reducer::ready(int layer, bool accumulate) {
    if (context_.comm->size() == 1) return;
    settle();  // backward is about to write to the other window
    const std::vector<Part>& parts = layers_.at(static_cast<size_t>(int64_t{layer} + 1));
    bucket_.insert(bucket_.end(), parts.begin(), parts.end());
    int64_t elements = 0;
    for (const Part& part : bucket_) elements += part.size;
    if (layer < 0 || elements >= bucket_elements_) flush();
    accumulate_ = accumulate;
    if (layer < 0) settle();
}

void Reducer::ready_all(bool accumulate) {
    for (int layer = static_cast<int>(layers_.size()) - 2; layer >= -1; --layer) ready(layer, accumulate);
}

void Reducer::flush() {
    const std::vector<Part> parts = params_.gradients().layout().in_buffer(bucket_);
    float* gradients = params_.gradients().data<float>();
    context_.comm->reduce_sum(gradients, parts, context_.stream);
    if (params_.sharding() == Sharding::none) context_.comm->broadcast(gradients, DType::f32, parts, context_.stream);
    if (windows_) reducing_ = bucket_;
    bucket_.clear();
}

// Moves this rank's own parts from the windows, once they are reduced, to the sums.
void Reducer::settle() {
    if (reducing_.empty()) return;
    context_.comm->join(context_.stream);
    const float* gradients = params_.gradients().data<float>();
    for (const Part& part : std::exchange(reducing_, {})) {
        if (part.root != context_.comm->rank()) continue;
        for (const ParamLayout::Piece& p : params_.gradients().layout().pieces(part)) {
            float* sum = params_.sums().at<float>(p.element);
            accumulate_ ? add(sum, gradients + p.at, p.size, context_.stream)
                        : copy(sum, gradients + p.at, p.size, context_.stream);
        }
    }
}

void Reducer::finish() { context_.comm->join(context_.stream); }

void Reducer::sum_squares(float* sum, void* scratch) {
    zero(sum, 1, context_.stream);
    for (const Part& part : own_)
        reduce_sum_squares(sum, scratch, params_.sums().at<float>(part.offset), part.size, true, context_.stream);
    context_.comm->all_reduce_sum(sum, 1, context_.stream);
    context_.comm->join(context_.stream);
}

}  // namespace teon
