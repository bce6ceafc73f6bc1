#include "model/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace teon {

std::vector<float> rotary_frequencies(const DecoderConfig& c) {
    std::vector<float> frequencies;
    if (c.positions != PositionKind::rotary) return frequencies;
    for (int j = 0; j < c.HS() / 2; ++j) {
        const double frequency = std::pow(static_cast<double>(c.rope_base), -2.0 * j / c.HS());
        double kept = 0.0;  // the share that is not divided
        if (c.rope_original_context > 0) {
            const double turns = c.rope_original_context * frequency / (2.0 * std::numbers::pi);
            kept = std::clamp((turns - c.rope_low_turns) / (c.rope_high_turns - c.rope_low_turns), 0.0, 1.0);
        }
        frequencies.push_back(static_cast<float>(frequency * (kept + (1.0 - kept) / c.rope_scaling)));
    }
    return frequencies;
}

}  // namespace teon
