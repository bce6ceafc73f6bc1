// Checks at compile time that cpu/'s enumerators and gpusim/'s structures match the toolkit's. make check-cuda compiles
// this file with nvcc.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include "cpu/include/cublasLt_values.h"
#include "cpu/include/cuda_runtime_values.h"
#include "cpu/include/cusolverDn_values.h"
#include "cpu/include/nccl_values.h"
#include "gpusim/abi/layouts.h"

#define SAME(name, value) static_assert(static_cast<int>(name) == value);
CUDA_ERRORS(SAME)
CUDA_COPY_KINDS(SAME)
CUDA_FUNCTION_ATTRIBUTES(SAME)
CUDA_CAPTURE_STATES(SAME)
CUDA_CAPTURE_MODES(SAME)
CUDA_FLAGS(SAME)

#define SAME_STATUS(name, value, message) SAME(name, value)
CUBLAS_STATUSES(SAME_STATUS)
CUDA_DATA_TYPES(SAME)
CUBLAS_COMPUTE_TYPES(SAME)
CUBLAS_OPERATIONS(SAME)
CUBLASLT_EPILOGUES(SAME)
CUBLASLT_REDUCTION_SCHEMES(SAME)
CUBLASLT_MATMUL_DESC_ATTRIBUTES(SAME)
CUBLASLT_MATRIX_LAYOUT_ATTRIBUTES(SAME)
CUBLASLT_PREFERENCE_ATTRIBUTES(SAME)

CUSOLVER_STATUSES(SAME)
CUSOLVER_EIG_MODES(SAME)
CUBLAS_FILL_MODES(SAME)

#if __has_include(<nccl.h>)
NCCL_RESULTS(SAME_STATUS)
NCCL_TYPES(SAME)
NCCL_OPERATORS(SAME)
static_assert(NCCL_UNIQUE_ID_BYTES == 128);
#endif

#if defined(TEON_CUDA)
#include <cuda.h>
static_assert(CU_TENSOR_MAP_DATA_TYPE_FLOAT16 == teon::gpusim::kTensorMapF16 &&
              CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == teon::gpusim::kTensorMapBf16 &&
              CU_TENSOR_MAP_SWIZZLE_128B == teon::gpusim::kTensorMapSwizzle128 && sizeof(CUtensorMap) == 128);
#define SAME_PLACE(structure, member, type, offset) \
    static_assert(offsetof(structure, member) == offset && sizeof(structure::member) == sizeof(type));
#define SAME_PROPERTY(member, type, offset) SAME_PLACE(cudaDeviceProp, member, type, offset)
#define SAME_ATTRIBUTE(member, type, offset) SAME_PLACE(cudaFuncAttributes, member, type, offset)
#if CUDART_VERSION >= 13000
TEON_PROPERTIES(SAME_PROPERTY)
static_assert(sizeof(cudaDeviceProp) == teon::gpusim::kPropertiesBytes);
#endif
TEON_FUNCTION_ATTRIBUTES(SAME_ATTRIBUTE)
static_assert(sizeof(cudaFuncAttributes) == teon::gpusim::kFunctionAttributesBytes);
static_assert(sizeof(cudaLaunchAttribute) == sizeof(teon::gpusim::LaunchAttribute) &&
              offsetof(cudaLaunchAttribute, val) == offsetof(teon::gpusim::LaunchAttribute, value) &&
              cudaLaunchAttributeProgrammaticStreamSerialization == teon::gpusim::kProgrammaticStreamSerialization);
static_assert(sizeof(cudaLaunchConfig_t) == sizeof(teon::gpusim::LaunchConfiguration) &&
              offsetof(cudaLaunchConfig_t, attrs) == offsetof(teon::gpusim::LaunchConfiguration, attributes) &&
              offsetof(cudaLaunchConfig_t, numAttrs) == offsetof(teon::gpusim::LaunchConfiguration, count));
#endif
