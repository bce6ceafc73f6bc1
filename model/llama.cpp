#include "model/llama.h"

#include "model/hf_config.h"

namespace teon {

namespace {

DecoderNames llama_names() {
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

DecoderConfig llama_preset(const char* name, int C, int L, int NH, int F) {
    DecoderConfig c;
    c.set_preset("llama", name, C, L, NH, NH, F);
    c.V = 32000;
    c.norm = NormKind::rmsnorm;
    c.positions = PositionKind::rotary;
    c.mlp = ActivationKind::swiglu;
    c.attention_biases = c.mlp_biases = false;
    c.tied_head = false;
    c.norm_eps = 1e-6f;
    c.scaled_residual_init = false;
    c.names = llama_names();
    return c;
}

// A LLaMA whose config.json is a MistralConfig: it may have a window, but no biases.
void read_mistral(DecoderConfig& c, HfReader& r) {
    const Json sliding = every_nth(c.L, 0, {}, kSlidingAttention);
    r.require("layer_types", sliding, sliding);
    c.window = read_window(r);
    r.require("attention_bias", false, false);
    r.require("mlp_bias", false, false);
    CHECK_USAGE(r.names("num_key_value_heads"), "{}: num_key_value_heads is missing", r.path());
}

void read_llama(DecoderConfig& c, HfReader& r) {
    read_rope(c, r);
    r.ignore({"pretraining_tp"});  // pretraining_tp splits products without changing them
    const auto type = r.get<std::string>("model_type", "");
    if (type == "mistral" || type == "ministral") read_mistral(c, r);
}

}  // namespace

ModelFamily llama_family() {
    // Up to 1b, the sizes of the Teon paper (Table 5 of arXiv 2601.23261), with vocabulary 32000 and an untied head. 3b
    // and 7b as in GaLore (arXiv 2403.03507: configs/llama_3b.json and llama_7b.json); 7b is LLaMA's 7B (arXiv
    // 2302.13971, Table 2).
    return {.name = "llama",
            .title = "LLaMA",
            .default_preset = "60m",
            .presets = {llama_preset("tiny", 128, 4, 4, 344),      // for CPUs and tests
                        llama_preset("60m", 512, 8, 8, 1376),      // 58.07M
                        llama_preset("130m", 768, 12, 12, 2048),   // 134.11M
                        llama_preset("350m", 1024, 24, 16, 2736),  // 367.97M
                        llama_preset("1b", 2048, 24, 32, 5461),    // 1339.08M
                        llama_preset("3b", 2560, 32, 32, 6848),    // 2685.83M
                        llama_preset("7b", 4096, 32, 32, 11008)},  // 6738.42M
            .mlps = activations(/*gated=*/true),
            .hf_class = "LlamaForCausalLM",
            .hf_keys = {{"max_position_embeddings", "context"},
                        {"hidden_size", "channels"},
                        {"num_hidden_layers", "layers"},
                        {"num_attention_heads", "heads"},
                        {"num_key_value_heads", "kv_heads", [](const DecoderConfig& c) { return c.NH; }},
                        {"head_dim", "head_size", [](const DecoderConfig& c) { return c.C / c.NH; }},
                        {"intermediate_size", "ffn"},
                        activation_key("hidden_act", ActivationKind::swiglu),
                        {"rms_norm_eps", "norm_eps", always(1e-6)},
                        {.key = "rope_theta", .write = rope_base_json},
                        {.key = "rope_scaling", .write = rope_scaling_json},
                        {"attention_dropout", "dropout", always(0.0)},
                        {"attention_bias", "attention_biases", always(false)},
                        {"mlp_bias", "mlp_biases", always(false)}},
            // With layer_types, transformers' AutoConfig makes a Ministral of a Mistral: the same, by another name.
            .hf_window = {{"mistral", "ministral"},
                          "MistralForCausalLM",
                          {{"sliding_window", "window"}, {.key = "layer_types", .write = layer_types_json}}},
            .read_hf = read_llama};
}

}  // namespace teon
