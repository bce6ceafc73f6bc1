// A model's description as Hugging Face's config.json has it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/decoder.h"

namespace teon {

// GPT2Config or LlamaConfig of this model, for AutoModelForCausalLM.from_pretrained. delimiter: the token that begins
// and ends documents, -1 for none.
nlohmann::ordered_json hf_config(const DecoderConfig& c, int delimiter);

// The model that a config.json of GPT2Config or LlamaConfig describes, over `base`: names and what else its family has
// in common. `path` is for messages. Throws UsageError naming what this code does not compute.
DecoderConfig decoder_config(const nlohmann::json& j, const DecoderConfig& base, const std::string& path);

}  // namespace teon
