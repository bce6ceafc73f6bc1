// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU in either form (or squared ReLU), biases, tied head.
#pragma once

#include "model/family.h"

namespace teon {

ModelFamily gpt2_family();  // presets "tiny", "small", "base", "large"

}  // namespace teon
