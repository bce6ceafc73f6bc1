// That cpu/'s enumerators have the values of the toolkit's: a matter of compiling this file with nvcc (make
// check-cuda).
#include <cuda_runtime.h>

#include "cpu/include/cuda_runtime_values.h"

#define SAME(name, value) static_assert(static_cast<int>(name) == value);
CUDA_ERRORS(SAME)
CUDA_COPY_KINDS(SAME)
CUDA_FUNCTION_ATTRIBUTES(SAME)
CUDA_CAPTURE_STATES(SAME)
CUDA_CAPTURE_MODES(SAME)
CUDA_FLAGS(SAME)
