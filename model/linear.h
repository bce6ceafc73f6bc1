// y = x W^T + b, with one weight or with several that read the same input and are joined into one product.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "model/fp8_linear.h"
#include "model/param_builder.h"
#include "model/pass.h"

namespace teon {

struct Linear {
    int weight = -1, bias = -1;  // rows of the table (of the first joined weight and bias); -1: none
    int out = 0, in = 0;         // as stored
    double weights = 0;          // without padding
    bool bias_summed = false;    // the kernel that computes dy also sums the bias's gradient; backward() does not

    struct Part {
        const ParamName& name;
        Role role;
        int out, logical_out;
        int heads = 1;  // ParamRow::heads
    };
    Linear() = default;
    Linear(ParamBuilder& b, std::initializer_list<Part> parts, int in, int logical_in, float std, bool biases)
        : in(in) {
        for (const Part& p : parts) {
            const int row = b.matrix(p.name, p.role, p.out, in, p.logical_out, logical_in, std, weight >= 0, p.heads);
            if (weight < 0) weight = row;
            out += p.out;
            weights += static_cast<double>(p.logical_out) * logical_in;
        }
        if (!biases) return;
        for (const Part& p : parts) {
            const int row = b.vector(p.name, "bias", Role::bias, p.out, p.logical_out, Init::zeros, bias >= 0);
            if (bias < 0) bias = row;
        }
    }

    template <typename T>
    using Same = std::type_identity_t<T>;  // nullptr may be given

    double flops() const { return 2 * weights; }  // forward pass, per token

    // Without this call, no product is FP8 (model/fp8_linear.h, also for the maxima).
    void plan(ActivationPlan& plan, Tensor x_maximum = {}, Tensor dy_maximum = {}) {
        fp8_.plan(plan, out, in, x_maximum, dy_maximum);
    }

    // y (N, out) = x W^T + b + addend (N, out; nullptr: none). Rows of x (N, in) are ld elements apart (0: in).
    template <typename T>
    void forward(const Pass<T>& p, T* y, const T* x, int N, const Same<T>* addend = nullptr, int64_t ld = 0) const {
        Gemm g = product(p, y, x, N, ld ? ld : in);
        add(g, addend);
        fp8_.forward(g, p.memory, /*new_weight=*/!p.accumulate, p.stream());
        if (bias >= 0) g.epilogue = Epilogue::bias;
        p.context.linalg.gemm(g);
    }

    // dx (N, in) = dy (N, out) W + addend (N, in; nullptr: none; may be dx). dW = dy^T x and, unless bias_summed, db =
    // column sums of dy; both += if accumulate.
    template <typename T>
    void backward(const Pass<T>& p, T* dx, const T* dy, const T* x, int N, bool accumulate,
                  const Same<T>* addend = nullptr) const {
        Gemm dW{.M = out,
                .N = in,
                .K = N,
                .trans_a = true,
                .A = mat(dy, out),
                .B = mat(x, in),
                .C = mat(p.grad(weight), in),
                .beta = accumulate ? 1.0f : 0.0f};
        fp8_.weight_gradient(dW, p.memory, p.stream());
        const bool sums_bias = bias >= 0 && !bias_summed;
        if (sums_bias && !fp8_.is_planned()) {
            dW.epilogue = Epilogue::bias_grad;
            dW.bias = mat(p.grad(bias), out);
        }
        p.context.linalg.gemm(dW);
        if (sums_bias && fp8_.is_planned()) p.context.linalg.bias_gradient(p.grad(bias), mat(dy, out), N, out, dW.beta);

        Gemm g{.M = N, .N = in, .K = out, .A = mat(dy, out), .B = mat(p.weight(weight), in), .C = mat(dx, in)};
        fp8_.input_gradient(g, p.memory, p.stream());
        add(g, addend);
        p.context.linalg.gemm(g);
    }

private:
    Fp8Linear fp8_;

    template <typename T>
    static void add(Gemm& g, const T* addend) {
        if (addend == nullptr) return;
        g.beta = 1.0f;
        if (addend != g.C.data) g.addend = mat(addend, g.N);
    }

    // The product of a forward pass. The bias is set, but only an epilogue adds it.
    template <typename T>
    Gemm product(const Pass<T>& p, T* y, const T* x, int N, int64_t ld) const {
        Gemm g{.M = N, .N = out, .K = in, .trans_b = true};
        g.A = mat(x, ld);
        g.B = mat(p.weight(weight), in);
        g.C = mat(y, out);
        if (bias >= 0) g.bias = mat(p.weight(bias), out);
        return g;
    }
};

}  // namespace teon
