#include "plan/memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "generation/generator.h"
#include "model/decoder.h"
#include "optim/diagnostics.h"
#include "plan/step_time.h"

namespace teon {

namespace {

// Returns the elements of the largest gradient that one product writes: of a matrix, or of several joined ones.
int64_t largest_gradient(const ParamTable& params) {
    int64_t largest = 0;
    int64_t joined = 0;
    for (const ParamRow& row : params.rows()) {
        joined = row.joined ? joined + row.size() : row.size();
        largest = std::max(largest, joined);
    }
    return largest;
}

// Allowances. On a GPU: for its context, kernel code, cuBLASLt and cuSOLVER with their workspaces, and NCCL's buffers,
// from the known sizes of NVIDIA's libraries. On a CPU: for the program, its libraries and MPI, as measured.
constexpr int64_t kGpuAllowance = int64_t{1} << 30;
constexpr int64_t kNcclAllowance = int64_t{512} << 20;
constexpr int64_t kCpuAllowance = int64_t{128} << 20;
constexpr int64_t kMpiAllowance = int64_t{64} << 20;

// Times that differ by less are as good as equal: then the plan that divides less is taken.
constexpr double kNoLonger = 1.02;

int64_t total(const Memory& memory) {
    int64_t sum = 0;
    for (const auto& [part, bytes] : memory) sum += bytes;
    return sum;
}

// Whether --offload keeps this part in the host's memory; on a CPU nothing moves.
bool is_offloaded(const RunPlan& p, MemoryPart part) {
    return offloads_optimizer(p.options.offload) && p.is_gpu &&
           (part == MemoryPart::optimizer_state || (part == MemoryPart::masters && p.run.dtype == DType::bf16));
}

// "optimizer state 1.50 GiB"
std::string part_text(MemoryPart part, int64_t bytes) {
    return fmt::format("{} {}", name_of(part), bytes_text(static_cast<double>(bytes)));
}

// Returns the memory of parameters, gradients and optimizer state of a rank with this shard.
Memory parameter_memory(const RunPlan& p, const ParamShard& shard, int64_t state_bytes) {
    const ParamLayouts held(p.params, p.run.dtype, shard);
    const auto weight_bytes = static_cast<int64_t>(size_of(p.run.dtype));
    Memory memory = {
        {MemoryPart::masters, 4 * held.masters.size()},
        {MemoryPart::weight_copy, 2 * held.copy.size()},
        {MemoryPart::weight_windows, weight_bytes * held.weight_windows.size()},
        {held.sums.size() > 0 ? MemoryPart::gradient_windows : MemoryPart::gradients, 4 * held.gradients.size()},
        {MemoryPart::gradient_sums, 4 * held.sums.size()},
        {MemoryPart::optimizer_state, state_bytes}};
    std::erase_if(memory, [](const auto& part) { return part.second == 0; });
    return memory;
}

// Returns parameter_memory() of the rank with the most.
Memory largest_parameter_memory(const RunPlan& p) {
    const std::vector<int64_t>& state = p.placement.state_bytes;
    if (p.sharding == Sharding::none)
        return parameter_memory(p, {p.sharding}, std::accumulate(state.begin(), state.end(), int64_t{0}));
    std::vector<std::vector<Part>> parts_of_rank(static_cast<size_t>(p.ranks));
    for (const Part& part : p.placement.all_parts()) parts_of_rank[static_cast<size_t>(part.root)].push_back(part);
    Memory largest;
    for (size_t r = 0; r < parts_of_rank.size(); ++r)
        if (Memory memory = parameter_memory(p, {p.sharding, std::move(parts_of_rank[r])}, state[r]);
            total(memory) > total(largest))
            largest = std::move(memory);
    return largest;
}

// Plans all memory except activations.
void plan_fixed_memory(RunPlan& p) {
    const Options& o = p.options;
    const int64_t P = p.params.size();
    const std::vector<int64_t>& state = p.placement.state_bytes;
    p.memory = largest_parameter_memory(p);
    const auto offloaded = std::stable_partition(p.memory.begin(), p.memory.end(),
                                                 [&](const auto& row) { return !is_offloaded(p, row.first); });
    p.host_memory.assign(offloaded, p.memory.end());
    p.memory.erase(offloaded, p.memory.end());
    if (p.ranks > 1 && o.grad_comm_dtype == DType::bf16) {
        const int64_t bucket_bytes = p.sharding >= Sharding::gradients ? 0 : kBucketBytes;
        const int64_t elements = exchange_elements(gradient_buckets(p.params, p.placement, bucket_bytes));
        p.memory.push_back({MemoryPart::sent_gradients, 2 * elements});
    }
    const bool divided = p.sharding != Sharding::none;
    p.memory.push_back(
        {MemoryPart::optimizer_scratch, divided ? p.placement.scratch_bytes : p.optimizer_plan.scratch_bytes});
    if (o.diagnose_every) p.memory.push_back({MemoryPart::alignment, diagnostics_bytes(p.params, p.ranks)});
    if (o.sample_every)
        p.memory.push_back(
            {MemoryPart::samples,
             generator_bytes(p.config, 1, sample_capacity(o.sampling, o.sampling.prompt.size() + 2, p.config.max_T),
                             p.run.dtype)});
    // Rank 0's copy of the masters and of all ranks' state, and the largest tensor once more, in its file's order. On a
    // CPU the host's memory is the device's.
    const int64_t all_state = std::accumulate(state.begin(), state.end(), int64_t{0});
    (p.is_gpu ? p.host_memory : p.memory)
        .push_back({MemoryPart::checkpoint, 4 * P + all_state + 4 * largest_gradient(p.params)});
    p.memory.push_back(p.is_gpu ? std::pair{MemoryPart::gpu_libraries, kGpuAllowance}
                                : std::pair{MemoryPart::program, kCpuAllowance});
    if (p.ranks > 1)
        p.memory.push_back(p.is_gpu ? std::pair{MemoryPart::gpu_exchange, kNcclAllowance}
                                    : std::pair{MemoryPart::exchange, kMpiAllowance});
}

// FLOPs of products that an H100 computes while PCIe moves a byte; an A100 computes fewer.
constexpr double kFlopsPerByte = kH100Rates.products / kH100Rates.pcie;

// Returns how many blocks' activations can be copied to the host while the forward pass computes.
int hidden_blocks(const RunPlan& p, const RecomputePlan& recompute) {
    DecoderRun run = p.run;
    run.recompute = recompute;
    run.offloaded_blocks = 1;
    const auto bytes = static_cast<double>(decoder_activations(p.config, run).offloaded_bytes());
    const double flops = decoder_flops_per_token(p.config, run.T) / 3 * run.B * run.T;
    return static_cast<int>(std::min<double>(p.config.L - 2, flops / kFlopsPerByte / bytes));
}

// A way to hold fewer activations.
struct Saving {
    RecomputePlan recompute;
    int offloaded_blocks;
};

// Returns the ways that the flags leave open, the cheaper ones first: recomputation block by block, plus as much
// offload as computation hides if all blocks recompute the same, and last any amount of offload. The last one holds
// least. On a CPU, offload saves nothing.
std::vector<Saving> savings(const RunPlan& p) {
    const Options& o = p.options;
    const std::vector<RecomputePlan> plans =
        o.recompute == Recompute::automatic ? recompute_plans(p.config.L) : std::vector<RecomputePlan>{o.recompute};
    const bool offloads = p.is_gpu && offloads_activations(o.offload) && o.offload_blocks == 0 && p.config.L > 2;
    std::vector<Saving> all;
    for (const RecomputePlan& recompute : plans) {
        int most_blocks = o.offload_blocks;
        if (offloads && &recompute == &plans.back())
            most_blocks = p.config.L - 2;
        else if (offloads && recompute.first_blocks == 0)
            most_blocks = hidden_blocks(p, recompute);
        for (int blocks = o.offload_blocks; blocks <= most_blocks; ++blocks) all.push_back({recompute, blocks});
    }
    return all;
}

// Returns the activations' bytes in the memory that is planned for. On a CPU that includes offloaded ones.
int64_t activation_bytes(const RunPlan& p, const ActivationPlan& plan) {
    return plan.total_bytes() + (p.is_gpu ? 0 : plan.offloaded_bytes());
}

// Returns the micro-batches that --micro-batch leaves open, the largest first: divisors of the rank's sequences.
std::vector<int> micro_batches(const Options& o, int64_t sequences, int64_t max_tokens) {
    if (o.micro_batch > 0) return {o.micro_batch};
    std::vector<int> sizes;
    for (int64_t B = std::min(sequences, std::max<int64_t>(1, max_tokens / o.seq_len)); B >= 1; --B)
        if (sequences % B == 0) sizes.push_back(static_cast<int>(B));
    return sizes;
}

// Returns the run with a micro-batch and a saving.
DecoderRun with(DecoderRun run, int B, const Saving& saving) {
    run.B = B;
    run.recompute = saving.recompute;
    run.offloaded_blocks = saving.offloaded_blocks;
    return run;
}

// Returns the run with a micro-batch, recomputation and offload whose activations fit `room` bytes. Takes the cheapest
// saving that leaves room for a useful micro-batch (8192 tokens, or the rank's whole step if that is less; if no saving
// does, for the largest micro-batch that fits), and the largest micro-batch that fits with it. None if nothing fits.
std::optional<DecoderRun> cheapest_that_fits(const RunPlan& p, int64_t room) {
    const Options& o = p.options;
    const int64_t sequences = o.batch_tokens / o.seq_len / p.ranks;
    const int64_t max_tokens = p.is_gpu ? 65536 : 4096;  // beyond this, larger products are no faster
    const int64_t useful_tokens = std::min<int64_t>(8192, std::min(max_tokens, sequences * o.seq_len));
    const std::vector<int> sizes = micro_batches(o, sequences, max_tokens);
    const std::vector<Saving> all = savings(p);
    const auto activations = activation_planner(p.config);
    const auto fits = [&](int B, const Saving& saving) {
        return activation_bytes(p, activations(with(p.run, B, saving))) <= room;
    };
    auto useful = std::find_if(sizes.begin(), sizes.end(), [&](int B) { return B * o.seq_len < useful_tokens; });
    if (useful != sizes.begin()) --useful;
    for (auto B = useful; B != sizes.end(); ++B) {
        if (!fits(*B, all.back())) continue;  // it saves most
        const auto saving = std::find_if(all.begin(), all.end(), [&](const Saving& s) { return fits(*B, s); });
        const auto largest = std::find_if(sizes.begin(), sizes.end(), [&](int size) { return fits(size, *saving); });
        return with(p.run, *largest, *saving);
    }
    return std::nullopt;
}

// Decides on micro-batch, recomputation and offload. If nothing fits, tries again with a head that computes fewer
// logits at a time. Returns false if that does not fit either; the run is then the smallest.
bool fit_to_memory(RunPlan& p, int64_t memory_bytes, int64_t fixed_bytes) {
    const int64_t room = memory_bytes - fixed_bytes;
    std::optional<DecoderRun> run = cheapest_that_fits(p, room);
    if (!run && p.run.head_rows > 0 && !p.options.head_rows) {
        p.run.head_rows = 0;
        run = cheapest_that_fits(p, room);
    }
    p.run = run ? *run : with(p.run, p.options.micro_batch > 0 ? p.options.micro_batch : 1, savings(p).back());
    return run.has_value();
}

[[noreturn]] void refuse(const RunPlan& p, int64_t memory_bytes, int64_t fixed_bytes) {
    const int64_t needed_bytes = fixed_bytes + activation_bytes(p, decoder_activations(p.config, p.run));
    std::vector<std::string> parts;
    for (const auto& [part, bytes] : p.memory) parts.push_back(part_text(part, bytes));
    throw UsageError(fmt::format(
        "{} needs {} at --micro-batch {} --recompute {}{}, but only {} are available ({}, the rest activations); {}",
        p.options.model, bytes_text(static_cast<double>(needed_bytes)), p.run.B, text(p.run.recompute),
        p.run.offloaded_blocks > 0 ? fmt::format(" --offload-blocks {}", p.run.offloaded_blocks) : "",
        bytes_text(static_cast<double>(memory_bytes)), joined(parts, ", "), memory_advice(p)));
}

// Returns the shardings that the flags permit, from the one that divides least.
std::vector<Sharding> permitted_shardings(const RunPlan& p) {
    if (p.ranks == 1) return {Sharding::none};
    if (p.options.shard) return {*p.options.shard};
    std::vector<Sharding> shardings = {Sharding::optimizer, Sharding::gradients};
    if (!needs_whole_weights(p.options)) shardings.push_back(Sharding::all);
    return shardings;
}

// Adds what depends on the run that fit_to_memory() found.
void plan_activations(RunPlan& p) {
    p.activations = decoder_activations(p.config, p.run);
    p.memory.push_back({MemoryPart::saved, p.activations.saved_bytes()});
    p.memory.push_back({MemoryPart::scratch, p.activations.scratch_bytes()});
    if (p.run.offloaded_blocks > 0)
        (p.is_gpu ? p.host_memory : p.memory).push_back({MemoryPart::offloaded, p.activations.offloaded_bytes()});
    p.micro_steps = static_cast<int>(p.options.batch_tokens / p.options.seq_len / p.ranks / p.run.B);
    p.options.micro_batch = p.run.B;
}

}  // namespace

std::string memory_advice(const RunPlan& p) {
    std::vector<std::string> ways;
    if (p.run.B > 1) ways.push_back("lower --micro-batch");
    if (p.run.recompute.others != Recompute::block) ways.push_back("give --recompute block");
    if (p.run.T > 1) ways.push_back("lower --seq-len");
    if (p.ranks > 1 && p.sharding != Sharding::all) ways.push_back("give --shard all");
    const bool optimizer = offloads_optimizer(p.options.offload);
    const bool activations = offloads_activations(p.options.offload);
    if (p.is_gpu && !optimizer) ways.push_back(activations ? "give --offload all" : "give --offload optimizer");
    if (p.is_gpu && !activations && p.config.L > 2)
        ways.push_back(optimizer ? "give --offload all" : "give --offload activations");
    if (p.options.optimizer.method == Method::adamw) ways.push_back("give --optimizer muon (half of AdamW's state)");
    return fmt::format("{} or use a smaller model", joined(ways, ", "));
}

int64_t memory_bytes(const RunPlan& p) { return total(p.memory); }

void check_host_memory(const RunPlan& p, int local_ranks, int64_t available_bytes) {
    if (!p.is_gpu) return;  // p.memory has all
    int64_t bytes = 0;
    std::vector<std::string> parts;
    for (const auto& [part, part_bytes] : p.host_memory) {
        const bool of_rank_0 = part == MemoryPart::checkpoint;
        bytes += part_bytes * (of_rank_0 ? 1 : local_ranks);
        parts.push_back(part_text(part, part_bytes) + (of_rank_0 || local_ranks == 1 ? "" : " of each rank"));
    }
    CHECK_USAGE(bytes <= available_bytes,
                "the run pins {} of the host's memory, of which {} are available ({}); {}use a smaller model",
                bytes_text(static_cast<double>(bytes)), bytes_text(static_cast<double>(available_bytes)),
                joined(parts, ", "), p.options.offload != Offload::none ? "leave out --offload or " : "");
}

int64_t usable_bytes(const DeviceInfo& device, int ranks, int local_ranks) {
    if (ranks == 1) return static_cast<int64_t>(0.94 * static_cast<double>(device.free_bytes));
    return static_cast<int64_t>(0.9 * static_cast<double>(device.total_bytes)) / (device.is_gpu ? 1 : local_ranks);
}

void plan_memory(RunPlan& p, int64_t bytes, const GpuRates* gpu) {
    std::vector<RunPlan> fitting;
    const std::vector<Sharding> shardings = permitted_shardings(p);
    for (const Sharding sharding : shardings) {
        RunPlan plan = p;
        plan.sharding = sharding;
        plan.run.keeps_fp8_weights = sharding != Sharding::all;
        plan_fixed_memory(plan);
        const bool fits = fit_to_memory(plan, bytes, memory_bytes(plan));
        if (!fits && sharding == shardings.back() && fitting.empty()) refuse(plan, bytes, memory_bytes(plan));
        if (!fits) continue;
        plan_activations(plan);
        fitting.push_back(std::move(plan));
    }
    const auto seconds = [&](const RunPlan& plan) {
        return gpu && predicts_step_time(plan) ? step_time(plan, *gpu).total() : 0;
    };
    double shortest = seconds(fitting.front());
    for (const RunPlan& plan : fitting) shortest = std::min(shortest, seconds(plan));
    p = *std::find_if(fitting.begin(), fitting.end(),
                      [&](const RunPlan& plan) { return seconds(plan) <= kNoLonger * shortest; });
}

}  // namespace teon
