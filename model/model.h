// The interface of a language model for training.
#pragma once

#include <functional>
#include <memory>

#include "data/batch.h"
#include "model/activation_plan.h"
#include "model/param_store.h"

namespace teon {

class Model {
public:
    virtual ~Model() = default;

    ParamStore& params() { return *params_; }
    const ParamTable& table() const { return params_->table(); }

    // Runs the forward and the backward pass of one micro-batch. losses (B * T, device) = per-token losses in nats.
    // Parameter gradients = grad_scale * d(sum of losses)/dw; += if accumulate. on_grads_ready(layer), if given, is
    // called on the host as soon as the gradients of that layer are queued, from L - 1 down to 0, and with -1 for
    // everything outside of the layers. Once the context's give_up() is true, layers are skipped and the results are
    // meaningless, but on_grads_ready is still called.
    virtual void forward_backward(float* losses, const Batch& batch, float grad_scale, bool accumulate,
                                  const std::function<void(int)>& on_grads_ready = nullptr) = 0;

    // Runs only the forward pass. losses: (B * T, device).
    virtual void forward(float* losses, const Batch& batch) = 0;

    // Runs only the forward pass. logits (row_end - row_begin, V) float, without padding, of the batch's rows from
    // row_begin to row_end - 1. For tests and sampling.
    virtual void logits(float* logits, const Batch& batch, int row_begin, int row_end) = 0;

protected:
    std::unique_ptr<ParamStore> params_;
};

}  // namespace teon
