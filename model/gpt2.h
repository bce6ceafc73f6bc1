// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU, biases, tied head.
#pragma once

#include <string>
#include <vector>

#include "model/decoder.h"

namespace teon {

std::vector<std::string> gpt2_presets();               // "tiny", "small", "base", "large"
DecoderConfig gpt2_config(const std::string& preset);  // throws UsageError on an unknown preset

}  // namespace teon
