#include "train/reducer.h"

#include "base/hash.h"
#include "kernels/reduce.h"

namespace teon {

Reducer::Reducer(const ParamStore& params, const Ownership& ownership, Context& context, int64_t bucket_bytes)
    : params_(params), context_(context), bucket_elements_(bucket_bytes / static_cast<int64_t>(sizeof(float))) {
    const ParamTable& table = params.table();
    std::vector<std::vector<int>> rows(1);
    for (int i = 0; i < table.count(); ++i) {
        const size_t at = static_cast<size_t>(int64_t{table[i].layer} + 1);
        if (rows.size() <= at) rows.resize(at + 1);
        rows[at].push_back(i);
    }
    for (auto& of_layer : rows) layers_.push_back(ownership.parts(of_layer));
    if (context.comm->size() == 1) {
        own_ = {{0, table.size(), 0}};
        return;
    }
    for (const Part& part : ownership.all())
        if (part.root == context.comm->rank()) own_.push_back(part);
}

void Reducer::ready(int layer) {
    if (context_.comm->size() == 1) return;
    const std::vector<Part>& parts = layers_.at(static_cast<size_t>(int64_t{layer} + 1));
    bucket_.insert(bucket_.end(), parts.begin(), parts.end());
    int64_t elements = 0;
    for (const Part& part : bucket_) elements += part.size;
    if (layer < 0 || elements >= bucket_elements_) flush();
}

void Reducer::ready_all() {
    for (int layer = static_cast<int>(layers_.size()) - 2; layer >= -1; --layer) ready(layer);
}

void Reducer::flush() {
    context_.comm->reduce_sum(params_.grad_all(), bucket_, context_.stream);
    bucket_.clear();
}

void Reducer::finish() { context_.comm->join(context_.stream); }

void Reducer::sum_squares(float* sum, void* scratch) {
    zero(sum, 1, context_.stream);
    for (const Part& part : own_)
        reduce_sum_squares(sum, scratch, params_.grad_all() + part.offset, part.size, true, context_.stream);
    context_.comm->all_reduce_sum(sum, 1, context_.stream);
    context_.comm->join(context_.stream);
}

}  // namespace teon
