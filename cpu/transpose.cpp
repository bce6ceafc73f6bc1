#include "cpu/transpose.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace teon::cpu {

namespace {

// A vector register. Only AVX-512 interleaves the elements of wide ones with one instruction.
#if defined(__AVX512BW__)
constexpr int kBytes = 64;
#else
constexpr int kBytes = 16;
#endif
template <typename E>
using Register [[gnu::vector_size(kBytes)]] = E;

// The side of a block whose rows are registers.
template <typename E>
constexpr int kSide = kBytes / static_cast<int>(sizeof(E));

// Returns the elements of x's and y's first halves in turn, or those of their second halves.
template <bool second, typename E, E... i>
Register<E> interleave(Register<E> x, Register<E> y, std::integer_sequence<E, i...>) {
    constexpr int n = kSide<E>;
#if defined(__clang__)
    return __builtin_shufflevector(x, y, (i / 2 + i % 2 * n + second * n / 2)...);
#else
    return __builtin_shuffle(x, y, Register<E>{(i / 2 + i % 2 * n + second * n / 2)...});
#endif
}

// Each turn interleaves the upper half of the rows with the lower half. After log2 kSide turns rows are columns.
template <typename E>
void transpose_block(E* to, int64_t ld_to, const E* from, int64_t ld_from) {
    constexpr int n = kSide<E>;
    constexpr auto all = std::make_integer_sequence<E, n>{};
    Register<E> row[n];
    Register<E> next[n];
#pragma GCC unroll 32
    for (int i = 0; i < n; ++i) memcpy(&row[i], from + i * ld_from, kBytes);
#pragma GCC unroll 5
    for (int turn = 1; turn < n; turn *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < n / 2; ++i) {
            next[2 * i] = interleave<false, E>(row[i], row[i + n / 2], all);
            next[2 * i + 1] = interleave<true, E>(row[i], row[i + n / 2], all);
        }
#pragma GCC unroll 32
        for (int i = 0; i < n; ++i) row[i] = next[i];
    }
#pragma GCC unroll 32
    for (int i = 0; i < n; ++i) memcpy(to + i * ld_to, &row[i], kBytes);
}

template <typename E>
void transpose_elements(E* to, int64_t ld_to, const E* from, int64_t ld_from, int64_t rows, int64_t columns) {
    constexpr int64_t n = kSide<E>;
    for (int64_t i = 0; i < rows; i += n) {
        for (int64_t j = 0; j < columns; j += n) {
            const E* source = from + i * ld_from + j;
            E* target = to + j * ld_to + i;
            if (i + n <= rows && j + n <= columns) {
                for (int64_t row = n; row < std::min(2 * n, rows - i); ++row)
                    __builtin_prefetch(source + row * ld_from);
                transpose_block(target, ld_to, source, ld_from);
                continue;
            }
            for (int64_t column = 0; column < std::min(n, columns - j); ++column)
                for (int64_t row = 0; row < std::min(n, rows - i); ++row)
                    target[column * ld_to + row] = source[row * ld_from + column];
        }
    }
}

template <typename E>
void mirror_elements(E* C, int64_t ld, int64_t n) {
    constexpr int64_t side = kSide<E>;
    E upper[side * side];
    for (int64_t i = 0; i < n; i += side) {
        const int64_t rows = std::min(side, n - i);
        transpose_elements(C + i, ld, C + i * ld, ld, rows, i);  // left of the diagonal block
        E* diagonal = C + i * ld + i;
        transpose_elements(upper, side, diagonal, ld, rows, rows);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < rows; ++column)
                diagonal[row * ld + column] = column > row ? upper[row * side + column] : diagonal[row * ld + column];
    }
}

// Calls f with an unsigned integer of the type's size.
template <typename F>
void with_integers(DType type, F f) {
    visit_dtype(type, [&]<typename T>(T) { f(std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>{}); });
}

}  // namespace

void transpose(DType type, void* to, int64_t ld_to, const void* from, int64_t ld_from, int64_t rows, int64_t columns) {
    with_integers(type, [&]<typename E>(E) {
        transpose_elements(static_cast<E*>(to), ld_to, static_cast<const E*>(from), ld_from, rows, columns);
    });
}

void mirror(DType type, void* C, int64_t ld, int64_t n) {
    with_integers(type, [&]<typename E>(E) { mirror_elements(static_cast<E*>(C), ld, n); });
}

}  // namespace teon::cpu
