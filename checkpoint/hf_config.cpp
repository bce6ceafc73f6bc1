#include "checkpoint/hf_config.h"

#include "files/json.h"

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

// Reads keys of a config.json; absent and null ones are the default.
struct Reader {
    const nlohmann::json& j;
    const std::string& path;

    template <typename T>
    T get(const char* key, T otherwise) const {
        return JsonObject(j, path).get(key, std::move(otherwise));
    }
    int size(const char* key) const {
        const int value = get(key, 0);
        CHECK_USAGE(value > 0, "{}: {} is missing or not positive", path, key);
        return value;
    }
    // Only this value of a key is computed here.
    template <typename T>
    void require(const char* key, T supported, T otherwise) const {
        const T value = get(key, otherwise);
        CHECK_USAGE(value == supported, "{}: {} is {}; only {} is computed here", path, key, json(value).dump(),
                    json(supported).dump());
    }
};

void read_gpt2(DecoderConfig& c, const Reader& r) {
    r.require<std::string>("activation_function", "gelu_new", "gelu_new");
    r.require("scale_attn_weights", true, true);
    r.require("scale_attn_by_inverse_layer_idx", false, false);
    c.max_T = r.size("n_positions");
    c.C = r.size("n_embd");
    c.L = r.size("n_layer");
    c.NH = c.NKV = r.size("n_head");
    c.F = r.get("n_inner", 4 * c.C);
    c.norm_eps = r.get("layer_norm_epsilon", 1e-5f);
    c.tied_head = r.get("tie_word_embeddings", true);
}

void read_llama(DecoderConfig& c, const Reader& r) {
    r.require<std::string>("hidden_act", "silu", "silu");
    r.require("attention_bias", false, false);
    r.require("mlp_bias", false, false);
    c.max_T = r.size("max_position_embeddings");
    c.C = r.size("hidden_size");
    c.L = r.size("num_hidden_layers");
    c.NH = r.size("num_attention_heads");
    c.NKV = r.get("num_key_value_heads", c.NH);
    c.F = r.size("intermediate_size");
    c.norm_eps = r.get("rms_norm_eps", 1e-6f);
    c.tied_head = r.get("tie_word_embeddings", false);
    r.require("head_dim", c.C / c.NH, c.C / c.NH);
    // Versions of transformers put the base and the scaling in one place or in two.
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json parameters = r.get("rope_parameters", none), scaling = r.get("rope_scaling", parameters);
    c.rope_base = Reader{parameters, r.path}.get("rope_theta", r.get("rope_theta", 10000.0f));
    const Reader rope{scaling, r.path};
    const auto type = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
    CHECK_USAGE(type == "default" || type == "linear", "{}: rope_type is {}; only default and linear are computed here",
                r.path, type);
    c.rope_scaling = type == "linear" ? rope.get("factor", 1.0f) : 1.0f;
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

DecoderConfig decoder_config(const nlohmann::json& j, const DecoderConfig& base, const std::string& path) {
    DecoderConfig c = base;
    const Reader r{j, path};
    r.require<std::string>("model_type", base.family, "");
    if (base.mlp == Mlp::gelu)
        read_gpt2(c, r);
    else
        read_llama(c, r);
    c.V = r.size("vocab_size");
    c.preset = "checkpoint";
    validate(c);
    return c;
}

}  // namespace teon
