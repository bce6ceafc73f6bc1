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
    std::string warning;  // saved, but an old checkpoint could not be removed
    double seconds = 0;   // from the copy's end to the rename
    int64_t bytes = 0;
};

struct CheckpointPlan {
    std::string run_folder;
    // Makes the log so far durable before the checkpoint is: resuming cuts the log at the checkpoint's step. If it
    // throws, nothing is saved. Called from the writer's thread; may be empty.
    std::function<void()> sync_log;
    nlohmann::ordered_json hf_config;     // config.json
    int64_t shard_bytes = 5'000'000'000;  // of a model file at most, as transformers' save_pretrained divides models
    // The tokenizer: path within the folder (at most one folder deep), content.
    std::vector<std::pair<std::string, std::string>> extra_files;
    // After a save, older ones beyond this many are removed; 0: only interim ones are. The last good one never is.
    int64_t keep_last = 0;
    int64_t keep_every = 0;  // steps that are multiples of this are kept too
};

// Calls f(begin, end) for [0, n) in pieces of at most `most`.
template <typename F>
void for_each_window(int64_t n, int64_t most, F f) {
    for (int64_t begin = 0; begin < n; begin += most) f(begin, std::min(n, begin + most));
}

class CheckpointWriter {
public:
    // Allocates the pinned copy: as much as master weights and optimizer state. `params` and what `state` points at
    // outlive this.
    CheckpointWriter(CheckpointPlan plan, const ParamStore& params, std::vector<StateTensor> state,
                     FileOps& files = system_files());
    ~CheckpointWriter();  // waits for the save in flight

    // Begins a save of the state after the work queued on the stream. It waits for an earlier save, never for this one.
    // Weights that are not finite are not saved, and the result names them. collected(begin, end), if several ranks
    // share what is saved, returns elements [begin, end), at most `window` of them, of the master weights and then the
    // state, tensor after tensor.
    void save(const TrainingState& state, const Stream& stream,
              const std::function<const float*(int64_t begin, int64_t end)>& collected = nullptr, int64_t window = 0);
    // The result of a save that finished since the last call, or of the one in flight if `wait`; nullopt if there is
    // none.
    std::optional<SaveResult> result(bool wait);
    // Removes the checkpoints before step `newest` that keep_last and keep_every do not keep, after reading back the
    // last good one, which stays. Every save does this; call it on resuming after a kill that came between the two.
    // Returns the fault, if there was one.
    std::string remove_old(int64_t newest);

private:
    std::string folder_of(int64_t step) const;
    const float* weights(int row) const { return copy_.data() + weights_at_[static_cast<size_t>(row)]; }
    void check_finite() const;  // of the copy's weights; throws Error
    void write(const TrainingState& state, const std::string& staged);
    void save_copy(const TrainingState& state);

    CheckpointPlan plan_;
    const ParamStore& params_;
    std::vector<StateTensor> state_;
    FileOps& files_;
    std::vector<int64_t> weights_at_;  // where each parameter's master weights lie in copy_; last, where the state does
    PinnedBuffer<float> copy_;         // master weights, then each state tensor
    Event copied_;
    std::thread thread_;
    std::atomic<bool> running_ = false;
    SaveResult result_;  // the thread's while running_, then this object's
    bool reported_ = true;
};

}  // namespace teon
