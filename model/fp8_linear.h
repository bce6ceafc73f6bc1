// The FP8 half of a linear layer (docs/fp8.md): 8-bit copies of x, dy and W, each with a scale, and the products that
// read them instead of the bf16 tensors.
#pragma once

#include "model/activation_plan.h"
#include "runtime/linalg/gemm.h"

namespace teon {

class Fp8Linear {
public:
    // Declares the copies for W (out, in) if the run multiplies FP8. x_maximum, dy_maximum: where the writer of x or dy
    // stores its absolute maximum; row -1: it does not.
    void plan(ActivationPlan& plan, int out, int in, Tensor x_maximum, Tensor dy_maximum);
    bool is_planned() const { return x_.copy.row >= 0; }

    // Each function casts the operands of a product of bf16 matrices, and makes the product read the copies, in which
    // the dimension that it sums over is contiguous. Without a plan it does nothing.
    //
    // y = x W^T. new_weight: W may have changed since the last forward pass.
    void forward(Gemm& g, const Activations& memory, bool new_weight, const Stream& stream) const;
    // dW = dy^T x. Also casts dy for input_gradient(), which follows.
    void weight_gradient(Gemm& g, const Activations& memory, const Stream& stream) const;
    // dx = dy W
    void input_gradient(Gemm& g, const Activations& memory, const Stream& stream) const;

private:
    // transposed may be the memory of copy if both are never needed at once.
    struct Operand {
        DType dtype = DType::e4m3;
        bool finds_maximum = false;  // else the tensor's writer has stored it
        Tensor maximum = {}, scale = {}, copy = {}, transposed = {};
    };
    enum class Copies { plain, transposed, both };
    static void cast(const Operand& to, const Activations& memory, const Mat& x, int rows, int cols, Copies copies,
                     const Stream& stream);
    static Mat copy_of(const Operand& operand, Tensor copy, const Activations& memory, int64_t ld);

    bool keeps_weight_ = false, fast_accumulation_ = false;
    Operand x_, dy_, w_;
};

}  // namespace teon
