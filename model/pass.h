// How layers meet: what flows between them when they plan, and what a pass over a batch gives each of them.
//
// Every layer of a block (norm.h, attention.h, mlp.h) has the same interface, so that training, recomputation,
// planning and generation walk one list:
//   constructor(ParamBuilder&, ...)   declares its parameters
//   plan(ActivationPlan&, Flow&)      declares its tensors, and takes its input from and leaves its output in the flow
//   forward(pass), recompute(pass), backward(pass)
//   flops(T)                          of its forward pass, for one token in a sequence of T; elementwise work is not
//                                     counted
//   recompute_flops(plan, T)          of what recompute does again
#pragma once

#include "data/batch.h"
#include "model/activation_plan.h"
#include "model/param_table.h"
#include "runtime/context.h"

namespace teon {

struct Linear;

struct Flow {
    Tensor stream;            // (N, C): the residual stream
    Linear* added = nullptr;  // whose product was added to it last
    Tensor out;               // (N, C): the norm's output, which the next attention, MLP or head reads
    Tensor dstream;           // gradient of the residual stream: on the way back, what arrives at a branch
    Tensor dout;              // gradient of out; of heads on the way through an attention
};

template <typename T>
struct Pass {
    Context& context;
    const ParamStore& params;
    const Activations& memory;
    Batch batch;
    int cached = 0;           // generation: tokens of each sequence that the cache holds already
    bool accumulate = false;  // parameter gradients: +=, else =

    int N() const { return batch.B * batch.T; }
    const Stream& stream() const { return context.stream; }
    T* at(Tensor s) const { return memory.at<T>(s); }
    float* floats(Tensor s) const { return memory.at<float>(s); }
    void* bytes(Tensor s) const { return memory.at<void>(s); }
    const T* weight(int row) const { return params.work<T>(row); }
    float* grad(int row) const { return params.grad(row); }
    bool keeps(Tensor s) const { return memory.plan().keeps(s); }
};

}  // namespace teon
