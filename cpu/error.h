// Errors of the CUDA functions. Each function that fails says in words what was wrong with this call;
// cudaGetErrorString gives those words in place of the code's general ones, to the thread that made the call.
#pragma once

#include <string>

#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

// Notes the error for cudaGetLastError and its words, and returns the code.
cudaError_t fail(cudaError_t code, const std::string& words);

// Device work has failed: from now on every call returns this error, as on a GPU, whose context is lost.
void fail_device(cudaError_t code, const std::string& words) noexcept;
cudaError_t device_error();  // cudaSuccess, or what fail_device noted
void forget_device_error();  // for tests: a GPU would need a new process

}  // namespace teon::cpu
