// Rates of GPUs in bf16, fitted to published measurements (docs/gpu_step.md), for plan/step_time.h. To make this file
// again: bench/model_gpu.py rates > plan/gpu_rates.h
#pragma once

namespace teon {

// FLOP/s of the library's products and of attention where sums and sequences are long (half of it at K = kHalfK and at
// T = half_T), bytes/s of memory, bytes/s that a GPU sends over NVLink, and to the host and from it at once.
struct GpuRates {
    double products, attention, half_T, memory, nvlink, pcie;
};
inline constexpr double kHalfK = 507;
inline constexpr GpuRates kH200 = {7.57e+14, 4.21e+14, 626, 4e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kH100 = {7.57e+14, 4.21e+14, 825, 2.8e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kA100 = {2.86e+14, 1.4e+14, 339, 1.7e+12, 2e+11, 2.1e+10};

}  // namespace teon
