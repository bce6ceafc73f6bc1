// Parses flags and plans runs for tests.
#pragma once

#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "model/gpt2.h"
#include "model/llama.h"
#include "options/parse_options.h"
#include "plan/memory.h"
#include "plan/run_plan.h"
#include "test/support/catch.h"

namespace teon::test {

inline const ModelFamily kGpt2 = gpt2_family();
inline const ModelFamily kLlama = llama_family();

inline std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

inline std::optional<Options> parse(const std::vector<std::string>& flags, const ModelFamily& family = kGpt2) {
    const std::string program = family.program();
    std::vector<const char*> argv = {program.c_str()};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    return parse_options(family, static_cast<int>(argv.size()), argv.data());
}

inline RunPlan make_plan(const ModelFamily& family, const Options& options, bool is_gpu, int64_t memory, int ranks = 1,
                         const GpuRates* gpu = nullptr) {
    RunPlan plan = plan_run(family, options, is_gpu, ranks);
    plan_memory(plan, memory, gpu);
    return plan;
}

// A plan of these flags, without data.
inline RunPlan planned(const std::string& flags, const ModelFamily& family = kGpt2, int64_t gib = 80, int ranks = 1,
                       bool is_gpu = true) {
    return make_plan(family, *parse(words("--plan-only " + flags), family), is_gpu, gib << 30, ranks);
}

// Returns the program's error message for these flags on a GPU of 80 GiB, "" if they are valid.
inline std::string complaint(const std::vector<std::string>& flags, const ModelFamily& family = kGpt2) {
    return error_of<UsageError>([&] {
        if (const std::optional<Options> o = parse(flags, family)) make_plan(family, *o, true, int64_t{80} << 30);
    });
}

}  // namespace teon::test
