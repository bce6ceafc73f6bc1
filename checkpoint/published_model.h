// Models in folders, checkpoints or published ones: config.json, weights and tokenizer.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "files/json.h"
#include "model/family.h"

namespace teon {

class Tokenizer;

// The tokens that begin and end a text. In training data both are the delimiter.
struct TextLimits {
    int begin = -1;        // -1: unknown
    std::vector<int> end;  // any of these ends a text
    bool ends(int token) const { return std::find(end.begin(), end.end(), token) != end.end(); }
};

// A model in a folder with config.json and model.safetensors, or an index and shards: a checkpoint of a training run,
// or a published model of one of the families.
struct PublishedModel {
    std::string folder;                      // or the file of weights
    DecoderConfig config;                    // without dropout
    TextLimits limits;                       // from generation_config.json if there is one, else from config.json
    std::vector<std::string> unused;         // names of tensors that the model does not use
    std::vector<std::string> harmless_keys;  // of its config.json: unknown to the family, but without effect
    std::string content;                     // a sampled hash of the weights (files/file.h)
    float dropout = 0;                       // with which the model was trained
    std::string run = {};                    // the run whose newest checkpoint `folder` is; empty: it was named itself
    Json generation = Json::object();        // generation_config.json; empty: there is none
    bool endless = false;                    // it takes the end tokens of config.json away
};

// Returns folder, config and limits without reading the weights. Throws like open_model().
PublishedModel describe_model(const std::string& folder, const std::vector<ModelFamily>& families);

// Returns what a user should know about the model, one line each: "MODEL: not used: A, B, C and 9 others" for tensors,
// "MODEL: config.json: no effect on results: A, B" for keys, and how to take the run's best checkpoint (--keep-best) if
// the newest is another one.
std::vector<std::string> notes_on(const PublishedModel& model);

// Opens the model in a folder, the newest complete checkpoint of a run's folder, or the model hf:OWNER/NAME. Verifies
// the files that a checkpoint's manifest lists. Throws Error naming the file and the fault, for example a config.json
// that asks for something that is not implemented here, or weights of another model.
PublishedModel open_model(const std::string& name, const std::vector<ModelFamily>& families);

// Returns the tokenizer of a checkpoint folder (in tokenizer/ or beside the weights), or nullptr if it has none.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& folder);

}  // namespace teon
