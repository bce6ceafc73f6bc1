// Matrix products on the CPU, by oneDNN. Row-major; sums are taken in float. The output is cut into tiles by its shape
// alone and each tile is computed by one thread, so results are bit-equal for any number of threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace teon::cpu {

// A row-major matrix, or the first of a batch of them `stride` elements apart: element (i, j) is data[i * ld + j].
struct Matrix {
    const void* data = nullptr;
    int64_t ld = 0, stride = 0;
};

// What becomes of the sum before it is rounded (base/activation.h). gelu: it goes to aux, and gelu of it to C. dgelu:
// C is it times gelu'(aux).
enum class Activation { none, gelu, dgelu };

// C (M x N) = alpha op(A) (M x K) op(B) (K x N) + beta addend + bias, rounded once, for each matrix of the batch.
struct Matmul {
    int64_t M = 0, N = 0, K = 0, batch = 1;
    bool trans_a = false, trans_b = false;    // A is stored K x M; B is stored N x K
    DType in = DType::f32, out = DType::f32;  // of A and B; of C, addend and bias: float or like the inputs
    Matrix A = {}, B = {}, addend = {};       // addend may be C; read only if beta is not 0
    void* C = nullptr;                        // overlaps nothing but the addend, which is then all of it
    int64_t ldc = 0, stride_c = 0;
    float alpha = 1.0f, beta = 0.0f;
    const void* bias = nullptr;                // (N), added to every row; or null
    Activation activation = Activation::none;  // others: of a single product
    void* aux = nullptr;                       // (M x N), of C's type
    int64_t ld_aux = 0;
    bool alpha_varies = false;  // from call to call: it is no part of what is generated for the product
};

// Does not check its arguments. Works on the threads of parallel_for and returns when all is done. From its second call
// on with the same shapes, strides, types and factors it allocates nothing.
void matmul(const Matmul& m);

// The product of e4m3 or e5m2, of which bf16 holds every value: A of type `a`, not transposed, and B of type `b`,
// transposed, without a batch, times the scales. m.in and m.alpha_varies do not count.
void matmul_fp8(Matmul m, DType a, DType b, float scale);

// Whether this CPU has instructions that multiply bf16 with sums in float, and oneDNN uses them (ONEDNN_MAX_CPU_ISA
// limits it). Without them matmul widens 16-bit operands and multiplies floats.
bool multiplies_bf16();

// The library, its version and the instruction set that it uses: "oneDNN 2.6.3 with AVX512_BF16".
std::string matmul_library();

}  // namespace teon::cpu
