// What the flags of the training programs say (flags.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/published_model.h"
#include "files/json.h"
#include "model/decoder_run.h"
#include "model/family.h"
#include "model/param_layout.h"
#include "optim/optimizer_options.h"
#include "optim/schedule.h"
#include "options/sampling_options.h"
#include "runtime/cuda/device.h"

namespace teon {

// What is kept in the host's pinned memory. optimizer: its state and bf16's float masters. activations: those that
// blocks save for their backward pass.
enum class Offload { none, optimizer, activations, all };
template <>
inline constexpr auto kEnumNames<Offload> = enum_names<Offload>({{Offload::none, "none"},
                                                                 {Offload::optimizer, "optimizer"},
                                                                 {Offload::activations, "activations"},
                                                                 {Offload::all, "all"}});
constexpr bool offloads_optimizer(Offload o) { return o == Offload::optimizer || o == Offload::all; }
constexpr bool offloads_activations(Offload o) { return o == Offload::activations || o == Offload::all; }

struct Options {
    std::set<std::string> given_flags;   // on the command line or in a TOML file
    std::set<std::string> given_before;  // by --like, or when the run began whose config.json was read
    bool is_chosen(const std::string& flag) const { return given_flags.count(flag) || given_before.count(flag); }
    std::string config_fault;  // why the config.json of the resumed run could not be used; empty: it could
    // model
    std::string model;
    Json fields = Json::object();  // model fields that flags set over the preset, by key
    int seq_len = 1024;
    std::optional<DType> dtype;
    Recompute recompute = Recompute::automatic;
    MatmulDType matmul_dtype = MatmulDType::same;
    bool fast_accumulation = false;
    AttentionKind attention = AttentionKind::automatic;
    // data
    std::string data, val_data;
    bool shuffle = true, document_mask = false;
    int delimiter = -1;  // of data without a manifest.json; -1: not given
    // batch
    int64_t batch_tokens = 0;      // 0: by the device and the model (plan/run_plan.h)
    int micro_batch = 0;           // 0: automatic
    std::optional<int> head_rows;  // of the resumed run; they decide the order of the head's sums
    int64_t steps = 0, tokens = 0;
    double epochs = 0;
    // optimizer, orthogonalizer, teon
    std::string like, like_text;  // another program whose updates are made, and what a plan says of that
    OptimizerOptions optimizer;
    std::optional<DType> ns_dtype;  // nullopt: by the device and dtype (plan/run_plan.cpp)
    std::optional<float> adamw_lr;  // nullopt: by the model's width (plan/run_plan.cpp)
    float grad_clip = 1.0f;
    // schedule
    Schedule schedule;
    int64_t warmup_steps = -1;  // -1: schedule.warmup_ratio decides
    // run
    std::string out;
    uint64_t seed = 1337;
    int64_t eval_every = 250, eval_tokens = 0, log_every = 1, diagnose_every = 0;
    std::optional<bool> graphs;
    Kernels kernels = Kernels::fastest;
    std::optional<Sharding> shard;  // nullopt: by memory
    Offload offload = Offload::none;
    int offload_blocks = 0;              // 0: the fewest that fit
    DType grad_comm_dtype = DType::f32;  // or bf16
    int64_t memory = 0;                  // bytes; 0: what the device has
    // checkpoints
    int64_t checkpoint_every = 0, keep_last = 0, keep_every = 0;
    double checkpoint_minutes = 30;
    bool checkpoint_end = true, keep_best = false;
    int64_t patience = 0;  // evaluations; 0: none
    bool checkpoint_sync = false, stop_on_save_error = false, resume = false;
    std::string resumed_folder;  // as the value of --resume; it replaces --out
    std::string init_from;
    // The model of --init-from after it was read, or the checkpoint's model in a resumed run. Flags must agree with it.
    std::optional<PublishedModel> adopted;
    bool mixture_in_turn = true;  // LoaderOptions; false in resumed runs of 0.2
    double time_limit = 0;        // seconds; 0: none
    int exit_when_stopped = 0;    // the exit status
    // guards
    int max_skipped = 20;
    float skip_spikes = 0, warn_spikes = 0;  // standard deviations; 0: off
    // samples
    int64_t sample_every = 0;
    SamplingOptions sampling;
    // checks
    bool plan_only = false, eval_only = false;
    std::string plan_for;                  // a GPU of base/gpus.h; empty: this machine
    double price = 0;                      // of a GPU and hour; 0: not given
    bool eval_all = false;                 // with eval_only: all splits
    int eval_stride = 0;                   // with eval_only; 0: windows that do not overlap
    std::string hellaswag, hellaswag_out;  // with eval_only
    int ranks = 1;                         // with plan_only; a run's come from its launcher
    double bandwidth = 0;                  // GB/s per rank, for the plan's prediction; 0: none
    bool check_ranks = false, rank_logs = false;
    double comm_timeout = 600;                       // seconds
    std::pair<int64_t, int64_t> profile_steps = {};  // first and last; {0, 0}: none
};

}  // namespace teon
