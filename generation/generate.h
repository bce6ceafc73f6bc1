// Text from a checkpoint, from the command line to the exit status.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generation/sampling.h"
#include "model/family.h"

namespace teon {

// A folder with config.json and model.safetensors, or its index and shards: a checkpoint of ours, or a published
// model of one of the families.
struct PublishedModel {
    std::string folder;  // or the file
    DecoderConfig config;
    TextLimits limits;                // of config.json, and of generation_config.json where that says more
    std::vector<std::string> unused;  // names of tensors
    std::string content;              // the same for equal weights: a sampled hash (files/file.h)
};

// What is said of a model beside its weights, of which nothing is read: folder, config and limits. Throws as
// open_model().
PublishedModel describe_model(const std::string& folder, const std::vector<ModelFamily>& families);

// "MODEL: not used: A, B, C and 9 others"; empty if everything is.
std::string unused_text(const PublishedModel& model);

// `folder`, or the newest whole checkpoint in it if it is a run's. What a checkpoint's manifest lists is verified.
// Throws Error naming the file and the fault, also what its config.json says that cannot be computed here and weights
// that are not those of such a model.
PublishedModel open_model(const std::string& folder, const std::vector<ModelFamily>& families);

// The tokenizer of a checkpoint folder (in tokenizer/ or beside the weights), or nullptr if it has none.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& folder);

// 0: done; 1: failed; 2: usage. Errors are one line on standard error, beginning "generate: error:".
int generate_main(const std::vector<ModelFamily>& families, int argc, const char* const* argv);

}  // namespace teon
