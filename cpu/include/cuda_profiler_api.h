// 5.37 Profiler Control. Both functions fail, because there is no such profiler on a CPU.
#pragma once

#include "cuda_runtime.h"

extern "C" {
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
}  // extern "C"
