// The plan of a run: everything that follows from the options before anything is allocated, namely model, data, steps,
// optimizer plan, placement on the ranks, micro-batch, activations and memory. Nothing here touches a device, so
// --plan-only makes a plan and prints it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "model/activation_plan.h"
#include "model/decoder_config.h"
#include "optim/placement.h"
#include "options/options.h"

namespace teon {

// What the memory of a run is for.
enum class MemoryPart {
    masters,
    weight_copy,
    weight_windows,
    gradients,
    gradient_windows,
    gradient_sums,
    sent_gradients,
    optimizer_state,
    optimizer_scratch,
    alignment,
    samples,
    checkpoint,
    gpu_libraries,
    program,
    gpu_exchange,
    exchange,
    saved,
    scratch,
    offloaded
};
template <>
inline constexpr auto kEnumNames<MemoryPart> =
    enum_names<MemoryPart>({{MemoryPart::masters, "weights, float masters"},
                            {MemoryPart::weight_copy, "weights, bf16"},
                            {MemoryPart::weight_windows, "weights, windows"},
                            {MemoryPart::gradients, "gradients, float"},
                            {MemoryPart::gradient_windows, "gradients, windows"},
                            {MemoryPart::gradient_sums, "gradients, own sums"},
                            {MemoryPart::sent_gradients, "gradients, bf16, being sent"},
                            {MemoryPart::optimizer_state, "optimizer state"},
                            {MemoryPart::optimizer_scratch, "optimizer scratch"},
                            {MemoryPart::alignment, "alignment of layers, for a moment"},
                            {MemoryPart::samples, "samples"},
                            {MemoryPart::checkpoint, "checkpoint being written"},
                            {MemoryPart::gpu_libraries, "CUDA and libraries, allowance"},
                            {MemoryPart::program, "program, libraries, allowance"},
                            {MemoryPart::gpu_exchange, "NCCL, allowance"},
                            {MemoryPart::exchange, "MPI, allowance"},
                            {MemoryPart::saved, "activations, saved"},
                            {MemoryPart::scratch, "activations, scratch"},
                            {MemoryPart::offloaded, "activations, offloaded"}});
using Memory = std::vector<std::pair<MemoryPart, int64_t>>;  // bytes of each

struct RunPlan {
    const ModelFamily* family = nullptr;
    Options options;  // resolved
    bool is_gpu = false;
    int ranks = 1;  // devices that share the work
    DecoderConfig config;
    DecoderRun run;  // micro-batch, storage type, attention, recompute policy
    std::string dtype_reason;
    std::string ns_dtype_reason;  // empty: nothing is orthogonalized by Newton-Schulz
    ParamTable params;
    OptimizerPlan optimizer_plan;
    Placement placement;  // of the optimizer's work on the ranks
    DataSet train, val;   // val has no shards if there is no validation data
    int64_t data_tokens = 0;
    int64_t steps = 0;  // 0 if neither flags nor data give it (--plan-only)
    int64_t eval_windows = 0;
    // What the user should know, as {"note" or "warning", text}; the last lines of the report.
    std::vector<std::pair<std::string, std::string>> notes;

    // Set by plan_memory() (plan/memory.h), as are the micro-batch and the recompute policy in `run`.
    Sharding sharding = Sharding::optimizer;
    int micro_steps = 1;  // gradient accumulation: micro-batches per step and rank
    ActivationPlan activations;
    Memory memory, host_memory;  // of the process: on the device and, for a GPU, in the host's pinned memory
};

// Plans everything except memory. Throws UsageError with one line if the run cannot work.
RunPlan plan_run(const ModelFamily& family, const Options& options, bool is_gpu, int ranks);

// Whether the flags exclude Sharding::all.
inline bool needs_whole_weights(const Options& o) { return o.sample_every > 0 || o.check_ranks; }
// Sets the delimiter of data whose manifest does not name it to --delimiter. Throws UsageError if the manifest names
// another one, or if --document-mask is given and the delimiter is not known.
void set_delimiter(const Options& o, DataSet& data);
// Returns the parameters that a rank keeps under the plan's sharding.
ParamShard shard_of(const RunPlan& plan, int rank);
Exchange exchange_of(const RunPlan& plan);

}  // namespace teon
