// What a forward pass is made of, for the model that trains and the generator that decodes. Internal to model/.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/ops.h"
#include "model/decoder_layout.h"

namespace teon {

// A view of a decoder's weights and of what runs them. All outputs are written with `=`.
template <typename T>
struct DecoderForward {
    const DecoderConfig& c;
    const ParamStore& params;
    Context& context;

    // residual = x + branch (nullptr: x itself, `residual` is not written); out = its norm. All (N, C); mean (LayerNorm
    // only) and rstd (N).
    void norm(T* out, T* residual, float* mean, float* rstd, const T* x, const T* branch, const NormRows& p,
              int N) const {
        if (c.norm == Norm::layernorm) {
            layernorm_forward(out, residual, mean, rstd, x, branch, params.work<T>(p.weight), params.work<T>(p.bias), N,
                              c.C, c.norm_eps, context.stream);
        } else {
            rmsnorm_forward(out, residual, rstd, x, branch, params.work<T>(p.weight), N, c.C, c.norm_eps,
                            context.stream);
        }
    }

    // y (N, out) = x (N, in) W^T + b, with rows of x ld elements apart (0: in).
    void linear(T* y, const T* x, const Linear& p, int N, int64_t ld = 0) const {
        context.linalg.gemm(product(y, x, p, N, ld));
    }

    // act (N, Fp) = the MLP's activation of before (N, mlp_in_width), which is x (N, C) W^T + b.
    void mlp_in(T* act, T* before, const T* x, const Linear& p, int N) const {
        context.linalg.gemm(product(before, x, p, N, 0));
        if (c.mlp == Mlp::gelu) {
            gelu_forward(act, before, int64_t{N} * p.out, context.stream);
        } else {
            swiglu_forward(act, before, N, c.Fp(), context.stream);
        }
    }

    void embed(T* x, const int* tokens, const int* positions, const DecoderParams& p, int N) const {
        const T* position_table = p.position >= 0 ? params.work<T>(p.position) : nullptr;
        embedding_forward(x, tokens, positions, params.work<T>(p.token), position_table, N, c.C, context.stream);
    }

    // Rotates queries and keys of packed qkv (N, qkv_width) where positions are rotary.
    void rotate(T* qkv, const float* cos_sin, const int* positions, int N) const {
        if (c.positions == Positions::rotary)
            rotary_forward(qkv, cos_sin, positions, N, c.NH, c.NKV, c.HS(), context.stream);
    }

private:
    Gemm product(T* y, const T* x, const Linear& p, int N, int64_t ld) const {
        Gemm g;
        g.M = N;
        g.N = p.out;
        g.K = p.in;
        g.trans_b = true;
        g.A = mat(x, ld ? ld : p.in);
        g.B = mat(params.work<T>(p.weight), p.in);
        g.C = mat(y, p.out);
        if (p.bias >= 0) {
            g.epilogue = Epilogue::bias;
            g.bias = mat(params.work<T>(p.bias), p.out);
        }
        return g;
    }
};

// cos_sin (max_T, HS) for the configuration's base and scaling. Synchronizes.
inline void fill_rotary_table(float* cos_sin, const DecoderConfig& c, const Stream& stream) {
    const int half = c.HS() / 2;
    std::vector<float> inv_freq(half);
    for (int j = 0; j < half; ++j)
        inv_freq[j] =
            static_cast<float>(std::pow(static_cast<double>(c.rope_base), -2.0 * j / c.HS()) / c.rope_scaling);
    Buffer<float> on_device(half);
    upload(on_device.data(), inv_freq.data(), half, stream);
    rotary_table(cos_sin, on_device.data(), c.max_T, c.HS(), stream);
    stream.synchronize();
}

}  // namespace teon
