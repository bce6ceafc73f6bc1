#include "runtime/linalg/library.h"

#include <fmt/core.h>

#if defined(TEON_CUDA)
#include <cublasLt.h>
#else
#include "cpu/instructions.h"
#endif

namespace teon {

LinalgLibrary linalg_library() {
#if defined(TEON_CUDA)
    const size_t version = cublasLtGetVersion();  // major * 10000 + minor * 100 + patch
    return {fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100), true};
#else
    return {cpu::matmul_library(), cpu::multiplies_bf16()};
#endif
}

DTypeChoice choose_dtype(std::optional<DType> asked) {
    if (asked) return {*asked, "given"};
    const LinalgLibrary library = linalg_library();
    if (library.bf16) return {DType::bf16, library.name + " multiplies bf16 in hardware"};
    return {DType::f32, library.name + " has no instructions for bf16"};
}

}  // namespace teon
