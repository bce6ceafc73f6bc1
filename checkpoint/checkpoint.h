// A checkpoint: a folder step_%08d/, which has this name only once it is complete.
//
//   config.json, model.safetensors     as Hugging Face's transformers opens them, and tokenizer files; a large model in
//                                      several files with model.safetensors.index.json. The weights are the float
//                                      masters: there is no other copy of them
//   tokenizer/                         the data's tokenizer folder as it is
//   optimizer/state.safetensors        momentum and AdamW moments as stored
//   optimizer/master.safetensors       master weights as stored, with padding, of parameters with padding that is not
//                                      zero. Only numerical accidents cause this
//   trainer.json                       TrainingState
//   manifest.json                      size and XXH3 of each file above, and a hash of itself; written last
//
// Beside the checkpoints, --keep-best has best.json, step and loss of the one with the lowest validation loss, and
// where the disk has symbolic links the link `best` to it.
//
// checkpoint/checkpoint_writer.h writes checkpoints; this file finds, verifies and reads them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "files/json.h"
#include "model/param_store.h"
#include "optim/optimizer.h"

namespace teon {

// The first `bytes` bytes of a log, and their hash.
struct LogPosition {
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
};

// The evaluation with a run's lowest validation loss so far (train/best.h).
struct BestEvaluation {
    double loss = std::numeric_limits<double>::infinity();
    int64_t step = 0;   // of the first evaluation with this loss; 0: none yet
    int64_t since = 0;  // evaluations after it
    int64_t last = 0;   // step of the last evaluation
};
Json to_json(const BestEvaluation& best);
BestEvaluation best_evaluation(const Json& j, const std::string& where);  // throws Error naming it and the key

// The state, besides weights and optimizer state, that a run needs to continue as if it had not stopped.
struct TrainingState {
    int64_t step = 0;  // optimizer steps done, skipped ones included
    int64_t tokens = 0;
    int64_t next_sample = 0;         // the loader's position: a global sample index
    StepControl control;             // updates applied and the guard's statistics
    bool interim = false;            // due by time, not by step: the next checkpoint replaces it
    std::optional<LogPosition> log;  // the end of metrics.jsonl, if the run has one
    BestEvaluation best;             // none in version 0.2.0
    Json run;                        // options, model and data, which --resume compares (plan/description.h)
};
Json to_json(const TrainingState& state);
TrainingState training_state(const Json& j, const std::string& path);  // throws Error naming path and key

inline constexpr const char* kBestLink = "best";
inline constexpr const char* kBestFile = "best.json";

std::string checkpoint_name(int64_t step);                        // "step_00001000"
std::optional<int64_t> checkpoint_step(const std::string& name);  // step of such a name; nullopt for any other name

// ---- manifest -----------------------------------------------------------------------------------

struct ManifestEntry {
    std::string path;  // relative to the folder
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
};
// Returns the text of manifest.json. It ends in a hash of itself, which detects any change.
std::string manifest_text(int64_t step, const std::vector<ManifestEntry>& files);

// Returns why the folder is not a whole checkpoint (the file at fault and what was expected of it), or nullopt if it is
// whole. Reads and hashes every file. Throws ReadError if the system cannot read a file, because the checkpoint may be
// whole; a fault of the content is returned.
std::optional<std::string> checkpoint_fault(const std::string& folder);

// For programs that read a model without its training state. Throws Error if the files of `path`, a folder or a single
// file, differ from the manifest.json beside them. Does nothing if there is no manifest.json.
void verify_model(const std::string& path);

// ---- finding and reading ------------------------------------------------------------------------

struct FoundCheckpoint {
    std::string folder;                                            // empty: there is none
    std::vector<std::pair<std::string, std::string>> passed_over;  // newer, damaged checkpoints: folder, fault
};
std::string faults_of(const FoundCheckpoint& checkpoint);  // of the damaged ones, as one text
// Returns the newest whole checkpoint of a run's folder. The run may save and remove checkpoints at the same time.
FoundCheckpoint find_checkpoint(const std::string& run_folder);
// Returns the steps of the checkpoints in a run's folder, whole or not, in ascending order; none if there is no such
// folder. Throws ReadError if the folder cannot be read.
std::vector<int64_t> list_checkpoints(const std::string& run_folder);

// Returns the step of the checkpoint that best.json names, or, in runs of versions without it, the link `best`;
// nullopt: there is no such checkpoint. Throws Error if best.json is damaged.
std::optional<int64_t> best_checkpoint(const std::string& run_folder);
// Throws UsageError if something else than a link has the link's name, which the link would replace.
void check_best_link(const std::string& run_folder);

// Returns the step of the newest whole checkpoint before which no update was skipped: the last good state (weights that
// are not finite are never saved). nullopt: there is none. Reads and hashes that checkpoint, and newer ones that are
// damaged.
std::optional<int64_t> newest_good_checkpoint(const std::string& run_folder);

TrainingState read_training_state(const std::string& folder);
// Sets master weights, working weights and optimizer state to the saved bits. Throws Error naming file and tensor if a
// tensor is absent (unless it may be: StateTensor) or has another shape.
void read_tensors(const std::string& folder, ParamStore& params, const std::vector<StateTensor>& state,
                  const Stream& stream);

}  // namespace teon
