// "Warp Level Matrix Instructions: wmma".
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// Bits of Instruction::variant. `fragment` is of loads and stores: a line is what is contiguous in memory, a row or a
// column; lengths and numbers of lines are 8, 16 or 32.
namespace wmma {
inline constexpr uint8_t kByColumns = 1 << 0;  // a load or store of C or D by columns
inline constexpr uint8_t kColumnsA = 1 << 0;   // a product: A was loaded by columns
inline constexpr uint8_t kColumnsB = 1 << 1;   // B was loaded by columns
inline constexpr uint8_t kBf16 = 1 << 2;       // A and B are bf16, else f16
inline constexpr uint8_t kHalfC = 1 << 3;      // C is f16, else float
inline constexpr uint8_t kHalfD = 1 << 4;      // D is f16, else float
struct Shape {
    int M, N;
};
inline constexpr Shape kShapes[] = {{16, 16}, {32, 8}, {8, 32}};
inline constexpr int kK = 16;
inline constexpr int kShapeShift = 6;   // of a product: index in kShapes
inline constexpr int kLengthShift = 1;  // of a load or store: the logarithm of a line's length, less 3
inline constexpr int kLinesShift = 3;   // likewise of the number of lines
}  // namespace wmma

void wmma_load(Warp&, const Instruction&, Lanes);   // registers, [a], stride
void wmma_store(Warp&, const Instruction&, Lanes);  // [a], registers, stride
void wmma_product(Warp&, const Instruction&, Lanes);

}  // namespace teon::gpusim
