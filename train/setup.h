// From options to everything a run needs to know before it allocates: sizes, shards, steps, micro-batches, memory.
// Nothing here touches a device, so --plan-only is this and a printout.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "model/decoder.h"
#include "optim/optimizer.h"
#include "optim/placement.h"
#include "train/options.h"

namespace teon {

// What the plan may assume of the device.
struct DeviceLimits {
    bool is_gpu = false;
    int64_t memory_bytes = 0;  // that the run may use on one of them
    int ranks = 1;             // devices that share the work
    int one_pass_places = 0;   // DecoderRun's
};

struct Setup {
    const ModelFamily* family = nullptr;
    Options options;
    DecoderConfig config;
    DecoderRun run;  // micro-batch, storage type, resolved recompute policy
    std::string dtype_reason;
    ParamTable params;
    ActivationPlan activations;
    OptimizerPlan optimizer_plan;
    Placement placement;  // of it on the ranks
    DataSet train, val;   // of val: no shards if there is no validation data
    int64_t data_tokens = 0;
    int64_t steps = 0;    // 0 when the data is not known (--plan-only)
    int micro_steps = 1;  // gradient accumulation: micro-batches per step and rank
    int64_t eval_windows = 0;
    // Bytes per category that the process holds, on the device and, on a GPU, beside it in pinned memory of the host.
    std::vector<std::pair<std::string, int64_t>> memory, host_memory;
    int64_t memory_bytes() const;
};

// Which flags would make a run smaller that does not fit: "lower --seq-len, give --optimizer muon (half of AdamW's state)
// or use a smaller model".
std::string memory_advice(const Setup& setup);

// Throws UsageError with one line on anything that cannot work.
Setup make_setup(const ModelFamily& family, const Options& options, const DeviceLimits& limits);

// The start-up tables: model, data and batch, memory, optimizer plan.
std::string setup_report(const Setup& setup);

}  // namespace teon
