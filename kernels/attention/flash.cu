// Flash attention: checks its arguments, chooses an implementation (flash_implementations.h) and calls it.
// flash_mma.cu describes the method.
#include "kernels/attention/flash.h"

#include <algorithm>
#include <initializer_list>

#include "base/integer.h"
#include "kernels/attention/flash_implementations.h"
#include "kernels/attention/flash_shape.h"
#include "kernels/column_sums.h"

namespace teon {

namespace {

// stats (B, NH, T): log2(e) lse and D of each row. HS / 8 threads share a row. The grid is (rows of a sequence,
// sequences).
template <int HS>
__global__ void flash_attention_stats_kernel(RowStats* stats, const bf16* dout, const bf16* out, const float* lse,
                                             FlashShape<HS> s) {
    wait_for_earlier_kernels();
    constexpr int kLanes = HS / 8;
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int row = static_cast<int>(thread / kLanes);
    const int rows = s.T * s.NH;
    const int b = static_cast<int>(blockIdx.y);
    float D = 0.0f;
    if (row < rows) {
        const int64_t begin = static_cast<int64_t>(b) * s.T * s.plain_row + thread * 8;
        const auto dy = load_vec<8>(dout + begin);
        const auto y = load_vec<8>(out + begin);
        FOR_VEC(i, 8) D += static_cast<float>(dy[i]) * static_cast<float>(y[i]);
    }
#pragma unroll
    for (int bit = kLanes / 2; bit > 0; bit /= 2) D += __shfl_xor_sync(0xffffffffu, D, bit);
    if (row < rows && thread % kLanes == 0) {
        const int64_t at = s.row(b, row % s.NH, row / s.NH);
        stats[at] = RowStats{{lse[at] * kLog2E, D}};
    }
}

constexpr int kWarpRows = 16;  // the fewest rows that a row of column sums covers

// Bytes of the parts of scratch, in their order.
struct BackwardScratch {
    size_t stats, column_sums;
    BackwardScratch(const AttentionShape& s, bool sums_columns) {
        const auto floats = [](int64_t n) { return round_up(static_cast<size_t>(n) * sizeof(float), size_t{256}); };
        stats = floats(int64_t{2} * s.B * s.NH * s.T);
        column_sums = sums_columns ? floats(int64_t{s.B} * ceil_div(s.T, kWarpRows) * s.qkv_width()) : 0;
    }
};

bool supports_sizes(const AttentionShape& s) {
    constexpr int kGridLimit = 65535;
    return s.B >= 1 && s.B <= kGridLimit && s.T >= 1 && s.NKV >= 1 && s.NH >= 1 && s.NH <= kGridLimit &&
           s.NH % s.NKV == 0;
}

// Throws Error if no implementation supports the shape or a pointer's alignment.
void check(const AttentionShape& s, std::initializer_list<const void*> pointers) {
    CHECK(flash_attention_supports(s, DType::bf16),
          "flash attention: B={} T={} NH={} NKV={} HS={}, expected a head size of 64 or 128, NH a multiple of NKV, and "
          "B and NH at most 65535",
          s.B, s.T, s.NH, s.NKV, s.HS);
    for (const void* p : pointers)
        CHECK(reinterpret_cast<uintptr_t>(p) % 16 == 0, "flash attention: a tensor is not 16-byte aligned");
}

// The implementation for this device and stream.
const FlashImplementation& implementation(int head_size, const Stream& stream) {
    static const int device = device_info().compute_capability;
    const int capability = stream.kernels() == Kernels::portable ? std::min(device, 80) : device;
    const FlashImplementation* row = flash_implementation(
        capability, head_size, DType::bf16, [&](const FlashImplementation& r) { return r.has_code(head_size); });
    CHECK(row != nullptr, "flash attention: this program has no kernels for compute capability {}", capability);
    return *row;
}

}  // namespace

bool flash_attention_supports(const AttentionShape& s, DType dtype) {
    return supports_sizes(s) && std::any_of(std::begin(kFlashImplementations), std::end(kFlashImplementations),
                                            [&](const auto& row) { return row.supports(s.HS, dtype); });
}

bool flash_attention_is_fast() { return kTensorCores; }

size_t flash_attention_scratch_bytes(const AttentionShape& s, bool sums_columns) {
    const BackwardScratch parts(s, sums_columns);
    return parts.stats + parts.column_sums;
}

void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* first_key, const AttentionShape& s,
                             const Stream& stream) {
    check(s, {out, qkv});
    implementation(s.HS, stream).forward({out, lse, qkv, first_key, s}, stream);
}

void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* first_key, const AttentionShape& s, const Stream& stream,
                              float* dbias, bool accumulate) {
    check(s, {dqkv, scratch, dout, qkv, out});
    const BackwardScratch parts(s, dbias != nullptr);
    auto* const stats = static_cast<RowStats*>(scratch);
    auto* const partial = dbias ? reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + parts.stats) : nullptr;
    with_flash_head_size(s.HS, [&]<int HS>(Constant<HS>) {
        constexpr int kStatsThreads = 256;
        constexpr int kRowsPerBlock = kStatsThreads / (HS / 8);
        launch<flash_attention_stats_kernel<HS>>({dim3(ceil_div(s.T * s.NH, kRowsPerBlock), s.B), kStatsThreads},
                                                 stream, stats, dout, out, lse, FlashShape<HS>(s, first_key));
    });
    const int rows = implementation(s.HS, stream).backward({dqkv, partial, dout, qkv, stats, first_key, s}, stream);
    if (dbias == nullptr) return;
    const ColumnGrads grads = {{{dbias, static_cast<int>(s.qkv_width())}}, accumulate};
    add_column_sums(grads, partial, s.B * ceil_div(s.T, rows), stream);
}

}  // namespace teon
