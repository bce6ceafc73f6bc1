// SmolLM3 (Hugging Face, 2025) as Hugging Face's SmolLM3ForCausalLM: LLaMA with a tied head, and without rotation in
// each fourth layer.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily smollm3_family();  // presets "tiny", "3b"

}  // namespace teon
