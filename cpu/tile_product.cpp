#include "cpu/tile_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/integer.h"
#include "cpu/instructions.h"
#include "cpu/transpose.h"

namespace teon::cpu {

namespace {

// The part of K for which 16-bit operands are widened at a time. It bounds a thread's scratch memory for any K.
constexpr int64_t kSlice = 512;
// The bytes of K for which A is transposed at a time: 256 rows of it stay in the second-level cache. Rows of a power of
// two of bytes would displace each other from the first-level cache.
constexpr int64_t kSliceTransposedBytes = 1408;
// For fewer columns the copies take longer than they save.
constexpr int64_t kMinColumnsTransposed = 128;
// A tile is computed apart if K is at least this; for a shorter K the copies take longer than they save.
constexpr int64_t kMinDepthApart = 128;

const void* at(const void* matrix, DType type, int64_t element) {
    return static_cast<const char*>(matrix) + element * size_of(type);
}
void* at(void* matrix, DType type, int64_t element) { return static_cast<char*>(matrix) + element * size_of(type); }

// Returns the address of n floats in v, at the start of a cache line.
float* resized(std::vector<float>& v, int64_t n) {
    constexpr int64_t line = 64 / sizeof(float);
    if (std::ssize(v) < n + line) v.resize(n + line);
    const auto address = reinterpret_cast<uintptr_t>(v.data());
    return v.data() + (round_up(address, uintptr_t{64}) - address) / sizeof(float);
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

// Computes a row c = alpha product + beta addend + bias, rounded once. bias may be null; c may be product. Without
// beta or bias there is no instruction that could read the addend or the bias: a load from a null address whose mask is
// empty takes hundreds of cycles on an AMD EPYC.
template <bool adds, bool biased, typename TC, typename T>
void finish_row_as(TC* c, const float* product, const T* addend, float alpha, float beta, const T* bias, int64_t n) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
        float x = alpha * product[j];
        if constexpr (adds) x = fmaf(beta, static_cast<float>(addend[j]), x);
        if constexpr (biased) x += static_cast<float>(bias[j]);
        c[j] = TC(x);
    }
}
template <typename TC, typename T>
void finish_row(TC* c, const float* product, const T* addend, float alpha, float beta, const T* bias, int64_t n) {
    const auto finish = [&]<bool adds>(std::bool_constant<adds>) {
        if (bias) {
            finish_row_as<adds, true>(c, product, addend, alpha, beta, bias, n);
        } else {
            finish_row_as<adds, false>(c, product, addend, alpha, beta, bias, n);
        }
    };
    if (beta != 0.0f) {
        finish(std::true_type{});
    } else {
        finish(std::false_type{});
    }
}

}  // namespace

