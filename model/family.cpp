#include "model/family.h"

#include <algorithm>

#include "model/gpt2.h"
#include "model/hf_config.h"
#include "model/llama.h"
#include "model/olmo2.h"
#include "model/qwen3.h"

namespace teon {

const std::vector<ModelFamily>& families() {
    static const std::vector<ModelFamily> all = {gpt2_family(), llama_family(), qwen3_family(), olmo2_family()};
    return all;
}

DecoderConfig ModelFamily::config(const std::string& preset) const {
    std::vector<std::string> names;
    for (const DecoderConfig& c : presets) {
        if (c.preset == preset) return c;
        names.push_back(c.preset);
    }
    throw UsageError(fmt::format("no {} preset is called '{}'; there are {}", title, preset, fmt::join(names, ", ")));
}

namespace {

const ModelFamily* find(const std::vector<ModelFamily>& among, const std::string& name) {
    const auto found = std::find_if(among.begin(), among.end(), [&](const ModelFamily& f) { return f.name == name; });
    return found == among.end() ? nullptr : &*found;
}

}  // namespace

nlohmann::ordered_json hf_config(const DecoderConfig& c, int delimiter) {
    const ModelFamily* family = find(families(), c.family);
    CHECK(family, "no model family is called '{}'", c.family);
    nlohmann::ordered_json j = family->write_hf(c);
    j["model_type"] = c.family;
    j["vocab_size"] = c.V;
    j["initializer_range"] = decimal(c.init_std);
    j["tie_word_embeddings"] = c.tied_head;
    j["torch_dtype"] = "float32";
    const nlohmann::ordered_json token = delimiter >= 0 ? nlohmann::ordered_json(delimiter) : nlohmann::ordered_json();
    j["bos_token_id"] = token;
    j["eos_token_id"] = token;
    return j;
}

DecoderConfig decoder_config(const nlohmann::json& j, const std::vector<ModelFamily>& among, const std::string& path) {
    HfReader r(j, path);
    const auto type = r.get<std::string>("model_type", "");
    const ModelFamily* family = find(among, type);
    std::vector<std::string> names;
    for (const ModelFamily& f : among) names.push_back(f.name);
    CHECK_USAGE(family, "{}: model_type is '{}'; only {} can be read here", path, type, fmt::join(names, ", "));
    DecoderConfig c = family->config(family->default_preset);
    family->read_hf(c, r);
    c.V = r.size("vocab_size", kMaxVocab);
    c.init_std = r.get("initializer_range", c.init_std);
    // What names, stores, starts, stops or regularizes; and what heads for other tasks than language modeling have.
    r.ignore({"architectures", "transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache",
              "bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "id2label", "label2id",
              "problem_type", "output_attentions", "output_hidden_states", "return_dict", "gradient_checkpointing"});
    r.require("is_encoder_decoder", false, false);
    r.require("add_cross_attention", false, false);
    r.require("chunk_size_feed_forward", 0, 0);
    r.finish();
    c.preset = "checkpoint";
    try {
        validate(c);
    } catch (const UsageError& error) { throw UsageError(path + ": " + error.what()); }
    return c;
}

}  // namespace teon
