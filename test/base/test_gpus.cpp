#include "base/gpus.h"

#include "test/support/catch.h"

using namespace teon;

TEST_CASE("base/gpus: the FLOP/s of a device follow from the name that it reports") {
    for (const GpuModel& gpu : kGpus) REQUIRE(peak_bf16_flops(gpu.sheet.title) == gpu.sheet.tflops * 1e12);
    // Data sheets, without sparsity: H100 PCIe 756, H100 NVL 835.
    REQUIRE(peak_bf16_flops("NVIDIA H100 PCIe") == 756e12);
    REQUIRE(peak_bf16_flops("NVIDIA H100 NVL") == 835e12);
    REQUIRE(peak_bf16_flops("NVIDIA H800") == 989e12);
    // The same part of a name, other FLOP/s.
    REQUIRE(peak_bf16_flops("NVIDIA H200 NVL") == 835e12);
    REQUIRE(peak_bf16_flops("NVIDIA H800 PCIe") == 756e12);
    REQUIRE(peak_bf16_flops("NVIDIA H100 80GB HBM2e") == 756e12);
    REQUIRE(peak_bf16_flops("NVIDIA GH200 480GB") == 989e12);
    for (const char* name : {"NVIDIA RTX A1000", "NVIDIA RTX A1000 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU",
                             "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 5090 Laptop GPU",
                             "NVIDIA GeForce RTX 5090 D", "NVIDIA L40", "NVIDIA H20", "NVIDIA GB2000"})
        REQUIRE(peak_bf16_flops(name) == 0);
    REQUIRE(peak_bf16_flops("NVIDIA GB200") == 360e15 / 2 / 72);
    REQUIRE(peak_bf16_flops("NVIDIA A800-SXM4-80GB") == 312e12);
    REQUIRE(peak_bf16_flops("NVIDIA A100-PCIE-40GB") == 312e12);
    REQUIRE(peak_bf16_flops("NVIDIA H100 80GB HBM3 MIG 3g.40gb") == 0);
    REQUIRE(peak_bf16_flops("Tesla V100-SXM2-16GB") == 0);
}

TEST_CASE("base/gpus: a row is found by the value of --plan-for and by the name that the device reports") {
    for (const char* name : {"rtx4090", "NVIDIA GeForce RTX 4090"})
        REQUIRE(std::string(known_gpu(name)->sheet.model) == "RTX 4090");
    for (const char* name : {"", "v100", "RTX 4090", "a CPU"}) REQUIRE(known_gpu(name) == nullptr);
    REQUIRE(plan_names().size() == std::size(kGpus));
}

TEST_CASE("base/gpus: a row without a figure, or with another model in its title, does not compile") {
    REQUIRE(is_complete(kGpus[0]));
    GpuModel gpu = kGpus[0];
    gpu.sheet.gb_per_s = 0;
    REQUIRE(!is_complete(gpu));
    gpu = kGpus[0];
    gpu.rates.pcie = 0;
    REQUIRE(!is_complete(gpu));
    gpu = kGpus[0];
    gpu.sheet.model = "RTX 4090";
    REQUIRE(!is_complete(gpu));
    REQUIRE(short_name(gpu.sheet) == "RTX4090");
}
