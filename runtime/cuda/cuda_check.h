// Turns errors of CUDA runtime calls into exceptions. Private to the files of runtime/ that call CUDA.
#pragma once

#include <cuda_runtime.h>

#include "base/check.h"

namespace teon::detail {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();  // clears the error unless it is sticky: it is reported once
    throw Error(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace teon::detail
