// The backward pass of an activation function between two products, which also sums the gradient of the bias before it:
// the tensor is passed over once for both. Private to kernels/.
#pragma once

#include "kernels/column_sums.h"

namespace teon {

inline constexpr int kActivationChunks = 1024, kActivationChunkRows = 8;  // at most, at least

// dx = F::backward(x, dout) and partial (chunks, C) = its sums over the rows of each chunk. A thread has W columns of
// one chunk, and reads kRows rows ahead of what it writes, as dx may be dout.
template <typename T, int W, typename F>
__global__ void __launch_bounds__(kFlatBlock)
    activation_backward_kernel(T* dx, float* partial, const T* x, const T* dout, int N, int C, RowChunks chunks) {
    wait_for_earlier_kernels();
    constexpr int kRows = 4;
    const int vecs = C / W;
    const int64_t item = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    if (item >= int64_t{chunks.count} * vecs) return;
    const int chunk = static_cast<int>(item / vecs), j = static_cast<int>(item % vecs) * W;
    const int first = chunk * chunks.rows, last = std::min(N, first + chunks.rows);
    Vec<float, W> sums{};
    auto rows = [&](auto count, int row) {
        constexpr int R = decltype(count)::value;
        Vec<T, W> v[R], d[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            v[r] = load_vec<W>(x + int64_t{row + r} * C + j);
            d[r] = load_vec<W>(dout + int64_t{row + r} * C + j);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            Vec<float, W> y;
            FOR_VEC(k, W) y[k] = F::backward(static_cast<float>(v[r][k]), static_cast<float>(d[r][k]));
            FOR_VEC(k, W) sums[k] += y[k];
            store_floats(dx + int64_t{row + r} * C + j, y);
        }
    };
    int row = first;
    for (; row + kRows <= last; row += kRows) rows(std::integral_constant<int, kRows>{}, row);
    for (; row < last; row++) rows(std::integral_constant<int, 1>{}, row);
    store_vec(partial + int64_t{chunk} * C + j, sums);
}

inline size_t activation_backward_scratch_bytes(int N, int C) {
    return row_chunks(N, kActivationChunks, kActivationChunkRows).partial_bytes(C);
}

// dbias (C): the column sums of dx, += or =; or nullptr. scratch: activation_backward_scratch_bytes(N, C).
template <typename T, typename F>
void activation_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                         const Stream& stream) {
    const RowChunks chunks = row_chunks(N, kActivationChunks, kActivationChunkRows);
    float* partial = static_cast<float*>(scratch);
    auto run = [&](auto width) {
        constexpr int W = decltype(width)::value;
        launch<activation_backward_kernel<T, W, F>>({ceil_div(int64_t{chunks.count} * (C / W), kFlatBlock), kFlatBlock},
                                                    stream, dx, partial, x, dout, N, C, chunks);
    };
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(C, dx, partial, x, dout), run);
    if (dbias != nullptr) add_column_sums({{{dbias, C}}, accumulate}, partial, chunks.count, stream);
}

}  // namespace teon
