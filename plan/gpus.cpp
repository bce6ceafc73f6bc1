#include "plan/gpus.h"

namespace teon {

namespace {

// Multiprocessors, compute capability and shared memory of a block from NVIDIA's tuning guides; memory as nvidia-smi
// shows it; the dense bf16 rate with float sums from its data sheets.
KnownGpu gpu(const char* name, const char* full_name, int multiprocessors, int capability, size_t shared_kib,
             size_t memory_mib, double tflops, const GpuRates& rates, double spread = kStepTimeSpread) {
    const size_t memory = memory_mib << 20;
    return {name,
            {full_name, true, multiprocessors, capability, shared_kib << 10, memory, memory, tflops * 1e12},
            rates,
            spread};
}

// Returns rates of a GPU that was not calibrated: the shares of the data sheet that products reach on an H100, and
// attention and memory on an A100 (312 TFLOP/s, 2039 GB/s). mma_tflops: bf16 by mma.sync, by which attention multiplies
// on all but sm_90. memory in GB/s; link, to a neighbour, and pcie in bytes/s.
GpuRates by_data_sheet(double tflops, double mma_tflops, double memory, double link, double pcie) {
    return {kH100.products / 989e12 * tflops * 1e12,
            kA100.attention / 312e12 * mma_tflops * 1e12,
            kA100.half_T,
            kA100.memory / 2039e9 * memory * 1e9,
            link,
            pcie};
}

}  // namespace

const std::vector<KnownGpu>& known_gpus() {
    constexpr double kPcie4 = kA100.pcie, kPcie5 = kH100.pcie;
    // GeForce cards exchange through the host's memory, which their data cross twice. B200's NVLink has twice H100's
    // rate, and its multiprocessors have A100's mma.sync, 2048 FLOP a cycle, at 1.965 GHz.
    static const std::vector<KnownGpu> all = {
        gpu("h100", "NVIDIA H100 80GB HBM3", 132, 90, 227, 81559, 989, kH100),
        gpu("h200", "NVIDIA H200", 132, 90, 227, 143771, 989, kH200),
        gpu("a100", "NVIDIA A100-SXM4-80GB", 108, 80, 163, 81920, 312, kA100),
        gpu("b200", "NVIDIA B200", 148, 100, 227, 183359, 2250,
            by_data_sheet(2250, 148 * 2048 * 1.965e-3, 8000, 2 * kH100.nvlink, kPcie5), kDataSheetSpread),
        gpu("l40s", "NVIDIA L40S", 142, 89, 99, 46068, 362, by_data_sheet(362, 362, 864, kPcie4, kPcie4),
            kDataSheetSpread),
        gpu("rtx4090", "NVIDIA GeForce RTX 4090", 128, 89, 99, 24564, 165,
            by_data_sheet(165, 165, 1008, kPcie4 / 2, kPcie4), kDataSheetSpread),
        gpu("rtx5090", "NVIDIA GeForce RTX 5090", 170, 120, 99, 32607, 210,
            by_data_sheet(210, 210, 1792, kPcie5 / 2, kPcie5), kDataSheetSpread)};
    return all;
}

}  // namespace teon
