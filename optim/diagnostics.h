// The alignment of neighbouring layers, as in the paper's figures (arXiv 2601.23261, appendix).
#pragma once

#include <vector>

#include "model/param_table.h"
#include "runtime/context.h"

namespace teon {

// One measurement of --diagnose-every: two consecutive layers of a role.
struct Alignment {
    Role role;
    int layer_a, layer_b;
    float left, right;  // |inner product| of the top left / top right singular vectors of the momenta
    float norm_ratio;   // ||M||_muon,* / ||M||_teon-i,* of the pair
};

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
