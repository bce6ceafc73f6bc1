// From options to everything that a run needs to know before it allocates: model, data, steps, optimizer plan,
// placement on the ranks, micro-batch, activations, memory. Nothing here touches a device, so --plan-only is this and a
// printout.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "model/decoder.h"
#include "optim/optimizer.h"
#include "optim/placement.h"
#include "plan/options.h"

namespace teon {

struct RunPlan {
    const ModelFamily* family = nullptr;
    Options options;  // resolved
    bool is_gpu = false;
    int ranks = 1;  // devices that share the work
    DecoderConfig config;
    DecoderRun run;  // micro-batch, storage type, attention, recompute policy
    std::string dtype_reason;
    ParamTable params;
    OptimizerPlan optimizer_plan;
    Placement placement;  // of it on the ranks
    DataSet train, val;   // of val: no shards if there is no validation data
    int64_t data_tokens = 0;
    int64_t steps = 0;  // 0 when the data is not known (--plan-only)
    int64_t eval_windows = 0;

    // What plan_memory() (plan/memory.h) decides, with run's micro-batch and recompute policy.
    Sharding sharding = Sharding::optimizer;
    int micro_steps = 1;  // gradient accumulation: micro-batches per step and rank
    ActivationPlan activations;
    // Bytes per category that the process holds, on the device and, on a GPU, beside it in pinned memory of the host.
    std::vector<std::pair<std::string, int64_t>> memory, host_memory;
};

// All but memory. Throws UsageError with one line on anything that cannot work.
RunPlan plan_run(const ModelFamily& family, const Options& options, bool is_gpu, int ranks);

// Whether the flags exclude Sharding::all.
inline bool needs_whole_weights(const Options& o) { return o.sample_every > 0 || o.check_ranks; }
// Throws UsageError if --document-mask is given for data whose delimiter is not known.
void check_document_mask(const Options& o, const DataSet& data);
// What a rank keeps of the parameters under the plan's sharding.
ParamShard shard_of(const RunPlan& plan, int rank);
Exchange exchange_of(const RunPlan& plan);

}  // namespace teon
