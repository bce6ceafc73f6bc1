#include "model/qwen3.h"

#include "model/hf_config.h"
#include "model/llama.h"

namespace teon {

namespace {

DecoderConfig qwen3_preset(const char* name, int C, int L, int NH, int NKV, int HS, int F, bool tied_head = true) {
    DecoderConfig c = llama_family().config("tiny");
    c.set_preset("qwen3", name, C, L, NH, NKV, F);
    c.head_size = HS;
    c.V = 151936;
    c.qk_norm = QkNorm::per_head;
    c.tied_head = tied_head;
    c.rope_base = 1e6f;
    c.names.q_norm = {"layers.{}.attn.q_norm", "model.layers.{}.self_attn.q_norm"};
    c.names.k_norm = {"layers.{}.attn.k_norm", "model.layers.{}.self_attn.k_norm"};
    return c;
}

// LlamaConfig's keys with these differences.
std::vector<HfKey> qwen3_keys() {
    std::vector<HfKey> keys = llama_family().hf_keys;
    std::erase_if(keys, [](const HfKey& k) { return k.key == "mlp_bias"; });
    for (HfKey& k : keys)
        if (k.key == "head_dim") k.otherwise = always(128);
    keys.push_back({.key = "use_sliding_window", .write = always(false)});
    keys.push_back({.key = "sliding_window", .write = always(nullptr)});
    keys.push_back({.key = "max_window_layers", .write = [](const DecoderConfig& c) { return c.L; }});
    return keys;
}

void read_qwen3(DecoderConfig& c, HfReader& r) {
    llama_family().read_hf(c, r);
    const bool slides = r.get("use_sliding_window", false);
    const int full = r.get("max_window_layers", 28);  // layers
    const bool by_list = r.has("layer_types");
    // All layers must be alike: transformers takes layer_types or, without it, has the window from layer `full` on.
    CHECK_USAGE(!slides || by_list || full <= 0 || full >= c.L,
                "{}: max_window_layers is {}; with use_sliding_window only 0, and {} or more, are supported", r.path(),
                full, c.L);
    const Json sliding = every_nth(c.L, 0, {}, kSlidingAttention);
    const bool all_slide = slides && (by_list ? r.get("layer_types", Json()) == sliding : full <= 0);
    const Json all = all_slide ? sliding : every_nth(c.L, 0, {}, kFullAttention);
    r.require("layer_types", all, all);
    if (all_slide) c.window = read_window(r);
    r.ignore({"sliding_window"});  // only of layers with a window
}

}  // namespace

ModelFamily qwen3_family() {
    return {.name = "qwen3",
            .title = "Qwen3",
            .default_preset = "0.6b",
            // The shapes of Qwen3-0.6B, -4B and -8B (arXiv 2505.09388, Table 1; MLPs from their config.json).
            .presets = {qwen3_preset("tiny", 128, 4, 4, 2, 64, 344),              // for CPUs and tests
                        qwen3_preset("0.6b", 1024, 28, 16, 8, 128, 3072),         // 596.05M
                        qwen3_preset("4b", 2560, 36, 32, 8, 128, 9728),           // 4022.47M
                        qwen3_preset("8b", 4096, 36, 32, 8, 128, 12288, false)},  // 8190.74M
            .mlps = activations(/*gated=*/true),
            .hf_class = "Qwen3ForCausalLM",
            .hf_keys = qwen3_keys(),
            .hf_window = {.keys = {{"sliding_window", "window"},
                                   {.key = "use_sliding_window", .write = always(true)},
                                   {.key = "max_window_layers", .write = always(0)},
                                   {.key = "layer_types", .write = layer_types_json}}},
            .read_hf = read_qwen3};
}

}  // namespace teon
