// Whole buffers of parameters that are not divided between ranks.
#pragma once

#include "kernels/fill.h"
#include "model/param_store.h"

namespace teon::test {

inline float* masters_of(const ParamStore& p) { return p.masters().data<float>(); }
inline float* gradients_of(const ParamStore& p) { return p.gradients().data<float>(); }

// Sets the working weights to the master weights, rounded.
inline void round_masters(ParamStore& p, const Stream& stream) {
    if (p.dtype() == DType::bf16) cast(p.weights().data<bf16>(), masters_of(p), p.table().size(), stream);
}

}  // namespace teon::test
