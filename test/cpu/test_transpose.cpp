#include "cpu/transpose.h"

#include <cstdint>
#include <vector>

#include "test/support/catch.h"

using namespace teon;
using namespace teon::cpu;

namespace {

// Elements that are all different, as far as E can hold.
template <typename E>
std::vector<E> numbered(int64_t n) {
    std::vector<E> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<E>(i * 40503 + 7);
    return x;
}

template <typename E>
void check_transpose(DType type, int64_t rows, int64_t columns, int64_t padding) {
    CAPTURE(name_of(type), rows, columns, padding);
    const int64_t ld_from = columns + padding;
    const int64_t ld_to = rows + 2 * padding;
    const auto from = numbered<E>(rows * ld_from);
    const auto before = std::vector<E>(static_cast<size_t>(columns * ld_to), static_cast<E>(0x1234));
    auto expected = before;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) expected[j * ld_to + i] = from[i * ld_from + j];
    auto to = before;
    transpose(type, to.data(), ld_to, from.data(), ld_from, rows, columns);
    REQUIRE(to == expected);
}

template <typename E>
void check_mirror(DType type, int64_t n, int64_t padding) {
    CAPTURE(name_of(type), n, padding);
    const int64_t ld = n + padding;
    auto C = numbered<E>(n * ld);
    auto expected = C;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i + 1; j < n; ++j) expected[i * ld + j] = C[j * ld + i];
    mirror(type, C.data(), ld, n);
    REQUIRE(C == expected);
}

}  // namespace

TEST_CASE("cpu/transpose: every element reaches its place and the gaps between rows stay as they were") {
    for (const int64_t rows : {1, 7, 16, 31, 32, 33, 64, 97})
        for (const int64_t columns : {1, 8, 15, 32, 65, 128})
            for (const int64_t padding : {0, 1, 8}) {
                check_transpose<uint32_t>(DType::f32, rows, columns, padding);
                check_transpose<uint16_t>(DType::bf16, rows, columns, padding);
                check_transpose<uint16_t>(DType::f16, rows, columns, padding);
            }
}

TEST_CASE("cpu/transpose: mirroring changes nothing on and below the diagonal") {
    for (const int64_t n : {1, 2, 15, 16, 17, 32, 33, 63, 64, 100, 129})
        for (const int64_t padding : {0, 3}) {
            check_mirror<uint32_t>(DType::f32, n, padding);
            check_mirror<uint16_t>(DType::bf16, n, padding);
        }
}
