// A model family: everything that distinguishes GPT-2 from LLaMA. Each family is one file (gpt2.cpp, llama.cpp, ...).
// The decoder itself depends only on DecoderConfig.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/fields.h"

namespace teon {

class HfReader;

// A key of the family's Hugging Face config.json. It either belongs to a field, or has write() and is read by the
// family's read_hf.
struct HfKey {
    std::string key, field = {};
    // The value if the file lacks the key, computed from the fields read before it. Empty: the key is required.
    std::function<Json(const DecoderConfig&)> otherwise = nullptr;
    // Pairs of transformers' value and the field's value. Writing uses the first match. Empty: the values are equal.
    std::vector<std::pair<std::string, std::string>> values = {};
    std::function<Json(const DecoderConfig&)> write = nullptr;
};

// For HfKey: a function that returns `value` for every model.
template <typename T>
auto always(T value) {
    return [value](const DecoderConfig&) { return value; };
}

// How the config.json of a model with a window differs from the family's: by another model_type and class, where
// transformers has them (none: the family's own), and by further keys, which replace those of hf_keys. The first of
// model_types is written, all are read.
struct HfWindow {
    std::vector<std::string> model_types = {};
    std::string hf_class = {};
    std::vector<HfKey> keys;
};

// All activations with or without a gate, for ModelFamily::mlps.
std::vector<ActivationKind> activations(bool gated);
// The key of a config.json that names the MLP's activation among them. otherwise: what a file without the key means.
HfKey activation_key(const std::string& key, ActivationKind otherwise);

struct ModelFamily {
    std::string name;   // "gpt2": also config.json's model_type and the end of the program's name
    std::string title;  // "GPT-2"
    std::string default_preset;
    std::vector<DecoderConfig> presets;
    std::vector<ActivationKind> mlps;  // the choices of --mlp

    std::string hf_class;        // "GPT2LMHeadModel"
    std::vector<HfKey> hf_keys;  // in the order of the file, without the keys that all families share
    HfWindow hf_window;
    bool hf_tied_head = false;  // the default of tie_word_embeddings
    // Reads the keys without a field: requires the values that are implemented here and ignores keys that do not
    // change logits.
    void (*read_hf)(DecoderConfig& c, HfReader& r);

    ModelFields fields = model_fields();

    std::string program() const { return "train_" + name; }
    DecoderConfig config(const std::string& preset) const;  // throws UsageError if the preset is unknown
    bool reads(const std::string& model_type) const;        // whether it is that of the family's models
    bool has_flag(const ModelField& field) const;
    std::string help(const ModelField& field) const;
};

// Returns the model's config.json for AutoModelForCausalLM.from_pretrained. delimiter: the token that begins and ends
// documents; -1: none. Throws UsageError naming a field that reading the file back would not restore, because the
// family's config.json has no key for it.
Json hf_config(const ModelFamily& family, const DecoderConfig& c, int delimiter = -1);

// Returns the model that a config.json describes: sizes, norm epsilon, activation, rotary base and scaling, window,
// tied or untied head. Its model_type must be that of a family of `among`. `path` is for messages. Throws UsageError
// naming a key that is missing, contradictory, unknown or asks for something that is not implemented here. Sets
// `harmless` to the keys that the family does not read, but that are known to change no result.
DecoderConfig decoder_config(const Json& j, const std::vector<ModelFamily>& among, const std::string& path,
                             std::vector<std::string>* harmless = nullptr);

}  // namespace teon
