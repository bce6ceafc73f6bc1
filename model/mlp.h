// The MLP: a product to width F, the activation function, and a product back to width C.
#pragma once

#include "kernels/gelu.h"
#include "kernels/relu2.h"
#include "kernels/swiglu.h"
#include "model/linear.h"

namespace teon {

class Mlp {
public:
    Mlp(ParamBuilder& b, const DecoderConfig& c, float out_std) : kind_(c.mlp), F_(c.Fp()) {
        const DecoderNames& n = c.names;
        switch (kind_) {
            case MlpKind::gelu:
            case MlpKind::gelu_erf:
            case MlpKind::relu2:
                up_ = Linear(b, {{n.up, Role::mlp_up, F_, c.F}}, c.C, c.C, c.init_std, c.mlp_biases);
                break;
            case MlpKind::swiglu:
                up_ = Linear(b, {{n.gate, Role::mlp_gate, F_, c.F}, {n.up, Role::mlp_up, F_, c.F}}, c.C, c.C,
                             c.init_std, c.mlp_biases);
                break;
        }
        down_ = Linear(b, {{n.down, Role::mlp_down, c.C, c.C}}, F_, c.F, out_std, c.mlp_biases);
        down_.bias_summed = c.sums_out_bias();
    }

    int out_bias() const { return down_.bias; }

    void plan(ActivationPlan& plan, const Ports& ports) {
        ports_ = ports;
        after_maximum_ = plan.maximum(), dbefore_maximum_ = plan.maximum();
        up_.plan(plan, ports.in.x_maximum, dbefore_maximum_);
        down_.plan(plan, after_maximum_, ports.out.dx_maximum);
        fused_ = plan.run().gelu_fusion;
        before_ = plan.saved("MLP before activation", up_.out, Drop::under_block);
        // An epilogue can be recomputed only with its product.
        after_ = plan.saved("MLP after activation", F_, fused_ ? Drop::under_block : Drop::under_cheap);
        dafter_ = dbefore_ = plan.gradient(Shared::mlp_gradient, F_);
        if (up_.out != F_) dbefore_ = plan.gradient(Shared::mlp_gated_gradient, up_.out);
        switch (kind_) {
            case MlpKind::gelu:
            case MlpKind::gelu_erf:
            case MlpKind::relu2:
                if (fused_) break;
                scratch_ = plan.gradient_bytes(
                    Shared::activation_scratch,
                    static_cast<int64_t>(activation_scratch_bytes(kind_, static_cast<int>(plan.N()), F_)));
                up_.bias_summed = true;
                break;
            case MlpKind::swiglu:
                break;
        }
    }

    double flops(int) const { return up_.flops() + down_.flops(); }
    double recompute_flops(const ActivationPlan& plan, int) const {
        return (plan.keeps(before_) ? 0 : up_.flops()) + (plan.keeps(ports_.out.x) ? 0 : down_.flops());
    }

    template <typename T>
    void forward(const Pass<T>& p) const {
        up(p);
        down(p);
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(before_)) {
            up(p);
        } else if (!p.keeps(after_)) {
            activate(p);
        }
        if (!p.keeps(ports_.out.x)) down(p);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        down_.backward(p, p.at(dafter_), p.at(ports_.out.dx), p.at(after_), p.N(), p.accumulate,
                       /*addend=*/nullptr, fused_ ? p.at(before_) : nullptr);
        if (!fused_) activate_backward(p);
        up_.backward(p, p.at(ports_.in.dx), p.at(dbefore_), p.at(ports_.in.x), p.N(), p.accumulate,
                     p.at(ports_.dresidual));
    }

private:
    static size_t activation_scratch_bytes(MlpKind kind, int N, int F) {
        switch (kind) {
            case MlpKind::gelu:
                return gelu_backward_scratch_bytes(N, F);
            case MlpKind::gelu_erf:
                return gelu_erf_backward_scratch_bytes(N, F);
            case MlpKind::relu2:
                return relu2_backward_scratch_bytes(N, F);
            case MlpKind::swiglu:
                return 0;
        }
        return 0;
    }

    // The product to width F and the activation function.
    template <typename T>
    void up(const Pass<T>& p) const {
        if (fused_) return up_.forward_gelu(p, p.at(after_), p.at(before_), p.at(ports_.in.x), p.N());
        up_.forward(p, p.at(before_), p.at(ports_.in.x), p.N());
        activate(p);
    }
    template <typename T>
    void down(const Pass<T>& p) const {
        down_.forward(p, p.at(ports_.out.x), p.at(after_), p.N(), p.residual(ports_));
    }
    template <typename T>
    void activate(const Pass<T>& p) const {
        float* maximum = p.floats(after_maximum_);
        switch (kind_) {
            case MlpKind::gelu:
                return gelu_forward(p.at(after_), p.at(before_), int64_t{p.N()} * F_, p.stream(), maximum);
            case MlpKind::gelu_erf:
                return gelu_erf_forward(p.at(after_), p.at(before_), int64_t{p.N()} * F_, p.stream(), maximum);
            case MlpKind::relu2:
                return relu2_forward(p.at(after_), p.at(before_), int64_t{p.N()} * F_, p.stream(), maximum);
            case MlpKind::swiglu:
                return swiglu_forward(p.at(after_), p.at(before_), p.N(), F_, p.stream(), maximum);
        }
    }
    template <typename T>
    void activate_backward(const Pass<T>& p) const {
        T* dbefore = p.at(dbefore_);
        const T *before = p.at(before_), *dafter = p.at(dafter_);
        float* maximum = p.floats(dbefore_maximum_);
        float* dbias = up_.bias >= 0 ? p.grad(up_.bias) : nullptr;
        switch (kind_) {
            case MlpKind::gelu:
                return gelu_backward(dbefore, dbias, p.bytes(scratch_), before, dafter, p.N(), F_, p.accumulate,
                                     p.stream(), maximum);
            case MlpKind::gelu_erf:
                return gelu_erf_backward(dbefore, dbias, p.bytes(scratch_), before, dafter, p.N(), F_, p.accumulate,
                                         p.stream(), maximum);
            case MlpKind::relu2:
                return relu2_backward(dbefore, dbias, p.bytes(scratch_), before, dafter, p.N(), F_, p.accumulate,
                                      p.stream(), maximum);
            case MlpKind::swiglu:
                return swiglu_backward(dbefore, before, dafter, p.N(), F_, p.stream(), maximum);
        }
    }

    MlpKind kind_;
    int F_;               // stored width
    bool fused_ = false;  // the products compute GELU in their epilogues
    Linear up_, down_;
    Ports ports_;
    Tensor after_maximum_, dbefore_maximum_;              // FP8: the activation function writes them
    Tensor before_, after_, dafter_, dbefore_, scratch_;  // before: (N, F), or (N, 2 F) with a gate
};

}  // namespace teon
