// FP8 products with the sums of CUBLASLT_MATMUL_DESC_FAST_ACCUM.
#pragma once

#include "cpu/matmul.h"

namespace teon::cpu {

// As matmul_fp8(), but with a model of sums that stay in the tensor cores of sm_90, for whose precision NVIDIA gives no
// figure. DeepSeek-V3's report (arXiv 2412.19437, section 3.3.2) found about 14 bits: the 32 terms of an instruction
// and the sum so far are cut off 13 binary digits behind the leading digit of the largest of them. Slow.
void matmul_fp8_fast(Matmul m, DType a, DType b, float scale);

}  // namespace teon::cpu
