// A matrix product as it is asked of Linalg.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon {

// A row-major matrix (or the first of a batch): element (i, j) is data[i * ld + j].
// batch strides are in elements; outer moves slowest. scale: of FP8, a float on the device by which each element is
// multiplied.
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
    gelu,       // aux = op(A) op(B), + bias if there is one; C = gelu_tanh(aux) (base/activation.h)
    dgelu,      // C = op(A) op(B) * gelu_tanh'(aux)
    bias_grad,  // also bias[j] (float) = beta * bias[j] + sum over k of op(A)(j, k): with A = dY^T gives dY's column
                // sums; alpha must be 1
};

// C (M x N) = alpha * op(A) (M x K) * op(B) (K x N) + beta * C, then the epilogue.
//
// Of FP8, which GPUs have from sm_89 on: A is not transposed and B is; each is e4m3 or e5m2, not both e5m2; K and the
// row strides are multiples of 16, rows of C of 16 bytes, and all data are aligned to 16 bytes; C is bf16 or float. One
// product, whose epilogue is none or bias, the latter with a bf16 C.
struct Gemm {
    int M = 0, N = 0, K = 0;
    bool trans_a = false, trans_b = false;  // A stored K x M; B stored N x K (a linear layer's weight)
    Mat A = {}, B = {}, C = {};
    float alpha = 1.0f, beta = 0.0f;  // beta = 0 never reads C (NaN in C does not spread)
    int batch_inner = 1, batch_outer = 1;
    Epilogue epilogue = Epilogue::none;  // without batches only
    Mat bias = {};                       // bias, gelu: (N) of C's dtype; bias_grad: (M) of float
    // gelu, dgelu: (M x N) of C's dtype, overlaps nothing; its rows begin at multiples of 8 elements, as cuBLASLt
    // demands. Whether gelu sees the sum or what is rounded of it, and the last bits of both functions, are the
    // library's choice.
    Mat aux = {};
    Mat addend = {};  // of C's dtype, may be A or B but not overlap C: beta * addend instead of beta * C
    // C is known to be symmetric (M = N, e.g. A A^T; the addend too), and is so to the last bit: what is below the
    // diagonal is mirrored. Where it pays, only that half is computed.
    bool symmetric = false;
};

// Throws Error on a shape, dtype or alignment that no library computes, naming it.
void check_gemm(const Gemm& g);

}  // namespace teon
