#include "runtime/linalg/symmetric_product.h"

#include <algorithm>
#include <limits>

#include "base/integer.h"
#include "runtime/vec.h"

namespace teon {

namespace {

// The library computes a symmetric product in up to kMostBlockRows block rows if both side and K are at least kSplit.
// 2 block rows save a quarter of the work, 4 save three eighths. On a GPU this outweighs the cost of smaller products
// and more launches only if the products are large (derived, not measured). On a CPU a launch costs less than the
// arithmetic.
constexpr int kSplit = kGpu ? 1024 : 256;
constexpr int kMostBlockRows = 4;

// The rule counts time in slices of a tile, 128 x 128 x 64 products, at a multiprocessor's peak rate. Each kernel, and
// a library with tiles of 256 x 128, computes two tiles at a time on a multiprocessor, at a fraction of the peak. To
// start and end such a pair takes our kernels as long as kStart slices, to start a kernel of the library as kLaunch;
// the pass that mirrors the library's result takes one slice for kMirrored elements. Fitted to an H200's times of
// products with 768 to 4,096 rows in 1 to 22 matrices, of which it meets all but one within 16% (docs/fp8.md); block
// rows were not measured.
constexpr double kLibraryRate = 0.77;
constexpr double kLaunch = 11;
constexpr double kStart = 19;
constexpr double kMirrored = 600'000;

double expected_time(int64_t pairs, int K, int multiprocessors, double rate, double start) {
    const int64_t rounds = ceil_div(pairs, int64_t{multiprocessors});  // a pair starts as another ends
    return static_cast<double>(rounds) * (2 * ceil_div(K, kSymmetricDepth) / rate + start);
}

double expected_time_of_library(const SymmetricSize& size, int multiprocessors) {
    double time = kLaunch + static_cast<double>(size.side) * size.side * size.batch / kMirrored;
    const int height = symmetric_block_height(size.side, size.K);
    for (int row = 0; row < size.side; row += height) {
        const int last = std::min(row + height, size.side);
        const int64_t tiles =
            ceil_div(last - row, kSymmetricTile) * ceil_div(last, kSymmetricTile) * int64_t{size.batch};
        time += kLaunch + expected_time(ceil_div(tiles, int64_t{2}), size.K, multiprocessors, kLibraryRate, 0);
    }
    return time;
}

constexpr SymmetricKernel kKernels[] = {
    {"pairs of tiles up to the diagonal", 90, 90, symmetric_hopper_has_code, symmetric_hopper_supports,
     symmetric_product_hopper, symmetric_hopper_pairs, 0.52},
    {"tiles up to the diagonal", 0, std::numeric_limits<int>::max(), [] { return true; },
     [](const Gemm&) { return true; }, symmetric_product_mma, symmetric_mma_pairs, 0.44},
};

double expected_time(const SymmetricKernel& kernel, const SymmetricSize& size, int multiprocessors) {
    return expected_time(kernel.pairs(size.side, size.batch), size.K, multiprocessors, kernel.rate, kStart);
}

}  // namespace

int symmetric_block_height(int side, int K) {
    const int size = std::min(side, K);
    const int blocks = size < kSplit ? 1 : std::min(2 * size / kSplit, kMostBlockRows);
    return round_up(side / blocks, kSymmetricTile);
}

bool symmetric_product_supports(const Gemm& g, const Mat& addend) {
    auto in_chunks = [&](const Mat& x) {
        return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.ld % 8 == 0 &&
               (g.batch_inner == 1 || x.stride_inner % 8 == 0);
    };
    const bool one_transposed = g.trans_a != g.trans_b;
    const bool whole_chunks = g.M % 8 == 0 && (g.trans_a || g.K % 8 == 0);
    return g.symmetric && size_of(g.A.dtype) == 2 && g.C.dtype == g.A.dtype && one_transposed && whole_chunks &&
           g.batch_outer == 1 && g.batch_inner <= 65535 && in_chunks(g.A) && in_chunks(g.B) && in_chunks(g.C) &&
           (g.beta == 0.0f || in_chunks(addend));
}

const SymmetricKernel* symmetric_kernel(std::string_view name) {
    for (const SymmetricKernel& row : kKernels)
        if (row.name == name) return &row;
    return nullptr;
}

std::vector<const SymmetricKernel*> symmetric_kernels(const Gemm& g, const Mat& addend, const Stream& stream) {
    static const int device = device_info().compute_capability;
    const int capability = stream.kernels() == Kernels::portable ? std::min(device, 80) : device;
    std::vector<const SymmetricKernel*> kernels;
    if (!symmetric_product_supports(g, addend)) return kernels;
    for (const SymmetricKernel& row : kKernels)
        if (row.first_capability <= capability && capability <= row.last_capability && row.has_code() &&
            row.supports(g))
            kernels.push_back(&row);
    return kernels;
}

const SymmetricKernel* fastest_symmetric_kernel(const std::vector<const SymmetricKernel*>& kernels,
                                                const SymmetricSize& size, int multiprocessors) {
    const SymmetricKernel* fastest = nullptr;
    double shortest = expected_time_of_library(size, multiprocessors);
    for (const SymmetricKernel* kernel : kernels) {
        const double time = expected_time(*kernel, size, multiprocessors);
        if (fastest ? time >= shortest : time > shortest) continue;
        fastest = kernel;
        shortest = time;
    }
    return fastest;
}

}  // namespace teon
