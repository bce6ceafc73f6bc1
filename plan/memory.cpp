#include "plan/memory.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "model/decoder.h"

namespace teon {

namespace {

// Elements of what one product writes: a matrix, or several that are joined.
int64_t largest_gradient(const ParamTable& params) {
    int64_t largest = 0, joined = 0;
    for (const ParamRow& row : params.rows()) {
        joined = row.joined ? joined + row.size() : row.size();
        largest = std::max(largest, joined);
    }
    return largest;
}

// For a GPU's context, kernel code, cuBLASLt and cuSOLVER with their workspaces, and NCCL's buffers, from what NVIDIA's
// libraries are known to take; for the program, its libraries and MPI on a CPU, as measured.
constexpr int64_t kGpuAllowance = int64_t{1} << 30, kNcclAllowance = int64_t{512} << 20,
                  kCpuAllowance = int64_t{128} << 20, kMpiAllowance = int64_t{64} << 20;

constexpr const char *kMasters = "weights, float masters", *kState = "optimizer state";

using Memory = std::vector<std::pair<std::string, int64_t>>;

int64_t total(const Memory& memory) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : memory) sum += bytes;
    return sum;
}

// What a GPU's run with --offload keeps on the host.
bool is_offloaded(const RunPlan& p, const std::string& name) {
    return p.options.offload && p.is_gpu && (name == kState || (name == kMasters && p.run.dtype == DType::bf16));
}

// Parameters, gradients and optimizer state of a rank that owns these parts.
Memory parameter_memory(const RunPlan& p, const ParamShard& shard, int64_t state_bytes) {
    const ParamLayouts held(p.params, p.run.dtype, shard);
    const auto weight_bytes = static_cast<int64_t>(size_of(p.run.dtype));
    Memory memory = {{kMasters, 4 * held.masters.size()},
                     {"weights, bf16", 2 * held.copy.size()},
                     {"weights, windows", weight_bytes * held.weight_windows.size()},
                     {held.sums.size() > 0 ? "gradients, windows" : "gradients, float", 4 * held.gradients.size()},
                     {"gradients, own sums", 4 * held.sums.size()},
                     {kState, state_bytes}};
    std::erase_if(memory, [](const auto& part) { return part.second == 0; });
    return memory;
}

// That of the rank with the most.
Memory largest_parameter_memory(const RunPlan& p) {
    const std::vector<int64_t>& state = p.placement.state_bytes;
    if (p.sharding == Sharding::none)
        return parameter_memory(p, {p.sharding}, std::accumulate(state.begin(), state.end(), int64_t{0}));
    std::vector<std::vector<Part>> own(static_cast<size_t>(p.ranks));
    for (const Part& part : Ownership(p.params, p.optimizer_plan, p.placement, p.options.optimizer).all())
        own[static_cast<size_t>(part.root)].push_back(part);
    Memory largest;
    for (size_t r = 0; r < own.size(); ++r)
        if (Memory memory = parameter_memory(p, {p.sharding, std::move(own[r])}, state[r]);
            total(memory) > total(largest))
            largest = std::move(memory);
    return largest;
}

// Memory beside activations.
void plan_fixed_memory(RunPlan& p) {
    const Options& o = p.options;
    const int64_t P = p.params.size();
    const std::vector<int64_t>& state = p.placement.state_bytes;
    p.memory = largest_parameter_memory(p);
    p.host_memory.clear();
    for (const auto& part : p.memory)
        if (is_offloaded(p, part.first)) p.host_memory.push_back(part);
    std::erase_if(p.memory, [&](const auto& part) { return is_offloaded(p, part.first); });
    if (p.ranks > 1 && o.grad_comm_dtype == DType::bf16) {
        const Ownership ownership(p.params, p.optimizer_plan, p.placement, o.optimizer);
        const int64_t bucket_bytes = p.sharding >= Sharding::gradients ? 0 : kBucketBytes;
        const int64_t elements = exchange_elements(gradient_buckets(p.params, ownership, bucket_bytes));
        p.memory.push_back({"gradients, bf16, being sent", 2 * elements});
    }
    const bool divided = p.sharding != Sharding::none;
    p.memory.push_back({"optimizer scratch", divided ? p.placement.scratch_bytes : p.optimizer_plan.scratch_bytes});
    if (o.autotune) p.memory.push_back({"algorithm search, for a moment", 4 * largest_gradient(p.params)});
    if (o.sample_every) p.memory.push_back({"samples", generator_bytes(p.config, 1, p.config.max_T, p.run.dtype)});
    // Rank 0's, of all ranks' state; and the largest tensor once more, in its file's order. On a CPU it is the same
    // memory.
    const int64_t all_state = std::accumulate(state.begin(), state.end(), int64_t{0});
    (p.is_gpu ? p.host_memory : p.memory)
        .push_back({"checkpoint being written", 4 * P + all_state + 4 * largest_gradient(p.params)});
    p.memory.push_back(p.is_gpu ? std::pair{"CUDA and libraries, allowance", kGpuAllowance}
                                : std::pair{"program, libraries, allowance", kCpuAllowance});
    if (p.ranks > 1)
        p.memory.push_back(p.is_gpu ? std::pair{"NCCL, allowance", kNcclAllowance}
                                    : std::pair{"MPI, allowance", kMpiAllowance});
}

