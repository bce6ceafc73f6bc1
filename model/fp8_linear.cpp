#include "model/fp8_linear.h"

#include <fmt/core.h>

#include "kernels/fp8.h"

namespace teon {

void Fp8Linear::plan(ActivationPlan& plan, int out, int in, Tensor x_maximum, Tensor dy_maximum) {
    const DecoderRun& run = plan.run();
    if (run.matmul_dtype == MatmulDType::same) return;
    keeps_weight_ = run.keeps_fp8_weights;
    fast_accumulation_ = run.fast_accumulation;
    const auto operand = [&](Tensor maximum) {
        Operand o = {.finds_maximum = maximum.row < 0, .maximum = maximum};
        if (o.finds_maximum) o.maximum = plan.maximum();
        o.scale = plan.own_bytes("scales of FP8", size_of(DType::f32));
        return o;
    };
    x_ = operand(x_maximum);
    dy_ = operand(dy_maximum);
    w_ = operand({});
    if (run.matmul_dtype == MatmulDType::fp8) dy_.dtype = DType::e5m2;
    x_.copy = x_.transposed = plan.shared_bytes(Shared::fp8_input, plan.N() * in);
    dy_.copy = plan.gradient_bytes(Shared::fp8_gradient, plan.N() * out);
    dy_.transposed = plan.gradient_bytes(Shared::fp8_gradient_transposed, plan.N() * out);
    const int64_t bytes = int64_t{out} * in;
    if (keeps_weight_) {
        const std::string name = fmt::format("FP8 weights of {} x {}", out, in);
        w_.copy = plan.own_bytes(name, bytes);
        w_.transposed = plan.own_bytes(name + ", transposed", bytes);
    } else {
        w_.copy = w_.transposed = plan.shared_bytes(Shared::fp8_weight, bytes);
    }
}

// Writes FP8 copies of x (rows, cols).
void Fp8Linear::cast(const Operand& to, const Activations& memory, const Mat& x, int rows, int cols, Copies copies,
                     const Stream& stream) {
    const auto* from = static_cast<const bf16*>(x.data);
    float* maximum = memory.at<float>(to.maximum);
    if (to.finds_maximum) absolute_maximum(maximum, from, int64_t{rows} * cols, stream);
    const auto cast_to = [&]<typename F>(F) {
        cast_fp8<F>(copies == Copies::transposed ? nullptr : memory.at<F>(to.copy),
                    copies == Copies::plain ? nullptr : memory.at<F>(to.transposed), memory.at<float>(to.scale), from,
                    maximum, rows, cols, stream);
    };
    to.dtype == DType::e5m2 ? cast_to(e5m2()) : cast_to(e4m3());
}

Mat Fp8Linear::copy_of(const Operand& operand, Tensor copy, const Activations& memory, int64_t ld) {
    return {.data = memory.at<void>(copy), .dtype = operand.dtype, .ld = ld, .scale = memory.at<float>(operand.scale)};
}

void Fp8Linear::forward(Gemm& g, const Activations& memory, bool new_weight, const Stream& stream) const {
    if (!is_planned()) return;
    cast(x_, memory, g.A, g.M, g.K, Copies::plain, stream);
    if (!keeps_weight_) {
        cast(w_, memory, g.B, g.N, g.K, Copies::plain, stream);
    } else if (new_weight) {
        cast(w_, memory, g.B, g.N, g.K, Copies::both, stream);
    }
    g.A = copy_of(x_, x_.copy, memory, g.K);
    g.B = copy_of(w_, w_.copy, memory, g.K);
    g.fast_accumulation = fast_accumulation_;
}

void Fp8Linear::weight_gradient(Gemm& g, const Activations& memory, const Stream& stream) const {
    if (!is_planned()) return;
    cast(dy_, memory, g.A, g.K, g.M, Copies::both, stream);
    cast(x_, memory, g.B, g.K, g.N, Copies::transposed, stream);
    g.trans_a = false;
    g.trans_b = true;
    g.A = copy_of(dy_, dy_.transposed, memory, g.K);
    g.B = copy_of(x_, x_.transposed, memory, g.K);
}

void Fp8Linear::input_gradient(Gemm& g, const Activations& memory, const Stream& stream) const {
    if (!is_planned()) return;
    if (!keeps_weight_) cast(w_, memory, g.B, g.K, g.N, Copies::transposed, stream);
    g.trans_b = true;
    g.A = copy_of(dy_, dy_.copy, memory, g.K);
    g.B = copy_of(w_, w_.transposed, memory, g.K);
}

}  // namespace teon
