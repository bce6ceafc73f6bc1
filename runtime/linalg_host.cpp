// Linear algebra on the CPU. OpenBLAS multiplies one tile of the output at a time, on one thread; the tiles run over
// threads (cpu/threads.h). Their sizes follow from the shape alone, so results are bit-equal for any number of threads,
// and what comes after the product (bias, GELU, rounding to bf16) finds the tile in cache.
#include <cblas.h>
#include <lapacke.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <vector>

#include "cpu/memory.h"
#include "cpu/stream.h"
#include "cpu/threads.h"
#include "runtime/activation.h"
#include "runtime/linalg.h"
#include "runtime/linalg_check.h"
#include "runtime/linalg_profile.h"

namespace teon {

namespace {

// Depth of the slices in which 16-bit operands are widened; bounds the scratch of a thread whatever K is.
constexpr int kSlice = 512;
// Columns (or rows) of one bias gradient task, and the rows that are summed before they join the total.
constexpr int kBiasStrip = 64;
constexpr int kBiasBlock = 64;
// Tiles of a symmetric product are this high: lower wastes less above the diagonal, higher multiplies faster.
constexpr int kSymmetricRows = 128;
// No tile is larger: what the epilogue reads and the scratch of a thread stay near the second-level cache.
constexpr int kMaxRows = 512, kMaxColumns = 1024;
// Up to this many multiplications OpenBLAS has kernels (AVX-512 only) that do not pack; for thin outputs they are up to
// 40% faster.
constexpr int64_t kUnpacked = 1000000;
constexpr int kThin = 64;

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Runs f on this thread with a BLAS that stays on it. Some BLAS builds take their thread count from OpenMP at every
// call; the setting inside a parallel region is that region's own.
template <typename F>
void on_one_thread(F f) {
#pragma omp parallel num_threads(1)
    {
        omp_set_num_threads(1);
        openblas_set_num_threads(1);
        f();
    }
}

// The output as a grid of tiles of rows x columns (the last ones smaller).
struct Tiling {
    int rows, columns;  // of a tile
    int down, across;   // tiles per matrix
    int64_t count;      // tiles in all matrices of the batch
};

// Tiles as large as possible (packing a tile's operands costs (rows + columns) K, multiplying them rows * columns * K),
// but at least 8, which costs up to a tenth, as long as they do not get tiny. Wide tiles are better than high ones:
// OpenBLAS packs what is ours in A again for every column tile. The batch counts, the machine does not.
Tiling tile_output(const Gemm& g) {
    int64_t batch = int64_t{g.batch_inner} * g.batch_outer;
    Tiling t{};
    auto split = [&](int down, int across) {
        t.rows = ceil_div(ceil_div(g.M, down), 16) * 16;  // whole register tiles
        t.columns = ceil_div(ceil_div(g.N, across), 16) * 16;
        t.down = ceil_div(g.M, t.rows);
        t.across = ceil_div(g.N, t.columns);
        t.count = batch * t.down * t.across;
    };
    if (g.symmetric) {
        split(ceil_div(g.M, kSymmetricRows), ceil_div(g.N, kMaxColumns));
        return t;
    }
    int64_t thin_rows = kUnpacked / (int64_t{g.N} * g.K) / 16 * 16;
    if (g.N <= kThin && !g.trans_b && thin_rows > 0) {
        split(ceil_div(g.M, std::min<int64_t>(thin_rows, kMaxRows)), 1);
        return t;
    }
    int down = ceil_div(g.M, kMaxRows), across = ceil_div(g.N, kMaxColumns);
    split(down, across);
    while (t.count < 8 && t.rows * t.columns >= 2 * 64 * 64) {
        (2 * t.rows >= t.columns ? down : across) *= 2;
        split(down, across);
    }
    return t;
}

// Floats of one thread, for widened operands and for the product before it is rounded. Grown on demand.
struct Scratch {
    std::vector<float> a, b, product;
};

std::atomic<int64_t> scratch_floats = 0;  // of all threads

// A tile of one matrix of the batch. row, column: its first; rows, columns: its size, cut off at the matrix' edge.
struct Tile {
    int row, column, rows, columns;
    int64_t offset_a, offset_b, offset_c, offset_addend;  // of the matrix, in elements
};

Tile tile_at(const Gemm& g, const Tiling& t, int64_t index) {
    int64_t matrix = index / (t.down * t.across);
    int within = static_cast<int>(index % (t.down * t.across));
    int64_t outer = matrix / g.batch_inner, inner = matrix % g.batch_inner;
    auto offset = [&](const Mat& x) { return outer * x.stride_outer + inner * x.stride_inner; };
    Tile tile{within / t.across * t.rows,
              within % t.across * t.columns,
              t.rows,
              t.columns,
              offset(g.A),
              offset(g.B),
              offset(g.C),
              offset(g.addend)};
    tile.rows = std::min(tile.rows, g.M - tile.row);
    tile.columns = std::min(tile.columns, g.N - tile.column);
    return tile;
}

template <typename T>
T* elements(const Mat& x, int64_t offset) {
    return static_cast<T*>(x.data) + offset;
}

struct Operand {
    const float* data;
    int64_t ld;
};

// A rows x columns block of a stored matrix as floats: in place, or widened into scratch.
template <typename T>
Operand as_float(const T* block, int64_t ld, int rows, int columns, std::vector<float>& scratch) {
    if constexpr (std::is_same_v<T, float>) {
        return {block, ld};
    } else {
        for (int i = 0; i < rows; ++i) {
            const T* from = block + i * ld;
            float* to = scratch.data() + int64_t{i} * columns;
            for (int j = 0; j < columns; ++j) to[j] = static_cast<float>(from[j]);
        }
        return {scratch.data(), columns};
    }
}

// One row of C from a row of the product, which for float is C itself: beta * addend (BLAS has added it for float; may
// be c), bias, GELU, rounding. No element depends on another one.
template <Epilogue epilogue, typename TC>
void finish_row(float* product, TC* c, const TC* addend, const TC* bias, TC* aux, int n, float beta) {
    if (beta != 0.0f && !std::is_same_v<TC, float>) {
        for (int j = 0; j < n; ++j) product[j] = fmaf(beta, static_cast<float>(addend[j]), product[j]);
    }
#pragma GCC ivdep
    for (int j = 0; j < n; ++j) {
        if constexpr (epilogue == Epilogue::none) {
            c[j] = TC(product[j]);
        } else if constexpr (epilogue == Epilogue::bias) {
            c[j] = TC(product[j] + static_cast<float>(bias[j]));
        } else {
            TC x = TC(product[j] + static_cast<float>(bias[j]));
            aux[j] = x;
            c[j] = TC(gelu_tanh(static_cast<float>(x)));
        }
    }
}

template <typename T, typename TC>
void multiply_tile(const Gemm& g, const Tile& t, Scratch& scratch) {
    constexpr bool in_place = std::is_same_v<TC, float>;
    TC* c = elements<TC>(g.C, t.offset_c) + t.row * g.C.ld + t.column;
    float* product = scratch.product.data();
    int64_t ld = t.columns;
    if constexpr (in_place) product = c, ld = g.C.ld;
    const TC* addend = c;
    int64_t addend_ld = g.C.ld;
    if (g.addend.data) {
        addend = elements<TC>(g.addend, t.offset_addend) + t.row * g.addend.ld + t.column, addend_ld = g.addend.ld;
        if (in_place && g.beta != 0.0f) {  // BLAS adds to what is there
            for (int i = 0; i < t.rows; ++i) std::copy_n(addend + i * addend_ld, t.columns, c + i * ld);
        }
    }

    int depth = std::is_same_v<T, float> ? g.K : kSlice;
    for (int k = 0; k < g.K; k += depth) {
        int slice = std::min(depth, g.K - k);
        const T* a = elements<T>(g.A, t.offset_a) + (g.trans_a ? k * g.A.ld + t.row : t.row * g.A.ld + k);
        const T* b = elements<T>(g.B, t.offset_b) + (g.trans_b ? t.column * g.B.ld + k : k * g.B.ld + t.column);
        Operand fa = as_float(a, g.A.ld, g.trans_a ? slice : t.rows, g.trans_a ? t.rows : slice, scratch.a);
        Operand fb = as_float(b, g.B.ld, g.trans_b ? t.columns : slice, g.trans_b ? slice : t.columns, scratch.b);
        float beta = k > 0 ? 1.0f : in_place ? g.beta : 0.0f;
        cblas_sgemm(CblasRowMajor, g.trans_a ? CblasTrans : CblasNoTrans, g.trans_b ? CblasTrans : CblasNoTrans, t.rows,
                    t.columns, slice, g.alpha, fa.data, fa.ld, fb.data, fb.ld, beta, product, ld);
    }

    auto finish = [&]<Epilogue epilogue>() {
        for (int i = 0; i < t.rows; ++i) {
            const TC* bias = nullptr;
            TC* aux = nullptr;
            if constexpr (epilogue != Epilogue::none) bias = elements<TC>(g.bias, t.column);
            if constexpr (epilogue == Epilogue::gelu_bias) {
                aux = elements<TC>(g.aux, (t.row + i) * g.aux.ld + t.column);
            }
            finish_row<epilogue>(product + i * ld, c + i * g.C.ld, addend + i * addend_ld, bias, aux, t.columns,
                                 g.beta);
        }
    };
    if (g.epilogue == Epilogue::gelu_bias) {
        finish.template operator()<Epilogue::gelu_bias>();
    } else if (g.epilogue == Epilogue::bias) {
        finish.template operator()<Epilogue::bias>();
    } else if (!in_place) {
        finish.template operator()<Epilogue::none>();
    }
}

// bias[j] = beta * bias[j] + sum_k op(A)(j, k) for a strip of j, in blocks of k: the order of the sum is fixed and its
// rounding error grows with K / kBiasBlock, not K.
template <typename T>
void reduce_bias(const Gemm& g, int strip) {
    int first = strip * kBiasStrip, n = std::min(kBiasStrip, g.M - first);
    int64_t step_j = g.trans_a ? 1 : g.A.ld, step_k = g.trans_a ? g.A.ld : 1;
    const T* a = elements<T>(g.A, first * step_j);
    float total[kBiasStrip] = {};
    for (int k = 0; k < g.K; k += kBiasBlock) {
        float sum[kBiasStrip] = {};
        for (int end = std::min(k + kBiasBlock, g.K), i = k; i < end; ++i) {
            if (step_j == 1) {
                for (int j = 0; j < n; ++j) sum[j] += static_cast<float>(a[i * step_k + j]);
            } else {
                for (int j = 0; j < n; ++j) sum[j] += static_cast<float>(a[i * step_k + j * step_j]);
            }
        }
        for (int j = 0; j < n; ++j) total[j] += sum[j];
    }
    float* bias = elements<float>(g.bias, first);
    for (int j = 0; j < n; ++j) bias[j] = g.beta == 0.0f ? total[j] : fmaf(g.beta, bias[j], total[j]);
}

// Copies what lies below the diagonal above it, for the rows of a tile that starts at column 0.
template <typename TC>
void mirror_rows(const Gemm& g, const Tile& t) {
    TC* c = elements<TC>(g.C, t.offset_c);
    constexpr int block = 32;  // columns read and rows written stay in the first-level cache
    for (int column = t.row; column < g.N; column += block) {
        for (int i = t.row; i < t.row + t.rows; ++i) {
            for (int end = std::min(column + block, g.N), j = std::max(column, i + 1); j < end; ++j) {
                c[i * g.C.ld + j] = c[j * g.C.ld + i];
            }
        }
    }
}

// Scratch of this thread, for tiles of this size.
template <typename T, typename TC>
Scratch& thread_scratch(const Gemm& g, const Tiling& tiling) {
    thread_local Scratch scratch;
    auto reserve = [](std::vector<float>& v, int64_t n) {
        if (std::ssize(v) >= n) return;
        scratch_floats += n - std::ssize(v);
        v.resize(n);
    };
    if (!std::is_same_v<T, float>) {
        reserve(scratch.a, int64_t{tiling.rows} * std::min(g.K, kSlice));
        reserve(scratch.b, int64_t{tiling.columns} * std::min(g.K, kSlice));
    }
    if (!std::is_same_v<TC, float>) reserve(scratch.product, int64_t{tiling.rows} * tiling.columns);
    return scratch;
}

template <typename T, typename TC>
void multiply(const Gemm& g) {
    Tiling tiling = tile_output(g);
    int64_t bias_strips = g.epilogue == Epilogue::bias_grad ? ceil_div(g.M, kBiasStrip) : 0;
    cpu::parallel_for(tiling.count + bias_strips, 1, [&](int64_t i) {
        if (i >= tiling.count) {
            reduce_bias<T>(g, static_cast<int>(i - tiling.count));
            return;
        }
        omp_set_num_threads(1);  // a BLAS that uses OpenMP takes this thread's setting; see on_one_thread
        // Backwards: the rows of a symmetric product that have most below the diagonal come first.
        Tile tile = tile_at(g, tiling, tiling.count - 1 - i);
        if (g.symmetric) tile.columns = std::min(tile.columns, tile.row + tile.rows - tile.column);
        if (tile.columns > 0) multiply_tile<T, TC>(g, tile, thread_scratch<T, TC>(g, tiling));
    });
    if (!g.symmetric) return;
    cpu::parallel_for(tiling.count, 1, [&](int64_t i) {
        Tile tile = tile_at(g, tiling, i);
        if (tile.column == 0) mirror_rows<TC>(g, tile);
    });
}

template <typename T>
void multiply(const Gemm& g) {
    if (g.C.dtype == DType::f32) {
        multiply<T, float>(g);
    } else {
        multiply<T, T>(g);
    }
}

void check_finite(const char* operation, const float* A, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        CHECK(std::isfinite(A[i]), "{}: element {} of the matrix is {}", operation, i, A[i]);
    }
}

void check_status(const char* operation, int m, int n, lapack_int status) {
    CHECK(status >= 0, "{}: LAPACK rejects argument {} for a {} x {} matrix", operation, -status, m, n);
    CHECK(status == 0, "{}: no convergence for a {} x {} matrix (LAPACK status {})", operation, m, n, status);
}

}  // namespace

