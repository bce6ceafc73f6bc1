#include "cpu/matmul.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/integer.h"
#include "cpu/signals.h"
#include "cpu/threads.h"
#include "cpu/tile_product.h"

namespace teon::cpu {

namespace {

// The size of the largest tile, whose operands stay close to the second-level cache. An output of at most kMaxColumns
// columns is not divided for its width, because oneDNN's best kernels need a dense output and a dense B; a wider one is
// divided into tiles of at most kColumns.
constexpr int64_t kMaxRows = 256;
constexpr int64_t kMaxColumns = 1536;
constexpr int64_t kColumns = 1024;
// If A is transposed, oneDNN copies its part of A as well as its part of B for each tile, and K is long: the gradients of
// weights are such products. Tiles of about 256 x 512 copy the least.
constexpr int64_t kMaxColumnsTransposed = 768;
constexpr int64_t kColumnsTransposed = 512;
// A matrix is divided into at least this many tiles, for as many threads, unless a tile would get fewer elements or
// multiplications than these, which take 0.1 ms. With a transposed A fewer are enough, and the terms of its sums are
// divided, too, into slices of at least kLeastSlice.
constexpr int64_t kTiles = 8;
constexpr int64_t kTilesTransposed = 6;
constexpr int64_t kLeastSlice = 512;
constexpr int64_t kMinElements = 64 * 64;
constexpr int64_t kMinWork = 1 << 24;
// The least number of multiplications that a thread takes at a time, for some microseconds.
constexpr int64_t kChunk = 1 << 19;

// ---- tiles ----------------------------------------------------------------------------------------------------------

// The output as a grid of tiles of rows x columns; the last ones may be smaller. Each is the sum of `slices` products of
// equal parts of K.
struct Tiling {
    int64_t rows, columns;  // of a tile
    int64_t down, across;   // tiles per matrix
    int64_t slices = 1;
};

// Divides the output into tiles. A tile's size decides the order of its sums, so it depends on the shape alone: not on
// the machine, and not on how many matrices share a batch, which differs between ranks.
Tiling tile_output(const Matmul& m) {
    const int64_t max_columns = m.trans_a ? kMaxColumnsTransposed : kMaxColumns;
    const int64_t least_tiles = m.trans_a ? kTilesTransposed : kTiles;
    int64_t down = ceil_div(m.M, kMaxRows);
    int64_t across = m.N <= max_columns ? 1 : ceil_div(m.N, m.trans_a ? kColumnsTransposed : kColumns);
    Tiling t{};
    auto split = [&] {
        t.rows = std::min(m.M, round_up(ceil_div(m.M, down), 16));  // whole register tiles
        t.columns = std::min(m.N, round_up(ceil_div(m.N, across), 64));
        t.down = ceil_div(m.M, t.rows);
        t.across = ceil_div(m.N, t.columns);
    };
    split();
    // Slices have an even number of terms, which products of 16-bit operands need.
    const auto can_halve = [&] { return m.K % (4 * t.slices) == 0 && m.K >= 2 * t.slices * kLeastSlice; };
    while (m.trans_a && t.down * t.across * t.slices < least_tiles && can_halve()) t.slices *= 2;
    while (t.down * t.across * t.slices < least_tiles && t.rows * t.columns >= 2 * kMinElements &&
           t.rows * t.columns * m.K >= 2 * kMinWork * t.slices) {
        (t.rows > 64 ? down : across) *= 2;
        split();
    }
    return t;
}

void run_tiles(const Matmul& m, const Tiling& t) {
    const int64_t last_rows = m.M - (t.down - 1) * t.rows;
    const int64_t last_columns = m.N - (t.across - 1) * t.columns;
    TileProduct products[2][2];  // [in the last row of tiles][in the last column]
    for (int down : {0, 1}) {
        for (int across : {0, 1}) {
            if (t.down - 1 < 1 - down || t.across - 1 < 1 - across) continue;
            products[down][across] = {m, down ? last_rows : t.rows, across ? last_columns : t.columns};
        }
    }
    const int64_t tiles = m.batch * t.down * t.across;
    const int64_t chunk = std::max<int64_t>(1, kChunk / (t.rows * t.columns * m.K));
    const HeldSignals held;  // for all tiles together, because it takes two system calls
    parallel_for(tiles, chunk, [&](int64_t i) {
        const int64_t across = i % t.across;
        const int64_t down = i / t.across % t.down;
        products[down == t.down - 1][across == t.across - 1].run(m, i / (t.across * t.down), down * t.rows,
                                                                 across * t.columns);
    });
}

// One matrix of the batch as a batch of products of slices, whose sums are then added in the order of the slices.
void run_slices(const Matmul& m, const Tiling& t, int64_t matrix) {
    static thread_local std::vector<float> sums;  // (slices, M, N)
    if (std::ssize(sums) < t.slices * m.M * m.N) sums.resize(static_cast<size_t>(t.slices * m.M * m.N));
    const auto part_of = [&](const Matrix& x, int64_t stride) {
        return Matrix{static_cast<const char*>(x.data) + matrix * x.stride * size_of(m.in), x.ld, stride};
    };
    const int64_t depth = m.K / t.slices;
    run_tiles({.M = m.M,
               .N = m.N,
               .K = depth,
               .batch = t.slices,
               .trans_a = m.trans_a,
               .trans_b = m.trans_b,
               .in = m.in,
               .A = part_of(m.A, m.trans_a ? depth * m.A.ld : depth),
               .B = part_of(m.B, m.trans_b ? depth : depth * m.B.ld),
               .C = sums.data(),
               .ldc = m.N,
               .stride_c = m.M * m.N},
              t);
    parallel_for(m.M, std::max<int64_t>(1, (1 << 13) / m.N), [&, all = sums.data()](int64_t i) {
        float* const row = all + i * m.N;
        for (int64_t slice = 1; slice < t.slices; ++slice) {
            const float* const more = row + slice * m.M * m.N;
#pragma GCC ivdep
            for (int64_t j = 0; j < m.N; ++j) row[j] += more[j];
        }
        finish_sums(m, matrix, i, 0, 1, m.N, row);
    });
}

}  // namespace

void matmul(const Matmul& m) {
    const Tiling t = tile_output(m);
    if (t.slices == 1) return run_tiles(m, t);
    for (int64_t matrix = 0; matrix < m.batch; ++matrix) run_slices(m, t, matrix);
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
