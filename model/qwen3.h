// Qwen3 (arXiv 2505.09388) as Hugging Face's Qwen3ForCausalLM: LLaMA with RMSNorm of query and key heads, a head size
// of its own, and a tied head where it is small.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily qwen3_family();  // presets "tiny", "0.6b"
inline DecoderConfig qwen3_config(const std::string& preset) { return qwen3_family().config(preset); }

}  // namespace teon
