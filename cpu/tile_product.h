// One tile of a product's output, computed on the calling thread.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/primitive.h"
#include "cpu/product.h"

namespace teon::cpu {

// Computes tiles of one size. Usually one primitive does everything. If oneDNN has only reference code for that, a
// primitive computes the plain product in packed floats, and this class does the rest: also the last term of an odd K
// in 16 bits (primitive.h). If oneDNN has only reference code for a plain product of 16-bit operands, too, they are
// widened, for a slice of K at a time.
//
// oneDNN transposes A slowly: without AVX-512 it reads each line of a matrix of floats several times, from memory if
// rows are a power of two of bytes apart. A transposed A is therefore transposed here, for a slice of K at a time.
// oneDNN's best kernels take 16-bit matrices whose rows follow each other without gaps: a tile that is narrower than
// C's rows is computed apart and then copied.
class TileProduct {
public:
    TileProduct() = default;
    // For tiles of rows x columns of such products. Addresses do not matter here.
    TileProduct(const Matmul& m, int64_t rows, int64_t columns);

    // Computes the tile that begins at (row, column). The caller holds back signals (signals.h).
    void run(const Matmul& m, int64_t matrix, int64_t row, int64_t column) const;

private:
    // Adds the term of the last k to the sums.
    void add_last_term(float* product, const Matmul& m, int64_t matrix, int64_t row, int64_t column) const;
    // Returns the kind of product for a slice of K. beta is the factor of the previous content of the output, such as
    // the sum of earlier slices.
    ProductKind kind(const Matmul& m, int64_t depth, float beta) const;
    // Returns whether one primitive per slice can do everything, and chooses the primitives for that.
    bool choose_finished(const Matmul& m);
    // Chooses primitives for the slices of K, of which the first is multiplied by beta. Returns whether they are good.
    bool choose(const Matmul& m, float beta);
    // Copies rows of the tile's width.
    void copy(void* to, int64_t ld_to, const void* from, int64_t ld_from, int64_t rows, DType type) const;

    int64_t rows_ = 0, columns_ = 0;
    int64_t depth_ = 0, end_ = 0;  // the primitives' part of K, for a slice at a time
    bool odd_ = false;             // the last term is added apart
    bool widened_ = false;
    bool transposed_ = false;  // A is transposed before
    bool dense_b_ = false;     // B is copied without gaps before
    bool finished_ = true;     // the primitives compute the final result
    bool apart_ = false;       // finished, but in memory without gaps, and then copied to C
    std::shared_ptr<const Primitive> first_, middle_, last_;
};

}  // namespace teon::cpu
