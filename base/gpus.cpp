#include "base/gpus.h"

#include "base/text.h"

namespace teon {

namespace {

struct Variant {
    std::string_view name;
    double tflops;
};
// GB200: "NVIDIA GB200 NVL72", 360 PFLOPS with sparsity for 72 GPUs.
constexpr Variant kVariants[] = {
    {"MIG", 0}, {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H800", kH100.tflops}, {"A800", kA100.tflops}, {"GB200", 2500}};

}  // namespace

std::string short_name(const GpuSheet& gpu) {
    std::string name;
    for (const char* letter = gpu.model; *letter; ++letter)
        if (*letter != ' ') name += *letter;
    return name;
}

static std::string plan_name(const GpuSheet& gpu) { return lower_case(short_name(gpu)); }

std::vector<std::string> plan_names() {
    std::vector<std::string> names;
    for (const GpuModel& gpu : kGpus) names.push_back(plan_name(gpu.sheet));
    return names;
}

const GpuModel* known_gpu(std::string_view name) {
    for (const GpuModel& gpu : kGpus)
        if (name == plan_name(gpu.sheet) || name == gpu.sheet.title) return &gpu;
    return nullptr;
}

double peak_bf16_flops(std::string_view device_name) {
    const auto contains = [&](std::string_view name) { return device_name.find(name) != std::string_view::npos; };
    for (const Variant& variant : kVariants)
        if (contains(variant.name)) return variant.tflops * 1e12;
    for (const GpuModel& gpu : kGpus)
        if (contains(gpu.sheet.model)) return gpu.sheet.tflops * 1e12;
    return 0;
}

}  // namespace teon
