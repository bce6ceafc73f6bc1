// Measures the alignment of adjacent layers, as in the Teon paper's figures (arXiv 2601.23261, appendix).
#pragma once

#include <functional>
#include <vector>

#include "model/param_table.h"
#include "runtime/context.h"

namespace teon {

// One measurement of --diagnose-every: two consecutive layers of a role.
struct Alignment {
    Role role;
    int layer_a, layer_b;
    float left_alignment;   // |inner product| of the top left singular vectors of the momenta
    float right_alignment;  // the same of the top right ones
    float norm_ratio;       // ||M||_muon,* / ||M||_teon-i,* of the pair
};

struct MomentumSlice {
    Role role;
    int layer;
    int m, n;
};

// slices: grouped by role, in layer order. data_of(i): slice i, m x n, dense, on the device, valid until
// data_of(i + 2); called once for each i, in order. Compares adjacent slices of the same role and shape; a pair is
// unfolded by `mode`. Synchronizes. Throws Error if a momentum is not finite.
std::vector<Alignment> measure_alignment(const std::vector<MomentumSlice>& slices,
                                         const std::function<const float*(size_t)>& data_of, int mode,
                                         Context& context);

// Device memory that Optimizer::diagnose() needs temporarily, in bytes.
int64_t diagnostics_bytes(const ParamTable& params, int ranks);

}  // namespace teon
