#include "model/llama.h"

namespace teon {

namespace {

struct Preset {
    const char* name;
    int C, L, NH, F;
};
// The paper's sizes (Table 5 of arXiv 2601.23261), with vocabulary 32000 and an untied head.
constexpr Preset kPresets[] = {
    {"tiny", 128, 4, 4, 344},      // for CPUs and tests
    {"60m", 512, 8, 8, 1376},      // 58.07M
    {"130m", 768, 12, 12, 2048},   // 134.11M
    {"350m", 1024, 24, 16, 2736},  // 367.97M
    {"1b", 2048, 24, 32, 5461},    // 1339.08M
};

DecoderNames names() {
    DecoderNames n;
    n.token = {"embed_tokens", "model.embed_tokens"};
    n.norm1 = {"layers.{}.attn_norm", "model.layers.{}.input_layernorm"};
    n.q = {"layers.{}.attn.q", "model.layers.{}.self_attn.q_proj"};
    n.k = {"layers.{}.attn.k", "model.layers.{}.self_attn.k_proj"};
    n.v = {"layers.{}.attn.v", "model.layers.{}.self_attn.v_proj"};
    n.o = {"layers.{}.attn.o", "model.layers.{}.self_attn.o_proj"};
    n.norm2 = {"layers.{}.mlp_norm", "model.layers.{}.post_attention_layernorm"};
    n.gate = {"layers.{}.mlp.gate", "model.layers.{}.mlp.gate_proj"};
    n.up = {"layers.{}.mlp.up", "model.layers.{}.mlp.up_proj"};
    n.down = {"layers.{}.mlp.down", "model.layers.{}.mlp.down_proj"};
    n.final_norm = {"norm", "model.norm"};
    n.head = {"lm_head", "lm_head"};
    return n;
}

}  // namespace

std::vector<std::string> llama_presets() {
    std::vector<std::string> result;
    for (const Preset& p : kPresets) result.push_back(p.name);
    return result;
}

DecoderConfig llama_config(const std::string& preset) {
    for (const Preset& p : kPresets) {
        if (preset != p.name) continue;
        DecoderConfig c;
        c.family = "llama";
        c.preset = preset;
        c.L = p.L;
        c.C = p.C;
        c.NH = c.NKV = p.NH;
        c.F = p.F;
        c.V = 32000;
        c.norm = Norm::rmsnorm;
        c.positions = Positions::rotary;
        c.mlp = Mlp::swiglu;
        c.biases = false;
        c.tied_head = false;
        c.norm_eps = 1e-6f;
        c.scaled_residual_init = false;
        c.names = names();
        return c;
    }
    throw UsageError(
        fmt::format("no LLaMA preset is called '{}'; there are {}", preset, fmt::join(llama_presets(), ", ")));
}

}  // namespace teon
