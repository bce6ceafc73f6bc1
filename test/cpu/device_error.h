#pragma once

#include <cuda_runtime.h>

#include "cpu/error.h"
#include "test/support/catch.h"

namespace teon::test {

// Returns the message of f's exception or of the device error of the work that f queued; "" if neither occurs. Clears
// the device error.
template <typename F>
std::string device_error_of(F f) {
    std::string words = error_of(f);
    if (cudaDeviceSynchronize() != cudaSuccess && words.empty()) words = cudaGetErrorString(cudaGetLastError());
    cpu::forget_device_error();
    return words;
}

}  // namespace teon::test
