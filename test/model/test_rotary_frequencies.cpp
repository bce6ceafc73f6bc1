#include "model/rotary_frequencies.h"

#include <algorithm>
#include <cmath>

#include "model/llama.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

// The wavelength in tokens that a frequency has, as the definition of Llama 3.1's scaling states it.
static double wavelength(double frequency) { return 2.0 * M_PI / frequency; }

TEST_CASE("model/rotary_frequencies: unscaled, and divided by a factor") {
    DecoderConfig c = llama_family().config("tiny");
    c.head_size = 8;
    const std::vector<float> plain = rotary_frequencies(c, 0);
    REQUIRE(plain == std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f});
    c.rope_scaling = 4.0f;
    REQUIRE(rotary_frequencies(c, 0) == std::vector<float>{0.25f, 0.025f, 0.0025f, 0.00025f});
    c.window = 5;
    c.full_every = 2;  // its layers alone are scaled
    REQUIRE(rotary_frequencies(c, 0) == plain);
    REQUIRE(rotary_frequencies(c, 1) == std::vector<float>{0.25f, 0.025f, 0.0025f, 0.00025f});
    c.unrotated_every = 3;
    REQUIRE(rotary_frequencies(c, 2).empty());
    c.positions = PositionKind::learned;
    REQUIRE(rotary_frequencies(c, 0).empty());
}

TEST_CASE("model/rotary_frequencies: Llama 3.1's scaling keeps short waves, divides long ones and mixes between") {
    DecoderConfig c = llama_family().config("tiny");
    c.head_size = 128;
    c.rope_base = 5e5f;
    const std::vector<float> plain = rotary_frequencies(c, 0);
    c.rope_scaling = 8.0f;
    c.rope_low_turns = 1.0f;
    c.rope_high_turns = 4.0f;
    c.rope_original_context = 8192;
    const std::vector<float> scaled = rotary_frequencies(c, 0);
    int kept = 0;
    int divided = 0;
    int mixed = 0;
    for (size_t j = 0; j < plain.size(); ++j) {
        const double length = wavelength(plain[j]);
        double expected = plain[j];
        if (length > 8192.0) {
            expected = plain[j] / 8.0;
            ++divided;
        } else if (length >= 8192.0 / 4.0) {
            const double smooth = (8192.0 / length - 1.0) / (4.0 - 1.0);
            expected = (1.0 - smooth) * plain[j] / 8.0 + smooth * plain[j];
            ++mixed;
        } else {
            ++kept;
        }
        REQUIRE(std::abs(scaled[j] - expected) <= 2e-7 * expected);  // two roundings to float
    }
    REQUIRE((kept > 0 && divided > 0 && mixed > 0));
}

TEST_CASE("model/rotary_frequencies: YaRN's scaling mixes between the rounded places of its two limits") {
    DecoderConfig c = llama_family().config("tiny");
    c.head_size = 128;
    c.rope_base = 5e5f;
    const std::vector<float> plain = rotary_frequencies(c, 0);
    c.rope_scaling = 8.0f;  // as in OLMo 3
    c.rope_low_turns = 1.0f;
    c.rope_high_turns = 32.0f;
    c.rope_original_context = 8192;
    c.rope_attention = 1.2079441541679836f;
    const std::vector<float> scaled = rotary_frequencies(c, 0);
    // 8192 tokens are 32 turns at j = 64 ln(8192 / (32 * 2 pi)) / ln(5e5) = 18.08 and one turn at j = 34.98.
    for (size_t j = 0; j < plain.size(); ++j) {
        const double divided = std::clamp((static_cast<double>(j) - 18) / (35 - 18), 0.0, 1.0);
        const double expected = plain[j] * (1 - divided) + plain[j] / 8.0 * divided;
        REQUIRE(std::abs(scaled[j] - expected) <= 2e-7 * expected);  // two roundings to float
    }
}
