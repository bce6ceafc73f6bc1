// How well the layers of a stack agree, as the paper's alignment figures measure it (arXiv 2601.23261, appendix).
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

// slices: those of a role next to each other, in layer order. Neighbours of one role and shape are compared, the pair's
// matricization being of `mode`. Synchronizes; throws Error where a momentum is not finite.
std::vector<Alignment> measure_alignment(const std::vector<MomentumSlice>& slices, int mode, Context& context);

}  // namespace teon
