// 5.37 Profiler Control: there is no such profiler on a CPU, and both say so.
#pragma once

#include "cuda_runtime.h"

extern "C" {
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
}  // extern "C"
