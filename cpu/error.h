// Errors of the CUDA functions. Each function that fails has a message about this call, which cudaGetErrorString
// returns to the thread that made the call in place of the code's general message.
#pragma once

#include <string>
#include <utility>

#include "base/check.h"
#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

// Records the error and its message for cudaGetLastError and cudaGetErrorString. Returns the code.
cudaError_t fail(cudaError_t code, const std::string& words);
template <typename First, typename... More>
cudaError_t fail(cudaError_t code, fmt::format_string<First, More...> words, First&& first, More&&... more) {
    return fail(code, fmt::format(words, std::forward<First>(first), std::forward<More>(more)...));
}

// Records that device work failed. From the first failure on every call returns its error, as on a GPU, whose context
// is then lost.
void fail_device(cudaError_t code, const std::string& words) noexcept;
cudaError_t device_error();  // cudaSuccess, or the error of the first failure
void forget_device_error();  // for tests: a GPU would need a new process

}  // namespace teon::cpu
