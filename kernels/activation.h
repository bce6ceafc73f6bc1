// Kernels for an activation function F with F::forward(x) and F::backward(x, dout). The backward pass also computes the
// gradient of the bias that was added to x, so that the tensor is read once for both. Private to kernels/.
#pragma once

#include "kernels/column_sums.h"
#include "kernels/maximum.h"

namespace teon {

template <typename T, int W, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(kFlatBlock) activation_forward_kernel(T* out, const T* x, int64_t n, float* maximum) {
    wait_for_earlier_kernels();
    [[maybe_unused]] int most = 0;
    for_each_vec<W>(n, [=, &most]<int w>(Constant<w>, int64_t i) {
        auto v = load_floats<w>(x + i);
        FOR_VEC(k, w) v[k] = F::forward(v[k]);
        store_floats(out + i, v);
        if constexpr (MAXIMUM) most = greatest(most, v);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
}

// out = F::forward(x), n elements. out may alias x. maximum: of out (kernels/fp8.h), or nullptr.
template <typename F, typename T>
void activation_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum) {
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(0, out, x), [&]<int W>(Constant<W>) {
        with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
            launch<activation_forward_kernel<T, W, F, MAXIMUM>>({flat_blocks<W>(n), kFlatBlock}, stream, out, x, n,
                                                                maximum);
        });
    });
}

inline constexpr int kActivationChunks = 1024, kActivationChunkRows = 8;  // at most, at least

// dx = F::backward(x, dout); partial (chunks, C) = the sums of dx over the rows of each chunk. A thread processes W
// columns of one chunk. On a GPU it reads kRows rows before it writes the first, because dx may alias dout.
template <typename T, int W, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(kFlatBlock)
    activation_backward_kernel(T* dx, float* partial, const T* x, const T* dout, int N, int C, RowChunks chunks,
                               float* maximum) {
    wait_for_earlier_kernels();
    constexpr int kRows = kRowsByThread ? 1 : 4;
    const int vecs = C / W;
    const int64_t item = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    const int chunk = static_cast<int>(item / vecs), j = static_cast<int>(item % vecs) * W;
    const int first = chunk * chunks.rows, last = std::min(N, first + chunks.rows);  // empty beyond the last chunk
    [[maybe_unused]] int most = 0;
    Vec<float, W> sums{};
    auto rows = [&]<int R>(Constant<R>, int row) {
        Vec<T, W> v[R], d[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            v[r] = load_vec<W>(x + int64_t{row + r} * C + j);
            d[r] = load_vec<W>(dout + int64_t{row + r} * C + j);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            Vec<float, W> y;
            FOR_VEC(k, W) y[k] = F::backward(static_cast<float>(v[r][k]), static_cast<float>(d[r][k]));
            FOR_VEC(k, W) sums[k] += y[k];
            store_floats(dx + int64_t{row + r} * C + j, y);
            if constexpr (MAXIMUM) most = greatest(most, y);
        }
    };
    int row = first;
    for (; row + kRows <= last; row += kRows) rows(Constant<kRows>{}, row);
    for (; row < last; ++row) rows(Constant<1>{}, row);
    if (chunk < chunks.count) store_vec(partial + int64_t{chunk} * C + j, sums);
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
}

inline size_t activation_backward_scratch_bytes(int N, int C) {
    return chunk_sums_bytes(N, kActivationChunks, kActivationChunkRows, C);
}

// dx = F::backward(x, dout), (N, C). dbias (C): the column sums of dx, += if accumulate, else =; or nullptr. scratch:
// activation_backward_scratch_bytes(N, C). maximum: of dx, or nullptr.
template <typename F, typename T>
void activation_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                         const Stream& stream, float* maximum) {
    const RowChunks chunks = row_chunks(N, kActivationChunks, kActivationChunkRows);
    float* partial = static_cast<float*>(scratch);
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(C, dx, partial, x, dout), [&]<int W>(Constant<W>) {
        with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
            launch<activation_backward_kernel<T, W, F, MAXIMUM>>(
                {ceil_div(int64_t{chunks.count} * (C / W), kFlatBlock), kFlatBlock}, stream, dx, partial, x, dout, N, C,
                chunks, maximum);
        });
    });
    if (dbias != nullptr) add_column_sums({{{dbias, C}}, accumulate}, partial, chunks.count, stream);
}

}  // namespace teon
