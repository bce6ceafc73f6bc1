// LLaMA (Touvron et al. 2023) as Hugging Face's LlamaForCausalLM: rotary positions, RMSNorm, SwiGLU.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily llama_family();  // presets "tiny", "60m", "130m", "350m", "1b", "3b", "7b"

}  // namespace teon
