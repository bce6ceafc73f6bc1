// Kernels that linalg.cu runs around the library's products and in place of products that the library refuses. Private
// to linalg.cu.
#pragma once

#include <algorithm>

#include "base/dtype.h"
#include "runtime/linalg/gemm.h"
#include "runtime/simt.h"

namespace teon {

inline constexpr int kTile = 32;        // side of a square tile in shared memory
inline constexpr int kTileRows = 8;     // threads of a tile's block along y
inline constexpr int kBiasBlock = 64;   // threads per block that sums a bias gradient; few: each sums several elements
inline constexpr int kBiasRows = 32;    // rows that a thread adds, at least
inline constexpr int kBiasParts = 256;  // partial sums per element of a bias gradient, at most
inline constexpr int kPlainTile = 16;

// A batch of products for multiply_plain_kernel, with stride stride_inner. bias is null if there is none.
struct PlainProduct {
    Mat C, addend, A, B;
    const void* bias;
    bool trans_a, trans_b;
};

// partial[part * M + j] = sum of A(j, k) over the part's k, in order of k. Each thread sums W neighbouring j, which are
// contiguous if W > 1. Grid: x along j, y over parts.
template <typename T, int W>
__global__ void __launch_bounds__(kBiasBlock)
    bias_partial_kernel(float* partial, const T* A, int64_t step_j, int64_t step_k, int M, int K, int per_part) {
    wait_for_earlier_kernels();
    const int j = (static_cast<int>(blockIdx.x) * kBiasBlock + static_cast<int>(threadIdx.x)) * W;
    if (j >= M) return;
    const int part = static_cast<int>(blockIdx.y);
    const int begin = part * per_part;
    const int past = begin + per_part;
    const int end = past < K ? past : K;
    Vec<float, W> sum = {};
    for (int k = begin; k < end; ++k) {
        const Vec<T, W> x = load_vec<W>(A + j * step_j + k * step_k);
        FOR_VEC(i, W) sum[i] += static_cast<float>(x[i]);
    }
    for (int i = 0; i < W; ++i) partial[int64_t{part} * M + j + i] = sum[i];
}

// bias[j] = beta * bias[j] + the sum of partial[part * M + j] over the parts.
template <int W>
__global__ void __launch_bounds__(kBiasBlock)
    bias_total_kernel(float* bias, const float* partial, int M, int parts, float beta) {
    wait_for_earlier_kernels();
    const int j = (static_cast<int>(blockIdx.x) * kBiasBlock + static_cast<int>(threadIdx.x)) * W;
    if (j >= M) return;
    Vec<float, W> sum = {};
    for (int part = 0; part < parts; ++part) {
        const Vec<float, W> x = load_vec<W>(partial + int64_t{part} * M + j);
        FOR_VEC(i, W) sum[i] += x[i];
    }
    for (int i = 0; i < W; ++i) bias[j + i] = beta == 0.0f ? sum[i] : fmaf(beta, bias[j + i], sum[i]);
}

// c = alpha op(A) op(B) + beta addend + bias, in tiles through shared memory; blockIdx.z is the index of the matrix in
// the batch. For products that the library refuses: any shape, stride and alignment, not optimized for speed.
template <typename T, typename TC>
__global__ void __launch_bounds__(kPlainTile* kPlainTile)
    multiply_plain_kernel(PlainProduct p, int M, int N, int K, float alpha, float beta) {
    wait_for_earlier_kernels();
    SHARED(float, a, kPlainTile*(kPlainTile + 1));
    SHARED(float, b, kPlainTile*(kPlainTile + 1));
    const int x = static_cast<int>(threadIdx.x);
    const int y = static_cast<int>(threadIdx.y);
    const int row0 = static_cast<int>(blockIdx.y) * kPlainTile;
    const int column0 = static_cast<int>(blockIdx.x) * kPlainTile;
    const T* A = static_cast<const T*>(p.A.data) + blockIdx.z * p.A.stride_inner;
    const T* B = static_cast<const T*>(p.B.data) + blockIdx.z * p.B.stride_inner;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += kPlainTile) {
        // Neighbouring threads read neighbouring elements, whether the operand is transposed or not.
        const int ai = p.trans_a ? x : y;
        const int ak = p.trans_a ? y : x;
        const int bk = p.trans_b ? x : y;
        const int bj = p.trans_b ? y : x;
        const bool in_a = row0 + ai < M && k0 + ak < K;
        const bool in_b = k0 + bk < K && column0 + bj < N;
        const int64_t i = row0 + ai;
        const int64_t j = column0 + bj;
        a[ai * (kPlainTile + 1) + ak] =
            in_a ? static_cast<float>(p.trans_a ? A[(k0 + ak) * p.A.ld + i] : A[i * p.A.ld + k0 + ak]) : 0.0f;
        b[bk * (kPlainTile + 1) + bj] =
            in_b ? static_cast<float>(p.trans_b ? B[j * p.B.ld + k0 + bk] : B[(k0 + bk) * p.B.ld + j]) : 0.0f;
        __syncthreads();
        for (int k = 0; k < kPlainTile; ++k) sum = fmaf(a[y * (kPlainTile + 1) + k], b[k * (kPlainTile + 1) + x], sum);
        __syncthreads();
    }
    const int64_t i = row0 + y;
    const int64_t j = column0 + x;
    if (i >= M || j >= N) return;
    sum *= alpha;
    const TC* addend = static_cast<const TC*>(p.addend.data);
    const TC* bias = static_cast<const TC*>(p.bias);
    if (beta != 0.0f)
        sum = fmaf(beta, static_cast<float>(addend[blockIdx.z * p.addend.stride_inner + i * p.addend.ld + j]), sum);
    if (bias) sum += static_cast<float>(bias[j]);
    static_cast<TC*>(p.C.data)[blockIdx.z * p.C.stride_inner + i * p.C.ld + j] = TC(sum);
}

// C(i, j) = C(j, i) for j > i, tile by tile; blockIdx.z is the index of the matrix in the batch. On a CPU a thread
// writes a row of a tile, because reads of a column need no coalescing; on a GPU a block has kTileRows rows of threads.
inline constexpr int kMirrorRows = kGpu ? kTileRows : 1;
template <typename T>
__global__ void __launch_bounds__(kTile* kMirrorRows) mirror_kernel(T* C, int64_t ld, int64_t stride, int n) {
    wait_for_earlier_kernels();
    int down = static_cast<int>(blockIdx.y);
    int across = static_cast<int>(blockIdx.x);
    if (across > down) return;  // above the diagonal
    T* c = C + blockIdx.z * stride;
    if constexpr (!kGpu) {
        const int row = across * kTile + static_cast<int>(threadIdx.x);
        const int begin = std::max(row + 1, down * kTile);
        const int end = std::min(n, (down + 1) * kTile);
        for (int to = begin; to < end; ++to) c[row * ld + to] = c[to * ld + row];
        return;
    }
    int to_column = down * kTile + static_cast<int>(threadIdx.x);
    SHARED(T, tile, kTile * (kTile + 1));
    int column = across * kTile + static_cast<int>(threadIdx.x);
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
        int row = down * kTile + y;
        if (row < n && column < n) tile[y * (kTile + 1) + threadIdx.x] = c[row * ld + column];
    }
    __syncthreads();
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
        int to_row = across * kTile + y;
        if (to_row < to_column && to_column < n) c[to_row * ld + to_column] = tile[threadIdx.x * (kTile + 1) + y];
    }
}

}  // namespace teon
