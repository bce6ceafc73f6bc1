// Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115) as Hugging Face's Qwen2ForCausalLM: LLaMA with biases of queries,
// keys and values and, in the small models, a tied head.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily qwen2_family();  // presets "tiny", "0.5b", "1.5b", "3b", "7b"

}  // namespace teon
