#include "runtime/symmetric_product.h"

#include <algorithm>
#include <limits>

#include "base/integer.h"

namespace teon {

namespace {

// Expected rates, as fractions of the peak. On sm_90 a library reaches 0.8 with wgmma; mma.sync has 62% of wgmma's
// speed. Our kernel with wgmma reads no more bytes for a product than a library does, but does not write one tile
// while it computes the next. (Derived, not measured. --autotune measures.)
constexpr double kLibraryRate = 0.8;
constexpr double kMmaRate = 0.6;
constexpr double kWgmmaRate = 0.75;
constexpr int kTile = 128;

// Blocks start as others end, so the multiprocessors with most blocks determine the time.
double rounds(int64_t blocks, int batch, int multiprocessors) {
    return static_cast<double>(ceil_div(blocks * batch, int64_t{multiprocessors}));
}

constexpr SymmetricKernel kKernels[] = {
    {"pairs of tiles up to the diagonal", 90, 90, symmetric_hopper_has_code, symmetric_hopper_supports,
     [](int side, int batch, int multiprocessors) {
         return 2 * rounds(symmetric_hopper_pairs(side), batch, multiprocessors) / kWgmmaRate;
     },
     symmetric_product_hopper},
    {"tiles up to the diagonal", 0, std::numeric_limits<int>::max(), [] { return true; },
     [](const Gemm&) { return true; },
     [](int side, int batch, int multiprocessors) {
         return rounds(symmetric_mma_tiles(side), batch, multiprocessors) / kMmaRate;
     },
     symmetric_product_mma},
};

const SymmetricKernel* shortest(const std::vector<const SymmetricKernel*>& kernels, int side, int batch,
                                int multiprocessors) {
    const auto time = [&](const SymmetricKernel* kernel) { return kernel->time(side, batch, multiprocessors); };
    return *std::min_element(kernels.begin(), kernels.end(),
                             [&](const auto* a, const auto* b) { return time(a) < time(b); });
}

}  // namespace

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

const SymmetricKernel* fastest_symmetric_kernel(const std::vector<const SymmetricKernel*>& kernels, int side, int batch,
                                                int multiprocessors) {
    if (kernels.empty()) return nullptr;
    const int64_t n = ceil_div(side, kTile);
    const double library = rounds(n * n, batch, multiprocessors) / kLibraryRate;
    const SymmetricKernel* kernel = shortest(kernels, side, batch, multiprocessors);
    return kernel->time(side, batch, multiprocessors) <= library ? kernel : nullptr;
}

void symmetric_product(const Gemm& g, const Mat& addend, const Stream& stream) {
    const auto kernels = symmetric_kernels(g, addend, stream);
    CHECK(!kernels.empty(), "symmetric product: {} x {} x {} (M x N x K), {} to {}", g.M, g.N, g.K, name_of(g.A.dtype),
          name_of(g.C.dtype));
    shortest(kernels, g.M, g.batch_inner, device_info().multiprocessors)->run(g, addend, stream);
}

}  // namespace teon
