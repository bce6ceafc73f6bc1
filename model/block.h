// A block of a decoder: attention and MLP. Each is a branch that adds to the residual stream, with a norm before it,
// after it, or both (NormPlacement).
#pragma once

#include <optional>
#include <string>

#include "model/attention.h"
#include "model/dropout.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace teon {

// The residual stream at one point of the decoder. Branches advance it while they plan.
struct ResidualStream {
    Tensor x, dx;            // (N, C) and its gradient, which uses the same memory along the whole stream
    Tensor dx_maximum = {};  // Ports::din_maximum of the layer that reads x; none if no product reads dx
    int bias = -1;           // Ports::in_bias of the layer that reads x: row of the last bias added to x; -1: none
};

// y = x + f(x), where f is a layer with an optional norm before and after it and, if the model has it, dropout at the
// end.
template <typename Layer>
class Branch {
public:
    // label: the name of the branch in the activation plan's rows.
    Branch(ParamBuilder& b, const DecoderConfig& c, float out_std, const char* label, DropoutPlace place,
           const ParamName& pre, const ParamName& post)
        : C_(c.C),
          label_(label),
          pre_(norm(c.norm_placement != NormPlacement::post, b, c, pre, " norm")),
          layer_(b, c, out_std),
          post_(norm(c.norm_placement != NormPlacement::pre, b, c, post, " post-norm")) {
        if (c.dropout > 0) dropout_.emplace(c.dropout, c.C, dropout_site(b.layer, place));
    }

    const Layer& layer() const { return layer_; }

    // Adds the branch to the stream. y is a tensor named `out`; if `kept`, no recompute policy drops it. The last layer
    // adds x to its output; in the backward pass, the first layer adds the gradient of y to the gradient of x. The
    // policy cheap drops the outputs of norms, block also the outputs of products.
    void plan(ActivationPlan& plan, ResidualStream& stream, const char* out, bool kept) {
        const ResidualStream y{plan.saved(out, C_,
                                          kept    ? Drop::never
                                          : post_ ? Drop::under_cheap
                                                  : Drop::under_block),
                               stream.dx, post_ || dropout_ ? Tensor{} : plan.maximum(),
                               post_ || dropout_ ? -1 : layer_.out_bias()};
        Ports ports{.in = stream.x,
                    .din = stream.dx,
                    .dresidual = stream.dx,
                    .din_maximum = stream.dx_maximum,
                    .in_bias = stream.bias};
        auto plan_inner = [&](auto& layer, const char* suffix, Drop drop, const char* gradient, int out_bias) {
            ports.out = plan.saved(label_ + suffix, C_, drop);
            ports.dout = plan.gradient(gradient, C_);
            const bool is_norm = std::is_same_v<std::remove_cvref_t<decltype(layer)>, Norm>;
            (is_norm ? ports.out_maximum : ports.dout_maximum) = plan.maximum();
            layer.plan(plan, ports);
            ports = {.in = ports.out,
                     .din = ports.dout,
                     .in_maximum = ports.out_maximum,
                     .din_maximum = ports.dout_maximum,
                     .in_bias = out_bias};
        };
        auto plan_last = [&](auto& layer) {
            ports.out = y.x, ports.residual = stream.x, ports.dout_maximum = y.dx_maximum;
            ports.dout = dropout_ ? plan.gradient("gradient before dropout", C_) : y.dx;
            layer.plan(plan, ports);
            if (dropout_) dropout_->plan({.out = y.x, .din = ports.dout, .dout = y.dx, .residual = stream.x});
        };
        if (pre_) plan_inner(*pre_, " norm", Drop::under_cheap, "gradient of norm output", -1);
        if (post_) {
            plan_inner(layer_, " output", Drop::under_block, "gradient of norm input", layer_.out_bias());
            plan_last(*post_);
        } else {
            plan_last(layer_);
        }
        stream = y;
    }

    // Calls f(layer) for each layer, in the order of the forward pass.
    template <typename F>
    void for_each(F f) const {
        if (pre_) f(*pre_);
        f(layer_);
        if (post_) f(*post_);
        if (dropout_) f(*dropout_);
    }
    template <typename F>
    void for_each_reversed(F f) const {
        if (dropout_) f(*dropout_);
        if (post_) f(*post_);
        f(layer_);
        if (pre_) f(*pre_);
    }

private:
    std::optional<Norm> norm(bool present, ParamBuilder& b, const DecoderConfig& c, const ParamName& name,
                             const char* suffix) const {
        return present ? std::optional<Norm>(std::in_place, b, c, name, label_ + suffix) : std::nullopt;
    }

    int C_;
    std::string label_;
    std::optional<Norm> pre_;
    Layer layer_;
    std::optional<Norm> post_;
    std::optional<Dropout> dropout_;
};

class Block {
public:
    Block(ParamBuilder& b, const DecoderConfig& c, float out_std)
        : attention_(b, c, out_std, "attention", DropoutPlace::attention_output, c.names.attention_norm,
                     c.names.attention_post_norm),
          mlp_(b, c, out_std, "MLP", DropoutPlace::mlp_output, c.names.mlp_norm, c.names.mlp_post_norm) {}

    const Attention& attention() const { return attention_.layer(); }

    void plan(ActivationPlan& plan, ResidualStream& stream) {
        attention_.plan(plan, stream, "residual after attention", /*kept=*/false);
        mlp_.plan(plan, stream, "residual stream", /*kept=*/true);
    }

    template <typename F>
    void for_each(F f) const {
        attention_.for_each(f);
        mlp_.for_each(f);
    }
    template <typename F>
    void for_each_reversed(F f) const {
        mlp_.for_each_reversed(f);
        attention_.for_each_reversed(f);
    }

private:
    Branch<Attention> attention_;
    Branch<Mlp> mlp_;
};

}  // namespace teon
