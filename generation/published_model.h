// Models in checkpoints and published ones: config.json, weights and tokenizer in a folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generation/sampling.h"
#include "model/family.h"

namespace teon {

// A folder with config.json and model.safetensors, or its index and shards: a checkpoint of ours, or a published GPT-2,
// LLaMA or Qwen3.
struct PublishedModel {
    std::string folder;  // or the file
    DecoderConfig config;
    TextLimits limits;                // of config.json, and of generation_config.json where that says more
    std::vector<std::string> unused;  // names of tensors
    std::string content;              // a sampled hash of the weights (files/file.h)
};

// Folder, config and limits, from the files beside the weights, which are not read. Throws as open_model() does.
PublishedModel describe_model(const std::string& folder, const std::vector<ModelFamily>& families);

// "MODEL: not used: A, B, C and 9 others"; empty if everything is.
std::string unused_text(const PublishedModel& model);

// The model in `folder`, or in its newest whole checkpoint if it is a run's. The files that a checkpoint's manifest
// lists are verified. Throws Error naming the file and the fault, which may be a config.json that asks for what is not
// computed here or weights of another model.
PublishedModel open_model(const std::string& folder, const std::vector<ModelFamily>& families);

// The tokenizer of a checkpoint folder (in tokenizer/ or beside the weights), or nullptr if it has none.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& folder);

}  // namespace teon
