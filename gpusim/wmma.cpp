// "Warp Level Matrix Instructions: wmma". Which lane holds which element of a fragment is not specified. Here, the
// elements of A and B are in the order in which they are in memory, those of C and D by rows, and each lane holds as
// many consecutive ones as its registers have. If the registers have more than the matrix, they begin again.
#include "gpusim/wmma.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "gpusim/half.h"
#include "gpusim/memory.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kPiece = 16;             // bytes that a lane accesses at a time
constexpr uint32_t kAddressAlignment = 32;  // "the address must be aligned to 256 bits"
constexpr size_t kMostElements = 512;

// What a load or store accesses in memory.
struct Tile {
    uint32_t length, lines;  // elements of a line, lines
    uint32_t stride;         // elements between lines
    uint64_t address;
};

Tile tile_of(Warp& w, const Instruction& i, int address_operand) {
    Tile t;
    t.length = 8u << (i.variant >> wmma::kLengthShift & 3);
    t.lines = 8u << (i.variant >> wmma::kLinesShift & 3);
    const bool has_stride = i.count == i.vector + 2;
    const auto address = [&](int l) {
        const auto offset = static_cast<uint64_t>(i.offset);
        return i.address_width == 8 ? w.operand<uint64_t>(i, address_operand)[l] + offset
                                    : uint64_t{w.operand<uint32_t>(i, address_operand)[l]} + offset;
    };
    const uint32_t* strides = has_stride ? w.operand<uint32_t>(i, i.count - 1) : nullptr;
    t.address = address(0);
    t.stride = strides ? strides[0] : t.length;
    for (int l = 1; l < 32; ++l)
        if (address(l) != t.address || (strides && strides[l] != t.stride))
            fail(w, i, l, "has another address or stride than lane 0");
    if (t.address % kAddressAlignment != 0)
        fail(w, i, 0, "the address {:#x} is not a multiple of {} bytes", t.address, kAddressAlignment);
    if (t.stride * i.bytes % kPiece != 0)
        fail(w, i, 0, "the stride of {} elements is not a multiple of {} bytes", t.stride, kPiece);
    return t;
}

// Calls f(lane, address, the first byte within the matrix) for each piece.
template <typename F>
void for_pieces(const Tile& t, const Instruction& i, F f) {
    const uint32_t line_bytes = t.length * i.bytes;
    for (uint32_t at = 0; at < line_bytes * t.lines; at += kPiece)
        f(static_cast<int>(at / kPiece % 32),
          t.address + uint64_t{at / line_bytes} * t.stride * i.bytes + at % line_bytes, at);
}

// Calls f(register, lane, byte in the register's lane, index of the element) for each element that registers hold.
template <typename F>
void for_elements(int registers, uint32_t bytes, uint32_t elements, F f) {
    const uint32_t of_lane = static_cast<uint32_t>(registers) * 4 / bytes;
    for (uint32_t l = 0; l < 32; ++l)
        for (uint32_t e = 0; e < of_lane; ++e)
            f(static_cast<int>(e * bytes / 4), l, e * bytes % 4, (l * of_lane + e) % elements);
}

// The place in memory's order of an element of C or D, which are numbered by rows.
uint32_t in_memory(const Tile& t, const Instruction& i, uint32_t element) {
    if (!(i.variant & wmma::kByColumns)) return element;
    return element % t.lines * t.length + element / t.lines;
}

using Elements = std::array<float, kMostElements>;

// Registers of an operand that begins at `operand`, as floats.
Elements widen(Warp& w, const Instruction& i, int operand, int registers, uint32_t elements, bool is_float, bool bf16) {
    Elements all;
    for_elements(registers, is_float ? 4 : 2, elements, [&](int r, uint32_t l, uint32_t byte, uint32_t element) {
        const uint32_t x = w.operand<uint32_t>(i, operand + r)[l];
        const auto half = static_cast<uint16_t>(x >> 8 * byte);
        const float of_half = bf16 ? HalfBf16::widen(half) : HalfF16::widen(half);
        all[element] = is_float ? std::bit_cast<float>(x) : of_half;
    });
    return all;
}

}  // namespace

