// CUTLASS's sm_90 matrix product as its collective builder makes it: TMA, warp-specialized, with clusters of 2 x 1
// blocks that share their tiles of B by multicast. SCHEDULE: the kernel's schedule. OF_A, OF_B: the operands' types.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

#include "host.h"

using namespace foreign;
using cutlass::bfloat16_t;

using A = cutlass::OF_A;
using B = cutlass::OF_B;
constexpr int kAligned = 16 / sizeof(A);  // elements
using Tile = cute::Shape<cute::_128, cute::_128, cute::Int<128 / sizeof(A)>>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, bfloat16_t, Row, 8, bfloat16_t, Row, 8, cutlass::epilogue::EPILOGUE>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, Row, kAligned, B, Column, kAligned, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::SCHEDULE>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

int main() {
    const int m = 512;
    const int n = 256;
    const int k = 640;
    const auto a = random_values<A>(size_t(m) * k, 1);
    const auto b = random_values<B>(size_t(n) * k, 2);
    const auto c = random_values<bfloat16_t>(size_t(m) * n, 3);
    const Device<A> da(a);
    const Device<B> db(b);
    const Device<bfloat16_t> dc(c);
    const Device<bfloat16_t> dd(size_t(m) * n);
    const auto stride = [](auto type, int rows, int columns) {
        return cutlass::make_cute_packed_stride(type, cute::make_shape(rows, columns, 1));
    };
    const float alpha = 0.5f;
    const float beta = 2;
    cutlass::KernelHardwareInfo hardware;
    hardware.device_id = 0;
    hardware.sm_count = 4;  // fewer than the tiles: each block has several
    typename Gemm::Arguments arguments = {
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {da.data(), stride(typename Kernel::StrideA{}, m, k), db.data(), stride(typename Kernel::StrideB{}, n, k)},
        {{alpha, beta},
         dc.data(),
         stride(typename Kernel::StrideC{}, m, n),
         dd.data(),
         stride(typename Kernel::StrideD{}, m, n)},
        hardware};
    Gemm gemm;
    const Device<uint8_t> workspace(Gemm::get_workspace_size(arguments) + 16);
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess ||
        gemm.initialize(arguments, workspace.data(), stream()) != cutlass::Status::kSuccess ||
        gemm.run(stream()) != cutlass::Status::kSuccess) {
        std::printf("failed: CUTLASS refuses: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    auto reference = matrix_product(
        m, n, k, [&](int i, int l) { return double(float(a[size_t(i) * k + l])); },
        [&](int l, int j) { return double(float(b[size_t(j) * k + l])); });
    for (size_t x = 0; x < reference.size(); ++x) reference[x] = alpha * reference[x] + beta * double(float(c[x]));
    const bool right = row("CUTLASS, " TEXT(SCHEDULE) ", clusters of 2 x 1", dd.doubles(), reference, 0.004);
    return right ? 0 : 1;
}