// Sizes the micro-batch and the recomputation together: the least recomputation that leaves room for a useful
// micro-batch (8192 tokens, or the rank's whole step if that is less; the largest that fits, if that one does not),
// then the largest divisor of the rank's sequences that fits. Where nothing does, the head computes fewer logits at a
// time; false: not even then.
bool fit_to_memory(RunPlan& p, int64_t memory_bytes, int64_t fixed_bytes) {
    const Options& o = p.options;
    const int64_t sequences = o.batch_tokens / o.seq_len / p.ranks;
    const int64_t most_tokens = p.is_gpu ? 65536 : 4096;  // beyond this, larger products are no faster
    const int64_t useful = std::min<int64_t>(8192, std::min(most_tokens, sequences * o.seq_len));
    const int64_t room = memory_bytes - fixed_bytes;
    auto fits = [&](int B, const RecomputePlan& recompute) {
        p.run.B = B;
        p.run.recompute = recompute;
        return decoder_activations(p.config, p.run).total_bytes() <= room;
    };
    const std::vector<RecomputePlan> plans =
        o.recompute == Recompute::automatic ? recompute_plans(p.config.L) : std::vector<RecomputePlan>{o.recompute};
    std::vector<int> sizes;  // largest first
    if (o.micro_batch > 0) {
        sizes = {o.micro_batch};
    } else {
        for (int64_t B = std::min(sequences, std::max<int64_t>(1, most_tokens / o.seq_len)); B >= 1; --B)
            if (sequences % B == 0) sizes.push_back(static_cast<int>(B));
    }
    auto smallest_useful = std::find_if(sizes.begin(), sizes.end(), [&](int B) { return B * o.seq_len < useful; });
    if (smallest_useful != sizes.begin()) --smallest_useful;
    for (auto wanted = smallest_useful; wanted != sizes.end(); ++wanted)
        for (const RecomputePlan& recompute : plans) {
            if (!fits(*wanted, recompute)) continue;
            auto largest = sizes.begin();
            while (!fits(*largest, recompute)) ++largest;  // leaves it in p.run
            return true;
        }
    if (p.run.head_rows == 0) return false;
    p.run.head_rows = 0;
    return fit_to_memory(p, memory_bytes, fixed_bytes);
}

[[noreturn]] void refuse(const RunPlan& p, int64_t memory_bytes, int64_t fixed_bytes) {
    const int64_t wanted = fixed_bytes + decoder_activations(p.config, p.run).total_bytes();
    std::vector<std::string> parts;
    for (const auto& [name, bytes] : p.memory) parts.push_back(name + " " + bytes_text(static_cast<double>(bytes)));
    throw UsageError(
        fmt::format("{} needs {} at --micro-batch {} --recompute {}, but {} are there ({}, the rest activations); {}",
                    p.options.model, bytes_text(static_cast<double>(wanted)), p.run.B, text(p.run.recompute),
                    bytes_text(static_cast<double>(memory_bytes)), fmt::join(parts, ", "), memory_advice(p)));
}

}  // namespace

std::string memory_advice(const RunPlan& p) {
    std::vector<std::string> ways;
    if (p.run.B > 1) ways.push_back("lower --micro-batch");
    if (p.run.recompute.others != Recompute::block) ways.push_back("give --recompute block");
    if (p.run.T > 1) ways.push_back("lower --seq-len");
    if (p.ranks > 1 && p.sharding != Sharding::all) ways.push_back("give --shard all");
    if (p.is_gpu && !p.options.offload && p.options.optimizer.method != Method::soap)
        ways.push_back("give --offload optimizer");
    if (p.options.optimizer.method == Method::adamw) ways.push_back("give --optimizer muon (half of AdamW's state)");
    return fmt::format("{} or use a smaller model", fmt::join(ways, ", "));
}

int64_t memory_bytes(const RunPlan& p) { return total(p.memory); }

int64_t usable_bytes(const DeviceInfo& device, int ranks, int local_ranks) {
    if (ranks == 1) return static_cast<int64_t>(0.94 * static_cast<double>(device.free_bytes));
    return static_cast<int64_t>(0.9 * static_cast<double>(device.total_bytes)) / (device.is_gpu ? 1 : local_ranks);
}

void plan_memory(RunPlan& p, int64_t bytes, int one_pass_places) {
    p.run.one_pass_places = one_pass_places;
    std::vector<Sharding> shardings = {Sharding::none};
    if (p.ranks > 1 && p.options.shard) {
        shardings = {*p.options.shard};
    } else if (p.ranks > 1) {
        shardings = {Sharding::optimizer, Sharding::gradients};
        if (!needs_whole_weights(p.options)) shardings.push_back(Sharding::all);
    }
    const DecoderRun run = p.run;
    for (const Sharding sharding : shardings) {
        p.sharding = sharding;
        p.run = run;
        p.run.keeps_fp8_weights = sharding != Sharding::all;
        plan_fixed_memory(p);
        if (fit_to_memory(p, bytes, memory_bytes(p))) break;
        if (sharding == shardings.back()) refuse(p, bytes, memory_bytes(p));
    }
    p.activations = decoder_activations(p.config, p.run);
    p.memory.push_back({"activations, saved", p.activations.saved_bytes()});
    p.memory.push_back({"activations, scratch", p.activations.scratch_bytes()});
    p.micro_steps = static_cast<int>(p.options.batch_tokens / p.options.seq_len / p.ranks / p.run.B);
    p.options.micro_batch = p.run.B;
}

}  // namespace teon
