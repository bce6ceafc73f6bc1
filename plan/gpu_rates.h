// Rates of GPUs in bf16 for plan/step_time.h, fitted to published measurements (docs/distributed.md).
#pragma once

namespace teon {

// FLOP/s of matrix products at large K (half of it at K = kHalfK), FLOP/s of attention at large T (half of it at
// T = half_T), bytes/s of device memory, bytes/s sent over NVLink, and bytes/s over PCIe in each direction while both
// are busy.
struct GpuRates {
    double products, attention, half_T, memory, nvlink, pcie;
};
inline constexpr double kHalfK = 491;
inline constexpr GpuRates kH200 = {7.56e+14, 4.21e+14, 628, 4e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kH100 = {7.56e+14, 4.21e+14, 827, 2.8e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kA100 = {2.85e+14, 1.38e+14, 436, 1.7e+12, 2e+11, 2.1e+10};

}  // namespace teon
