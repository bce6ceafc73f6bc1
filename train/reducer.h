// Sums each piece of the gradients over ranks, to the rank that updates it, while backward computes the next piece.
#pragma once

#include <cstdint>
#include <vector>

#include "model/param_table.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Reducer {
public:
    // A bucket holds the gradients of as many layers as reach `bucket_bytes`.
    Reducer(const ParamStore& params, const Ownership& ownership, Context& context,
            int64_t bucket_bytes = int64_t{4} << 20);

    // The gradients of a layer are complete on context.stream (Model::forward_backward's on_grads_ready; -1 is the
    // last). Only in the last micro-step: earlier ones accumulate locally.
    void ready(int layer);
    // The same for all layers.
    void ready_all();
    // After ready(-1): context.stream waits until this rank's own gradients are the sums over all ranks. The others
    // keep their local values.
    void finish();

    // *sum (device) = the sum of squares of the reduced gradients, over all ranks, with the same bits on each. scratch:
    // reduce_scratch_bytes(). Waits (on the stream) for the other ranks.
    void sum_squares(float* sum, void* scratch);

private:
    void flush();

    const ParamStore& params_;
    Context& context_;
    int64_t bucket_elements_;
    std::vector<std::vector<Part>> layers_;  // parts of layer l at l + 1
    std::vector<Part> own_;
    std::vector<Part> bucket_;
};

}  // namespace teon
