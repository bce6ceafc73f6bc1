#include "train/hf_config.h"

#include <nlohmann/json.hpp>

namespace teon {

namespace {

using json = nlohmann::ordered_json;

// The decimal number that is meant: 1e-05, not 9.999999747378752e-06.
double decimal(float x) { return std::stod(fmt::format("{}", x)); }

json gpt2_json(const DecoderConfig& c) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"n_positions", c.max_T},
            {"n_embd", c.C},
            {"n_layer", c.L},
            {"n_head", c.NH},
            {"n_inner", c.F},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", decimal(c.norm_eps)},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0}};
}

json llama_json(const DecoderConfig& c) {
    json scaling = nullptr;
    if (c.rope_scaling != 1.0f) scaling = {{"rope_type", "linear"}, {"factor", decimal(c.rope_scaling)}};
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
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
            {"rope_scaling", scaling},
            {"attention_bias", false},
            {"mlp_bias", false}};
}

}  // namespace

json hf_config(const DecoderConfig& c, int delimiter) {
    json j = c.mlp == Mlp::gelu ? gpt2_json(c) : llama_json(c);
    j["vocab_size"] = c.V;
    j["initializer_range"] = decimal(c.init_std);
    j["tie_word_embeddings"] = c.tied_head;
    j["torch_dtype"] = "float32";
    const json token = delimiter >= 0 ? json(delimiter) : json();
    j["bos_token_id"] = token;
    j["eos_token_id"] = token;
    return j;
}

}  // namespace teon
