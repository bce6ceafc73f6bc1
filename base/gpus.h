// The GPUs that plans, runs, benchmarks and the modelled GPU know: one row each.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace teon {

// What NVIDIA publishes. Multiprocessors, compute capability and shared memory from the tuning guides, memory as
// nvidia-smi shows it, rates from the data sheets (most of which print twice the FLOP/s, "with sparsity").
struct GpuSheet {
    const char* model;  // the part of `title` that variants with the same FLOP/s share. In small letters without blanks
                        // the value of --plan-for, in capitals that of CUDA_DEVICE.
    const char* title;  // the name that the device reports
    int capability;     // 90 for sm_90
    int multiprocessors;
    int shared_kib;  // the most shared memory of a block
    int memory_mib;
    double tflops;    // dense bf16 with float sums
    double gb_per_s;  // of device memory

    size_t block_shared() const { return static_cast<size_t>(shared_kib) << 10; }
};

// Rates in bf16: FLOP/s of matrix products at large K (half of it at K = kHalfK), FLOP/s of attention at large T (half
// of it at T = half_T), bytes/s of device memory, bytes/s sent over NVLink, and bytes/s over PCIe in each direction
// while both are busy.
struct GpuRates {
    double products, attention, half_T, memory, nvlink, pcie;
};
inline constexpr double kHalfK = 491;

struct GpuModel {
    GpuSheet sheet;
    GpuRates rates;
    double spread;  // the range of expected times, as a logarithm
};

// About two standard deviations of log(expected / measured) over the published steps in bench/published_steps.toml, all
// of which are within it (test/programs/test_plan.py).
inline constexpr double kStepTimeSpread = 0.13;
// For GPUs whose rates follow from their data sheets alone; no published step of theirs was compared.
inline constexpr double kDataSheetSpread = 0.4;

// Fitted to these steps and to published rates of attention kernels (docs/distributed.md), but for the links, which are
// two thirds of the data sheets' 450 and 300 GB/s of NVLink, and of 64 and 32 GB/s of PCIe 5 and 4.
inline constexpr GpuRates kH100Rates = {7.56e+14, 4.21e+14, 827, 2.8e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kH200Rates = {7.56e+14, 4.21e+14, 628, 4e+12, 3e+11, 4.2e+10};
inline constexpr GpuRates kA100Rates = {2.85e+14, 1.38e+14, 436, 1.7e+12, 2e+11, 2.1e+10};

// "NVIDIA H100 Tensor Core GPU", column SXM: 1,979 TFLOPS with sparsity, 3.35 TB/s
inline constexpr GpuSheet kH100 = {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 227, 81559, 989, 3350};
// "NVIDIA H200 Tensor Core GPU": 1,979 TFLOPS with sparsity, 141 GB at 4.8 TB/s
inline constexpr GpuSheet kH200 = {"H200", "NVIDIA H200", 90, 132, 227, 143771, 989, 4800};
// "NVIDIA A100 Tensor Core GPU", column 80GB SXM: 312 TFLOPS, 2,039 GB/s
inline constexpr GpuSheet kA100 = {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 163, 81920, 312, 2039};

// The row of a GPU that was not calibrated: the shares of the data sheet that products reach on an H100, and attention
// and memory on an A100. mma_tflops: bf16 by mma.sync, by which attention multiplies on all but sm_90. link, to a
// neighbour, and pcie in bytes/s.
constexpr GpuModel by_data_sheet(const GpuSheet& gpu, double mma_tflops, double link, double pcie) {
    return {gpu,
            {kH100Rates.products / kH100.tflops * gpu.tflops, kA100Rates.attention / kA100.tflops * mma_tflops,
             kA100Rates.half_T, kA100Rates.memory / kA100.gb_per_s * gpu.gb_per_s, link, pcie},
            kDataSheetSpread};
}

// GeForce cards exchange through the host's memory, which their data cross twice. B200's NVLink has twice H100's rate,
// and its multiprocessors have A100's mma.sync, 2048 FLOP a cycle, at 1.965 GHz.
inline constexpr GpuModel kGpus[] = {
    {kH100, kH100Rates, kStepTimeSpread},
    {kH200, kH200Rates, kStepTimeSpread},
    {kA100, kA100Rates, kStepTimeSpread},
    // "NVIDIA HGX B200", a GPU of eight: 4.5 PFLOPS with sparsity, 8 TB/s
    by_data_sheet({"B200", "NVIDIA B200", 100, 148, 227, 183359, 2250, 8000}, 148 * 2048 * 1.965e-3,
                  2 * kH100Rates.nvlink, kH100Rates.pcie),
    // "NVIDIA L40S": 362.05 TFLOPS, 864 GB/s
    by_data_sheet({"L40S", "NVIDIA L40S", 89, 142, 99, 46068, 362, 864}, 362, kA100Rates.pcie, kA100Rates.pcie),
    // "NVIDIA Ada GPU Architecture", appendix A: 165.2 TFLOPS with float sums (330.3 with sums in half), 1,008 GB/s
    by_data_sheet({"RTX 4090", "NVIDIA GeForce RTX 4090", 89, 128, 99, 24564, 165, 1008}, 165, kA100Rates.pcie / 2,
                  kA100Rates.pcie),
    // "NVIDIA RTX Blackwell GPU Architecture", appendix A: 209.5 TFLOPS with float sums (419 with sums in half),
    // 1,792 GB/s
    by_data_sheet({"RTX 5090", "NVIDIA GeForce RTX 5090", 120, 170, 99, 32607, 210, 1792}, 210, kH100Rates.pcie / 2,
                  kH100Rates.pcie),
};

constexpr bool is_complete(const GpuModel& gpu) {
    const GpuSheet& s = gpu.sheet;
    const GpuRates& r = gpu.rates;
    return std::string_view(s.title).find(s.model) != std::string_view::npos && s.capability > 0 &&
           s.multiprocessors > 0 && s.shared_kib > 0 && s.memory_mib > 0 && s.tflops > 0 && s.gb_per_s > 0 &&
           r.products > 0 && r.attention > 0 && r.half_T > 0 && r.memory > 0 && r.nvlink > 0 && r.pcie > 0 &&
           gpu.spread > 0;
}
constexpr bool rows_are_complete() {
    for (const GpuModel& gpu : kGpus)
        if (!is_complete(gpu)) return false;
    return true;
}
static_assert(rows_are_complete(), "a row of kGpus lacks a figure, or its title does not contain its model");

// Returns "RTX4090" of "RTX 4090".
std::string short_name(const GpuSheet& gpu);
std::vector<std::string> plan_names();  // the values of --plan-for: "rtx4090" of "RTX 4090"
// Returns the row of a value of --plan-for, or of a device that reports this name; nullptr if it is unknown.
const GpuModel* known_gpu(std::string_view name);

// Returns the dense bf16 FLOP/s of the GPU that reports this name, also of variants of a row with other FLOP/s; 0 if
// the GPU is unknown or a slice of one (MIG).
double peak_bf16_flops(std::string_view device_name);

}  // namespace teon
