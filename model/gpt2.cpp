#include "model/gpt2.h"

#include "model/hf_config.h"

namespace teon {

namespace {

DecoderNames names() {
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

DecoderConfig preset(const char* name, int C, int L, int NH) {
    DecoderConfig c;
    c.family = "gpt2";
    c.preset = name;
    c.L = L;
    c.C = C;
    c.NH = c.NKV = NH;
    c.F = 4 * C;
    c.V = 50257;
    c.names = names();
    return c;
}

// As transformers calls it.
const char* activation(MlpKind kind) {
    switch (kind) {
        case MlpKind::gelu:
            return "gelu_new";
        case MlpKind::relu2:
            return "relu2";
        case MlpKind::swiglu:
            break;
    }
    throw UsageError("a GPT-2 has no gated MLP; --mlp gelu or relu2");
}

nlohmann::ordered_json write_hf(const DecoderConfig& c) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"n_positions", c.max_T},
            {"n_embd", c.C},
            {"n_layer", c.L},
            {"n_head", c.NH},
            {"n_inner", c.F},
            {"activation_function", activation(c.mlp)},
            {"layer_norm_epsilon", decimal(c.norm_eps)},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0}};
}

void read_hf(DecoderConfig& c, HfReader& r) {
    c.mlp = r.get<std::string>("activation_function", "gelu_new") == activation(MlpKind::relu2) ? MlpKind::relu2
                                                                                                : MlpKind::gelu;
    r.require_activation("activation_function", activation(c.mlp), "gelu_new");
    r.require("scale_attn_weights", true, true);
    r.require("scale_attn_by_inverse_layer_idx", false, false);
    c.max_T = r.size("n_positions", kMaxContext);
    r.require("n_ctx", c.max_T, c.max_T);
    c.C = r.size("n_embd", kMaxChannels);
    c.L = r.size("n_layer", kMaxLayers);
    c.NH = c.NKV = r.size("n_head", kMaxHeads);
    c.F = r.size("n_inner", kMaxFfn, 4 * c.C);
    c.norm_eps = r.get("layer_norm_epsilon", 1e-5f);
    c.tied_head = r.get("tie_word_embeddings", true);
    r.ignore({"resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_activation",
              "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"});
}

}  // namespace

ModelFamily gpt2_family() {
    return {.name = "gpt2",
            .title = "GPT-2",
            .default_preset = "small",
            .presets = {preset("tiny", 128, 4, 4),       // for CPUs and tests: 0.8M in the blocks
                        preset("small", 768, 12, 12),    // 124M
                        preset("base", 1024, 24, 16),    // 355M
                        preset("large", 1280, 36, 20)},  // 774M
            .mlps = {MlpKind::gelu, MlpKind::relu2},
            .write_hf = write_hf,
            .read_hf = read_hf};
}

}  // namespace teon
