// Dropout as GPT-2 has it: of the embedding's output, of the attention's probabilities, and of what attention and MLP
// add to the residual stream. Only passes with a backward pass drop.
#pragma once

#include "kernels/dropout.h"
#include "model/pass.h"

namespace teon {

// DropoutMask::site. The places of a block are 3 layer + place.
inline constexpr int kEmbeddingSite = 0;
enum class DropoutPlace { attention_probabilities = 1, attention_output, mlp_output };
constexpr int dropout_site(int layer, DropoutPlace place) { return 3 * layer + static_cast<int>(place); }

template <typename T>
DropoutMask dropout_mask(const Pass<T>& p, float probability, int site) {
    return {.p = p.drops ? probability : 0.0f,
            .seed = p.memory.plan().run().seed,
            .site = static_cast<uint32_t>(site),
            .first_sample = p.batch.first_sample};
}

// The last layer of a branch: out.x = residual + dropout(in.x), where in.x is the memory of out.x.
class Dropout {
public:
    Dropout(float probability, int C, int site) : probability_(probability), C_(C), site_(site) {}

    void plan(const Ports& ports) { ports_ = ports; }

    double flops(int) const { return 0; }
    double recompute_flops(const ActivationPlan&, int) const { return 0; }

    template <typename T>
    void forward(const Pass<T>& p) const {
        if (p.drops) apply(p, p.at(ports_.out.x), p.at(ports_.residual), p.at(ports_.in.x));
    }
    // A kept out.x is a block's output, which only the next block reads. The backward pass of that block is over, so it
    // does not matter if a post-norm, run again for its statistics, has overwritten out.x.
    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(ports_.out.x)) forward(p);
    }
    template <typename T>
    void backward(const Pass<T>& p) const {
        apply(p, p.at(ports_.in.dx), static_cast<const T*>(nullptr), p.at(ports_.out.dx));
    }

private:
    template <typename T>
    void apply(const Pass<T>& p, T* out, const T* residual, const T* in) const {
        dropout(out, residual, in, p.N(), p.batch.T, C_, dropout_mask(p, probability_, site_), p.stream());
    }

    float probability_;
    int C_, site_;
    Ports ports_;
};

}  // namespace teon