struct Linalg::Impl {
    const Stream& stream;
    void run(const Gemm& g) {
        if (g.A.dtype == DType::f32) multiply<float>(g);
        if (g.A.dtype == DType::bf16) multiply<bf16>(g);
        if (g.A.dtype == DType::f16) multiply<f16>(g);
    }
};

Linalg::Linalg(const Stream& stream) : impl_(new Impl{stream}) {
    on_one_thread([] {});
}
Linalg::~Linalg() {  // what is queued uses the scratch
    if (impl_) (void)cpu::wait_for(static_cast<cudaStream_t>(impl_->stream.handle()), "a linear algebra handle's end");
}
Linalg::Linalg(Linalg&&) noexcept = default;
Linalg& Linalg::operator=(Linalg&&) noexcept = default;

void Linalg::gemm(const Gemm& g) {
    detail::check_gemm(g);
    const ProfileScope profile = detail::profile_scope(g, impl_->stream);
    run(g);
}

void Linalg::run(const Gemm& g) {
    const auto status = cpu::submit(static_cast<cudaStream_t>(impl_->stream.handle()), "a matrix product",
                                    [impl = impl_.get(), g] { impl->run(g); });
    CHECK(status == cudaSuccess, "queueing a matrix product: {}", cudaGetErrorString(status));
}

