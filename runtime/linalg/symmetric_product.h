// C = alpha op(A) op(B) + beta addend on tensor cores, for a C that is known to be symmetric (A A^T; polynomials of
// one symmetric matrix, which commute). Only tiles on and below the diagonal are computed; each is written to its own
// place and to the mirrored place. This takes about half the FLOPs of a full product, and no second pass over C.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/linalg/gemm.h"

namespace teon {

// Returns whether some kernel computes g, a valid symmetric Gemm. A, B and C are all bf16 or all f16, exactly one
// operand is transposed (A A^T or A^T A), and the batch has one level. C's side, the row strides and the batch strides
// are multiples of 8 elements; addresses are multiples of 16 bytes. K is a multiple of 8 if sums run along rows of A
// and B (A A^T). addend is read if beta is not 0; it is C or a matrix that does not overlap C.
bool symmetric_product_supports(const Gemm& g, const Mat& addend);

inline constexpr int kSymmetricTile = 128;  // rows and columns of a tile
inline constexpr int kSymmetricDepth = 64;  // of a slice of A or B along K

// A kernel for symmetric products: a row of the table in symmetric_product.cpp.
struct SymmetricKernel {
    std::string_view name;
    int first_capability, last_capability;  // of the device: 90 for sm_90, 0 for a CPU
    bool (*has_code)();                     // whether this program has the kernel for the device
    bool (*supports)(const Gemm& g);        // what else it asks of g
    // Computes g. Sums are in float, in an order that depends on K and the kernel alone; C is symmetric to the last
    // bit. If beta = 0, addend is not read.
    void (*run)(const Gemm& g, const Mat& addend, const Stream& stream);
    int64_t (*pairs)(int side, int batch);  // of tiles; a multiprocessor computes one at a time
    double rate;                            // measured, as a fraction of the GPU's peak
};

// `batch` matrices of side x side, with sums of K products.
struct SymmetricSize {
    int side, K, batch;
};
inline SymmetricSize symmetric_size(const Gemm& g) { return {g.M, g.K, g.batch_inner}; }

// Returns the kernel of that name, or nullptr.
const SymmetricKernel* symmetric_kernel(std::string_view name);

// Returns the kernels that compute g on the stream's device. There is always one if symmetric_product_supports() g.
std::vector<const SymmetricKernel*> symmetric_kernels(const Gemm& g, const Mat& addend, const Stream& stream);

// The library computes such a product in blocks of so many rows, up to the diagonal; the last may have fewer.
int symmetric_block_height(int side, int K);

// Returns the kernel with the shortest expected time, or nullptr if the library's blocks, which are mirrored
// afterwards, are expected to be faster than each.
const SymmetricKernel* fastest_symmetric_kernel(const std::vector<const SymmetricKernel*>& kernels,
                                                const SymmetricSize& size, int multiprocessors);

// The kernels of the table: with wgmma, the instruction of sm_90a, if tensor maps can describe A and B; and with
// mma.sync, for every GPU. A block computes a pair of tiles of 128 x 128 elements, one above the other, of which at
// least one is on or below the diagonal (with an odd number of rows of tiles one may be outside of C); or a tile.
bool symmetric_hopper_has_code();
bool symmetric_hopper_supports(const Gemm& g);
void symmetric_product_hopper(const Gemm& g, const Mat& addend, const Stream& stream);
int64_t symmetric_hopper_pairs(int side, int batch);
void symmetric_product_mma(const Gemm& g, const Mat& addend, const Stream& stream);
int64_t symmetric_mma_pairs(int side, int batch);  // two blocks at a time on a multiprocessor

}  // namespace teon
