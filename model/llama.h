// LLaMA (Touvron et al. 2023) as Hugging Face's LlamaForCausalLM: rotary positions, RMSNorm, SwiGLU, no biases.
#pragma once

#include <string>
#include <vector>

#include "model/decoder.h"

namespace teon {

std::vector<std::string> llama_presets();               // "tiny", "60m", "130m", "350m", "1b"
DecoderConfig llama_config(const std::string& preset);  // throws UsageError on an unknown preset

}  // namespace teon
