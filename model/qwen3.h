// Qwen3 (arXiv 2505.09388) as Hugging Face's Qwen3ForCausalLM: LLaMA with RMSNorm of each query and key head, a head
// size independent of C / NH and, in the small models, a tied head.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily qwen3_family();  // presets "tiny", "0.6b", "4b", "8b"

}  // namespace teon
