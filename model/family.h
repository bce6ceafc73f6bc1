// A model family: everything that distinguishes GPT-2 from LLaMA. Each is one file (gpt2.cpp, llama.cpp, ...); the
// decoder knows only DecoderConfig.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/decoder_config.h"

namespace teon {

class HfReader;

struct ModelFamily {
    std::string name;   // "gpt2": also config.json's model_type and the end of the program's name
    std::string title;  // "GPT-2"
    std::string default_preset;
    std::vector<DecoderConfig> presets;
    std::vector<MlpKind> mlps;  // what --mlp may choose from

    // The family's own fields of config.json, for AutoModelForCausalLM.from_pretrained, and back.
    nlohmann::ordered_json (*write_hf)(const DecoderConfig& c);
    void (*read_hf)(DecoderConfig& c, HfReader& r);

    std::string program() const { return "train_" + name; }
    DecoderConfig config(const std::string& preset) const;  // throws UsageError on an unknown preset
};

const std::vector<ModelFamily>& families();  // all that there are

// config.json of this model, as its family has it. delimiter: the token that begins and ends documents, -1 for none.
nlohmann::ordered_json hf_config(const DecoderConfig& c, int delimiter);

// The model that a config.json describes, of the family among `among` that its model_type names: sizes, norm epsilon,
// activation, rotary base and scaling, tied or untied head. `path` is for messages. Throws UsageError naming what is
// missing, contradicts itself, is not understood or is not computed here.
DecoderConfig decoder_config(const nlohmann::json& j, const std::vector<ModelFamily>& among, const std::string& path);

}  // namespace teon
