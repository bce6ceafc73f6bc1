// Embeds tokens and, if the model has them, learned positions: the input of the residual stream.
#pragma once

#include "kernels/embedding.h"
#include "model/dropout.h"
#include "model/param_builder.h"
#include "model/pass.h"

namespace teon {

class Embedding {
public:
    Embedding(ParamBuilder& b, const DecoderConfig& c) : C_(c.C), dropout_(c.dropout), tied_(c.tied_head) {
        token_ = b.matrix(c.names.token, Role::token_embedding, c.Vp(), C_, c.V, C_, c.init_std);
        switch (c.positions) {
            case PositionKind::learned:
                position_ = b.matrix(c.names.position, Role::position_embedding, c.max_T, C_, c.max_T, C_, c.init_std);
                break;
            case PositionKind::rotary:
                break;  // the attention rotates
        }
    }

    int token_row() const { return token_; }  // row of the parameter table; the weight of a tied head

    // out (N, C): the residual stream before the first block.
    void plan(const Edge& out) { out_ = out; }

    template <typename T>
    void forward(const Pass<T>& p) const {
        embedding_forward(p.at(out_.x), p.batch.tokens, p.batch.positions, p.weight(token_),
                          position_ >= 0 ? p.weight(position_) : nullptr, p.N(), C_, p.stream());
        drop(p, p.at(out_.x));
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        const Batch& b = p.batch;
        drop(p, p.at(out_.dx));
        if (!p.accumulate && !tied_) clear(p, token_);  // a tied head has overwritten all of it
        embedding_backward(p.grad(token_), p.at(out_.dx), b.tokens, b.token_order, p.N(), C_, p.stream());
        if (position_ < 0) return;
        if (!p.accumulate) clear(p, position_);
        embedding_backward(p.grad(position_), p.at(out_.dx), b.positions, b.position_order, p.N(), C_, p.stream());
    }

private:
    template <typename T>
    void drop(const Pass<T>& p, T* x) const {
        if (p.drops)
            dropout(x, static_cast<const T*>(nullptr), x, p.N(), p.batch.T, C_,
                    dropout_mask(p, dropout_, kEmbeddingSite), p.stream());
    }

    // Only these gradients are zeroed first: embedding_backward does not write rows whose id is not in the batch.
    template <typename T>
    void clear(const Pass<T>& p, int row) const {
        zero(p.grad(row), p.params.table()[row].size(), p.stream());
    }

    int C_, token_ = -1, position_ = -1;
    float dropout_;
    bool tied_;
    Edge out_;
};

}  // namespace teon
