#include "model/families.h"

#include <cmath>
#include <map>

#include "model/gpt2.h"
#include "model/llama.h"
#include "model/olmo2.h"
#include "model/qwen2.h"
#include "model/qwen3.h"
#include "model/smollm3.h"

#include "test/support/catch.h"
#include "test/support/json.h"

using namespace teon;
using namespace teon::test;
using nlohmann::json;

namespace {

json written(const DecoderConfig& c) {
    for (const ModelFamily& family : families())
        if (family.name == c.family) return library_json(hf_config(family, c, 5));
    throw Error("no family " + c.family);
}
DecoderConfig read(const json& j) { return decoder_config(our_json(j), families(), "config.json"); }

// The error of reading `j` with `key` set to `value`; empty: none.
std::string error_with(json j, const std::string& key, const json& value) {
    j[key] = value;
    return error_of<UsageError>([&] { read(j); });
}

DecoderConfig changed(const ModelFamily& family) {
    DecoderConfig c = family.config("tiny");
    c.L = 3;
    c.F += 8;
    c.V = 1234;
    c.max_T = 77;
    c.norm_eps = 3e-6f;
    c.init_std = 0.01f;
    c.dropout = 0.15f;
    c.mlp = family.mlps.back();
    if (c.positions == PositionKind::rotary) {
        c.head_size = 48;
        c.NKV = 2;
        c.rope_base = 5e5f;
        c.rope_scaling = 2.0f;
        c.tied_head = !c.tied_head;
        c.attention_biases = true;
        c.mlp_biases = family.name == "llama";
        c.unrotated_every = family.name == "smollm3" ? 2 : 0;
    }
    return c;
}

DecoderConfig with_window(const ModelFamily& family) {
    DecoderConfig c = family.config("tiny");
    c.window = 8;
    return c;
}

}  // namespace

TEST_CASE("model/family: a written config.json is read back") {
    for (const ModelFamily& family : families()) {
        INFO(family.name);
        const DecoderConfig c = changed(family);
        const DecoderConfig back = read(written(c));
        REQUIRE(written(back) == written(c));
        REQUIRE(written(c).contains("pad_token_id"));
        REQUIRE(written(c)["pad_token_id"].is_null());
        REQUIRE(back.family == family.name);
        REQUIRE(back.dropout == c.dropout);
        REQUIRE(back.NKV == c.NKV);
        REQUIRE(back.F == c.F);
        REQUIRE(back.max_T == c.max_T);
        REQUIRE(back.norm_eps == c.norm_eps);
        REQUIRE(back.rope_base == c.rope_base);
        REQUIRE(back.rope_scaling == c.rope_scaling);
        REQUIRE(back.tied_head == c.tied_head);
        REQUIRE(back.HS() == c.HS());
        REQUIRE(back.mlp == c.mlp);
        REQUIRE(back.norm_placement == c.norm_placement);
        REQUIRE(back.qk_norm == c.qk_norm);
        REQUIRE(back.attention_biases == c.attention_biases);
        REQUIRE(back.attention_out_bias == c.attention_out_bias);
        REQUIRE(back.unrotated_every == c.unrotated_every);
        REQUIRE(decoder_config(our_json(written(c)), {family}, "c").family == family.name);
    }
}

