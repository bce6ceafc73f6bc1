// The MLP: a product to width F, the activation function, and a product back to width C.
#pragma once

#include "kernels/activation.h"
#include "model/linear.h"

namespace teon {

class Mlp {
public:
    Mlp(ParamBuilder& b, const DecoderConfig& c, float out_std) : kind_(c.mlp), F_(c.Fp()) {
        const DecoderNames& n = c.names;
        const Linear::Part up = {n.up, Role::mlp_up, F_, c.F};
        up_ = gated() ? Linear(b, {{n.gate, Role::mlp_gate, F_, c.F}, up}, c.C, c.C, c.init_std, c.mlp_biases)
                      : Linear(b, {up}, c.C, c.C, c.init_std, c.mlp_biases);
        down_ = Linear(b, {{n.down, Role::mlp_down, c.C, c.C}}, F_, c.F, out_std, c.mlp_biases);
        down_.bias_summed = c.sums_out_bias();
    }

    int out_bias() const { return down_.bias; }

    void plan(ActivationPlan& plan, const Ports& ports) {
        ports_ = ports;
        after_maximum_ = plan.maximum();
        dbefore_maximum_ = plan.maximum();
        up_.plan(plan, ports.in.x_maximum, dbefore_maximum_);
        down_.plan(plan, after_maximum_, ports.out.dx_maximum);
        before_ = plan.saved("MLP before activation", up_.out, Drop::under_block);
        after_ = plan.saved("MLP after activation", F_, Drop::under_cheap);
        dafter_ = plan.gradient(Shared::mlp_gradient, F_);
        dbefore_ = gated() ? plan.gradient(Shared::mlp_gated_gradient, up_.out) : dafter_;
        if (gated()) return;
        scratch_ = plan.gradient_bytes(
            Shared::activation_scratch,
            static_cast<int64_t>(activation_backward_scratch_bytes(kind_, static_cast<int>(plan.N()), F_)));
        up_.bias_summed = true;
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
        down_.backward(p, p.at(dafter_), p.at(ports_.out.dx), p.at(after_), p.N(), p.accumulate);
        activate_backward(p);
        up_.backward(p, p.at(ports_.in.dx), p.at(dbefore_), p.at(ports_.in.x), p.N(), p.accumulate,
                     p.at(ports_.dresidual));
    }

private:
    bool gated() const { return row_of(kind_).gated; }

    // The product to width F and the activation function.
    template <typename T>
    void up(const Pass<T>& p) const {
        up_.forward(p, p.at(before_), p.at(ports_.in.x), p.N());
        activate(p);
    }
    template <typename T>
    void down(const Pass<T>& p) const {
        down_.forward(p, p.at(ports_.out.x), p.at(after_), p.N(), p.residual(ports_));
    }
    template <typename T>
    void activate(const Pass<T>& p) const {
        activation_forward(kind_, p.at(after_), p.at(before_), p.N(), F_, p.stream(), p.floats(after_maximum_));
    }
    template <typename T>
    void activate_backward(const Pass<T>& p) const {
        float* dbias = up_.bias >= 0 && up_.bias_summed ? p.grad(up_.bias) : nullptr;
        activation_backward(kind_, p.at(dbefore_), dbias, p.bytes(scratch_), p.at(before_), p.at(dafter_), p.N(), F_,
                            p.accumulate, p.stream(), p.floats(dbefore_maximum_));
    }

    ActivationKind kind_;
    int F_;  // stored width
    Linear up_, down_;
    Ports ports_;
    Tensor after_maximum_, dbefore_maximum_;              // FP8: the activation function writes them
    Tensor before_, after_, dafter_, dbefore_, scratch_;  // before: (N, F), or (N, 2 F) with a gate
};

}  // namespace teon
