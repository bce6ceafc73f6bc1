// What a matrix product computes.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon::cpu {

// A row-major matrix, or the first of a batch of matrices `stride` elements apart. Element (i, j) is data[i * ld + j].
struct Matrix {
    const void* data = nullptr;
    int64_t ld = 0, stride = 0;
};

// C (M x N) = alpha op(A) (M x K) op(B) (K x N) + beta addend + bias, rounded once, for each matrix of the batch.
struct Matmul {
    int64_t M = 0, N = 0, K = 0, batch = 1;
    bool trans_a = false, trans_b = false;  // A is stored K x M; B is stored N x K
    DType in = DType::f32;                  // of A and B
    DType out = DType::f32;                 // of C, addend and bias: float or the type `in`
    Matrix A = {}, B = {}, addend = {};     // addend may be C; read only if beta is not 0
    void* C = nullptr;                      // may overlap only the addend, which is then C itself
    int64_t ldc = 0, stride_c = 0;
    float alpha = 1.0f, beta = 0.0f;
    const void* bias = nullptr;  // (N), added to every row; or null
    bool alpha_varies = false;   // alpha differs between calls: no code is generated for its value
};

}  // namespace teon::cpu