TEST_CASE("model/family: a window has the class and keys by which transformers computes it") {
    const std::map<std::string, std::string> types = {{"gpt2", "gpt2_window"}, {"llama", "mistral"},
                                                      {"olmo2", "olmo3"},      {"qwen2", "qwen2"},
                                                      {"qwen3", "qwen3"},      {"smollm3", "smollm3"}};
    for (const ModelFamily& family : families()) {
        INFO(family.name);
        DecoderConfig c = family.config("tiny");
        REQUIRE(written(c).value("sliding_window", json()).is_null());
        REQUIRE(written(c)["model_type"] == family.name);
        c.window = 100;
        const json j = written(c);
        REQUIRE(j["model_type"] == types.at(family.name));
        REQUIRE(j["sliding_window"] == 100);
        REQUIRE(read(j).window == 100);
        REQUIRE(read(j).family == family.name);
        REQUIRE(written(read(j)) == j);
        if (family.name == "llama") {
            json ministral = j;
            ministral["model_type"] = "ministral";
            REQUIRE(written(read(ministral)) == j);
        }
        if (family.name == "olmo2") {  // as transformers saves it
            json olmo3 = j;
            olmo3.erase("rope_theta");
            olmo3["rope_parameters"]["full_attention"] = {{"rope_theta", 1.0}, {"rope_type", "yarn"}};
            REQUIRE(written(read(olmo3)) == j);
            olmo3["model_type"] = "olmo2";
            REQUIRE(contains(error_of<UsageError>([&] { read(olmo3); }), "rope_parameters"));
        }
        json none = j;
        none["sliding_window"] = nullptr;
        REQUIRE(read(none).window == 0);
        none.erase("sliding_window");
        REQUIRE(read(none).window == 4096);  // MistralConfig's, Qwen3Config's and Olmo3Config's default
        REQUIRE(contains(error_with(j, "sliding_window", 0), "sliding_window is 0"));
        // The window of no other class: transformers ignores the key, or only its cache has the window.
        if (types.at(family.name) != family.name)
            REQUIRE(contains(error_with(written(family.config("tiny")), "sliding_window", 100),
                             "sliding_window is 100, which is unknown"));
        if (family.name == "gpt2") continue;
        REQUIRE(j["layer_types"] == std::vector<std::string>(static_cast<size_t>(c.L), "sliding_attention"));
        std::vector<std::string> layers = j["layer_types"];
        layers.front() = "full_attention";
        REQUIRE(contains(error_with(j, "layer_types", layers), "layer_types is"));
    }
}

TEST_CASE("model/family: models with a window in some layers, or with what its class lacks, are refused by name") {
    for (const ModelFamily& family : families()) {  // only Olmo3's layers may differ
        DecoderConfig c = with_window(family);
        c.full_every = 2;
        if (family.name != "olmo2") REQUIRE_THROWS_AS(written(c), UsageError);
        REQUIRE(family.has_flag(field_of(model_fields(), "full_every")) == (family.name == "olmo2"));
        c.window = 0;
        REQUIRE(error_of<UsageError>([&] { validate(c); }) == "--full-every 2: needs --window");
    }
    DecoderConfig c = qwen3_family().config("tiny");
    json qwen3 = written(c);
    qwen3["use_sliding_window"] = true;
    qwen3.erase("sliding_window");
    const auto with_layers = [&](int full) {
        json j = qwen3;
        j["max_window_layers"] = full;
        return j;
    };
    REQUIRE(read(with_layers(0)).window == 4096);
    REQUIRE(read(with_layers(c.L)).window == 0);
    REQUIRE(contains(error_with(with_layers(0), "max_window_layers", c.L - 1), "max_window_layers is 3"));
    qwen3["layer_types"] = std::vector<std::string>(static_cast<size_t>(c.L), "full_attention");
    REQUIRE(read(with_layers(0)).window == 0);  // the list decides

    DecoderConfig biased = llama_family().config("tiny");
    biased.window = 8;
    biased.attention_biases = true;
    REQUIRE(contains(error_of<UsageError>([&] { written(biased); }), "attention_bias is true"));
    json mistral = written(with_window(llama_family()));
    mistral.erase("num_key_value_heads");  // MistralConfig's default is 8
    REQUIRE(contains(error_of<UsageError>([&] { read(mistral); }), "num_key_value_heads is missing"));

    DecoderConfig scaled = with_window(olmo2_family());
    scaled.rope_scaling = 2;
    REQUIRE(contains(error_of<UsageError>([&] { written(scaled); }), "rope_scaling"));
    json smollm3 = written(with_window(smollm3_family()));
    smollm3.erase("layer_types");  // SmolLM3Config's default has the window in layers without rotation
    REQUIRE(contains(error_of<UsageError>([&] { read(smollm3); }), "layer_types is missing"));
}

