// The implementations of flash attention: one row each. Private to kernels/attention/flash*.
#pragma once

#include <array>
#include <limits>
#include <string_view>

#include "kernels/attention/flash_hopper.h"
#include "kernels/attention/flash_hopper_backward.h"
#include "kernels/attention/flash_mma.h"
#include "kernels/attention/flash_mma_backward.h"

namespace teon {

struct FlashImplementation {
    std::string_view name;                  // the instruction that multiplies
    int first_capability, last_capability;  // of the device: 90 for sm_90, 0 for a CPU
    std::array<int, 2> head_sizes;          // 0: none
    DType dtype;
    bool (*has_code)(int head_size);  // whether this program has its kernels for the device
    void (*forward)(const FlashForward& a, const Stream& stream);
    int (*backward)(const FlashBackward& a, const Stream& stream);

    constexpr bool supports(int head_size, DType type) const {
        return type == dtype && head_size > 0 && (head_size == head_sizes[0] || head_size == head_sizes[1]);
    }
    constexpr bool supports(int head_size, DType type, int capability) const {
        return supports(head_size, type) && first_capability <= capability && capability <= last_capability;
    }
};

constexpr bool flash_always_has_code(int) { return true; }  // the build has mma for every device and for CPUs

// In order of preference: the first row that fits is used.
inline constexpr FlashImplementation kFlashImplementations[] = {
    {"wgmma",
     90,
     90,
     {64, 128},
     DType::bf16,
     flash_attention_hopper_has_code,
     flash_attention_hopper_forward,
     flash_attention_hopper_backward},
    {"mma",
     0,
     std::numeric_limits<int>::max(),
     {64, 128},
     DType::bf16,
     flash_always_has_code,
     flash_attention_mma_forward,
     flash_attention_mma_backward},
};

// Returns the implementation for a device, or nullptr. has_code(row): whether the program has the row's kernels.
template <typename F>
constexpr const FlashImplementation* flash_implementation(int capability, int head_size, DType dtype, F has_code) {
    for (const FlashImplementation& row : kFlashImplementations)
        if (row.supports(head_size, dtype, capability) && has_code(row)) return &row;
    return nullptr;
}

}  // namespace teon
