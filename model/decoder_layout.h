// Where everything of a decoder lies: rows of the parameter table and of the activation plan. Internal to model/.
#pragma once

#include <cstddef>
#include <vector>

#include "model/decoder.h"
#include "runtime/device.h"

namespace teon {

// A linear layer y = x W^T + b: the first of its (joined) weight rows and of its bias rows in the table; bias -1: none.
struct Linear {
    int weight = -1, bias = -1;
    int out = 0, in = 0;
};

struct NormRows {
    int weight = -1, bias = -1;
};

struct LayerRows {
    NormRows norm1, norm2;
    Linear qkv, attn_out, mlp_in, mlp_out;
};

struct DecoderParams {
    ParamTable table;
    int token = -1, position = -1;
    std::vector<LayerRows> layers;
    NormRows final_norm;
    Linear head;
};

DecoderParams lay_out_params(const DecoderConfig& c);

// One row of the activation plan in memory: a copy per layer, or one that all share (stride 0).
struct Tensor {
    std::byte* data = nullptr;
    int64_t stride = 0;
    template <typename T>
    T* at(int l = 0) const {
        return reinterpret_cast<T*>(data + l * stride);
    }
};

// All that one forward and backward pass writes. N = B * T; "T" is the storage type.
struct Activations {
    Tensor x;             // (N, C) T, L + 1 copies: the residual stream where each block and the final norm read it
    Tensor norm1, norm2;  // (N, C) T: normalized input of the attention and of the MLP
    Tensor mean1, rstd1, mean2, rstd2, mean_final, rstd_final;  // (N) float
    Tensor qkv;                                                 // (N, qkv_width) T, rotated where positions are rotary
    Tensor lse;                                                 // (B, NH, T) float
    Tensor attention;                                           // (N, C) T: heads, concatenated
    Tensor mid;                                                 // (N, C) T: the residual stream after the attention
    Tensor mlp_in;                                              // (N, mlp_in_width) T: before the activation function
    Tensor mlp_act;                                             // (N, Fp) T: after it
    Tensor branch;                           // (N, C) T: a block's contribution, until the next norm adds it
    Tensor norm_final;                       // (N, C) T
    Tensor logits;                           // (head_rows, Vp) T
    Tensor dx;                               // (N, C) T: gradient of the residual stream
    Tensor dnorm;                            // (N, C) T: gradient of a norm's output, or of the attention's output
    Tensor dqkv;                             // (N, qkv_width) T
    Tensor dmlp_act;                         // (N, Fp) T
    Tensor dmlp_in;                          // (N, mlp_in_width) T; the same memory as dmlp_act for GELU
    Tensor attention_scratch, norm_scratch;  // bytes
    Tensor cos_sin;                          // (max_T, HS) float, constant
};

// Rows of logits that exist at a time: as many as fit 128 MiB, in multiples of 128, so that no N x Vp buffer is ever
// whole.
int head_rows(const DecoderConfig& c, const DecoderRun& r);

// The plan; if `arena` is given, also takes the memory and fills `activations`. r.recompute must be resolved.
ActivationPlan lay_out_activations(const DecoderConfig& c, const DecoderRun& r, Activations* activations, Arena* arena);

}  // namespace teon
