// The alignment of neighbouring layers, as in the paper's figures (arXiv 2601.23261, appendix).
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace teon {

struct MomentumSlice {
    Role role;
    int layer;
    const float* data;  // m x n, dense, on the device; not written
    int m, n;
};

// slices: grouped by role, in layer order. Compares neighbours of one role and shape; a pair is unfolded by `mode`.
// Synchronizes; throws Error if a momentum is not finite.
std::vector<Alignment> measure_alignment(const std::vector<MomentumSlice>& slices, int mode, Context& context);

}  // namespace teon
