// A pipeline of asynchronous copies through shared memory.
#pragma once

#include <vector>

#include "runtime/tensor_core.h"
#include "test/support/compare.h"

namespace teon::test {

// A ring of two stages through which `steps` tiles of one float4 per thread pass; each thread adds up its neighbour's.
__global__ void pipeline_kernel(float* out, const float* in, int steps) {
    wait_for_earlier_kernels();
    SHARED(float, memory, 2 * 64 * 4);
    const int i = static_cast<int>(threadIdx.x), neighbour = (i + 32) % 64;
    auto fetch = [&](int step) {
        cp_async<16>(memory + (step % 2 * 64 + i) * 4, in + (step * 64 + i) * 4, step < steps);
        cp_async_commit();
    };
    float sum = 0.0f;
    fetch(0);
    for (int step = 0; step < steps; step++) {
        __syncthreads();  // the stage that is fetched now has been read by all
        fetch(step + 1);
        cp_async_wait<1>();
        __syncthreads();
        for (int j = 0; j < 4; j++) sum += memory[(step % 2 * 64 + neighbour) * 4 + j];
    }
    out[i] = sum;
}

inline constexpr int kSteps = 5;

inline std::vector<float> pipeline_input() {
    std::vector<float> in(kSteps * 64 * 4);
    for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<float>(i);
    return in;
}

inline std::vector<float> run_pipeline() {
    Stream stream;
    Guarded<float> in(pipeline_input(), stream), out(64, stream);
    launch<pipeline_kernel>({1, 64}, stream, out.data(), in.data(), kSteps);
    return out.get();
}

inline std::vector<float> pipeline_result() {
    const std::vector<float> in = pipeline_input();
    std::vector<float> sums(64);
    for (int i = 0; i < 64; i++)
        for (int step = 0; step < kSteps; step++)
            for (int j = 0; j < 4; j++) sums[i] += in[(step * 64 + (i + 32) % 64) * 4 + j];
    return sums;
}

}  // namespace teon::test