TEST_CASE("model/family: Olmo3's layers without a window are every n-th, and only they scale positions") {
    DecoderConfig c = with_window(olmo2_family());
    c.L = 9;
    c.full_every = 4;
    c.rope_scaling = 8.0f;
    c.rope_low_turns = 1.0f;
    c.rope_high_turns = 32.0f;
    c.rope_original_context = 256;
    c.rope_attention = 1.25f;
    const json j = written(c);
    REQUIRE(j["model_type"] == "olmo3");
    for (int l = 0; l < c.L; ++l)
        REQUIRE(j["layer_types"][l] == (l == 3 || l == 7 ? "full_attention" : "sliding_attention"));
    const json yarn = {{"rope_type", "yarn"},
                       {"type", "yarn"},
                       {"factor", 8.0},
                       {"beta_slow", 1.0},
                       {"attention_factor", 1.25},
                       {"beta_fast", 32.0},
                       {"original_max_position_embeddings", 256}};
    REQUIRE(j["rope_scaling"] == yarn);
    REQUIRE(written(read(j)) == j);

    json newer = j;  // as transformers 5 saves it
    newer.erase("rope_theta");
    newer.erase("rope_scaling");
    REQUIRE(newer["rope_parameters"]["full_attention"]["factor"] == 8.0);
    REQUIRE(written(read(newer)) == j);
    newer["rope_parameters"]["sliding_attention"]["rope_theta"] = 7.0;
    REQUIRE(contains(error_of<UsageError>([&] { read(newer); }), "rope_theta is"));
    newer["rope_parameters"]["sliding_attention"] = yarn;
    REQUIRE(contains(error_of<UsageError>([&] { read(newer); }), "rope_type is \"yarn\""));
    json older = j;  // as transformers 4.57 does
    older.erase("rope_parameters");
    REQUIRE(written(read(older)) == j);

    older.erase("layer_types");  // Olmo3Config's default
    REQUIRE(read(older).full_every == 4);
    older["sliding_window"] = nullptr;  // the same attention in all layers, but not the same positions
    REQUIRE(contains(error_of<UsageError>([&] { read(older); }), "rope_scaling"));
    older["rope_scaling"] = nullptr;
    REQUIRE(read(older).full_every == 0);
    older = j;
    older["layer_types"][4] = "full_attention";
    REQUIRE(contains(error_of<UsageError>([&] { read(older); }), "layer_types is"));
    older["layer_types"] = std::vector<std::string>(9, "full_attention");
    REQUIRE(read(older).window == 0);
    REQUIRE(read(older).rope_attention == 1.25f);
    older["layer_types"] = "full_attention";
    REQUIRE(contains(error_of<UsageError>([&] { read(older); }), "layer_types is"));
}

TEST_CASE("model/family: SmolLM3's layers without rotation are every n-th, by list or by interval") {
    DecoderConfig c = smollm3_family().config("tiny");
    c.unrotated_every = 3;
    json j = written(c);
    REQUIRE(j["no_rope_layers"] == std::vector<int>{1, 1, 0, 1});
    REQUIRE(read(j).unrotated_every == 3);
    j["no_rope_layers"] = {1, 1, 1, 1};
    REQUIRE(read(j).unrotated_every == 0);
    j["no_rope_layers"] = {0, 1, 1, 1};
    REQUIRE(contains(error_of<UsageError>([&] { read(j); }), "no_rope_layers is [0,1,1,1]"));
    j.erase("no_rope_layers");
    REQUIRE(read(j).unrotated_every == 4);  // SmolLM3Config's default
    j["no_rope_layer_interval"] = 2;
    REQUIRE(read(j).unrotated_every == 2);
    REQUIRE(contains(error_with(j, "no_rope_layer_interval", 0), "no_rope_layer_interval is 0"));
    j.erase("rope_theta");
    REQUIRE(read(j).rope_base == 2e6f);
}

