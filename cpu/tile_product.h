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
    void copy(void* to, int64_t ld_to, const void* from, int64_t ld_from, DType type) const;

    int64_t rows_ = 0, columns_ = 0;
    int64_t depth_ = 0, end_ = 0;  // the primitives' part of K, for a slice at a time
    bool odd_ = false;             // the last term is added apart
    bool widened_ = false;
    bool finished_ = true;  // the primitive writes the final result to C
    std::shared_ptr<const Primitive> first_, middle_, last_;
};

}  // namespace teon::cpu
