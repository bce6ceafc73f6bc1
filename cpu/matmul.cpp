#include "cpu/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/activation.h"
#include "base/integer.h"
#include "cpu/primitive.h"
#include "cpu/signals.h"
#include "cpu/threads.h"

namespace teon::cpu {

namespace {

// The part of K for which 16-bit operands are widened at a time. It bounds a thread's scratch memory for any K.
constexpr int64_t kSlice = 512;
// The size of the largest tile, whose operands stay close to the second-level cache. An output of at most kMaxColumns
// columns is not divided for its width, because oneDNN's best kernels need a dense output and a dense B; a wider one is
// divided into tiles of at most kColumns.
constexpr int64_t kMaxRows = 256;
constexpr int64_t kMaxColumns = 1536;
constexpr int64_t kColumns = 1024;
// A matrix is divided into at least this many tiles, for as many threads, unless a tile would get fewer elements or
// multiplications than these, which take 0.1 ms.
constexpr int64_t kTiles = 8;
constexpr int64_t kMinElements = 64 * 64;
constexpr int64_t kMinWork = 1 << 24;
// The least number of multiplications that a thread takes at a time, for some microseconds.
constexpr int64_t kChunk = 1 << 19;

// ---- tiles ----------------------------------------------------------------------------------------------------------

// The output as a grid of tiles of rows x columns; the last ones may be smaller.
struct Tiling {
    int64_t rows, columns;  // of a tile
    int64_t down, across;   // tiles per matrix
};

// Divides the output into tiles. A tile's size decides the order of its sums, so it depends on the shape alone: not on
// the machine, and not on how many matrices share a batch, which differs between ranks.
Tiling tile_output(const Matmul& m) {
    int64_t down = ceil_div(m.M, kMaxRows);
    int64_t across = m.N <= kMaxColumns ? 1 : ceil_div(m.N, kColumns);
    Tiling t{};
    auto split = [&] {
        t.rows = std::min(m.M, round_up(ceil_div(m.M, down), 16));  // whole register tiles
        t.columns = std::min(m.N, round_up(ceil_div(m.N, across), 64));
        t.down = ceil_div(m.M, t.rows);
        t.across = ceil_div(m.N, t.columns);
    };
    split();
    while (t.down * t.across < kTiles && t.rows * t.columns >= 2 * kMinElements &&
           t.rows * t.columns * m.K >= 2 * kMinWork) {
        (t.rows > 64 ? down : across) *= 2;
        split();
    }
    return t;
}

const void* at(const void* matrix, DType type, int64_t element) {
    return static_cast<const char*>(matrix) + element * size_of(type);
}
void* at(void* matrix, DType type, int64_t element) { return static_cast<char*>(matrix) + element * size_of(type); }

float* resized(std::vector<float>& v, int64_t n) {
    if (std::ssize(v) < n) v.resize(n);
    return v.data();
}

// Converts a block of rows x columns to packed floats.
const float* widen(std::vector<float>& scratch, DType type, const void* block, int64_t ld, int64_t rows,
                   int64_t columns) {
    float* to = resized(scratch, rows * columns);
    visit_dtype(type, [&]<typename T>(T) {
        const T* from = static_cast<const T*>(block);
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = static_cast<float>(from[i * ld + j]);
    });
    return to;
}

// Computes a row c = alpha product + beta addend + bias, rounded once. bias may be null; c may be product.
template <typename TC, typename T>
void finish_row(TC* c, const float* product, const T* addend, float alpha, float beta, const T* bias, int64_t n) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
        float x = alpha * product[j];
        if (beta != 0.0f) x = fmaf(beta, static_cast<float>(addend[j]), x);
        if (bias) x += static_cast<float>(bias[j]);
        c[j] = TC(x);
    }
}

// Applies the activation to a row of sums.
template <typename T>
void activate_row(T* c, T* aux, const float* sums, Activation activation, int64_t n) {
    if (activation == Activation::gelu) {
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j) {
            aux[j] = T(sums[j]);
            c[j] = T(gelu_tanh(sums[j]));
        }
    } else {
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j) c[j] = T(sums[j] * gelu_tanh_grad(static_cast<float>(aux[j])));
    }
}

