// A checkpoint: a folder step_%08d/, which has this name only once it is complete.
//
//   config.json, model.safetensors     as Hugging Face's transformers opens them, and tokenizer files; a large model in
//                                      several files with model.safetensors.index.json. The weights are the float
//                                      masters: there is no other copy of them
//   tokenizer/                         the data's tokenizer folder as it is
//   optimizer/state.safetensors        momentum and AdamW moments as stored
//   optimizer/master.safetensors       master weights as stored, with padding: of the parameters whose padding is not
//                                      zero, which is none but after numerical accidents (versions before 0.2: of all)
//   trainer.json                       TrainingState
//   manifest.json                      size and XXH3 of each file above and of itself; written last
//
// checkpoint/checkpoint_writer.h writes it; this file finds, verifies and reads it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/param_store.h"
#include "optim/optimizer.h"

namespace teon {

// The first `bytes` bytes of a log, and their hash.
struct LogPosition {
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
};

// What a run needs, beside weights and optimizer state, to continue as if it had not stopped.
struct TrainingState {
    int64_t step = 0;  // optimizer steps done, skipped ones included
    int64_t tokens = 0;
    int64_t next_sample = 0;         // the loader's position: a global sample index
    StepControl control;             // updates applied and what the guard knows
    bool interim = false;            // due by the clock alone: the next checkpoint replaces it
    std::optional<LogPosition> log;  // the end of metrics.jsonl; none in checkpoints of versions before 0.2
    nlohmann::json run;              // options, model and data, which --resume compares (plan/description.h)
};
nlohmann::json to_json(const TrainingState& state);
TrainingState training_state(const nlohmann::json& j, const std::string& path);  // throws Error naming path and key

std::string checkpoint_name(int64_t step);                        // "step_00001000"
std::optional<int64_t> checkpoint_step(const std::string& name);  // of such a name; nullopt for any other

// ---- manifest -----------------------------------------------------------------------------------

struct ManifestEntry {
    std::string path;  // relative to the folder
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
};
// The text of manifest.json. It ends in a hash of itself, which detects any change.
std::string manifest_text(int64_t step, const std::vector<ManifestEntry>& files);

// Why the folder is not a whole checkpoint: the file at fault and what was expected of it; nullopt if it is whole.
// Reads and hashes everything. Throws only ReadError, because a checkpoint that the system cannot read may be whole.
std::optional<std::string> checkpoint_fault(const std::string& folder);

// For readers of a model without its training state: throws Error unless the files of `path`, a folder or a single
// file, are those that the manifest.json beside them lists. Without a manifest.json, there is nothing to compare.
void verify_model(const std::string& path);

// ---- finding and reading ------------------------------------------------------------------------

struct FoundCheckpoint {
    std::string folder;                                            // empty: there is none
    std::vector<std::pair<std::string, std::string>> passed_over;  // newer ones: folder, fault
};
// The newest whole checkpoint of a run's folder.
FoundCheckpoint find_checkpoint(const std::string& run_folder);
// Steps of the checkpoints in a run's folder, whole or not, ascending. None where there is no such folder; ReadError
// where it cannot be read.
std::vector<int64_t> list_checkpoints(const std::string& run_folder);

// Step of the newest whole checkpoint of a run's folder before which no update was skipped: the last good state
// (weights that are not finite are never saved). Reads and hashes all of it, and of those newer ones that turn out
// damaged. nullopt: there is none.
std::optional<int64_t> newest_good_checkpoint(const std::string& run_folder);

TrainingState read_training_state(const std::string& folder);
// Sets master weights, working weights and optimizer state to the saved bits. Throws Error naming file and tensor if
// one is absent or has another shape.
void read_tensors(const std::string& folder, ParamStore& params, const std::vector<StateTensor>& state,
                  const Stream& stream);

}  // namespace teon
