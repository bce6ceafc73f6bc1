#include "runtime/linalg/gemm.h"

#include "base/check.h"

namespace teon {

namespace {

void check_operand(const char* name, const Mat& x, int64_t rows, int64_t columns) {
    CHECK(x.data != nullptr, "gemm: {} is null", name);
    CHECK(x.ld >= columns, "gemm: {} is {} x {} but its row stride (ld) is {}", name, rows, columns, x.ld);
    CHECK(reinterpret_cast<uintptr_t>(x.data) % size_of(x.dtype) == 0, "gemm: {} is not aligned to its {} elements",
          name, name_of(x.dtype));
}

void check_dtype(const char* name, DType dtype, DType expected) {
    CHECK(dtype == expected, "gemm: {} is {}, expected {}", name, name_of(dtype), name_of(expected));
}

// cuBLAS manual: "cublasLtMatmul()" on FP8 kernels, and "Tensor Core Usage".
void check_fp8(const Gemm& g) {
    CHECK(is_fp8(g.A.dtype) && is_fp8(g.B.dtype) && (g.A.dtype == DType::e4m3 || g.B.dtype == DType::e4m3),
          "gemm: A is {} and B is {}; both must be FP8, and one of them e4m3", name_of(g.A.dtype), name_of(g.B.dtype));
    CHECK(g.A.scale && g.B.scale, "gemm: {} is without scale", g.A.scale ? "B" : "A");
    CHECK(!g.trans_a && g.trans_b, "gemm: of FP8, A must not be transposed and B must be");
    CHECK(g.C.dtype == DType::bf16 || g.C.dtype == DType::f32, "gemm: C is {}, expected bf16 or float of FP8 operands",
          name_of(g.C.dtype));
    CHECK(g.batch_inner == 1 && g.batch_outer == 1 && !g.symmetric &&
              (g.epilogue == Epilogue::none || (g.epilogue == Epilogue::bias && g.C.dtype == DType::bf16)),
          "gemm: a batch, a symmetric C or an epilogue beside bias (of bf16) with FP8 operands");
    const auto whole = [](int64_t elements, const Mat& x) { return elements * size_of(x.dtype) % 16 == 0; };
    CHECK(whole(g.K, g.A) && whole(g.N, g.C),
          "gemm: {} x {} x {} (M x N x K) of FP8; K must be a multiple of 16, and rows of C of 16 bytes", g.M, g.N,
          g.K);
    for (const Mat* x : {&g.A, &g.B, &g.C, &g.addend})
        CHECK(whole(x->ld, *x) && reinterpret_cast<uintptr_t>(x->data) % 16 == 0,
              "gemm: {} whose rows do not begin at multiples of 16 bytes, with FP8 operands", name_of(x->dtype));
}

}  // namespace

void check_gemm(const Gemm& g) {
    CHECK(g.M > 0 && g.N > 0 && g.K > 0, "gemm: empty product {} x {} x {} (M x N x K)", g.M, g.N, g.K);
    CHECK(g.batch_inner > 0 && g.batch_outer > 0, "gemm: batch of {} x {}", g.batch_outer, g.batch_inner);
    check_operand("A", g.A, g.trans_a ? g.K : g.M, g.trans_a ? g.M : g.K);
    check_operand("B", g.B, g.trans_b ? g.N : g.K, g.trans_b ? g.K : g.N);
    check_operand("C", g.C, g.M, g.N);
    if (g.addend.data) {
        check_operand("addend", g.addend, g.M, g.N);
        check_dtype("addend", g.addend.dtype, g.C.dtype);
    }
    CHECK(!g.fast_accumulation || is_fp8(g.A.dtype), "gemm: fast accumulation of {}; it exists for FP8",
          name_of(g.A.dtype));
    if (is_fp8(g.A.dtype) || is_fp8(g.B.dtype)) {
        check_fp8(g);
        if (g.epilogue == Epilogue::none) return;
        check_operand("bias", g.bias, 1, 0);
        return check_dtype("bias", g.bias.dtype, g.C.dtype);
    }
    check_dtype("B", g.B.dtype, g.A.dtype);
    CHECK(g.C.dtype == DType::f32 || g.C.dtype == g.A.dtype, "gemm: C is {}, expected float or, like A, {}",
          name_of(g.C.dtype), name_of(g.A.dtype));
    CHECK(!g.symmetric || (g.M == g.N && g.epilogue == Epilogue::none),
          "gemm: a symmetric C must be square and without epilogue, found {} x {}", g.M, g.N);
    if (g.epilogue == Epilogue::none) return;

    CHECK(g.batch_inner == 1 && g.batch_outer == 1, "gemm: an epilogue with a batch of {} x {}; only without batches",
          g.batch_outer, g.batch_inner);
    const bool is_gradient = g.epilogue == Epilogue::bias_grad;
    check_operand("bias", g.bias, 1, 0);
    check_dtype("bias", g.bias.dtype, is_gradient ? DType::f32 : g.C.dtype);
    CHECK(!is_gradient || g.alpha == 1.0f, "gemm: bias_grad with alpha = {}, expected 1", g.alpha);
}

}  // namespace teon
