// The instruction set that oneDNN uses, which DNNL_MAX_CPU_ISA limits.
#pragma once

#include <string>

namespace teon::cpu {

// Returns whether this CPU has instructions that multiply bf16 and accumulate in float, and oneDNN uses them. Without
// them matmul widens 16-bit operands and multiplies floats.
bool multiplies_bf16();

// Returns whether oneDNN takes long to pack a transposed A of floats, as it does without AVX-512.
bool packs_transposed_floats_slowly();

// Returns the library, its version and the instruction set that it uses: "oneDNN 2.6.3 with AVX512_BF16".
std::string matmul_library();

// Returns what a user can do if oneDNN's code for this instruction set is wrong: "set DNNL_MAX_CPU_ISA=AVX512_CORE
// or install another version of oneDNN".
std::string matmul_remedy();

}  // namespace teon::cpu