void Linalg::set_autotune(bool) {}

// Row-major A is column-major A^T = V S U^T, so LAPACK's left vectors are V (column-major n x r: our Vt) and its right
// ones U^T (column-major r x m: our U).
void Linalg::svd(float* A, int m, int n, float* U, float* S, float* Vt) {
    CHECK(m > 0 && n > 0, "svd: empty {} x {} matrix", m, n);
    impl_->stream.synchronize();
    const cpu::DeviceAccess access;
    check_finite("svd", A, int64_t{m} * n);
    lapack_int status = 0;
    on_one_thread([&] { status = LAPACKE_sgesdd(LAPACK_COL_MAJOR, 'S', n, m, A, n, S, Vt, n, U, std::min(m, n)); });
    check_status("svd", m, n, status);
}

void Linalg::eigh(float* A, int n, float* w) {
    CHECK(n > 0, "eigh: empty {} x {} matrix", n, n);
    impl_->stream.synchronize();
    const cpu::DeviceAccess access;
    check_finite("eigh", A, int64_t{n} * n);
    lapack_int status = 0;
    on_one_thread([&] { status = LAPACKE_ssyevd(LAPACK_COL_MAJOR, 'V', 'L', n, A, n, w); });
    check_status("eigh", n, n, status);
}

const Stream& Linalg::stream() const { return impl_->stream; }

size_t Linalg::workspace_bytes() const { return static_cast<size_t>(scratch_floats) * sizeof(float); }

}  // namespace teon
