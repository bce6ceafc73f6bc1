// How layers are connected, and the arguments that a pass over a batch gives to each of them.
//
// Every layer of a block (norm.h, attention.h, mlp.h) has the same interface, so that training, recomputation,
// planning and generation walk one list:
//   constructor(ParamBuilder&, ...)     declares its parameters
//   plan(ActivationPlan&, const Ports&) declares its internal tensors; the block (block.h) has declared the ports'
//   forward(pass), recompute(pass), backward(pass)
//   flops(T)                          FLOPs of forward for one token in a sequence of T, without elementwise work
//   recompute_flops(plan, T)          FLOPs of recompute, likewise
#pragma once

#include "data/batch.h"
#include "model/activation_offload.h"
#include "model/param_store.h"
#include "runtime/context.h"

namespace teon {

// The inputs and outputs of a layer f, each (N, C): out = f(in) + residual, and din = dout f'(in) + dresidual.
struct Ports {
    Tensor in = {}, out = {}, din = {}, dout = {};
    Tensor residual = {}, dresidual = {};  // may be none; dresidual may be din
    // FP8: where the writer of the tensor stores its absolute maximum; may be none. Norms write out's and din's.
    Tensor in_maximum = {}, out_maximum = {}, din_maximum = {}, dout_maximum = {};
    int in_bias = -1;  // row of the last bias added to `in`; LayerNorm sums its gradient; -1: none
};

template <typename T>
struct Pass {
    Context& context;
    const ParamStore& params;
    const Activations& memory;
    Batch batch;
    int cached = 0;                        // generation: tokens of each sequence in the cache
    bool accumulate = false;               // parameter gradients: +=, else =
    bool drops = false;                    // dropout applies: a pass with a backward pass of a model that has it
    ActivationOffload* offload = nullptr;  // set for passes with a backward pass if blocks are offloaded

    int N() const { return batch.B * batch.T; }
    const Stream& stream() const { return context.stream; }
    T* at(Tensor s) const { return memory.at<T>(s); }  // nullptr: none
    float* floats(Tensor s) const { return memory.at<float>(s); }
    void* bytes(Tensor s) const { return memory.at<void>(s); }
    const T* weight(int row) const { return params.work<T>(row); }
    float* grad(int row) const { return params.grad(row); }
    // What the last layer of a branch adds to its output. With dropout, Dropout adds it instead.
    const T* residual(const Ports& ports) const { return drops ? nullptr : at(ports.residual); }
    bool keeps(Tensor s) const { return memory.plan().keeps(s); }
};

}  // namespace teon
