// LayerNorm or RMSNorm of the residual stream, fused with the addition of the branch before it.
#pragma once

#include <string>

#include "kernels/ops.h"
#include "model/param_builder.h"
#include "model/pass.h"

namespace teon {

class Norm {
public:
    // Where it stands: what its tensors are called, and which of them a policy drops.
    struct Place {
        const char *name, *stream;
        Drop stream_drop, out_drop;
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
        from_ = flow.stream, branch_ = flow.branch, adds_ = flow.branched;
        if (adds_) flow.stream = plan.saved(place_.stream, C_, place_.stream_drop);
        flow.branched = false;
        stream_ = flow.stream;
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
        normalize(p, p.at(stream_), p.at(from_), adds_ ? p.at(branch_) : nullptr);
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(stream_)) return forward(p);
        if (!p.keeps(out_)) normalize<T>(p, nullptr, p.at(stream_), nullptr);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        T* dx = p.at(dstream_);
        const T *dout = p.at(dout_), *dresidual = place_.last ? nullptr : dx, *x = p.at(stream_);
        const T* weight = p.weight(weight_);
        void* scratch = p.bytes(scratch_);
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_backward(dx, p.grad(weight_), p.grad(bias_), scratch, dout, dresidual, x,
                                          p.floats(mean_), p.floats(rstd_), weight, p.N(), C_, p.stream());
            case NormKind::rmsnorm:
                return rmsnorm_backward(dx, p.grad(weight_), scratch, dout, dresidual, x, p.floats(rstd_), weight,
                                        p.N(), C_, p.stream());
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

    // sum = x + branch (nullptr: x itself, and sum is not written); out = its norm.
    template <typename T>
    void normalize(const Pass<T>& p, T* sum, const T* x, const T* branch) const {
        const T* weight = p.weight(weight_);
        switch (kind_) {
            case NormKind::layernorm:
                return layernorm_forward(p.at(out_), sum, p.floats(mean_), p.floats(rstd_), x, branch, weight,
                                         p.weight(bias_), p.N(), C_, eps_, p.stream());
            case NormKind::rmsnorm:
                return rmsnorm_forward(p.at(out_), sum, p.floats(rstd_), x, branch, weight, p.N(), C_, eps_,
                                       p.stream());
        }
    }

    NormKind kind_;
    int C_;
    float eps_;
    Place place_;
    int weight_ = -1, bias_ = -1;
    bool adds_ = false;
    Tensor from_, branch_, stream_, out_, mean_, rstd_;
    Tensor dstream_, dout_, scratch_;
};

}  // namespace teon
