// Sums each piece of the gradients over ranks, to the rank that updates it, while backward computes the next piece.
#pragma once

#include <cstdint>
#include <vector>

#include "model/param_store.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Reducer {
public:
    // exchanged: float, or bf16, to which gradients are rounded before they are sent. bucket_bytes:
    // gradient_buckets()', where gradients have no windows.
    Reducer(const ParamStore& params, const Ownership& ownership, Context& context, DType exchanged,
            int64_t bucket_bytes = kBucketBytes);

    // Whether every micro-step is reduced: its gradients lie in windows, which the next one overwrites. Otherwise only
    // the last one, in which the earlier ones accumulated.
    bool every_micro_step() const { return windows_; }
    // The gradients of a layer are complete on context.stream (Model::forward_backward's on_grads_ready; -1 is the
    // last). accumulate: to the sums of earlier micro-steps.
    void ready(int layer, bool accumulate = false);
    // The same for all layers.
    void ready_all(bool accumulate = false);
    // After ready(-1): context.stream waits until params.sums() holds the sums over all ranks of this rank's own
    // gradients (Sharding::none: of all gradients).
    void finish();

    // *sum (device) = the sum of squares of the reduced gradients, over all ranks, with the same bits on each. scratch:
    // reduce_scratch_bytes(). Waits (on the stream) for the other ranks.
    void sum_squares(float* sum, void* scratch);

private:
    void reduce(const std::vector<Part>& parts);
    // Moves what is needed here to the sums, once it is reduced: from the windows, or out of bf16.
    void settle();

    const ParamStore& params_;
    Context& context_;
    const bool windows_;
    const std::vector<std::vector<Part>> buckets_;
    std::vector<Part> own_;
    Buffer<bf16> rounded_;        // a bucket; empty if float is exchanged
    std::vector<Part> reducing_;  // parts that are being reduced, to be added to the sums or to become them
    ParamLayout layout_;          // of what is being reduced
    bool accumulate_ = false;
};

}  // namespace teon
