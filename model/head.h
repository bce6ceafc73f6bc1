// The language-model head: the product with the token table (tied) or with a separate matrix, and the loss. It works on
// chunks of rows, so that the N x V logits never exist as a whole.
#pragma once

#include <algorithm>

#include "base/integer.h"
#include "kernels/classifier.h"
#include "kernels/fill.h"
#include "model/linear.h"

namespace teon {

class Head {
public:
    Head(ParamBuilder& b, const DecoderConfig& c, int token_row) : V_(c.V) {
        linear_.weight =
            c.tied_head ? token_row : b.matrix(c.names.head, Role::head, c.Vp(), c.C, c.V, c.C, c.init_std);
        linear_.out = c.Vp();
        linear_.in = c.C;
        linear_.weights = static_cast<double>(c.V) * c.C;
    }

    // in (N, C): the final norm's output.
    void plan(ActivationPlan& plan, const Edge& in) {
        const int64_t row_bytes = int64_t{linear_.out} * size_of(plan.run().dtype);
        chunk_ = plan.trains() ? chunk_rows(plan.N(), plan.run().head_rows, row_bytes) : plan.run().B;
        in_ = in;
        logits_ = plan.shared_bytes(Shared::logits, chunk_ * row_bytes);
    }

    double flops() const { return linear_.flops(); }

    // Computes losses (N) and, if with_gradient, the gradients of grad_scale * sum(losses) with respect to the final
    // norm's output and the weight.
    template <typename T>
    void losses(const Pass<T>& p, float* losses, float grad_scale, bool with_gradient) const {
        for (int begin = 0; begin < p.N(); begin += chunk_) {
            const int rows = std::min(chunk_, p.N() - begin);
            const int64_t at = int64_t{begin} * linear_.in;
            T* logits = p.at(logits_);
            linear_.forward(p, logits, p.at(in_.x) + at, rows);
            classifier(logits, losses + begin, p.batch.targets + begin, rows, V_, linear_.out, grad_scale,
                       with_gradient, p.stream());
            if (with_gradient)
                linear_.backward(p, p.at(in_.dx) + at, logits, p.at(in_.x) + at, rows, p.accumulate || begin > 0);
        }
    }

    // out (rows, V) float, without padding: the logits of the rows first, first + step, first + 2 step, ...
    template <typename T>
    void logits(const Pass<T>& p, float* out, int first, int rows, int step = 1) const {
        for (int begin = 0; begin < rows; begin += chunk_) {
            const int n = std::min(chunk_, rows - begin);
            const int64_t at = int64_t{first + begin * step} * linear_.in;
            linear_.forward(p, p.at(logits_), p.at(in_.x) + at, n, /*addend=*/nullptr, int64_t{step} * linear_.in);
            for (int i = 0; i < n; ++i)
                cast(out + int64_t{begin + i} * V_, p.at(logits_) + int64_t{i} * linear_.out, V_, p.stream());
        }
    }

private:
    // Returns the rows of a chunk: at least `least` (0: as many as fit 128 MiB). Chunks are equal if N has a suitable
    // divisor; otherwise their size is a multiple of 128. Each chunk costs a pass over the whole weight's gradient.
    static int chunk_rows(int64_t N, int64_t least, int64_t row_bytes) {
        if (least == 0) {
            const int64_t limit = std::max<int64_t>(128, (128 << 20) / row_bytes / 128 * 128);
            return static_cast<int>(std::min(N, round_up(ceil_div(N, ceil_div(N, limit)), 128)));
        }
        const int64_t chunks = std::max<int64_t>(1, N / least);
        for (int64_t n = chunks; 2 * n > chunks; --n)
            if (N % n == 0) return static_cast<int>(N / n);
        return static_cast<int>(std::min(N, round_up(ceil_div(N, chunks), 128)));
    }

    int V_, chunk_ = 0;
    Linear linear_;  // weight (Vp, C)
    Edge in_;
    Tensor logits_;
};

}  // namespace teon
