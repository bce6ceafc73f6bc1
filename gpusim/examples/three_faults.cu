// Three faults that the modelled GPU found in published kernels, in kernels of our own, and without the faults:
//
//     nvcc -cudart shared -lineinfo --no-compress -gencode arch=compute_80,code=compute_80 -o three_faults \
//         three_faults.cu
//     ../model-gpu ./three_faults race          # or bounds, shared, right
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int kThreads = 128;

// Divides each row by its sum, which the block keeps in shared memory beside its maximum.
template <bool Faulty>
__global__ void normalize(float* rows, int columns) {
    __shared__ float of_warps[kThreads / 32];
    float* const row = rows + static_cast<size_t>(blockIdx.x) * columns;
    const auto reduce = [&](float x, auto combine) {
        for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(~0u, x, distance));
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
        __syncthreads();
        x = of_warps[0];
        for (int warp = 1; warp < kThreads / 32; ++warp) x = combine(x, of_warps[warp]);
        // A warp that is ahead would overwrite the maxima with its sum, while others still read them.
        if (!Faulty) __syncthreads();
        return x;
    };
    float maximum = -INFINITY;
    for (int c = threadIdx.x; c < columns; c += kThreads) maximum = fmaxf(maximum, row[c]);
    maximum = reduce(maximum, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
    for (int c = threadIdx.x; c < columns; c += kThreads) sum += expf(row[c] - maximum);
    sum = reduce(sum, [](float a, float b) { return a + b; });
    for (int c = threadIdx.x; c < columns; c += kThreads) row[c] = expf(row[c] - maximum) / sum;
}

// Adds one to each element.
template <bool Faulty>
__global__ void increment(float* x, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (Faulty ? i > count : i >= count) return;  // the element behind the last has index `count`
    x[i] += 1;
}

// Sums by blocks; the last block adds their sums. A flag behind the sums of the warps says which block is the last.
__global__ void add_up(const float* x, int count, float* sums, unsigned* finished) {
    extern __shared__ float shared[];
    auto* const is_last = reinterpret_cast<unsigned*>(shared + blockDim.x);
    float sum = 0;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += gridDim.x * blockDim.x)
        sum += x[i];
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (unsigned k = 0; k < blockDim.x; ++k) total += shared[k];
        sums[blockIdx.x + 1] = total;
        __threadfence();
        *is_last = atomicAdd(finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (*is_last == 0 || threadIdx.x > 0) return;
    float total = 0;
    for (unsigned block = 0; block < gridDim.x; ++block) total += sums[block + 1];
    sums[0] = total;
}

static void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::printf("CUDA error: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

int main(int argc, char** argv) {
    const char* const fault = argc > 1 ? argv[1] : "right";
    const auto is = [&](const char* name) { return std::strcmp(fault, name) == 0; };
    const int columns = 1000;
    const int count = 4 * columns;
    float* x;
    check(cudaMalloc(&x, count * sizeof(float)));
    check(cudaMemset(x, 0, count * sizeof(float)));
    if (is("race"))
        normalize<true><<<4, kThreads>>>(x, columns);
    else
        normalize<false><<<4, kThreads>>>(x, columns);
    const int blocks = (count + kThreads - 1) / kThreads;
    if (is("bounds"))
        increment<true><<<blocks, kThreads>>>(x, count);
    else
        increment<false><<<blocks, kThreads>>>(x, count);
    float* sums;
    unsigned* finished;
    check(cudaMalloc(&sums, 9 * sizeof(float)));
    check(cudaMalloc(&finished, sizeof(unsigned)));
    check(cudaMemset(finished, 0, sizeof(unsigned)));
    const size_t shared = kThreads * sizeof(float) + (is("shared") ? 0 : sizeof(unsigned));
    add_up<<<8, kThreads, shared>>>(x, count, sums, finished);
    check(cudaGetLastError());
    float total = 0;
    check(cudaMemcpy(&total, sums, sizeof(float), cudaMemcpyDeviceToHost));
    std::printf("%.0f\n", static_cast<double>(total));  // 4 rows that add up to 1, and 1 for each element
    check(cudaDeviceSynchronize());
    return std::fabs(total - static_cast<float>(count + 4)) < 0.5f ? 0 : 1;
}
