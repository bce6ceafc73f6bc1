// LayerNorm or RMSNorm of the input of a branch or of the output that it adds to the residual stream.
#pragma once

#include <string>

#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "model/linear.h"

namespace teon {

class Norm {
public:
    // label: the name of the norm in the activation plan's rows.
    Norm(ParamBuilder& b, const DecoderConfig& c, const ParamName& name, std::string label)
        : kind_(c.norm), C_(c.C), eps_(c.norm_eps), label_(std::move(label)) {
        weight_ = b.vector(name, "weight", Role::norm, C_, C_, Init::ones);
        if (centered()) bias_ = b.vector(name, "bias", Role::norm, C_, C_, Init::zeros);
    }

    void plan(ActivationPlan& plan, const Ports& ports) {
        ports_ = ports;
        const int N = static_cast<int>(plan.N());
        if (centered()) mean_ = plan.saved_floats(label_ + " mean", 1, Drop::under_block);
        rstd_ = plan.saved_floats(label_ + " 1/std", 1, Drop::under_block);
        scratch_ = plan.gradient_bytes(Shared::norm_scratch,
                                       static_cast<int64_t>(centered() ? layernorm_backward_scratch_bytes(N, C_)
                                                                       : rmsnorm_backward_scratch_bytes(N, C_)));
    }

    double flops(int) const { return 0; }
    double recompute_flops(const ActivationPlan&, int) const { return 0; }

    template <typename T>
    void forward(const Pass<T>& p) const {
        T* out = p.at(ports_.out.x);
        float* maximum = p.floats(ports_.out.x_maximum);
        const T* residual = p.residual(ports_);
        const T* x = p.at(ports_.in.x);
        const T* weight = p.weight(weight_);
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_forward(out, p.floats(mean_), p.floats(rstd_), residual, x, weight, p.weight(bias_),
                                         p.N(), C_, eps_, p.stream(), maximum);
            case NormKind::rmsnorm:
                return rmsnorm_forward(out, p.floats(rstd_), residual, x, weight, p.N(), C_, eps_, p.stream(), maximum);
        }
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(ports_.out.x) || !p.keeps(rstd_)) forward(p);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        T* dx = p.at(ports_.in.dx);
        const T* dout = p.at(ports_.out.dx);
        const T* dresidual = p.at(ports_.dresidual);
        const T* x = p.at(ports_.in.x);
        const T* weight = p.weight(weight_);
        void* scratch = p.bytes(scratch_);
        float* maximum = p.floats(ports_.in.dx_maximum);
        float* in_bias = ports_.in.bias >= 0 ? p.grad(ports_.in.bias) : nullptr;
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_backward(dx, p.grad(weight_), p.grad(bias_), in_bias, scratch, dout, dresidual, x,
                                          p.floats(mean_), p.floats(rstd_), weight, p.N(), C_, p.accumulate, p.stream(),
                                          maximum);
            case NormKind::rmsnorm:
                return rmsnorm_backward(dx, p.grad(weight_), scratch, dout, dresidual, x, p.floats(rstd_), weight,
                                        p.N(), C_, p.accumulate, p.stream(), maximum);
        }
    }

private:
    bool centered() const {
        switch (kind_) {
            case NormKind::layernorm:
                return true;
            case NormKind::rmsnorm:
                return false;
        }
        return false;
    }

    NormKind kind_;
    int C_;
    float eps_;
    std::string label_;
    int weight_ = -1, bias_ = -1;
    Ports ports_;
    Tensor mean_, rstd_, scratch_;
};

}  // namespace teon