TileProduct::TileProduct(const Matmul& m, int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {
    const bool narrow = size_of(m.in) == 2;
    // oneDNN 3.7 with AVX-512 multiplies a single column of a transposed A wrongly.
    const bool column_of_a = rows == 1 && m.trans_a && m.A.ld > 1;
    odd_ = narrow && m.K % 2 == 1;
    end_ = m.K - (odd_ ? 1 : 0);
    transposed_ =
        m.trans_a && rows > 1 && columns >= kMinColumnsTransposed && (narrow || packs_transposed_floats_slowly());
    dense_b_ = transposed_ && narrow && !m.trans_b && columns < m.B.ld;
    depth_ = transposed_ ? std::min(end_, kSliceTransposedBytes / size_of(m.in)) : end_;
    if (!column_of_a && end_ > 0) {
        finished_ = choose_finished(m);
        if (finished_) return;
        apart_ = false;
        if (choose(m, 0.0f) || m.in == DType::f32) return;
    }
    finished_ = false;
    apart_ = false;
    transposed_ = false;
    dense_b_ = false;
    widened_ = true;
    odd_ = false;
    depth_ = std::min(m.K, kSlice);
    end_ = m.K;
    choose(m, 0.0f);
}

bool TileProduct::choose_finished(const Matmul& m) {
    const bool column_of_c = columns_ == 1 && m.ldc > 1;
    const bool sliced = depth_ < end_;
    // A factor of NaN has no place in the order of kinds: the map would return another factor's primitive.
    if (odd_ || (m.bias && (m.alpha != 1.0f || sliced)) || m.alpha_varies || column_of_c || std::isnan(m.alpha) ||
        std::isnan(m.beta)) {
        return false;
    }
    // Slices are added in floats, in place if rows of C follow each other.
    if (sliced && (m.out != DType::f32 || m.ldc != columns_)) return false;
    apart_ = size_of(m.in) == 2 && size_of(m.out) == 2 && columns_ < m.ldc && m.K >= kMinDepthApart;
    return choose(m, m.beta);
}

bool TileProduct::choose(const Matmul& m, float beta) {
    auto good = [](const auto& p) { return p && !p->reference; };
    first_ = primitive(kind(m, depth_, beta));
    if (end_ >= 2 * depth_) middle_ = primitive(kind(m, depth_, 1.0f));
    if (end_ % depth_ != 0) last_ = primitive(kind(m, end_ % depth_, 1.0f));
    return good(first_) && (end_ < 2 * depth_ || good(middle_)) && (end_ % depth_ == 0 || good(last_));
}

void TileProduct::run(const Matmul& m, int64_t matrix, int64_t row, int64_t column) const {
    Worker& worker = Worker::mine();
    void* const c = at(m.C, m.out, matrix * m.stride_c + row * m.ldc + column);
    const void* addend = at(m.addend.data, m.out, matrix * m.addend.stride + row * m.addend.ld + column);
    const void* bias = m.bias ? at(m.bias, m.out, column) : nullptr;
    float* product = finished_ && !apart_ ? nullptr : resized(worker.product, rows_ * columns_);
    void* const to = product ? product : c;
    const int64_t ld_to = product ? columns_ : m.ldc;
    if (finished_ && m.beta != 0.0f && to != addend) copy(to, ld_to, addend, m.addend.ld, rows_, m.out);
    for (int64_t k = 0; k < end_; k += depth_) {
        const int64_t depth = std::min(depth_, end_ - k);
        const void* a = at(m.A.data, m.in, matrix * m.A.stride + (m.trans_a ? k * m.A.ld + row : row * m.A.ld + k));
        const void* b =
            at(m.B.data, m.in, matrix * m.B.stride + (m.trans_b ? column * m.B.ld + k : k * m.B.ld + column));
        if (transposed_) {
            void* rows_of_a = resized(worker.a, ceil_div(rows_ * depth * size_of(m.in), int64_t{sizeof(float)}));
            transpose(m.in, rows_of_a, depth, a, m.A.ld, depth, rows_);
            a = rows_of_a;
        }
        if (dense_b_) {
            void* rows_of_b = resized(worker.b, ceil_div(depth * columns_, int64_t{2}));
            copy(rows_of_b, columns_, b, m.B.ld, depth, m.in);
            b = rows_of_b;
        }
        if (widened_) {
            a = widen(worker.a, m.in, a, m.A.ld, m.trans_a ? depth : rows_, m.trans_a ? rows_ : depth);
            b = widen(worker.b, m.in, b, m.B.ld, m.trans_b ? columns_ : depth, m.trans_b ? depth : columns_);
        }
        const auto& later = depth == depth_ ? middle_ : last_;
        worker.run(k == 0 ? first_ : later, a, b, to, finished_ ? bias : nullptr);
    }
    if (apart_) return copy(c, m.ldc, to, columns_, rows_, m.out);
    if (finished_) return;
    if (odd_) add_last_term(product, m, matrix, row, column);
    visit_dtype(m.out, [&]<typename T>(T) {
        for (int64_t i = 0; i < rows_; ++i) {
            finish_row(static_cast<T*>(c) + i * m.ldc, product + i * columns_,
                       static_cast<const T*>(addend) + i * m.addend.ld, m.alpha, m.beta, static_cast<const T*>(bias),
                       columns_);
        }
    });
}

void TileProduct::add_last_term(float* product, const Matmul& m, int64_t matrix, int64_t row, int64_t column) const {
    float* last = resized(Worker::mine().b, columns_);
    const int64_t k = m.K - 1;
    const int64_t row_step = m.trans_a ? 1 : m.A.ld;
    const int64_t column_step = m.trans_b ? m.B.ld : 1;
    visit_dtype(m.in, [&]<typename T>(T) {
        const T* a =
            static_cast<const T*>(m.A.data) + matrix * m.A.stride + row * row_step + k * (m.trans_a ? m.A.ld : 1);
        const T* b =
            static_cast<const T*>(m.B.data) + matrix * m.B.stride + column * column_step + k * (m.trans_b ? 1 : m.B.ld);
        for (int64_t j = 0; j < columns_; ++j) last[j] = static_cast<float>(b[j * column_step]);
        for (int64_t i = 0; i < rows_; ++i) {
            const float factor = static_cast<float>(a[i * row_step]);
            float* sums = product + i * columns_;
#pragma GCC ivdep
            for (int64_t j = 0; j < columns_; ++j) sums[j] = fmaf(factor, last[j], sums[j]);
        }
    });
}

ProductKind TileProduct::kind(const Matmul& m, int64_t depth, float beta) const {
    ProductKind s{rows_,  columns_, depth,   m.trans_a, m.trans_b,        m.in, m.out, m.A.ld,
                  m.B.ld, m.ldc,    m.alpha, beta,      m.bias != nullptr};
    if (!finished_) {
        s.out = DType::f32;
        s.alpha = 1.0f;
        s.bias = false;
    }
    if (!finished_ || apart_) s.ldc = columns_;
    if (transposed_) {
        s.trans_a = false;
        s.lda = depth;
    }
    if (dense_b_) s.ldb = columns_;
    if (widened_) {
        s.in = DType::f32;
        s.lda = m.trans_a ? rows_ : depth;
        s.ldb = m.trans_b ? depth : columns_;
    }
    return s;
}
void TileProduct::copy(void* to, int64_t ld_to, const void* from, int64_t ld_from, int64_t rows, DType type) const {
    for (int64_t i = 0; i < rows; ++i) {
        memcpy(at(to, type, i * ld_to), at(from, type, i * ld_from), columns_ * size_of(type));
    }
}

}  // namespace teon::cpu
