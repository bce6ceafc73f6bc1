// What other functions of the ABI ask of the registered kernels and variables (kernels.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace teon::gpusim {

struct KernelLimits {
    size_t static_shared = 0;
    int threads = 0;    // of a block
    int registers = 0;  // that __launch_bounds__ leave a thread
};
// Each fails if host code has registered no kernel, or no variable, at this address.
cudaError_t limits_of_kernel(const void* function, KernelLimits& limits);
// The blocks of a kernel that fit on a multiprocessor (programs.cpp).
cudaError_t count_blocks(int* blocks, const void* function, int threads, size_t dynamic_shared);
// `address` and `bytes` may be null.
cudaError_t address_of_symbol(const void* symbol, void** address, size_t* bytes);

}  // namespace teon::gpusim
