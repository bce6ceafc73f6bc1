// LayerNorm or RMSNorm of the input of a branch or of the output that it adds to the residual stream.
#pragma once

#include <string>

#include "kernels/norm.h"
#include "model/linear.h"

namespace teon {

class Norm {
public:
    // label: the name of the norm in the activation plan's rows.
    Norm(ParamBuilder& b, const DecoderConfig& c, const ParamName& name, std::string label)
        : kind_(c.norm), C_(c.C), eps_(c.norm_eps), label_(std::move(label)) {
        weight_ = b.vector(name, "weight", Role::norm, C_, C_, row_of(kind_).initial_weight ? Init::ones : Init::zeros);
        if (centered()) bias_ = b.vector(name, "bias", Role::norm, C_, C_, Init::zeros);
    }

    void plan(ActivationPlan& plan, const Ports& ports) {
        ports_ = ports;
        const int N = static_cast<int>(plan.N());
        if (centered()) mean_ = plan.saved_floats(label_ + " mean", 1, Drop::under_block);
        rstd_ = plan.saved_floats(label_ + " 1/std", 1, Drop::under_block);
        scratch_ =
            plan.gradient_bytes(Shared::norm_scratch, static_cast<int64_t>(norm_backward_scratch_bytes(kind_, N, C_)));
    }

    double flops(int) const { return 0; }
    double recompute_flops(const ActivationPlan&, int) const { return 0; }

    template <typename T>
    void forward(const Pass<T>& p) const {
        norm_forward<T>(kind_,
                        {.out = p.at(ports_.out.x),
                         .mean = p.floats(mean_),
                         .rstd = p.floats(rstd_),
                         .residual = p.residual(ports_),
                         .x = p.at(ports_.in.x),
                         .weight = p.weight(weight_),
                         .bias = centered() ? p.weight(bias_) : nullptr,
                         .N = p.N(),
                         .C = C_,
                         .eps = eps_,
                         .maximum = p.floats(ports_.out.x_maximum)},
                        p.stream());
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(ports_.out.x) || !p.keeps(rstd_)) forward(p);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        norm_backward<T>(kind_,
                         {.dx = p.at(ports_.in.dx),
                          .dweight = p.grad(weight_),
                          .dbias = centered() ? p.grad(bias_) : nullptr,
                          .dx_sums = ports_.in.bias >= 0 ? p.grad(ports_.in.bias) : nullptr,
                          .scratch = p.bytes(scratch_),
                          .dout = p.at(ports_.out.dx),
                          .dresidual = p.at(ports_.dresidual),
                          .x = p.at(ports_.in.x),
                          .mean = p.floats(mean_),
                          .rstd = p.floats(rstd_),
                          .weight = p.weight(weight_),
                          .N = p.N(),
                          .C = C_,
                          .accumulate = p.accumulate,
                          .maximum = p.floats(ports_.in.dx_maximum)},
                         p.stream());
    }

private:
    bool centered() const { return row_of(kind_).centered; }

    NormKind kind_;
    int C_;
    float eps_;
    std::string label_;
    int weight_ = -1, bias_ = -1;
    Ports ports_;
    Tensor mean_, rstd_, scratch_;
};

}  // namespace teon
