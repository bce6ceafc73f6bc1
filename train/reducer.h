// Sums gradients over ranks, piece by piece, each to the rank that updates it, while the backward pass computes the
// next piece.
#pragma once

#include <cstdint>
#include <vector>

#include "model/param_store.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Reducer {
public:
    // exchanged: float, or bf16, to which gradients are rounded before they are sent. bucket_bytes: passed to
    // gradient_buckets() if the gradients have no windows.
    Reducer(const ParamStore& params, const Placement& placement, Context& context, DType exchanged,
            int64_t bucket_bytes = kBucketBytes);

    // Whether every micro-step is reduced, because its gradients lie in windows that the next micro-step overwrites.
    // Otherwise only the last micro-step is, into which the earlier ones were accumulated.
    bool every_micro_step() const { return windows_; }
    // Call it from on_grads_ready of Model::forward_backward, when a layer's gradients are complete on context.stream;
    // layer -1, all other parameters, comes last. Begins to reduce the bucket that ends with this layer, if one does.
    // accumulate: add to the sums of earlier micro-steps.
    void ready(int layer, bool accumulate = false);
    // Calls ready() for all layers, in that order.
    void ready_all(bool accumulate = false);
    // Call it after ready(-1). Makes context.stream wait until params.sums() holds the sums over all ranks of this
    // rank's own gradients (with Sharding::none, of all gradients).
    void finish();

    // *sum (on the device) = the sum of squares of the reduced gradients over all ranks, with the same bits on each.
    // scratch: reduce_scratch_bytes(). The stream waits for the other ranks.
    void sum_squares(float* sum, void* scratch);

private:
    void reduce(const std::vector<Part>& parts);
    // Once the gradients in flight are reduced, moves those that this rank needs from the windows or from bf16 to the
    // sums.
    void settle();

    const ParamStore& params_;
    Context& context_;
    const bool windows_;
    const std::vector<std::vector<Part>> buckets_;
    std::vector<Part> own_;
    Buffer<bf16> rounded_;        // a bucket; empty if float is exchanged
    std::vector<Part> reducing_;  // parts in flight that settle() moves to the sums
    ParamLayout layout_;          // of the gradients in flight
    bool accumulate_ = false;
};

}  // namespace teon
