// A block of a decoder: attention and MLP. Each is a branch that adds to the residual stream x, with a norm at its
// beginning or at its end:
//
//   pre-norm    x ─ norm ─ n ─ layer ─(+x)─ y       y = x + layer(norm(x))      GPT-2, LLaMA, Qwen3
//   post-norm   x ─ layer ─ z ─ norm ─(+x)─ y       y = x + norm(layer(x))      OLMo 2
//
// If the model has dropout, the last layer does not add x; dropout follows it and does: d ─ dropout ─(+x)─ y. The
// backward pass goes from y to x. All gradients of the residual stream use the same memory: the last layer reads y.dx,
// and the first one adds the branch's part, which makes it x.dx.
#pragma once

#include <optional>
#include <string>

#include "model/attention.h"
#include "model/dropout.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace teon {

template <typename Layer>
class Branch {
public:
    // label: the name of the branch in the activation plan's rows.
    Branch(ParamBuilder& b, const DecoderConfig& c, float out_std, const char* label, DropoutPlace place,
           const ParamName& pre, const ParamName& post)
        : C_(c.C),
          label_(label),
          pre_norm_(norm(c.norm_placement == NormPlacement::pre, b, c, pre, " norm")),
          layer_(b, c, out_std),
          post_norm_(norm(c.norm_placement == NormPlacement::post, b, c, post, " post-norm")) {
        if (c.dropout > 0) dropout_.emplace(c.dropout, c.C, dropout_site(b.layer, place));
    }

    const Layer& layer() const { return layer_; }

    // Connects the layers and returns y. name: that of y. If y is the block's output, no recompute policy drops it.
    Edge plan(ActivationPlan& plan, const Edge& x, const char* name, bool is_block_output) {
        return pre_norm_ ? plan_pre_norm(plan, x, name, is_block_output ? Drop::never : Drop::under_block)
                         : plan_post_norm(plan, x, name, is_block_output ? Drop::never : Drop::under_cheap);
    }

    // Calls f(layer) for each layer, in the order of the forward pass.
    template <typename F>
    void for_each(F f) const {
        if (pre_norm_) f(*pre_norm_);
        f(layer_);
        if (post_norm_) f(*post_norm_);
        if (dropout_) f(*dropout_);
    }
    template <typename F>
    void for_each_reversed(F f) const {
        if (dropout_) f(*dropout_);
        if (post_norm_) f(*post_norm_);
        f(layer_);
        if (pre_norm_) f(*pre_norm_);
    }

private:
    // x ─ norm ─ n ─ layer ─(+x)─ y
    Edge plan_pre_norm(ActivationPlan& plan, const Edge& x, const char* name, Drop drop) {
        Edge y = plan.edge(name, C_, drop, Shared::stream_gradient);
        Edge n = plan.edge(label_ + " norm", C_, Drop::under_cheap, Shared::norm_output_gradient);
        n.x_maximum = plan.maximum();
        if (!dropout_) {
            y.dx_maximum = plan.maximum();
            y.bias = layer_.out_bias();
        }
        pre_norm_->plan(plan, {.in = x, .out = n, .dresidual = y.dx});
        layer_.plan(plan, {.in = n, .out = last_output(plan, x, y), .residual = x.x});
        return y;
    }

    // x ─ layer ─ z ─ norm ─(+x)─ y
    Edge plan_post_norm(ActivationPlan& plan, const Edge& x, const char* name, Drop drop) {
        const Edge y = plan.edge(name, C_, drop, Shared::stream_gradient);
        Edge z = plan.edge(label_ + " output", C_, Drop::under_block, Shared::norm_input_gradient);
        z.dx_maximum = plan.maximum();
        z.bias = layer_.out_bias();
        layer_.plan(plan, {.in = x, .out = z, .dresidual = y.dx});
        post_norm_->plan(plan, {.in = z, .out = last_output(plan, x, y), .residual = x.x});
        return y;
    }

    // The output of the last layer: y or, if dropout follows, its input, which is in y's memory.
    Edge last_output(ActivationPlan& plan, const Edge& x, const Edge& y) {
        if (!dropout_) return y;
        const Edge d{.x = y.x, .dx = plan.gradient(Shared::dropout_input_gradient, C_)};
        dropout_->plan({.in = d, .out = y, .residual = x.x});
        return d;
    }

    std::optional<Norm> norm(bool present, ParamBuilder& b, const DecoderConfig& c, const ParamName& name,
                             const char* suffix) const {
        return present ? std::optional<Norm>(std::in_place, b, c, name, label_ + suffix) : std::nullopt;
    }

    int C_;
    std::string label_;
    std::optional<Norm> pre_norm_;
    Layer layer_;
    std::optional<Norm> post_norm_;
    std::optional<Dropout> dropout_;
};

class Block {
public:
    Block(ParamBuilder& b, const DecoderConfig& c, float out_std)
        : attention_(b, c, out_std, "attention", DropoutPlace::attention_output, c.names.attention_norm,
                     c.names.attention_post_norm),
          mlp_(b, c, out_std, "MLP", DropoutPlace::mlp_output, c.names.mlp_norm, c.names.mlp_post_norm) {}

    const Attention& attention() const { return attention_.layer(); }

    // Returns the block's output.
    Edge plan(ActivationPlan& plan, const Edge& x) {
        const Edge y = attention_.plan(plan, x, "residual after attention", /*is_block_output=*/false);
        return mlp_.plan(plan, y, "residual stream", /*is_block_output=*/true);
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
