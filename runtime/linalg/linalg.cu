// Linear algebra: products by cuBLASLt (lt_matmul.h), and the computations around them.
#include "runtime/linalg/linalg.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/integer.h"
#include "runtime/linalg/decompositions.h"
#include "runtime/linalg/kernels.h"
#include "runtime/linalg/lt_matmul.h"
#include "runtime/linalg/symmetric_product.h"
#include "runtime/simt.h"
#include "runtime/tensor_cores/tensor_core.h"
#if !defined(TEON_CUDA)
#include "runtime/linalg/tiles.h"
#endif

namespace teon {

namespace {

// Memory for the partial sums of a bias gradient.
constexpr size_t kBiasScratchBytes = 4 << 20;

// Calls f with x.data as a pointer to its C++ type.
template <typename F>
void with_elements(const Mat& x, F f) {
    visit_dtype(x.dtype, [&]<typename T>(T) { f(static_cast<T*>(x.data)); });
}

Mat shifted(Mat x, int64_t elements) {
    if (x.data) x.data = static_cast<std::byte*>(x.data) + elements * size_of(x.dtype);
    return x;
}

}  // namespace

struct Linalg::Impl {
    const Stream& stream;
    LtMatmul lt{stream};
    Buffer<float> bias_scratch{kBiasScratchBytes / sizeof(float)};
    int multiprocessors = device_info().multiprocessors;
    Decompositions decompositions{stream};

