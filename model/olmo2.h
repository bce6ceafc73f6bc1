// OLMo 2 (arXiv 2501.00656) as Hugging Face's Olmo2ForCausalLM: LLaMA with norms after attention and MLP instead of
// before them, and RMSNorm of all query heads and of all key heads together.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily olmo2_family();  // presets "tiny", "1b", "7b"

}  // namespace teon
