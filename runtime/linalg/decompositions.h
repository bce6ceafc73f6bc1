// SVD and eigendecomposition by cuSOLVER (NVIDIA's or cpu/'s). Private to linalg.cu; linalg.h describes the results.
#pragma once

#include <cusolverDn.h>

#include "runtime/cuda/device.h"

namespace teon {

class Decompositions {
public:
    // Holds a reference to the stream. The library is initialized by the first decomposition.
    explicit Decompositions(const Stream& stream) : stream_(stream) {}

    void svd(float* A, int m, int n, float* U, float* S, float* Vt);
    void eigh(float* A, int n, float* w);

private:
    void check_finite(const char* operation, const float* A, int64_t n);
    int read_info() const;
    cusolverDnHandle_t handle(const char* operation);

    const Stream& stream_;
    detail::Handle<cusolverDnHandle_t, cusolverDnDestroy> handle_;
    Buffer<float> turned_, left_, right_, workspace_;  // of the largest size needed so far
    Buffer<int> info_{1};
};

}  // namespace teon
