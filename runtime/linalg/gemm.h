// The description of a matrix product for Linalg.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon {

// A row-major matrix, or the first of a batch: element (i, j) is data[i * ld + j]. Batch strides are in elements; the
// outer index moves slowest. scale (FP8 only): a float on the device by which each element is multiplied.
struct Mat {
    void* data = nullptr;
    DType dtype = DType::f32;
    int64_t ld = 0;
    int64_t stride_inner = 0;
    int64_t stride_outer = 0;
    const float* scale = nullptr;
};
template <typename T>
Mat mat(const T* data, int64_t ld, int64_t stride_inner = 0, int64_t stride_outer = 0) {
    return {const_cast<T*>(data), dtype_of<T>, ld, stride_inner, stride_outer};
}

enum class Epilogue {
    none,
    bias,       // C = op(A) op(B) + bias, bias added to every row
    bias_grad,  // also computes bias[j] (float) = beta * bias[j] + sum over k of op(A)(j, k): the column sums of dY if
                // op(A) = dY^T; alpha must be 1
};

// C (M x N) = alpha * op(A) (M x K) * op(B) (K x N) + beta * C, then the epilogue.
//
// FP8 operands (GPUs from sm_89 on): A is not transposed, B is. Each is e4m3 or e5m2, but not both are e5m2. K and the
// row strides of A and B are multiples of 16, rows and row strides of C are multiples of 16 bytes, and all data are
// aligned to 16 bytes. C is bf16 or float. No batch and no symmetric C; the epilogue is none or, with a bf16 C, bias.
// fast_accumulation (FP8 only): sums stay in tensor cores, which keep fewer bits of them (cpu/fast_accumulation.h).
struct Gemm {
    int M = 0, N = 0, K = 0;
    bool trans_a = false, trans_b = false;  // A stored K x M; B stored N x K (a linear layer's weight)
    Mat A = {}, B = {}, C = {};
    float alpha = 1.0f, beta = 0.0f;  // beta = 0 never reads C (NaN in C does not spread)
    int batch_inner = 1, batch_outer = 1;
    Epilogue epilogue = Epilogue::none;  // only without batches
    Mat bias = {};                       // bias: (N) of C's dtype; bias_grad: (M) of float
    Mat addend = {};  // of C's dtype, may be A or B but not overlap C: beta * addend replaces beta * C
    // The caller knows that C and the addend are symmetric (M = N, e.g. A A^T). The result is symmetric to the last
    // bit: the half below the diagonal is mirrored. If it pays, only that half is computed.
    bool symmetric = false;
    bool fast_accumulation = false;
};

// Throws Error that names a shape, dtype or alignment if no library computes it.
void check_gemm(const Gemm& g);

}  // namespace teon
