#include "cpu/devices.h"

#include <charconv>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/text.h"
#include "cpu/address_space.h"
#include "cpu/error.h"
#include "cpu/pages.h"

namespace teon::cpu {

namespace {

constexpr int kDevicesOfMachine = 8;

// Reads the list like the CUDA driver: it ends at the first entry that is not the number of a device.
int count_visible() {
    const char* at = kModelGpu ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
    if (!at) return 1;
    int count = 0;
    for (const char* const end = at + std::char_traits<char>::length(at); count < kDevicesOfMachine; ++at) {
        int index = -1;
        const auto [rest, error] = std::from_chars(at, end, index);
        if (error != std::errc() || index < 0 || index >= kDevicesOfMachine) break;
        ++count;
        at = rest;
        if (*at != ',') break;
    }
    return count;
}

int device_count() {
    static const int count = count_visible();
    return count;
}

thread_local int current = 0;

}  // namespace

int current_device() { return current; }
bool is_device(int index) { return index >= 0 && index < device_count(); }

}  // namespace teon::cpu

using namespace teon::cpu;

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    if (*count == 0) return fail(cudaErrorNoDevice, "CUDA_VISIBLE_DEVICES names no device");
    using teon::bytes_text;
    const std::optional<int64_t> left = kModelGpu ? std::nullopt : address_space_left();
    if (left && *left < address_space_of_libraries())
        return fail(cudaErrorMemoryAllocation,
                    fmt::format("the limit of address space (ulimit -v) leaves {}, but the CPU's libraries and threads "
                                "need {} beside the model; raise it",
                                bytes_text(static_cast<double>(*left)),
                                bytes_text(static_cast<double>(address_space_of_libraries()))));
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
    *index = current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    if (!is_device(index))
        return fail(cudaErrorInvalidDevice, fmt::format("there is no device {}; there are {}", index, device_count()));
    current = index;
    return device_error();
}
