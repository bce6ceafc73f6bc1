// The outcome of CUDA runtime calls as errors. Private to the CUDA files of runtime/.
#pragma once

#include <cuda_runtime.h>

#include "base/check.h"

namespace teon::detail {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();  // an error that does not stay with the device is reported once
    throw Error(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace teon::detail
