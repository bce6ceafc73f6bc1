// Runs stacks of slices through the launches of the optimizer: norms, unfolding, orthogonalization, folding.
#pragma once

#include <vector>

#include "base/integer.h"
#include "optim/orthogonalize.h"
#include "optim/unfold.h"
#include "runtime/context.h"
#include "test/oracle/orthogonal.h"
#include "test/support/compare.h"

namespace teon::test {

// `count` stacks of K slices (m x n) on the device.
struct StackRun {
    Context& context;
    int slice_count, count;
    Unfolding u;
    OrthoMethod method;
    Guarded<float> slices{slice_count * stride(), context.stream};
    Buffer<Slice> infos{slice_count};
    Guarded<int> nonfinite{std::vector<int>(static_cast<size_t>(count), 0), context.stream};

    StackRun(Context& context, const std::vector<std::vector<float>>& values, int mode, int m, int n, int K,
             const OrthoMethod& method)
        : context(context),
          slice_count(static_cast<int>(values.size())),
          count(slice_count / K),
          u(mode, m, n, K, method.row_alignment()),
          method(method) {
        std::vector<float> all(static_cast<size_t>(slices.size()), 0.0f);
        std::vector<Slice> table;
        for (size_t i = 0; i < values.size(); ++i) {
            const int64_t at = static_cast<int64_t>(i) * stride();
            std::copy(values[i].begin(), values[i].end(), all.begin() + at);
            table.push_back({at, at, at, at, {.lr = 1.0f, .lr_scale = -1.0f}});
        }
        slices.set(all);
        upload(infos.data(), table.data(), std::ssize(table), context.stream);
        context.stream.synchronize();
    }

    int64_t stride() const { return round_up(int64_t{u.m} * u.n, 64); }
    SliceBatch batch() const { return {infos.data(), count * u.K, u.m, u.n, u.m * u.n % 16 == 0}; }

    // Returns the unfolded matrices, orthogonalized if asked for, folded back into slices.
    template <typename T>
    std::vector<std::vector<float>> run(bool normalize_slices, bool scaled = true, bool orthogonalized = true) {
        const Stream& stream = context.stream;
        const SliceBatch s = batch();
        const MatrixBatch matrices{count, u.rows(), u.cols(), u.ld, u.by_rows()};
        Guarded<float> partial(int64_t{s.count} * momentum_parts(s), stream);
        Guarded<float> scales(s.count, stream);
        Guarded<T> Z(matrices.size(), stream);
        const int64_t bytes = ortho_scratch_bytes(method, matrices);
        Guarded<std::byte> scratch(bytes, stream);
        momentum_update(slices.data(), partial.data(), nullptr, nullptr, s, {}, stream);
        slice_scales(scales.data(), nonfinite.data(), partial.data(), nullptr, momentum_parts(s), count, u.K,
                     static_cast<float>(method.margin()), normalize_slices, stream);
        unfold(Z.data(), slices.data(), nullptr, scaled ? scales.data() : nullptr, nullptr, s, u.layout(), {}, stream);
        const T* O = Z.data();
        if (orthogonalized)
            O = static_cast<const T*>(orthogonalize(Z.data(), scratch.data(), matrices, method, context));
        Guarded<float> out(std::vector<float>(static_cast<size_t>(slices.size()), 0.0f), stream);
        fold_update<T, float>(out.data(), nullptr, O, nullptr, s, u.layout(), stream);
        partial.get();
        scales.get();
        Z.get();
        scratch.get();
        slices.get();  // canaries
        std::vector<float> all = out.get();
        std::vector<std::vector<float>> result;
        for (int i = 0; i < s.count; ++i) {
            auto begin = all.begin() + i * stride();
            result.emplace_back(begin, begin + s.size());
        }
        return result;
    }

    std::vector<std::vector<float>> run_as_method(bool normalize_slices = false) {
        return visit_dtype(method.dtype, [&]<typename T>(T) { return run<T>(normalize_slices); });
    }
};

// Returns one matrix, orthogonalized on the device. Give the oracle the same numbers: rounded(x).
inline Matrix orthogonalized(Context& context, const Matrix& x, const OrthoMethod& method) {
    StackRun run(context, {to_floats(x)}, 1, x.rows, x.cols, 1, method);
    return to_matrix(run.run_as_method()[0], x.rows, x.cols);
}
inline Matrix rounded(const Matrix& x) { return to_matrix(to_floats(x), x.rows, x.cols); }

}  // namespace teon::test