TEST_CASE("model/family: YaRN's scaling of positions has transformers' defaults and must be consistent") {
    json j = written(qwen2_family().config("tiny"));
    j["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    const DecoderConfig c = read(j);
    REQUIRE(c.rope_low_turns == 1.0f);
    REQUIRE(c.rope_high_turns == 32.0f);
    REQUIRE(c.rope_original_context == 32768);
    REQUIRE(std::abs(c.rope_attention - (0.1 * std::log(4.0) + 1)) < 1e-7);
    REQUIRE(written(read(written(c))) == written(c));
    for (const auto& [key, value] : std::map<std::string, json>{{"factor", nullptr},
                                                                {"beta_fast", 0.5},
                                                                {"beta_slow", 0},
                                                                {"attention_factor", 0},
                                                                {"truncate", false},
                                                                {"mscale", 1.0}}) {
        json scaling = j["rope_scaling"];
        scaling[key] = value;
        INFO(key << ": " << error_with(j, "rope_scaling", scaling));
        REQUIRE(!error_with(j, "rope_scaling", scaling).empty());
    }
}

TEST_CASE("model/family: a config.json has what folders on the hub have") {
    json gpt2 = written(changed(gpt2_family()));
    REQUIRE(gpt2["n_ctx"] == 77);
    REQUIRE(gpt2["use_cache"] == true);
    REQUIRE(contains(error_with(gpt2, "n_ctx", 78), "n_ctx is 78"));
    const json qwen3 = written(changed(qwen3_family()));
    REQUIRE(qwen3["max_window_layers"] == 3);
    REQUIRE(qwen3.at("sliding_window").is_null());
    REQUIRE(written(qwen2_family().config("tiny"))["max_window_layers"] == 4);
    REQUIRE(qwen3["rope_scaling"] == json{{"type", "linear"}, {"rope_type", "linear"}, {"factor", 2.0}});
}

TEST_CASE("model/family: dropout has the keys that transformers reads") {
    const json gpt2 = written(changed(gpt2_family()));
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) REQUIRE(gpt2[key] == 0.15);
    REQUIRE(written(changed(llama_family()))["attention_dropout"] == 0.15);
    json j = gpt2;
    j.erase("resid_pdrop");
    REQUIRE(read(j).dropout == 0.1f);  // GPT2Config's default
    REQUIRE(error_with(gpt2, "resid_pdrop", 1.5).starts_with("config.json: resid_pdrop is 1.5"));
}

