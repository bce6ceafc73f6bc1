#include "cpu/error.h"

#include <atomic>
#include <mutex>

namespace teon::cpu {

namespace {

struct Failure {
    cudaError_t code = cudaSuccess;
    std::string words;
};

thread_local Failure last;     // the last failure of this thread's calls
thread_local bool returned{};  // whether cudaGetLastError has returned it
std::mutex mutex;
Failure& device_failure() {  // guarded by the mutex; never destroyed, because threads may ask until the process ends
    static auto* failure = new Failure;
    return *failure;
}
std::atomic<cudaError_t> device_code = cudaSuccess;

}  // namespace

cudaError_t fail(cudaError_t code, const std::string& words) {
    last = {code, words};
    returned = false;
    return code;
}

void fail_device(cudaError_t code, const std::string& words) noexcept {
    const std::lock_guard lock(mutex);
    if (device_code != cudaSuccess) return;
    device_failure() = {code, words};
    device_code = code;
}

cudaError_t device_error() { return device_code.load(std::memory_order_relaxed); }

void forget_device_error() {
    const std::lock_guard lock(mutex);
    device_failure() = {};
    device_code = cudaSuccess;
}

}  // namespace teon::cpu

using namespace teon::cpu;

cudaError_t cudaPeekAtLastError() {
    if (device_error() != cudaSuccess) return device_error();
    return returned ? cudaSuccess : last.code;
}

cudaError_t cudaGetLastError() {
    const cudaError_t code = cudaPeekAtLastError();
    returned = true;
    return code;
}

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define TEON_NAME(name, value) \
    case name:                 \
        return #name;
        CUDA_ERRORS(TEON_NAME)
#undef TEON_NAME
    }
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    static thread_local std::string words;
    const std::lock_guard lock(mutex);
    if (error != cudaSuccess && error == device_failure().code) {
        words = device_failure().words;
    } else if (error != cudaSuccess && error == last.code) {
        words = last.words;
    } else {
        return cudaGetErrorName(error);
    }
    return words.c_str();
}
