#include "model/gpt2.h"

#include "model/hf_config.h"

namespace teon {

namespace {

DecoderNames gpt2_names() {
    DecoderNames n;
    n.token = {"wte", "transformer.wte"};
    n.position = {"wpe", "transformer.wpe"};
    n.attention_norm = {"h.{}.ln_1", "transformer.h.{}.ln_1"};
    n.q = {"h.{}.attn.q", "transformer.h.{}.attn.c_attn", 0, 3};
    n.k = {"h.{}.attn.k", "transformer.h.{}.attn.c_attn", 1, 3};
    n.v = {"h.{}.attn.v", "transformer.h.{}.attn.c_attn", 2, 3};
    n.o = {"h.{}.attn.o", "transformer.h.{}.attn.c_proj"};
    n.mlp_norm = {"h.{}.ln_2", "transformer.h.{}.ln_2"};
    n.up = {"h.{}.mlp.up", "transformer.h.{}.mlp.c_fc"};
    n.down = {"h.{}.mlp.down", "transformer.h.{}.mlp.c_proj"};
    n.final_norm = {"ln_f", "transformer.ln_f"};
    n.head = {"lm_head", "lm_head"};
    n.transposed = true;
    return n;
}

DecoderConfig gpt2_preset(const char* name, int C, int L, int NH) {
    DecoderConfig c;
    c.set_preset("gpt2", name, C, L, NH, NH, 4 * C);
    c.V = 50257;
    c.names = gpt2_names();
    return c;
}

// The model_type of a GPT-2 with a window. transformers has no such model and refuses the name; of a GPT-2 it would
// compute full attention, whatever other keys say.
constexpr const char* kWindowed = "gpt2_window";

void read_gpt2(DecoderConfig& c, HfReader& r) {
    r.require("scale_attn_weights", true, true);
    r.require("scale_attn_by_inverse_layer_idx", false, false);
    r.require("n_ctx", c.max_T, c.max_T);
    r.ignore({"embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
              "summary_proj_to_labels", "summary_type", "summary_use_proj"});
    if (r.get<std::string>("model_type", "") == kWindowed) c.window = read_window(r);
}

}  // namespace

ModelFamily gpt2_family() {
    return {.name = "gpt2",
            .title = "GPT-2",
            .default_preset = "small",
            .presets = {gpt2_preset("tiny", 128, 4, 4),       // for CPUs and tests: 0.8M in the blocks
                        gpt2_preset("small", 768, 12, 12),    // 124M
                        gpt2_preset("base", 1024, 24, 16),    // 355M
                        gpt2_preset("large", 1280, 36, 20)},  // 774M
            .mlps = activations(/*gated=*/false),
            .hf_class = "GPT2LMHeadModel",
            .hf_keys = {{"n_positions", "context"},
                        {.key = "n_ctx", .write = [](const DecoderConfig& c) { return c.max_T; }},
                        {"n_embd", "channels"},
                        {"n_layer", "layers"},
                        {"n_head", "heads"},
                        {"n_inner", "ffn", [](const DecoderConfig& c) { return 4 * c.C; }},
                        activation_key("activation_function", ActivationKind::gelu),
                        {"layer_norm_epsilon", "norm_eps", always(1e-5)},
                        {"resid_pdrop", "dropout", always(0.1)},
                        {.key = "embd_pdrop", .write = dropout_json},
                        {.key = "attn_pdrop", .write = dropout_json}},
            .hf_window = {{kWindowed}, "", {{"sliding_window", "window"}}},
            .hf_tied_head = true,
            .read_hf = read_gpt2};
}

}  // namespace teon
