// y = x W^T + b, with one weight or with several that read the same input and are joined into one product.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/fp8.h"
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

    // Declares the FP8 copies of x, dy and the weight if the run multiplies FP8. Without this call, no product is FP8.
    // x_maximum, dy_maximum: where the writer of x or dy stores its absolute maximum; row -1: it does not.
    void plan(ActivationPlan& plan, Tensor x_maximum = {}, Tensor dy_maximum = {}) {
        const DecoderRun& run = plan.run();
        if (run.matmul_dtype == MatmulDType::same) return;
        fp8_ = run.matmul_dtype;
        fast_accumulation_ = run.fast_accumulation;
        const auto operand = [&](Tensor maximum) {
            return Fp8Operand{maximum.row < 0,
                              maximum.row < 0 ? plan.maximum() : maximum,
                              plan.own_bytes("scales of FP8", size_of(DType::f32)),
                              {},
                              {}};
        };
        x_ = operand(x_maximum);
        dy_ = operand(dy_maximum);
        w_ = operand({});
        x_.copy = x_.transposed = plan.shared_bytes(Shared::fp8_input, plan.N() * in);
        dy_.copy = plan.gradient_bytes(Shared::fp8_gradient, plan.N() * out);
        dy_.transposed = plan.gradient_bytes(Shared::fp8_gradient_transposed, plan.N() * out);
        const int64_t bytes = int64_t{out} * in;
        keeps_fp8_weight_ = run.keeps_fp8_weights;
        if (keeps_fp8_weight_) {
            const std::string name = fmt::format("FP8 weights of {} x {}", out, in);
            w_.copy = plan.own_bytes(name, bytes);
            w_.transposed = plan.own_bytes(name + ", transposed", bytes);
        } else {
            w_.copy = w_.transposed = plan.shared_bytes(Shared::fp8_weight, bytes);
        }
    }

    // y (N, out) = x W^T + b + addend (N, out; nullptr: none). Rows of x (N, in) are ld elements apart (0: in).
    template <typename T>
    void forward(const Pass<T>& p, T* y, const T* x, int N, const Same<T>* addend = nullptr, int64_t ld = 0) const {
        Gemm g = product(p, y, x, N, ld ? ld : in);
        add(g, addend);
        if constexpr (std::is_same_v<T, bf16>) {
            if (is_fp8()) {
                g.A = cast<e4m3>(p, x_, x, N, in, Copies::plain);
                if (!keeps_fp8_weight_)
                    cast<e4m3>(p, w_, p.weight(weight), out, in, Copies::plain);
                else if (!p.accumulate)
                    cast<e4m3>(p, w_, p.weight(weight), out, in, Copies::both);
                g.B = fp8_mat<e4m3>(p, w_, w_.copy, in);
                g.fast_accumulation = fast_accumulation_;
            }
        }
        if (bias >= 0) g.epilogue = Epilogue::bias;
        p.context.linalg.gemm(g);
    }

    // dx (N, in) = dy (N, out) W + addend (N, in; nullptr: none; may be dx). dW = dy^T x and, unless bias_summed, db =
    // column sums of dy; both += if accumulate.
    template <typename T>
    void backward(const Pass<T>& p, T* dx, const T* dy, const T* x, int N, bool accumulate,
                  const Same<T>* addend = nullptr) const {
        if constexpr (std::is_same_v<T, bf16>) {
            if (fp8_ == MatmulDType::fp8) return backward_fp8<e5m2>(p, dx, dy, x, N, accumulate, addend);
            if (fp8_ == MatmulDType::fp8_e4m3) return backward_fp8<e4m3>(p, dx, dy, x, N, accumulate, addend);
        }
        Gemm dW;
        dW.M = out;
        dW.N = in;
        dW.K = N;
        dW.trans_a = true;
        dW.A = mat(dy, out);
        dW.B = mat(x, in);
        dW.C = mat(p.grad(weight), in);
        dW.beta = accumulate ? 1.0f : 0.0f;
        if (bias >= 0 && !bias_summed) {
            dW.epilogue = Epilogue::bias_grad;
            dW.bias = mat(p.grad(bias), out);
        }
        p.context.linalg.gemm(dW);

        Gemm g;
        g.M = N;
        g.N = in;
        g.K = out;
        g.A = mat(dy, out);
        g.B = mat(p.weight(weight), in);
        g.C = mat(dx, in);
        add(g, addend);
        p.context.linalg.gemm(g);
    }