// Computes the tiles of one size. Usually one primitive does everything. If oneDNN has only reference code for that, a
// primitive computes the plain product in packed floats, and this class does the rest: also the last term of an odd K
// in 16 bits (primitive.h). If oneDNN has only reference code for a plain product of 16-bit operands, too, they are
// widened, for a slice of K at a time.
class TilePlan {
public:
    TilePlan() = default;
    TilePlan(const Matmul& m, int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {
        auto good = [](const auto& p) { return p && !p->reference; };
        // oneDNN 3.7 with AVX-512 treats a single column, of C or of a transposed A, as if its elements were
        // contiguous.
        const bool column_of_c = columns == 1 && m.ldc > 1;
        const bool column_of_a = rows == 1 && m.trans_a && m.A.ld > 1;
        odd_ = size_of(m.in) == 2 && m.K % 2 == 1;
        depth_ = m.K - (odd_ ? 1 : 0);
        end_ = depth_;
        // A factor of NaN has no place in the order of kinds: the map would return another factor's primitive.
        finished_ = !odd_ && (!m.bias || m.alpha == 1.0f) && !m.alpha_varies && m.activation == Activation::none &&
                    !column_of_c && !column_of_a && !std::isnan(m.alpha) && !std::isnan(m.beta);
        if (finished_) first_ = primitive(kind(m, depth_, m.beta));
        if (good(first_)) return;
        finished_ = false;
        if (!column_of_a && depth_ > 0) {
            first_ = primitive(kind(m, depth_, 0.0f));
            if (good(first_) || m.in == DType::f32) return;
        }
        widened_ = true;
        odd_ = false;
        depth_ = std::min(m.K, kSlice);
        end_ = m.K;
        first_ = primitive(kind(m, depth_, 0.0f));
        if (m.K >= 2 * depth_) middle_ = primitive(kind(m, depth_, 1.0f));
        if (m.K % depth_ != 0) last_ = primitive(kind(m, m.K % depth_, 1.0f));
    }

    void run(const Matmul& m, int64_t matrix, int64_t row, int64_t column) const {
        Worker& worker = Worker::mine();
        void* c = at(m.C, m.out, matrix * m.stride_c + row * m.ldc + column);
        const void* addend = at(m.addend.data, m.out, matrix * m.addend.stride + row * m.addend.ld + column);
        const void* bias = m.bias ? at(m.bias, m.out, column) : nullptr;
        float* product = finished_ ? nullptr : resized(worker.product, rows_ * columns_);
        if (finished_ && m.beta != 0.0f && c != addend) copy(c, m.ldc, addend, m.addend.ld, m.out);
        for (int64_t k = 0; k < end_; k += depth_) {
            const int64_t depth = std::min(depth_, end_ - k);
            const void* a = at(m.A.data, m.in, matrix * m.A.stride + (m.trans_a ? k * m.A.ld + row : row * m.A.ld + k));
            const void* b =
                at(m.B.data, m.in, matrix * m.B.stride + (m.trans_b ? column * m.B.ld + k : k * m.B.ld + column));
            if (widened_) {
                a = widen(worker.a, m.in, a, m.A.ld, m.trans_a ? depth : rows_, m.trans_a ? rows_ : depth);
                b = widen(worker.b, m.in, b, m.B.ld, m.trans_b ? columns_ : depth, m.trans_b ? depth : columns_);
            }
            const auto& later = depth == depth_ ? middle_ : last_;
            worker.run(k == 0 ? first_ : later, a, b, finished_ ? c : product, finished_ ? bias : nullptr);
        }
        if (finished_) return;
        if (odd_) add_last_term(product, m, matrix, row, column);
        visit_dtype(m.out, [&]<typename T>(T) {
            for (int64_t i = 0; i < rows_; ++i) {
                float* sums = product + i * columns_;
                auto finish = [&](auto* to) {
                    finish_row(to, sums, static_cast<const T*>(addend) + i * m.addend.ld, m.alpha, m.beta,
                               static_cast<const T*>(bias), columns_);
                };
                T* to = static_cast<T*>(c) + i * m.ldc;
                if (m.activation == Activation::none) {
                    finish(to);
                } else {
                    finish(sums);
                    activate_row(to, static_cast<T*>(at(m.aux, m.out, (row + i) * m.ld_aux + column)), sums,
                                 m.activation, columns_);
                }
            }
        });
    }

private:
    // Adds the term of the last k to the sums.
    void add_last_term(float* product, const Matmul& m, int64_t matrix, int64_t row, int64_t column) const {
        float* last = resized(Worker::mine().b, columns_);
        const int64_t k = m.K - 1;
        const int64_t row_step = m.trans_a ? 1 : m.A.ld;
        const int64_t column_step = m.trans_b ? m.B.ld : 1;
        visit_dtype(m.in, [&]<typename T>(T) {
            const T* a =
                static_cast<const T*>(m.A.data) + matrix * m.A.stride + row * row_step + k * (m.trans_a ? m.A.ld : 1);
            const T* b = static_cast<const T*>(m.B.data) + matrix * m.B.stride + column * column_step +
                         k * (m.trans_b ? 1 : m.B.ld);
            for (int64_t j = 0; j < columns_; ++j) last[j] = static_cast<float>(b[j * column_step]);
            for (int64_t i = 0; i < rows_; ++i) {
                const float factor = static_cast<float>(a[i * row_step]);
                float* sums = product + i * columns_;
#pragma GCC ivdep
                for (int64_t j = 0; j < columns_; ++j) sums[j] = fmaf(factor, last[j], sums[j]);
            }
        });
    }

    // Returns the kind of product for a slice of K. beta is the factor of the previous content of the output, such as
    // the sum of earlier slices.
    ProductKind kind(const Matmul& m, int64_t depth, float beta) const {
        ProductKind s{rows_,  columns_, depth,   m.trans_a, m.trans_b,        m.in, m.out, m.A.ld,
                      m.B.ld, m.ldc,    m.alpha, beta,      m.bias != nullptr};
        if (!finished_) {
            s.out = DType::f32;
            s.ldc = columns_;
            s.alpha = 1.0f;
            s.bias = false;
        }
        if (widened_) {
            s.in = DType::f32;
            s.lda = m.trans_a ? rows_ : depth;
            s.ldb = m.trans_b ? depth : columns_;
        }
        return s;
    }
    void copy(void* to, int64_t ld_to, const void* from, int64_t ld_from, DType type) const {
        for (int64_t i = 0; i < rows_; ++i) {
            memcpy(at(to, type, i * ld_to), at(from, type, i * ld_from), columns_ * size_of(type));
        }
    }

    int64_t rows_ = 0, columns_ = 0;
    int64_t depth_ = 0, end_ = 0;  // the primitives' part of K, for a slice at a time
    bool odd_ = false;             // the last term is added apart
    bool widened_ = false;
    bool finished_ = true;  // the primitive writes the final result to C
    std::shared_ptr<const Primitive> first_, middle_, last_;
};

}  // namespace

