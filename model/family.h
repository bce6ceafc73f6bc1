// A model family: everything that distinguishes GPT-2 from LLaMA. Each is one file (gpt2.cpp, llama.cpp, ...); the
// decoder knows only DecoderConfig.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/fields.h"

namespace teon {

class HfReader;

// A key of the family's config.json of Hugging Face: a field's, or one with write() that the family's read_hf reads.
struct HfKey {
    std::string key, field = {};
    // What a file without the key means, from the fields before it. Empty: every file has it.
    std::function<nlohmann::json(const DecoderConfig&)> otherwise = nullptr;
    // transformers' value and the field's; the first of a field's value is written. Empty: they are the same.
    std::vector<std::pair<std::string, std::string>> values = {};
    std::function<nlohmann::ordered_json(const DecoderConfig&)> write = nullptr;
};

// For HfKey: one value, whatever the model.
template <typename T>
auto always(T value) {
    return [value](const DecoderConfig&) { return value; };
}

struct ModelFamily {
    std::string name;   // "gpt2": also config.json's model_type and the end of the program's name
    std::string title;  // "GPT-2"
    std::string default_preset;
    std::vector<DecoderConfig> presets;
    std::vector<MlpKind> mlps;  // what --mlp may choose from

    std::string hf_class;        // "GPT2LMHeadModel"
    std::vector<HfKey> hf_keys;  // in the order of the file; those that all families share are not among them
    bool hf_tied_head = false;   // what a config.json without tie_word_embeddings means
    // Reads the keys that are no field's: requires what is computed here, ignores what changes no logits.
    void (*read_hf)(DecoderConfig& c, HfReader& r);

    ModelFields fields = model_fields();

    std::string program() const { return "train_" + name; }
    DecoderConfig config(const std::string& preset) const;  // throws UsageError on an unknown preset
    bool has_flag(const ModelField& field) const;
};

// config.json of this model for AutoModelForCausalLM.from_pretrained. delimiter: the token that begins and ends
// documents, -1 for none. Throws UsageError naming a field that reading the file back would not give, because the
// family's config.json has no key for it.
nlohmann::ordered_json hf_config(const ModelFamily& family, const DecoderConfig& c, int delimiter = -1);

// The model that a config.json describes, of the family among `among` that its model_type names: sizes, norm epsilon,
// activation, rotary base and scaling, tied or untied head. `path` is for messages. Throws UsageError naming what is
// missing, contradicts itself, is not understood or is not computed here.
DecoderConfig decoder_config(const nlohmann::json& j, const std::vector<ModelFamily>& among, const std::string& path);

}  // namespace teon