private:
    // A tensor that products multiply as FP8. transposed may be the memory of copy if both are never needed at once.
    struct Fp8Operand {
        bool computes_maximum = false;  // else the tensor's writer has stored it
        Tensor maximum, scale, copy, transposed;
    };
    enum class Copies { plain, transposed, both };

    bool is_fp8() const { return fp8_ != MatmulDType::same; }

    template <typename F>
    static Mat fp8_mat(const Pass<bf16>& p, const Fp8Operand& operand, Tensor copy, int64_t ld) {
        Mat m = mat(p.memory.at<F>(copy), ld);
        m.scale = p.floats(operand.scale);
        return m;
    }

    // Writes FP8 copies of x (rows, cols). Returns the plain copy, or the transposed one if it is the only one.
    template <typename F>
    static Mat cast(const Pass<bf16>& p, const Fp8Operand& to, const bf16* x, int rows, int cols, Copies copies) {
        float* maximum = p.floats(to.maximum);
        if (to.computes_maximum) absolute_maximum(maximum, x, int64_t{rows} * cols, p.stream());
        const bool plain = copies != Copies::transposed;
        cast_fp8<F>(plain ? p.memory.at<F>(to.copy) : nullptr,
                    copies != Copies::plain ? p.memory.at<F>(to.transposed) : nullptr, p.floats(to.scale), x, maximum,
                    rows, cols, p.stream());
        return plain ? fp8_mat<F>(p, to, to.copy, cols) : fp8_mat<F>(p, to, to.transposed, rows);
    }

    // backward() with gradients of type F. In all operands, the dimension that products sum over is contiguous.
    template <typename F>
    void backward_fp8(const Pass<bf16>& p, bf16* dx, const bf16* dy, const bf16* x, int N, bool accumulate,
                      const bf16* addend) const {
        Gemm g;
        g.trans_b = true;
        const Mat plain_dy = cast<F>(p, dy_, dy, N, out, Copies::both);
        g.M = out;
        g.N = in;
        g.K = N;
        g.A = fp8_mat<F>(p, dy_, dy_.transposed, N);
        g.B = cast<e4m3>(p, x_, x, N, in, Copies::transposed);
        g.C = mat(p.grad(weight), in);
        g.beta = accumulate ? 1.0f : 0.0f;
        p.context.linalg.gemm(g);
        if (bias >= 0 && !bias_summed) p.context.linalg.bias_gradient(p.grad(bias), mat(dy, out), N, out, g.beta);

        if (!keeps_fp8_weight_) cast<e4m3>(p, w_, p.weight(weight), out, in, Copies::transposed);
        g.M = N;
        g.N = in;
        g.K = out;
        g.A = plain_dy;
        g.B = fp8_mat<e4m3>(p, w_, w_.transposed, out);
        g.C = mat(dx, in);
        g.beta = 0.0f;
        add(g, addend);
        p.context.linalg.gemm(g);
    }

    MatmulDType fp8_ = MatmulDType::same;
    bool keeps_fp8_weight_ = false;
    bool fast_accumulation_ = false;
    Fp8Operand x_, dy_, w_;

    template <typename T>
    static void add(Gemm& g, const T* addend) {
        if (addend == nullptr) return;
        g.beta = 1.0f;
        if (addend != g.C.data) g.addend = mat(addend, g.N);
    }

    // The product of a forward pass. The bias is set, but only an epilogue adds it.
    template <typename T>
    Gemm product(const Pass<T>& p, T* y, const T* x, int N, int64_t ld) const {
        Gemm g;
        g.M = N;
        g.N = out;
        g.K = in;
        g.trans_b = true;
        g.A = mat(x, ld);
        g.B = mat(p.weight(weight), in);
        g.C = mat(y, out);
        if (bias >= 0) g.bias = mat(p.weight(bias), out);
        return g;
    }
};

}  // namespace teon
