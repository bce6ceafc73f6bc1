#include "model/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace teon {

namespace {

// Returns the share of frequency j that is not divided.
double kept_share(const DecoderConfig& c, int j, double frequency) {
    if (c.rope_original_context == 0) return 0.0;
    const double whole_circle = 2.0 * std::numbers::pi;
    if (c.rope_attention == 0) {
        const double turns = c.rope_original_context * frequency / whole_circle;
        return std::clamp((turns - c.rope_low_turns) / (c.rope_high_turns - c.rope_low_turns), 0.0, 1.0);
    }
    // YaRN rounds the j at which the original context has this number of turns.
    const auto j_of = [&](double turns) {
        return c.HS() * std::log(c.rope_original_context / (turns * whole_circle)) / (2.0 * std::log(c.rope_base));
    };
    const double fast = std::max(std::floor(j_of(c.rope_high_turns)), 0.0);
    const double slow = std::min(std::ceil(j_of(c.rope_low_turns)), c.HS() - 1.0);
    return 1.0 - std::clamp((j - fast) / (slow == fast ? 0.001 : slow - fast), 0.0, 1.0);
}

}  // namespace

std::vector<float> rotary_frequencies(const DecoderConfig& c, int layer) {
    std::vector<float> frequencies;
    if (!c.rotates(layer)) return frequencies;
    for (int j = 0; j < c.HS() / 2; ++j) {
        const double frequency = std::pow(static_cast<double>(c.rope_base), -2.0 * j / c.HS());
        const double kept = c.scales_positions(layer) ? kept_share(c, j, frequency) : 1.0;
        frequencies.push_back(static_cast<float>(frequency * (kept + (1.0 - kept) / c.rope_scaling)));
    }
    return frequencies;
}

}  // namespace teon
