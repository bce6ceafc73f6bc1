#pragma once

#include <cuda_runtime.h>

#include "cpu/error.h"
#include "test/support/catch.h"

namespace teon::test {

// What the function throws, or what it has queued fails with; "" if nothing. The device works again afterwards.
template <typename F>
std::string device_error_of(F f) {
    std::string words = error_of(f);
    if (cudaDeviceSynchronize() != cudaSuccess && words.empty()) words = cudaGetErrorString(cudaGetLastError());
    cpu::forget_device_error();
    return words;
}

}  // namespace teon::test
