#include "runtime/tensor_cores/tensor_map.h"

#include "base/check.h"

#if defined(TEON_CUDA)

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "runtime/cuda/cuda_check.h"

namespace teon {

namespace {

PFN_cuTensorMapEncodeTiled_v12000 driver_function() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    detail::check_cuda(status, "asking the driver for cuTensorMapEncodeTiled");
    CHECK(function, "the driver has no cuTensorMapEncodeTiled: 12.0 or later is needed");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

TensorMap tensor_map(const void* x, int64_t batches, int64_t rows, int64_t columns, int64_t batch_stride,
                     int64_t row_stride, int tile_rows) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = driver_function();
    static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
    const cuuint64_t extents[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                  static_cast<cuuint64_t>(batches)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride) * sizeof(bf16),
                                  static_cast<cuuint64_t>(batch_stride) * sizeof(bf16)};
    const cuuint32_t box[] = {kTensorTileColumns, static_cast<cuuint32_t>(tile_rows), 1};
    const cuuint32_t steps[] = {1, 1, 1};
    CUtensorMap map;
    // Copies keep all bits, and 0 has the same bits in every type.
    const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(x), extents, strides,
                                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled refuses {} x {} x {} elements: error {}", batches, rows,
          columns, static_cast<int>(status));
    return __builtin_bit_cast(TensorMap, map);
}

}  // namespace teon

#else

namespace teon {

TensorMap tensor_map(const void*, int64_t, int64_t, int64_t, int64_t, int64_t, int) {
    throw Error("a CPU has no tensor maps");
}

}  // namespace teon

#endif
