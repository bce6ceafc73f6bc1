#include "cpu/instructions.h"

#include <fmt/core.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>

namespace teon::cpu {

namespace {

// Returns whether oneDNN uses an instruction set. The sets are bit masks, which contain all bits of the sets they
// include.
bool uses(dnnl::cpu_isa isa) {
    const int number = static_cast<int>(isa);
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & number) == number;
}

// below: the value of DNNL_MAX_CPU_ISA for the next smaller set.
struct InstructionSet {
    dnnl::cpu_isa isa;
    const char *name, *below;
};

constexpr InstructionSet kNone = {dnnl::cpu_isa{}, "no vector instructions", nullptr};

// The largest set that oneDNN uses.
const InstructionSet& instruction_set() {
    using enum dnnl::cpu_isa;
    static constexpr InstructionSet kSets[] = {{avx512_core_amx, "AMX", "AVX512_CORE_BF16"},
                                               {avx512_core_bf16, "AVX512_BF16", "AVX512_CORE"},
                                               {avx512_core, "AVX512", "AVX2"},
                                               {avx2, "AVX2", "SSE41"},
                                               {avx, "AVX", "SSE41"},
                                               {sse41, "SSE4.1", nullptr}};
    const auto* set = std::find_if(std::begin(kSets), std::end(kSets), [](const auto& s) { return uses(s.isa); });
    return set == std::end(kSets) ? kNone : *set;
}

}  // namespace

bool multiplies_bf16() { return uses(dnnl::cpu_isa::avx512_core_bf16); }

bool packs_transposed_floats_slowly() { return !uses(dnnl::cpu_isa::avx512_core); }

std::string matmul_library() {
    const dnnl_version_t& v = *dnnl::version();
    return fmt::format("oneDNN {}.{}.{} with {}", v.major, v.minor, v.patch, instruction_set().name);
}

std::string matmul_remedy() {
    const char* below = instruction_set().below;
    return fmt::format("{}install another version of oneDNN",
                       below ? fmt::format("set DNNL_MAX_CPU_ISA={} or ", below) : "");
}

}  // namespace teon::cpu
