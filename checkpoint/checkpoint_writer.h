// Writes checkpoints (checkpoint/checkpoint.h) while training continues.
//
// save() queues a copy of weights and state to pinned memory on the stream. A thread waits for that copy, writes it to
// step_X.tmp/, fsyncs every file and folder, then renames the folder. A failure or a kill at any point leaves older
// checkpoints intact.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "files/file_ops.h"

namespace teon {

struct SaveResult {
    int64_t step = 0;
    std::string folder;
    std::string fault;    // empty: saved
    std::string warning;  // saved, but an old checkpoint could not be removed, or this one not be made the best
    double seconds = 0;   // from the copy's end to the rename
    int64_t bytes = 0;
};

struct CheckpointPlan {
    std::string run_folder;
    // Makes the log so far durable before the checkpoint is durable, because resuming cuts the log at the checkpoint's
    // step. If it throws, nothing is saved. Called from the writer's thread; may be empty.
    std::function<void()> sync_log;
    std::string config;                   // the text of config.json
    int64_t shard_bytes = 5'000'000'000;  // most bytes of a model file: the default of transformers' save_pretrained
    // The tokenizer's files: path within the checkpoint (at most one folder deep), content.
    std::vector<std::pair<std::string, std::string>> extra_files;
    // Each save removes all but the newest `keep_last` checkpoints; 0: only interim ones. The last good one stays, and
    // so does the best one.
    int64_t keep_last = 0;
    int64_t keep_every = 0;  // multiples of this step are kept too; 0: none
};

// Calls f(begin, end) for consecutive pieces of [0, n) of at most window_size elements.
template <typename F>
void for_each_window(int64_t n, int64_t window_size, F f) {
    for (int64_t begin = 0; begin < n; begin += window_size) f(begin, std::min(n, begin + window_size));
}

class CheckpointWriter {
public:
    // Allocates pinned memory for a copy of the master weights and the optimizer state. `params` and the memory that
    // `state` points to must outlive this object.
    CheckpointWriter(CheckpointPlan plan, const ParamStore& params, std::vector<StateTensor> state,
                     FileOps& files = system_files());
    ~CheckpointWriter();  // waits for the save in flight

    // Begins to save the state that results from the work queued on the stream. Waits for an earlier save, never for
    // this one. Weights that are not finite are not saved, and the result names them. If the state is not whole on this
    // device, collected(begin, end) copies elements [begin, end), at most `window` of them, of the master weights
    // followed by the state, tensor after tensor, to the device. best: the loss that mark_best() gets, if this
    // checkpoint is the best.
    void save(const TrainingState& state, const Stream& stream,
              const std::function<const float*(int64_t begin, int64_t end)>& collected = nullptr, int64_t window = 0,
              std::optional<double> best = std::nullopt);
    // Makes the run's best.json and link `best` name the checkpoint of `step`, once the save in flight is done. Does
    // nothing if there is no such checkpoint. Returns the fault, or "". While best.json could not be written, nothing
    // is removed; each save tries again.
    std::string mark_best(int64_t step, double loss);
    // Returns the result of a save that finished since the last call; if `wait`, waits for the save in flight. nullopt:
    // there is none.
    std::optional<SaveResult> result(bool wait);
    // Removes the checkpoints before step `newest` that keep_last and keep_every do not keep, but neither the best one
    // nor the last good one, which it first reads back. Every save does this; call it on resuming because a kill may
    // come between a save and its removals. Returns the fault, or "".
    std::string remove_old(int64_t newest);

private:
    class StagedFolder;
    std::string folder_of(int64_t step) const;
    const float* weights(int row) const { return copy_.data() + weights_at_[static_cast<size_t>(row)]; }
    void check_finite() const;  // throws Error if a weight of the copy is not finite
    void write(const TrainingState& state, const std::string& staged);
    void write_model(StagedFolder& folder) const;
    void write_optimizer(StagedFolder& folder) const;
    void save_copy(const TrainingState& state, std::optional<double> best);
    // Writes best.json for unmarked_, or throws Error. Returns why the link could not be made, or "".
    std::string write_best();

    CheckpointPlan plan_;
    const ParamStore& params_;
    std::vector<StateTensor> state_;
    FileOps& files_;
    std::vector<int64_t> weights_at_;  // offset in copy_ of each parameter's master weights, then of the state
    PinnedBuffer<float> copy_;         // master weights, then each state tensor
    Event copied_;
    std::thread thread_;
    std::atomic<bool> running_ = false;
    std::optional<std::pair<int64_t, double>> unmarked_;  // step and loss of the best one until best.json has them
    SaveResult result_;                                   // used by the thread while running_, then by this object
    bool reported_ = true;
};

}  // namespace teon
