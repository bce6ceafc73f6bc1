// LayerNorm or RMSNorm of the residual stream.
#pragma once

#include <string>

#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "model/linear.h"

namespace teon {

class Norm {
public:
    // Where it stands.
    struct Place {
        const char* name;
        Drop out_drop;      // which policy drops its output
        bool last = false;  // nothing but it reads the stream, whose gradient begins here
    };

    Norm(ParamBuilder& b, const DecoderConfig& c, const ParamName& name, const Place& place)
        : kind_(c.norm), C_(c.C), eps_(c.norm_eps), place_(place) {
        weight_ = b.vector(name, "weight", Role::norm, C_, C_, Init::ones);
        if (centered()) bias_ = b.vector(name, "bias", Role::norm, C_, C_, Init::zeros);
    }

    void plan(ActivationPlan& plan, Flow& flow) {
        const std::string name = place_.name;
        const int N = static_cast<int>(plan.N());
        stream_ = flow.stream;
        if (centered() && flow.added != nullptr) added_bias_ = flow.added->bias;
        if (added_bias_ >= 0) flow.added->bias_summed = true;
        out_ = flow.out = plan.saved(name, C_, place_.out_drop);
        if (centered()) mean_ = plan.saved_floats(name + " mean", 1, Drop::under_block);
        rstd_ = plan.saved_floats(name + " 1/std", 1, Drop::under_block);
        dstream_ = flow.dstream, dout_ = flow.dout;
        scratch_ = plan.gradient_bytes("norm gradient scratch",
                                       static_cast<int64_t>(centered() ? layernorm_backward_scratch_bytes(N, C_)
                                                                       : rmsnorm_backward_scratch_bytes(N, C_)));
    }

    double flops(int) const { return 0; }
    double recompute_flops(const ActivationPlan&, int) const { return 0; }

    template <typename T>
    void forward(const Pass<T>& p) const {
        const T *x = p.at(stream_), *weight = p.weight(weight_);
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_forward(p.at(out_), p.floats(mean_), p.floats(rstd_), x, weight, p.weight(bias_),
                                         p.N(), C_, eps_, p.stream());
            case NormKind::rmsnorm:
                return rmsnorm_forward(p.at(out_), p.floats(rstd_), x, weight, p.N(), C_, eps_, p.stream());
        }
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(out_)) forward(p);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        T* dx = p.at(dstream_);
        const T *dout = p.at(dout_), *dresidual = place_.last ? nullptr : dx, *x = p.at(stream_);
        const T* weight = p.weight(weight_);
        void* scratch = p.bytes(scratch_);
        float* added_bias = added_bias_ >= 0 ? p.grad(added_bias_) : nullptr;
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_backward(dx, p.grad(weight_), p.grad(bias_), added_bias, scratch, dout, dresidual, x,
                                          p.floats(mean_), p.floats(rstd_), weight, p.N(), C_, p.accumulate,
                                          p.stream());
            case NormKind::rmsnorm:
                return rmsnorm_backward(dx, p.grad(weight_), scratch, dout, dresidual, x, p.floats(rstd_), weight,
                                        p.N(), C_, p.accumulate, p.stream());
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
    Place place_;
    int weight_ = -1, bias_ = -1;
    int added_bias_ = -1;  // row of the bias that was added to the stream last, whose gradient is summed here
    Tensor stream_, out_, mean_, rstd_;
    Tensor dstream_, dout_, scratch_;
};

}  // namespace teon