    void multiply(const LtCall& c);
    void multiply_plainly(const LtCall& c);
    void multiply_batches(const Gemm& g, const Mat& addend);
    void multiply_symmetric(const Gemm& g, const Mat& addend);
    void multiply_symmetric_by_library(const Gemm& g, const Mat& addend);
    void reduce_bias(const Gemm& g);
};

// Multiplies by the library or, if it refuses, by the plain kernel.
void Linalg::Impl::multiply(const LtCall& c) {
    if (!lt.multiply(c)) multiply_plainly(c);
}

void Linalg::Impl::multiply_plainly(const LtCall& c) {
    const Gemm& g = c.g;
    auto tiles = [](int n) { return static_cast<unsigned>(ceil_div(n, kPlainTile)); };
    const dim3 grid(tiles(g.N), tiles(g.M), static_cast<unsigned>(c.count));
    const dim3 block(kPlainTile, kPlainTile);
    CHECK(
        grid.y <= 65535 && grid.z <= 65535,
        "gemm: cuBLASLt refuses {}, and so many are beyond our own kernel; make sizes, strides and addresses multiples "
        "of 8 elements",
        text_of(c));
    visit_dtype(g.A.dtype, [&]<typename T>(T) {
        visit_dtype(g.C.dtype, [&]<typename TC>(TC) {
            if constexpr (std::is_same_v<TC, float> || std::is_same_v<TC, T>) {
                const PlainProduct p{g.C, c.addend, g.A, g.B, c.bias(), g.trans_a, g.trans_b};
                launch<multiply_plain_kernel<T, TC>>({grid, block}, stream, p, g.M, g.N, g.K, g.alpha, g.beta);
            }
        });
    });
}

// Multiplies both levels of a batch: as one level if the strides allow it, else with one call per matrix of the shorter
// level.
void Linalg::Impl::multiply_batches(const Gemm& g, const Mat& addend) {
    const Mat* mats[] = {&g.A, &g.B, &g.C, &addend};
    auto merges = [&](const Mat* x) { return x->stride_outer == g.batch_inner * x->stride_inner; };
    Gemm one = g;
    Mat add = addend;
    int count = g.batch_inner;
    int calls = g.batch_outer;
    if (std::all_of(std::begin(mats), std::end(mats), merges)) {
        count *= calls;
        calls = 1;
    } else if (calls > count) {
        std::swap(count, calls);
        for (Mat* x : {&one.A, &one.B, &one.C, &add}) std::swap(x->stride_inner, x->stride_outer);
    }
    for (int i = 0; i < calls; ++i) {
        Gemm call = one;
        call.A = shifted(one.A, i * one.A.stride_outer);
        call.B = shifted(one.B, i * one.B.stride_outer);
        call.C = shifted(one.C, i * one.C.stride_outer);
        multiply({call, count, shifted(add, i * add.stride_outer)});
    }
}

void Linalg::Impl::multiply_symmetric(const Gemm& g, const Mat& addend) {
#if !defined(TEON_CUDA)
    if (size_of(g.A.dtype) == 2) return multiply_symmetric_tiles(g, addend, stream);
#endif
    const SymmetricKernel* kernel =
        fastest_symmetric_kernel(symmetric_kernels(g, addend, stream), symmetric_size(g), multiprocessors);
    kernel ? kernel->run(g, addend, stream) : multiply_symmetric_by_library(g, addend);
}

// Computes the block rows up to the diagonal, then mirrors them. A single block row is mirrored too: the two halves of
// a full product are rounded differently, after which powers of a matrix do not commute and Newton-Schulz in Gram form
// loses two bits.
void Linalg::Impl::multiply_symmetric_by_library(const Gemm& g, const Mat& addend) {
    const int height = symmetric_block_height(g.M, g.K);
    for (int row = 0; row < g.M; row += height) {
        Gemm part = g;
        part.M = std::min(height, g.M - row);
        part.N = row + part.M;
        part.A = shifted(g.A, g.trans_a ? row : row * g.A.ld);
        part.C = shifted(g.C, row * g.C.ld);
        multiply_batches(part, shifted(addend, row * addend.ld));
    }
    unsigned tiles = static_cast<unsigned>(ceil_div(g.M, kTile));
    CHECK(g.batch_inner <= 65535 && tiles <= 65535, "gemm: a symmetric batch of {} x {} matrices of {} rows",
          g.batch_outer, g.batch_inner, g.M);
    with_elements(g.C, [&]<typename T>(T* c) {
        for (int i = 0; i < g.batch_outer; ++i) {
            launch<mirror_kernel<T>>(
                {dim3(tiles, tiles, static_cast<unsigned>(g.batch_inner)), dim3(kTile, kMirrorRows)}, stream,
                c + i * g.C.stride_outer, g.C.ld, g.C.stride_inner, g.M);
        }
    });
}

// bias = beta * bias + the row sums of op(A), by our own kernels. Unlike the library's epilogue, they add to fp32
// whatever C's type is, and exclude no storage type or alignment.
void Linalg::Impl::reduce_bias(const Gemm& g) {
    int limit = static_cast<int>(std::min<int64_t>(kBiasParts, kBiasScratchBytes / sizeof(float) / g.M));
    CHECK(limit > 0, "gemm: a bias gradient of {} elements; at most {}", g.M, kBiasScratchBytes / sizeof(float));
    int parts = std::min(limit, ceil_div(g.K, kBiasRows));
    const int per_part = ceil_div(g.K, parts);
    parts = ceil_div(g.K, per_part);
    const int64_t step_j = g.trans_a ? 1 : g.A.ld;
    const int64_t step_k = g.trans_a ? g.A.ld : 1;
    auto blocks = [&](int width) { return ceil_div(g.M, kBiasBlock * width); };
    with_elements(g.A, [&]<typename T>(T* a) {
        auto sum = [&]<int W>(std::integral_constant<int, W>) {
            launch<bias_partial_kernel<T, W>>(
                {dim3(static_cast<unsigned>(blocks(W)), static_cast<unsigned>(parts)), kBiasBlock}, stream,
                bias_scratch.data(), a, step_j, step_k, g.M, g.K, per_part);
        };
        constexpr int W = kVecWidth<T>;
        if (step_j == 1 && g.M % W == 0 && vec_aligned<T, W>(g.A.ld, a)) {
            sum(std::integral_constant<int, W>{});
        } else {
            sum(std::integral_constant<int, 1>{});
        }
    });
    float* bias = static_cast<float*>(g.bias.data);
    constexpr int W = kVecWidth<float>;
    if (vec_aligned<float, W>(g.M, bias_scratch.data())) {
        launch<bias_total_kernel<W>>({blocks(W), kBiasBlock}, stream, bias, bias_scratch.data(), g.M, parts, g.beta);
    } else {
        launch<bias_total_kernel<1>>({blocks(1), kBiasBlock}, stream, bias, bias_scratch.data(), g.M, parts, g.beta);
    }
}

Linalg::Linalg(const Stream& stream) : impl_(new Impl{stream}) {}
Linalg::~Linalg() = default;

void Linalg::gemm(const Gemm& g) {
    check_gemm(g);
    const int batch = g.batch_inner * g.batch_outer;
    const auto name = [&] {
        return fmt::format("gemm {} x {} x {} {}{}{}", g.M, g.N, g.K, g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N',
                           batch > 1 ? fmt::format(", {} of them", batch) : "");
    };
    const ProfileScope profile(impl_->stream, name, 2.0 * g.M * g.N * g.K * batch);
    run(g);
}

void Linalg::bias_gradient(float* db, const Mat& dy, int rows, int columns, float beta) {
    CHECK(rows > 0 && columns > 0, "bias gradient: empty dy of {} x {}", rows, columns);
    impl_->reduce_bias({.M = columns, .K = rows, .trans_a = true, .A = dy, .beta = beta, .bias = mat(db, columns)});
}

void Linalg::run(const Gemm& g) {
    const Mat& addend = g.addend.data && g.beta != 0.0f ? g.addend : g.C;
    switch (g.epilogue) {
        case Epilogue::none: {
            if (g.symmetric) return impl_->multiply_symmetric(g, addend);
            return impl_->multiply_batches(g, addend);
        }
        case Epilogue::bias:
            return impl_->multiply({g, 1, addend});
        case Epilogue::bias_grad:
            impl_->multiply_batches(g, addend);
            return impl_->reduce_bias(g);
    }
}

void Linalg::svd(float* A, int m, int n, float* U, float* S, float* Vt) {
    impl_->decompositions.svd(A, m, n, U, S, Vt);
}

void Linalg::eigh(float* A, int n, float* w) { impl_->decompositions.eigh(A, n, w); }

const Stream& Linalg::stream() const { return impl_->stream; }
int Linalg::refused_kinds() const { return impl_->lt.refused_kinds(); }

}  // namespace teon
