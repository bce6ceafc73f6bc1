// Gradients of several ranks: each piece is summed to the rank that updates it, while backward computes the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/param_table.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Reducer {
public:
    // Buckets hold the gradients of as many layers as it takes to have `bucket_bytes` of them.
    Reducer(const ParamStore& params, const Ownership& ownership, Context& context,
            int64_t bucket_bytes = int64_t{4} << 20);

    // The gradients of a layer are queued on context.stream (Model::forward_backward's on_grads_ready; -1 is the last).
    // Only in the last micro-step: before it, gradients are summed where they are.
    void ready(int layer);
    // The gradients of all layers, as they are.
    void ready_all();
    // After ready(-1): context.stream continues when this rank's own gradients are the sums over all ranks. The others
    // are what they were.
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

// Both are called by all ranks, wait for the device, and throw Error naming the first rank that differs from rank 0: in
// a bit of the working weights; in a text (what says of what).
void check_same_on_all_ranks(const ParamStore& params, Context& context);
void check_equal_on_all_ranks(const std::string& text, const char* what, Context& context);

}  // namespace teon
