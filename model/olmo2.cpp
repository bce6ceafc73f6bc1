#include "model/olmo2.h"

#include "files/json.h"
#include "model/hf_config.h"
#include "model/llama.h"

namespace teon {

namespace {

DecoderConfig olmo2_preset(const char* name, int C, int L, int NH, int F) {
    DecoderConfig c = llama_family().config("tiny");
    c.set_preset("olmo2", name, C, L, NH, NH, F);
    c.V = 100352;
    c.norm_placement = NormPlacement::post;
    c.qk_norm = QkNorm::all_heads;
    c.rope_base = 5e5f;
    c.names.q_norm = {"layers.{}.attn.q_norm", "model.layers.{}.self_attn.q_norm"};
    c.names.k_norm = {"layers.{}.attn.k_norm", "model.layers.{}.self_attn.k_norm"};
    c.names.attention_post_norm = {"layers.{}.attn_post_norm", "model.layers.{}.post_attention_layernorm"};
    c.names.mlp_post_norm = {"layers.{}.mlp_post_norm", "model.layers.{}.post_feedforward_layernorm"};
    return c;
}

// LlamaConfig's keys with these differences.
std::vector<HfKey> olmo2_keys() {
    std::vector<HfKey> keys = llama_family().hf_keys;
    std::erase_if(keys, [](const HfKey& k) { return k.key == "mlp_bias"; });
    for (HfKey& k : keys)
        if (k.key == "rms_norm_eps") k.otherwise = always(1e-5);
    return keys;
}

// Olmo3Config is Olmo2Config with a window, by default in three layers of four. It scales positions in the others.
void read_olmo2(DecoderConfig& c, HfReader& r) {
    if (r.get<std::string>("model_type", "") != "olmo3") return llama_family().read_hf(c, r);
    c.window = read_window(r);
    c.full_every = read_every_nth(r, "layer_types", c.L, kFullAttention, kSlidingAttention, 4);
    read_rope(c, r, 5e5f);
    const bool all_full = c.full_every == 1;
    CHECK_USAGE(all_full || (c.window > 0 && c.full_every > 0) || (c.rope_scaling == 1.0f && c.rope_attention == 0),
                "{}: rope_scaling: transformers does not scale positions of layers with a window", r.path());
    if (all_full) c.window = 0;
    if (c.window == 0) c.full_every = 0;
}

// transformers 5 takes another base than rope_theta for layers with a window unless rope_parameters names it.
Json rope_by_layer_type(const DecoderConfig& c) {
    Json window = {{"rope_type", "default"}, {"rope_theta", rope_base_json(c)}};
    Json full = rope_scaling_json(c);
    if (full.is_null()) full = Json{{"rope_type", "default"}};
    full["rope_theta"] = rope_base_json(c);
    return {{kSlidingAttention, window}, {kFullAttention, full}};
}

}  // namespace

ModelFamily olmo2_family() {
    return {.name = "olmo2",
            .title = "OLMo 2",
            .default_preset = "1b",
            .presets = {olmo2_preset("tiny", 128, 4, 4, 344),      // for CPUs and tests
                        olmo2_preset("1b", 2048, 16, 16, 8192),    // 1484.92M, allenai/OLMo-2-0425-1B
                        olmo2_preset("7b", 4096, 32, 32, 11008)},  // 7298.62M, allenai/OLMo-2-1124-7B
            .mlps = activations(/*gated=*/true),
            .hf_class = "Olmo2ForCausalLM",
            .hf_keys = olmo2_keys(),
            .hf_window = {{"olmo3"},
                          "Olmo3ForCausalLM",
                          {{"sliding_window", "window"},
                           {.key = "layer_types", .write = layer_types_json},
                           {.key = "rope_parameters", .write = rope_by_layer_type}}},
            .read_hf = read_olmo2};
}

}  // namespace teon
