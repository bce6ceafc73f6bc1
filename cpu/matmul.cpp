#include "cpu/matmul.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/integer.h"
#include "cpu/signals.h"
#include "cpu/threads.h"
#include "cpu/tile_product.h"
#include "cpu/transpose.h"

namespace teon::cpu {

namespace {

// The size of the largest tile, whose operands stay close to the second-level cache.
constexpr int64_t kMaxRows = 256;
// A matrix is divided into at least this many tiles, for as many threads, unless a tile would get fewer elements than
// its rule says or fewer multiplications than kMinWork, which take 0.1 ms.
constexpr int64_t kTiles = 8;
constexpr int64_t kMinWork = 1 << 24;

// How an output is divided. One of at most max_columns columns is not divided for its width; a wider one is divided
// into tiles of at most `columns`.
struct TileRule {
    int64_t max_columns, columns;
    std::array<int64_t, 3> min_elements;  // of a tile, if it is divided for kTiles, kTiles / 2 and kTiles / 4 threads
};
// oneDNN's best kernels need a dense output and a dense B.
constexpr TileRule kPlain{1536, 1024, {64 * 64, 64 * 64, 64 * 64}};
// If A is transposed, its part is copied as well as the part of B for each tile, and K is long: the gradients of
// weights are such products. Large tiles copy least. In bf16, tiles of 128 x 256 to 256 x 256 run at 86 to 92% of the
// forward pass's rate, tiles of 64 x 256 at 83% (an AMD EPYC).
constexpr TileRule kTransposed{768, 512, {256 * 256, 64 * 64, 64 * 64}};
constexpr TileRule kTransposed16Bit{256, 256, {256 * 256, 128 * 256, 64 * 64}};

// A symmetric product is divided into rows of tiles of this height. Low rows compute little above the diagonal, but
// copy their part of B more often than high ones.
constexpr int64_t kSymmetricRows = 64;
constexpr int64_t kSymmetricRowsLarge = 128;
constexpr int64_t kSymmetricLarge = 768;
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
    const TileRule& transposed = size_of(m.in) == 2 ? kTransposed16Bit : kTransposed;
    const TileRule& rule = m.trans_a ? transposed : kPlain;
    int64_t down = ceil_div(m.M, kMaxRows);
    int64_t across = m.N <= rule.max_columns ? 1 : ceil_div(m.N, rule.columns);
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
    for (size_t i = 0; i < rule.min_elements.size(); ++i) divide(kTiles >> i, rule.min_elements[i]);
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

// Copies a tile of a symmetric C to its mirrored place. It ends at or left of the diagonal block of its rows.
void mirror_tile(const Matmul& m, int64_t matrix, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const auto at = [&](int64_t i, int64_t j) {
        return static_cast<char*>(m.C) + (matrix * m.stride_c + i * m.ldc + j) * size_of(m.out);
    };
    transpose(m.out, at(column, row), m.ldc, at(row, column), m.ldc, rows, std::min(columns, row - column));
    if (column + columns > row) mirror(m.out, at(row, row), m.ldc, rows);
}

}  // namespace

void matmul_symmetric(const Matmul& m) {
    const int64_t rows = std::min(m.M, m.M < kSymmetricLarge ? kSymmetricRows : kSymmetricRowsLarge);
    const int64_t down = ceil_div(m.M, rows);
    struct Tile {
        int64_t row, column, rows, columns;
        TileProduct product;
    };
    std::vector<Tile> tiles;  // of a matrix, the largest first
    for (int64_t row = (down - 1) * rows; row >= 0; row -= rows) {
        const int64_t height = std::min(rows, m.M - row);
        for (int64_t column = 0; column < row + height; column += kPlain.max_columns) {
            const int64_t width = std::min(kPlain.max_columns, row + height - column);
            tiles.push_back({row, column, height, width, {m, height, width}});
        }
    }
    const int64_t chunk = std::max<int64_t>(1, kChunk / (rows * std::min(m.N, kPlain.max_columns) * m.K));
    const HeldSignals held;
    parallel_for(m.batch * std::ssize(tiles), chunk, [&](int64_t i) {
        const Tile& tile = tiles[i % std::ssize(tiles)];
        const int64_t matrix = i / std::ssize(tiles);
        tile.product.run(m, matrix, tile.row, tile.column);
        mirror_tile(m, matrix, tile.row, tile.column, tile.rows, tile.columns);
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
