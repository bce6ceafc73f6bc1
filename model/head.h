// The product with the token table (tied) or with a matrix of its own, and the loss: some rows at a time, so that no
// N x V logits are ever whole.
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

    // in, din (N, C): the final norm's output and its gradient.
    void plan(ActivationPlan& plan, Tensor in, Tensor din) {
        const int64_t row_bytes = int64_t{linear_.out} * size_of(plan.run().dtype);
        chunk_ = plan.trains() ? chunk_rows(plan.N(), plan.run().head_rows, row_bytes) : plan.run().B;
        in_ = in, din_ = din;
        logits_ = plan.shared_bytes("logits chunk", chunk_ * row_bytes);
    }

    double flops() const { return linear_.flops(); }

    // losses (N). With gradient, also that of the final norm's output and of the weight, of grad_scale times their sum.
    template <typename T>
    void losses(const Pass<T>& p, float* losses, float grad_scale, bool with_gradient) const {
        for (int begin = 0; begin < p.N(); begin += chunk_) {
            const int rows = std::min(chunk_, p.N() - begin);
            const int64_t at = int64_t{begin} * linear_.in;
            T* logits = p.at(logits_);
            linear_.forward(p, logits, p.at(in_) + at, rows);
            classifier(logits, losses + begin, p.batch.targets + begin, rows, V_, linear_.out, grad_scale,
                       with_gradient, p.stream());
            if (with_gradient)
                linear_.backward(p, p.at(din_) + at, logits, p.at(in_) + at, rows, p.accumulate || begin > 0);
        }
    }

    // out (rows, V) float, without padding: the logits of `rows` rows, the first `first`, each `step` after the last.
    template <typename T>
    void logits(const Pass<T>& p, float* out, int first, int rows, int step = 1) const {
        for (int begin = 0; begin < rows; begin += chunk_) {
            const int n = std::min(chunk_, rows - begin);
            const int64_t at = int64_t{first + begin * step} * linear_.in;
            linear_.forward(p, p.at(logits_), p.at(in_) + at, n, /*addend=*/nullptr, int64_t{step} * linear_.in);
            for (int i = 0; i < n; ++i)
                cast(out + int64_t{begin + i} * V_, p.at(logits_) + int64_t{i} * linear_.out, V_, p.stream());
        }
    }

private:
    // Chunks of `least` rows or more (0: what fits 128 MiB), equal where N has such a divisor, else up to multiples of
    // 128 rows. Each chunk costs a pass over the gradient of the whole weight.
    static int chunk_rows(int64_t N, int64_t least, int64_t row_bytes) {
        if (least == 0) {
            const int64_t most = std::max<int64_t>(128, (128 << 20) / row_bytes / 128 * 128);
            return static_cast<int>(std::min(N, round_up(ceil_div(N, ceil_div(N, most)), 128)));
        }
        const int64_t chunks = std::max<int64_t>(1, N / least);
        for (int64_t n = chunks; 2 * n > chunks; --n)
            if (N % n == 0) return static_cast<int>(N / n);
        return static_cast<int>(std::min(N, round_up(ceil_div(N, chunks), 128)));
    }

    int V_, chunk_ = 0;
    Linear linear_;  // weight (Vp, C)
    Tensor in_, logits_, din_;
};

}  // namespace teon
