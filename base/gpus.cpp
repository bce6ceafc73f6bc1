#include "base/gpus.h"

#include <cctype>

#include "base/text.h"

namespace teon {

namespace {

struct Variant {
    std::string_view name;  // whole words of what the device reports
    double tflops;          // 0: unknown
};
// Devices whose names hold a row's, with other FLOP/s; the first row that fits counts. NVIDIA's data sheets print twice
// these, with sparsity: H100 PCIe (some report its HBM2e instead) and H800 PCIe 1,513, H100 NVL and H200 NVL 1,671,
// GB200 NVL72 360 PFLOPS for 72 GPUs.
constexpr Variant kVariants[] = {
    {"MIG", 0},         {"Laptop GPU", 0},      {"RTX 4090 D", 0},       {"RTX 5090 D", 0},
    {"H100 PCIe", 756}, {"H800 PCIe", 756},     {"HBM2e", 756},          {"H100 NVL", 835},
    {"H200 NVL", 835},  {"H800", kH100.tflops}, {"GH200", kH100.tflops}, {"A800", kA100.tflops},
    {"GB200", 2500}};

// Whether `words` stand in the name, with no letter or digit before or behind them: A100 is not in "RTX A1000".
bool has_words(std::string_view name, std::string_view words) {
    const auto is_end = [&](size_t at) {
        return at >= name.size() || !std::isalnum(static_cast<unsigned char>(name[at]));
    };
    for (size_t at = name.find(words); at != std::string_view::npos; at = name.find(words, at + 1))
        if ((at == 0 || is_end(at - 1)) && is_end(at + words.size())) return true;
    return false;
}

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
    for (const Variant& variant : kVariants)
        if (has_words(device_name, variant.name)) return variant.tflops * 1e12;
    for (const GpuModel& gpu : kGpus)
        if (has_words(device_name, gpu.sheet.model)) return gpu.sheet.tflops * 1e12;
    return 0;
}

}  // namespace teon
