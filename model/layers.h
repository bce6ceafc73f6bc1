// A decoder as the list of its layers, in the order of the forward pass. Parameters, activation plan, forward pass,
// recomputation, backward pass, generation and FLOPs all walk this list.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"

namespace teon {

class DecoderLayers {
public:
    explicit DecoderLayers(const DecoderConfig& c);

    const ParamTable& table() const { return table_; }
    // Call it before the passes below: they use the memory that the plan describes. Touches no device.
    ActivationPlan plan(const DecoderRun& run, Purpose purpose);
    double flops(int T) const;                                        // forward pass, per token
    double recompute_flops(const ActivationPlan& plan, int T) const;  // recomputation, per token
    const Head& head() const { return head_; }

    // Computes the tensors that are constant: the rotary tables. Synchronizes.
    template <typename T>
    void prepare(const Pass<T>& p) const {
        std::set<int> known = {Tensor().row};
        for (const Block& block : blocks_)
            if (known.insert(block.attention().rotary().row).second) block.attention().prepare(p);
    }

    // Runs the layers from the tokens to the final norm, whose output the head reads.
    template <typename T>
    void forward(const Pass<T>& p) const {
        const int L = static_cast<int>(blocks_.size());
        p.params.use(-1, 0);
        if (const Tensor maxima = p.memory.plan().maxima(); maxima.row >= 0)
            zero(static_cast<std::byte*>(p.bytes(maxima)), p.memory.plan().rows()[maxima.row].total(), p.stream());
        blocks_.front().attention().begin(p);  // if any layer has a window, this one does
        embedding_.forward(p);
        for (int l = 0; l < L; ++l) {
            p.params.use(l, l + 1 < L ? l + 1 : -1);
            if (p.offload) p.offload->before_forward(l);
            if (!p.context.give_up()) blocks_[static_cast<size_t>(l)].for_each([&](auto& layer) { layer.forward(p); });
            if (p.offload) p.offload->after_forward(l);
        }
        final_norm_.forward(p);
    }

    // Computes the gradients of all parameters except the head's, from the gradient of the final norm's output, which
    // the head has written. on_grads_ready (may be empty): see Model::forward_backward.
    template <typename T>
    void backward(const Pass<T>& p, const std::function<void(int)>& on_grads_ready) const {
        final_norm_.backward(p);
        for (int l = static_cast<int>(blocks_.size()) - 1; l >= 0; --l) {
            p.params.use(l, l - 1);
            if (p.offload) p.offload->before_backward(l);
            if (!p.context.give_up()) backward(p, static_cast<size_t>(l));
            if (p.offload) p.offload->after_backward(l);
            if (on_grads_ready) on_grads_ready(l);
        }
        embedding_.backward(p);
        if (on_grads_ready) on_grads_ready(-1);
    }

private:
    template <typename T>
    void backward(const Pass<T>& p, size_t l) const {
        if (!in_place(p.memory.plan(), l)) blocks_[l].for_each([&](auto& layer) { layer.recompute(p); });
        blocks_[l].for_each_reversed([&](auto& layer) { layer.backward(p); });
    }
    // Returns whether the tensors that block l dropped are still intact, because no later block has overwritten them.
    bool in_place(const ActivationPlan& plan, size_t l) const {
        return static_cast<int>(l) == plan.run().recompute.last_dropping(static_cast<int>(blocks_.size()));
    }
    static std::vector<Block> make_blocks(ParamBuilder& b, const DecoderConfig& c);

    const int width_;
    ParamTable table_;
    ParamBuilder builder_;
    Embedding embedding_;
    std::vector<Block> blocks_;
    Norm final_norm_;
    Head head_;
};

}  // namespace teon
