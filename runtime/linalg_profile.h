// A product as a row of a profile, for both backends.
#pragma once

#include "runtime/linalg.h"
#include "runtime/profiler.h"

namespace teon::detail {

// "gemm 2048 x 512 x 128 NT", with the number of matrices behind it if it is a batch.
inline ProfileScope profile_scope(const Gemm& g, const Stream& stream) {
    const int batch = g.batch_inner * g.batch_outer;
    return ProfileScope(
        stream,
        [&] {
            return fmt::format("gemm {} x {} x {} {}{}{}", g.M, g.N, g.K, g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N',
                               batch > 1 ? fmt::format(", {} of them", batch) : "");
        },
        2.0 * g.M * g.N * g.K * batch);
}

}  // namespace teon::detail
