// The frequencies of rotary positions, in radians per token.
#pragma once

#include <vector>

#include "model/decoder_config.h"

namespace teon {

// Returns the HS / 2 frequencies rope_base^(-2j/HS) of a layer, scaled if the layer scales positions: divided by
// rope_scaling or, with Llama 3.1's scaling ("The Llama 3 Herd of Models", arXiv 2407.21783; transformers' rope_type
// "llama3") and YaRN's (arXiv 2309.00071; "yarn"), divided only if they are slow. A frequency between the two limits is
// a mixture of both, linear in its turns in the original context or, for YaRN, in j. Returns nothing for a layer
// without rotation.
std::vector<float> rotary_frequencies(const DecoderConfig& c, int layer);

}  // namespace teon