TEST_CASE("model/family: Llama 3.1's scaling of positions is written and read in both forms, and must be complete") {
    const json scaling = {{"rope_type", "llama3"},   {"type", "llama3"},
                          {"factor", 32.0},          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
    for (const ModelFamily& family : families()) {
        if (family.presets[0].positions != PositionKind::rotary) continue;
        INFO(family.name);
        json j = written(changed(family));
        j["rope_scaling"] = scaling;
        const DecoderConfig c = read(j);
        REQUIRE(c.rope_scaling == 32.0f);
        REQUIRE(c.rope_low_turns == 1.0f);
        REQUIRE(c.rope_high_turns == 4.0f);
        REQUIRE(c.rope_original_context == 8192);
        REQUIRE(written(c)["rope_scaling"] == scaling);
        for (const auto& [key, value] : scaling.items()) {
            json without = scaling;
            without.erase(key);
            INFO(key << ": " << error_with(j, "rope_scaling", without));
            if (key == "type" || key == "rope_type")  // the other is enough
                REQUIRE(error_with(j, "rope_scaling", without).empty());
            else
                REQUIRE(contains(error_with(j, "rope_scaling", without), "config.json: rope_"));
        }
        json reversed = scaling;
        reversed["low_freq_factor"] = 4.0;
        REQUIRE(contains(error_with(j, "rope_scaling", reversed), "low_freq_factor below high_freq_factor"));
        reversed = scaling;
        reversed["beta"] = 1;
        REQUIRE(contains(error_with(j, "rope_scaling", reversed), "beta is 1, which is unknown"));
        j.erase("rope_scaling");
        j.erase("rope_theta");
        j["rope_parameters"] = scaling;
        j["rope_parameters"]["rope_theta"] = 500000.0;
        REQUIRE(read(j).rope_original_context == 8192);
        REQUIRE(read(j).rope_base == 500000.0f);
    }
}

TEST_CASE("model/family: keys that change no result are named; with another value, or of unknown meaning, refused") {
    json j = written(llama_family().config("tiny"));
    std::vector<std::string> names;
    decoder_config(our_json(j), families(), "config.json", &names);
    REQUIRE(names.empty());
    j.update({{"is_llama_config", true},
              {"rope_interleaved", false},
              {"_attn_implementation_autoset", true},
              {"auto_map", {{"AutoConfig", "x.Config"}}},
              {"unsloth_version", "2024.9"},
              {"unsloth_fixed", true},
              {"top_p", 0.9},
              {"pruned_heads", json::object()},
              {"partial_rotary_factor", 1}});
    decoder_config(our_json(j), families(), "config.json", &names);
    REQUIRE(names == std::vector<std::string>{"_attn_implementation_autoset", "auto_map", "is_llama_config",
                                              "partial_rotary_factor", "pruned_heads", "rope_interleaved", "top_p",
                                              "unsloth_fixed", "unsloth_version"});
    REQUIRE(error_with(j, "rope_interleaved", true) ==
            "config.json: rope_interleaved is true; only [false] is supported");
    REQUIRE(contains(error_with(j, "partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5"));
    REQUIRE(contains(error_with(j, "residual_multiplier", 2), "residual_multiplier is 2, which is unknown"));
}

TEST_CASE("model/family: both names of an activation in transformers are accepted") {
    for (const ModelFamily& family : families()) {
        const json j = written(changed(family));
        if (family.name == "gpt2")
            for (const char* name : {"gelu_pytorch_tanh", "gelu"})
                REQUIRE(error_with(j, "activation_function", name).empty());
        else
            for (const char* name : {"silu", "swish", "gelu_pytorch_tanh", "gelu_new", "gelu"})
                REQUIRE(error_with(j, "hidden_act", name).empty());
    }
}

TEST_CASE("model/family: unknown, contradictory and unsupported fields are refused by name") {
    for (const ModelFamily& family : families()) {
        const json j = written(changed(family));
        std::vector<std::pair<std::string, json>> changes = {
            {"model_type", "bert"},     {"quantization_config", {{"bits", 4}}},
            {"vocab_size", "many"},     {"vocab_size", 0},
            {"vocab_size", 1.5},        {"tie_word_embeddings", 1},
            {"vocab_size", 2147483647}, {"add_cross_attention", true}};
        if (family.name == "gpt2")
            changes.insert(changes.end(), {{"activation_function", "relu"},
                                           {"scale_attn_weights", false},
                                           {"n_layer", 0},
                                           {"n_layer", 20000},
                                           {"n_embd", 2147483647},
                                           {"n_ctx", 5},
                                           {"layer_norm_epsilon", "small"}});
        else
            changes.insert(changes.end(), {{"hidden_act", "relu"},
                                           {"attention_bias", "both"},
                                           {"head_dim", 5},
                                           {"rope_parameters", {{"rope_theta", 7.0}}},
                                           {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}},
                                           {"num_hidden_layers", nullptr}});
        if (family.name.starts_with("qwen") || family.name == "olmo2") changes.push_back({"mlp_bias", true});
        if (family.name == "qwen3") {
            changes.push_back({"layer_types", {"full_attention", "sliding_attention", "full_attention"}});
        }
        for (const auto& [key, value] : changes) {
            const std::string message = error_with(j, key, value);
            INFO(family.name << " " << key << " " << value << ": " << message);
            REQUIRE(contains(message, key == "head_dim" ? "head" : key));
        }
        REQUIRE(error_with(j, "quantization_config", nullptr).empty());  // null means absent
        REQUIRE(error_with(j, "dtype", "bfloat16").empty());
    }
}

TEST_CASE("model/family: the model of another program names that program") {
    for (const ModelFamily& other : families())
        for (const ModelFamily& family : families()) {
            if (family.name == other.name) continue;
            const json j = written(other.config(other.default_preset));
            const std::string message =
                error_of<UsageError>([&] { check_program(our_json(j), {family}, "folder/config.json"); });
            REQUIRE(message ==
                    "folder/config.json: model_type is '" + other.name + "'; its program is ./train_" + other.name);
        }
    const Json unknown = {{"model_type", "mamba"}};
    check_program(unknown, {llama_family()}, "folder/config.json");
    REQUIRE(error_of<UsageError>([&] { decoder_config(unknown, {llama_family()}, "folder/config.json"); }) ==
            "folder/config.json: model_type is 'mamba'; only llama is supported");
}

TEST_CASE("model/family: all published forms of LLaMA's rotary base are read") {
    json j = written(llama_family().config("tiny"));
    j.erase("rope_scaling");
    REQUIRE(read(j).rope_base == 10000.0f);
    j.erase("rope_theta");
    REQUIRE(read(j).rope_base == 10000.0f);
    j["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
    REQUIRE(read(j).rope_base == 500000.0f);
    j["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "linear"}, {"factor", 4.0}};
    REQUIRE(read(j).rope_scaling == 4.0f);
    j["rope_parameters"].erase("factor");
    REQUIRE_THROWS_AS(read(j), UsageError);
    // Outside of the limits of --rope-base and --rope-scaling; a factor of 1e-40 would give NaN.
    REQUIRE(contains(error_with(j, "rope_parameters", {{"rope_theta", 0.5}}), "--rope-base 0.5"));
    REQUIRE(contains(error_with(j, "rope_parameters", {{"rope_type", "linear"}, {"factor", 1e-40}}), "--rope-scaling"));
    j["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "llama3"}};
    REQUIRE_THROWS_AS(read(j), UsageError);
}
