// The driver's function for tensor maps, from the runtime: no program here needs the driver's library.
#pragma once

#include <cuda.h>

#include "host.h"

extern "C" inline CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                                          void* address, const cuuint64_t* extents,
                                                          const cuuint64_t* strides, const cuuint32_t* box,
                                                          const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                                          CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                                          CUtensorMapFloatOOBfill fill) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status;
    foreign::check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status),
        "cudaGetDriverEntryPointByVersion");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
}
