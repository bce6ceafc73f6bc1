// How layers are connected, and the arguments that a pass over a batch gives to each of them.
//
// Every layer of a block (norm.h, attention.h, mlp.h) has the same interface, so that training, recomputation,
// planning and generation walk one list:
//   constructor(ParamBuilder&, ...)     declares its parameters
//   plan(ActivationPlan&, const Ports&) declares its internal tensors; the block (block.h) has declared the edges
//   forward(pass), recompute(pass), backward(pass)
//   flops(T)                          FLOPs of forward for one token in a sequence of T, without elementwise work
//   recompute_flops(plan, T)          FLOPs of recompute, likewise
#pragma once

#include "data/batch.h"
#include "model/activation_offload.h"
#include "model/param_store.h"
#include "runtime/context.h"

namespace teon {

// The edges of a layer f: out.x = f(in.x) + residual, and in.dx = out.dx f'(in.x) + dresidual; each (N, C).
struct Ports {
    Edge in, out;
    Tensor residual = {}, dresidual = {};  // may be none; dresidual may be in.dx
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
    int* ints(Tensor s) const { return memory.at<int>(s); }
    void* bytes(Tensor s) const { return memory.at<void>(s); }
    const T* weight(int row) const { return params.work<T>(row); }
    float* grad(int row) const { return params.grad(row); }
    // What the last layer of a branch adds to its output. With dropout, Dropout adds it instead.
    const T* residual(const Ports& ports) const { return drops ? nullptr : at(ports.residual); }
    bool keeps(Tensor s) const { return memory.plan().keeps(s); }
};

}  // namespace teon
