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
// If A is transposed, oneDNN copies its part of A as well as its part of B for each tile, and K is long: the gradients
// of weights are such products. Tiles of 256 x 256 to 256 x 768 copy least and run at 78 to 88% of the forward
// pass's rate, those of 64 rows at 70 to 78% (an AMD EPYC, bf16); so tiles get smaller than that only for half as many
// threads.
constexpr int64_t kMaxColumnsTransposed = 768;
constexpr int64_t kColumnsTransposed = 512;
constexpr int64_t kMinElementsTransposed = 256 * 256;
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
    const int64_t max_columns = m.trans_a ? kMaxColumnsTransposed : kMaxColumns;
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
    const auto divide = [&](int64_t tiles, int64_t min_elements) {
        while (t.down * t.across < tiles && t.rows * t.columns >= 2 * min_elements &&
               t.rows * t.columns * m.K >= 2 * kMinWork) {
            int64_t& parts = t.rows > 64 ? down : across;
            parts = m.trans_a ? parts + 1 : 2 * parts;
            split();
        }
    };
    if (m.trans_a) {
        divide(kTiles, kMinElementsTransposed);
        divide(kTiles / 2, kMinElements);
    } else {
        divide(kTiles, kMinElements);
    }
    return t;
}

}  // namespace

void matmul(const Matmul& m) {
    const Tiling t = tile_output(m);
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
