// The norms of the residual stream: one row each. Their formulas are in kernels/norm.cu.
#pragma once

#include "base/enum_rows.h"

namespace teon {

enum class NormKind { layernorm, rmsnorm, count };

struct NormFunction {
    NormKind kind;
    std::string_view name;
    bool centered;       // subtracts the mean and adds a bias, so that the norm has both
    int initial_weight;  // 0 or 1
};

inline constexpr NormFunction kNorms[] = {
    {NormKind::layernorm, "layernorm", true, 1},
    {NormKind::rmsnorm, "rmsnorm", false, 1},
};
template <>
inline constexpr auto kEnumNames<NormKind> = names_of_rows(kNorms);

constexpr const NormFunction& row_of(NormKind kind) { return kNorms[static_cast<size_t>(kind)]; }

}  // namespace teon
