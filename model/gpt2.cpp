#include "model/gpt2.h"

namespace teon {

namespace {

struct Preset {
    const char* name;
    int C, L, NH;
};
constexpr Preset kPresets[] = {
    {"tiny", 128, 4, 4},      // for CPUs and tests: 0.8M in the blocks
    {"small", 768, 12, 12},   // 124M
    {"base", 1024, 24, 16},   // 355M
    {"large", 1280, 36, 20},  // 774M
};

DecoderNames names() {
    DecoderNames n;
    n.token = {"wte", "transformer.wte"};
    n.position = {"wpe", "transformer.wpe"};
    n.norm1 = {"h.{}.ln_1", "transformer.h.{}.ln_1"};
    n.q = {"h.{}.attn.q", "transformer.h.{}.attn.c_attn", 0, 3};
    n.k = {"h.{}.attn.k", "transformer.h.{}.attn.c_attn", 1, 3};
    n.v = {"h.{}.attn.v", "transformer.h.{}.attn.c_attn", 2, 3};
    n.o = {"h.{}.attn.o", "transformer.h.{}.attn.c_proj"};
    n.norm2 = {"h.{}.ln_2", "transformer.h.{}.ln_2"};
    n.up = {"h.{}.mlp.up", "transformer.h.{}.mlp.c_fc"};
    n.down = {"h.{}.mlp.down", "transformer.h.{}.mlp.c_proj"};
    n.final_norm = {"ln_f", "transformer.ln_f"};
    n.head = {"lm_head", "lm_head"};
    n.transposed = true;
    return n;
}

}  // namespace

std::vector<std::string> gpt2_presets() {
    std::vector<std::string> result;
    for (const Preset& p : kPresets) result.push_back(p.name);
    return result;
}

DecoderConfig gpt2_config(const std::string& preset) {
    for (const Preset& p : kPresets) {
        if (preset != p.name) continue;
        DecoderConfig c;
        c.family = "gpt2";
        c.preset = preset;
        c.L = p.L;
        c.C = p.C;
        c.NH = c.NKV = p.NH;
        c.F = 4 * p.C;
        c.V = 50257;
        c.names = names();
        return c;
    }
    throw UsageError(
        fmt::format("no GPT-2 preset is called '{}'; there are {}", preset, fmt::join(gpt2_presets(), ", ")));
}

}  // namespace teon
