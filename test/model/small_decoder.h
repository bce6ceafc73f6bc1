// Small decoders of every family, and runs of them.
#pragma once

#include <string>
#include <vector>

#include "test/support/model_runner.h"

namespace teon::test {

inline constexpr int B = 2;
inline constexpr int T = 33;

inline const std::vector<std::string> kModels = {"gpt2",  "gpt2 relu2", "llama",        "qwen2",         "qwen3",
                                                 "olmo2", "gpt2 post",  "llama window", "smollm3 layers"};
// And with dropout, in all placements of norms, with and without biases.
inline const std::vector<std::string> kAllModels = [] {
    std::vector<std::string> all = kModels;
    for (const char* model : {"gpt2", "qwen3", "olmo2", "gpt2 post", "llama window"})
        all.push_back(std::string(model) + " dropout");
    return all;
}();

// The name is a family and its variant.
inline DecoderConfig small_config(const std::string& name) {
    const bool drops = name.ends_with(" dropout");
    const std::string model = drops ? name.substr(0, name.rfind(' ')) : name;
    const std::string family = model.substr(0, model.find(' '));
    const bool gpt2 = family == "gpt2";
    DecoderConfig c = family_of(family).config("tiny");
    c.L = 3;
    c.C = 48;
    c.NH = 4;
    c.NKV = gpt2 ? 4 : 2;
    c.F = gpt2 ? 192 : 133;
    if (model == "gpt2 relu2") c.mlp = ActivationKind::relu2;
    if (family == "qwen3") c.head_size = 20;
    if (model == "llama window" || model == "smollm3 layers") c.window = 9;
    if (model ==
        "smollm3 layers") {     // all that differs between layers: each second without rotation, the third without
        c.unrotated_every = 2;  // a window and with YaRN's scaling
        c.full_every = 3;
        c.rope_scaling = 4.0f;
        c.rope_low_turns = 0.5f;
        c.rope_high_turns = 4.0f;
        c.rope_original_context = 64;
        c.rope_attention = 1.25f;
    }
    if (drops) c.dropout = 0.25f;
    if (model.ends_with(" post")) {
        c.norm_placement = NormPlacement::post;
        c.names.attention_post_norm = {"{}.attention_post_norm", "{}.attention_post_norm"};
        c.names.mlp_post_norm = {"{}.mlp_post_norm", "{}.mlp_post_norm"};
    }
    c.V = 101;
    c.max_T = T;
    c.init_std = 0.3f;  // far from linear, so that every term of the derivative counts
    // Without a norm before queries and keys, their products grow with the stream, and the softmax amplifies rounding
    // in proportion: this model has an error of 4.8e-6 at 0.3 and 1.3e-6 at 0.2; the bound for all models is 3.6e-6.
    if (model.ends_with(" post")) c.init_std = 0.2f;
    return c;
}

inline DecoderRun small_run(DType dtype, int batch = B, int length = T) {
    DecoderRun run{batch, length, dtype};
    run.seed = 1337;
    return run;
}

}  // namespace teon::test