void wmma_load(Warp& w, const Instruction& i, Lanes) {
    const Tile t = tile_of(w, i, i.vector);
    std::array<uint8_t, 4 * kMostElements> matrix;
    for_pieces(t, i, [&](int lane, uint64_t address, uint32_t at) {
        std::memcpy(&matrix[at], checked_memory(w, i, lane, address, kPiece, false, nullptr), kPiece);
    });
    for_elements(i.vector, i.bytes, t.length * t.lines, [&](int r, uint32_t l, uint32_t byte, uint32_t element) {
        std::memcpy(reinterpret_cast<uint8_t*>(w.operand<uint32_t>(i, r) + l) + byte,
                    &matrix[in_memory(t, i, element) * i.bytes], i.bytes);
    });
}

void wmma_store(Warp& w, const Instruction& i, Lanes) {
    const Tile t = tile_of(w, i, 0);
    std::array<uint8_t, 4 * kMostElements> matrix;
    for_elements(i.vector, i.bytes, t.length * t.lines, [&](int r, uint32_t l, uint32_t byte, uint32_t element) {
        std::memcpy(&matrix[in_memory(t, i, element) * i.bytes],
                    reinterpret_cast<const uint8_t*>(w.operand<uint32_t>(i, 1 + r) + l) + byte, i.bytes);
    });
    for_pieces(t, i, [&](int lane, uint64_t address, uint32_t at) {
        std::memcpy(checked_memory(w, i, lane, address, kPiece, true, &matrix[at]), &matrix[at], kPiece);
    });
}

// D = A B + C. Products are exact in float and are added one after the other by increasing k; a GPU adds them in an
// order of its own.
void wmma_product(Warp& w, const Instruction& i, Lanes) {
    const auto [M, N] = wmma::kShapes[i.variant >> wmma::kShapeShift];
    const auto size = [](int rows, int columns) { return static_cast<uint32_t>(rows * columns); };
    const bool bf16 = i.variant & wmma::kBf16;
    const bool half_c = i.variant & wmma::kHalfC;
    const bool half_d = i.variant & wmma::kHalfD;
    const int of_a = bf16 ? M * wmma::kK / 64 : 8;
    const int of_b = bf16 ? N * wmma::kK / 64 : 8;
    const int of_c = half_c ? 4 : 8;
    const int of_d = half_d ? 4 : 8;
    const Elements A = widen(w, i, of_d, of_a, size(M, wmma::kK), false, bf16);
    const Elements B = widen(w, i, of_d + of_a, of_b, size(wmma::kK, N), false, bf16);
    Elements D = widen(w, i, of_d + of_a + of_b, of_c, size(M, N), !half_c, false);
    const bool columns_a = i.variant & wmma::kColumnsA;
    const bool columns_b = i.variant & wmma::kColumnsB;
    for (int m = 0; m < M; ++m) {
        for (int k = 0; k < wmma::kK; ++k) {
            const float a = A[static_cast<size_t>(columns_a ? k * M + m : m * wmma::kK + k)];
            for (int n = 0; n < N; ++n)
                D[static_cast<size_t>(m * N + n)] +=
                    a * B[static_cast<size_t>(columns_b ? n * wmma::kK + k : k * N + n)];
        }
    }
    for_elements(of_d, half_d ? 2 : 4, size(M, N), [&](int r, uint32_t l, uint32_t byte, uint32_t element) {
        uint32_t& x = w.operand<uint32_t>(i, r)[l];
        if (!half_d) {
            x = std::bit_cast<uint32_t>(D[element]);
            return;
        }
        x = (x & 0xffffu << (16 - 8 * byte)) | uint32_t{HalfF16::narrow(D[element])} << 8 * byte;
    });
}

}  // namespace teon::gpusim
