// A model's description as Hugging Face's config.json has it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/decoder.h"

namespace teon {

// GPT2Config or LlamaConfig of this model, for AutoModelForCausalLM.from_pretrained. delimiter: the token that begins and ends
// documents, -1 for none.
nlohmann::ordered_json hf_config(const DecoderConfig& c, int delimiter);

}  // namespace teon