void matmul(const Matmul& m) {
    const Tiling t = tile_output(m);
    const int64_t last_rows = m.M - (t.down - 1) * t.rows;
    const int64_t last_columns = m.N - (t.across - 1) * t.columns;
    TilePlan plans[2][2];  // [in the last row of tiles][in the last column]
    for (int down : {0, 1}) {
        for (int across : {0, 1}) {
            if (t.down - 1 < 1 - down || t.across - 1 < 1 - across) continue;
            plans[down][across] = {m, down ? last_rows : t.rows, across ? last_columns : t.columns};
        }
    }
    const int64_t tiles = m.batch * t.down * t.across;
    const int64_t chunk = std::max<int64_t>(1, kChunk / (t.rows * t.columns * m.K));
    const HeldSignals held;  // for all tiles together, because it takes two system calls
    parallel_for(tiles, chunk, [&](int64_t i) {
        const int64_t across = i % t.across;
        const int64_t down = i / t.across % t.down;
        plans[down == t.down - 1][across == t.across - 1].run(m, i / (t.across * t.down), down * t.rows,
                                                              across * t.columns);
    });
}

namespace {

template <typename F>
void widen_rows(std::vector<bf16>& to, const Matrix& from, int64_t rows, int64_t columns) {
    static const auto table = [] {
        std::array<bf16, 256> t;
        for (unsigned code = 0; code < t.size(); ++code) {
            F x;
            x.bits = static_cast<uint8_t>(code);
            t[code] = bf16(static_cast<float>(x));
        }
        return t;
    }();
    if (std::ssize(to) < rows * columns) to.resize(rows * columns);
    parallel_for(rows, std::max<int64_t>(1, (1 << 14) / columns), [&](int64_t i) {
        const auto* row = static_cast<const uint8_t*>(from.data) + i * from.ld;
        for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = table[row[j]];
    });
}

}  // namespace

void matmul_fp8(Matmul m, DType a, DType b, float scale) {
    static thread_local std::vector<bf16> wide_a;
    static thread_local std::vector<bf16> wide_b;
    const auto widen_operand = [&](Matrix& x, DType type, std::vector<bf16>& wide, int64_t rows) {
        (type == DType::e4m3 ? widen_rows<e4m3> : widen_rows<e5m2>)(wide, x, rows, m.K);
        x = {wide.data(), m.K, 0};
    };
    widen_operand(m.A, a, wide_a, m.M);
    widen_operand(m.B, b, wide_b, m.N);
    m.in = DType::bf16;
    m.alpha *= scale;
    m.alpha_varies = true;
    matmul(m);
}

}  // namespace teon::cpu
