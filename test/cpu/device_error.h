#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/check.h"
#include "cpu/error.h"

namespace teon::test {

// What the function throws, or what it has queued fails with; "" if nothing. The device works again afterwards.
template <typename F>
std::string error_of(F f) {
    std::string words;
    try {
        f();
    } catch (const Error& e) { words = e.what(); }
    if (cudaDeviceSynchronize() != cudaSuccess && words.empty()) words = cudaGetErrorString(cudaGetLastError());
    cpu::forget_device_error();
    return words;
}

}  // namespace teon::test
