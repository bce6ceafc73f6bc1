#include "model/llama.h"

#include "model/hf_config.h"

namespace teon {

namespace {

DecoderNames names() {
    DecoderNames n;
    n.token = {"embed_tokens", "model.embed_tokens"};
    n.attention_norm = {"layers.{}.attn_norm", "model.layers.{}.input_layernorm"};
    n.q = {"layers.{}.attn.q", "model.layers.{}.self_attn.q_proj"};
    n.k = {"layers.{}.attn.k", "model.layers.{}.self_attn.k_proj"};
    n.v = {"layers.{}.attn.v", "model.layers.{}.self_attn.v_proj"};
    n.o = {"layers.{}.attn.o", "model.layers.{}.self_attn.o_proj"};
    n.mlp_norm = {"layers.{}.mlp_norm", "model.layers.{}.post_attention_layernorm"};
    n.gate = {"layers.{}.mlp.gate", "model.layers.{}.mlp.gate_proj"};
    n.up = {"layers.{}.mlp.up", "model.layers.{}.mlp.up_proj"};
    n.down = {"layers.{}.mlp.down", "model.layers.{}.mlp.down_proj"};
    n.final_norm = {"norm", "model.norm"};
    n.head = {"lm_head", "lm_head"};
    return n;
}

DecoderConfig preset(const char* name, int C, int L, int NH, int F) {
    DecoderConfig c;
    c.family = "llama";
    c.preset = name;
    c.L = L;
    c.C = C;
    c.NH = c.NKV = NH;
    c.F = F;
    c.V = 32000;
    c.norm = NormKind::rmsnorm;
    c.positions = PositionKind::rotary;
    c.mlp = MlpKind::swiglu;
    c.biases = false;
    c.tied_head = false;
    c.norm_eps = 1e-6f;
    c.scaled_residual_init = false;
    c.names = names();
    return c;
}

nlohmann::ordered_json write_hf(const DecoderConfig& c) {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"max_position_embeddings", c.max_T},
            {"hidden_size", c.C},
            {"num_hidden_layers", c.L},
            {"num_attention_heads", c.NH},
            {"num_key_value_heads", c.NKV},
            {"head_dim", c.HS()},
            {"intermediate_size", c.F},
            {"hidden_act", "silu"},
            {"rms_norm_eps", decimal(c.norm_eps)},
            {"rope_theta", decimal(c.rope_base)},
            {"rope_scaling", rope_scaling_json(c)},
            {"attention_bias", false},
            {"mlp_bias", false}};
}

void read_hf(DecoderConfig& c, HfReader& r) {
    r.require_activation("hidden_act", "silu", "silu");
    r.require("attention_bias", false, false);
    r.require("mlp_bias", false, false);
    c.max_T = r.size("max_position_embeddings", kMaxContext);
    c.C = r.size("hidden_size", kMaxChannels);
    c.L = r.size("num_hidden_layers", kMaxLayers);
    c.NH = r.size("num_attention_heads", kMaxHeads);
    c.NKV = r.size("num_key_value_heads", kMaxHeads, c.NH);
    c.head_size = r.size("head_dim", kMaxHeadSize, c.C / c.NH);
    c.F = r.size("intermediate_size", kMaxFfn);
    c.norm_eps = r.get("rms_norm_eps", 1e-6f);
    c.tied_head = r.get("tie_word_embeddings", false);
    read_rope(c, r);
    r.ignore({"attention_dropout", "pretraining_tp"});  // the latter splits products without changing them
}

}  // namespace

ModelFamily llama_family() {
    // The paper's sizes (Table 5 of arXiv 2601.23261), with vocabulary 32000 and an untied head.
    return {.name = "llama",
            .title = "LLaMA",
            .default_preset = "60m",
            .presets = {preset("tiny", 128, 4, 4, 344),      // for CPUs and tests
                        preset("60m", 512, 8, 8, 1376),      // 58.07M
                        preset("130m", 768, 12, 12, 2048),   // 134.11M
                        preset("350m", 1024, 24, 16, 2736),  // 367.97M
                        preset("1b", 2048, 24, 32, 5461)},   // 1339.08M
            .mlps = {MlpKind::swiglu},
            .write_hf = write_hf,
            .read_hf = read_hf};
}

}  // namespace teon
