// The golden models (test/golden/make_models.py): their configurations, weights and batch.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "test/support/model_runner.h"

namespace teon::test {

constexpr int kGoldenB = 3;
constexpr int kGoldenT = 13;

inline const std::vector<std::string> kGoldenModels = {
    "gpt2",     "gpt2_relu2", "gpt2_erf", "llama", "llama_geglu", "llama_geglu_erf", "llama_gqa",
    "llama_31", "qwen2",      "qwen3",    "olmo2", "olmo2_3",     "smollm3"};

inline DecoderConfig golden_config(const std::string& name) {
    const std::string family = name.substr(0, name.find('_'));
    const bool gpt2 = family == "gpt2";
    DecoderConfig c = family_of(family).config("tiny");
    c.L = 2;
    c.C = 24;
    c.max_T = kGoldenT;
    c.NH = c.NKV = gpt2 ? 3 : 4;
    c.V = gpt2 ? 61 : 67;
    c.F = gpt2 ? 96 : 37;
    if (name == "gpt2_relu2") c.mlp = ActivationKind::relu2;
    if (name == "gpt2_erf") c.mlp = ActivationKind::gelu_erf;
    if (name == "llama_geglu") c.mlp = ActivationKind::geglu;
    if (name == "llama_geglu_erf") c.mlp = ActivationKind::geglu_erf;
    if (name == "llama_31") {
        c.attention_biases = c.mlp_biases = c.tied_head = true;
        c.rope_scaling = 8.0f;
        c.rope_low_turns = 1.0f;
        c.rope_high_turns = 4.0f;
        c.rope_original_context = 512;
    }
    if (!gpt2 && name != "llama" && c.mlp == ActivationKind::swiglu) c.NKV = 2;
    if (family == "qwen3") c.head_size = 10;
    if (family == "smollm3") c.unrotated_every = 2;
    if (name == "olmo2_3") {
        c.window = 5;
        c.full_every = 2;
        c.rope_base = 1e4f;
        c.rope_scaling = 8.0f;
        c.rope_low_turns = 1.0f;
        c.rope_high_turns = 32.0f;
        c.rope_original_context = 512;
        c.rope_attention = 1.2f;
    }
    return c;
}

inline std::vector<int> read_ints(const SafetensorsFile& file, const std::string& name) {
    const std::vector<std::byte> raw = file.read(file.at(name));
    std::vector<int> values(raw.size() / sizeof(int));
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
}

struct Golden {
    SafetensorsFile file;
    ModelRunner runner;
    DeviceBatch batch;
    Golden(const std::string& name, DType dtype)
        : file("test/golden/" + name + ".safetensors"),
          runner(golden_config(name), {.B = kGoldenB, .T = kGoldenT, .dtype = dtype}),
          batch(read_ints(file, "tokens"), read_ints(file, "targets"), kGoldenB, kGoldenT, runner.context.stream) {
        load_weights(runner.model->params(), SafetensorsModel(file.path()), runner.context.stream);
    }
};

}  // namespace teon::test
