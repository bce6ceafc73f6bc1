#include "model/family.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "model/hf_config.h"

namespace teon {

DecoderConfig ModelFamily::config(const std::string& preset) const {
    std::vector<std::string> names;
    for (const DecoderConfig& c : presets) {
        if (c.preset == preset) return c;
        names.push_back(c.preset);
    }
    throw UsageError(fmt::format("no {} preset is called '{}'; there are {}", title, preset, joined(names, ", ")));
}

bool ModelFamily::reads(const std::string& model_type) const {
    return model_type == name || std::ranges::count(hf_window.model_types, model_type) > 0;
}

bool ModelFamily::has_flag(const ModelField& field) const {
    if (!field.has_flag() || (field.rotary && presets.front().positions != PositionKind::rotary)) return false;
    if (!field.family.empty() && field.family != name) return false;
    return !field.is_activation() || mlps.size() > 1;
}

std::string ModelFamily::help(const ModelField& field) const {
    std::string help = field.help;
    if (!field.is_activation()) return help;
    for (const ActivationKind kind : mlps)
        help += fmt::format("{} {}: {}", kind == mlps.front() ? ";" : ",", name_of(kind), row_of(kind).meaning);
    return help;
}

std::vector<ActivationKind> activations(bool gated) {
    std::vector<ActivationKind> kinds;
    for (const ActivationFunction& row : kActivations)
        if (row.gated == gated) kinds.push_back(row.kind);
    return kinds;
}

HfKey activation_key(const std::string& key, ActivationKind otherwise) {
    HfKey k = {key, "mlp", always(std::string(name_of(otherwise)))};
    for (const ActivationKind kind : activations(row_of(otherwise).gated)) {
        const ActivationFunction& row = row_of(kind);
        for (const std::string_view hf_name : {row.hf_name, row.other_hf_name})
            if (!hf_name.empty()) k.values.push_back({std::string(hf_name), std::string(row.name)});
    }
    return k;
}

namespace {

// The keys of every family. They follow the family's own.
std::vector<HfKey> shared_keys(const ModelFamily& family) {
    return {{"vocab_size", "vocab_size"},
            {"initializer_range", "init_std", always(0.02)},
            {"tie_word_embeddings", "tied_head", always(family.hf_tied_head)}};
}

Json written(const ModelFamily& family, const HfKey& k, const DecoderConfig& c) {
    if (k.write) return k.write(c);
    const Json value = field_of(family.fields, k.field).get(c);
    for (const auto& [theirs, ours] : k.values)
        if (Json(ours) == value) return theirs;
    CHECK_USAGE(k.values.empty(), "{} {}: {} does not support it", k.field, shown(value), family.title);
    return value;
}

void read(DecoderConfig& c, const ModelFamily& family, const HfKey& k, HfReader& r) {
    if (k.write) return;
    Json value = r.get(k.key, Json());
    CHECK_USAGE(!value.is_null() || k.otherwise, "{}: {} is missing", r.path(), k.key);
    if (value.is_null()) {
        value = k.otherwise(c);
    } else if (!k.values.empty()) {
        Json all = Json::array();
        for (const auto& [theirs, _] : k.values) all.push_back(theirs);
        const auto position = std::find(all.items().begin(), all.items().end(), value);
        CHECK_USAGE(position != all.items().end(), "{}: {} is {}; only {} is supported", r.path(), k.key, shown(value),
                    shown(all));
        value = k.values[static_cast<size_t>(position - all.items().begin())].second;
    }
    field_of(family.fields, k.field).set(c, value, r.path() + ": " + k.key);
}

}  // namespace

Json hf_config(const ModelFamily& family, const DecoderConfig& c, int delimiter) {
    const HfWindow& window = family.hf_window;
    const bool renamed = c.window > 0 && !window.model_types.empty();
    Json j = {{"architectures", Json::array({renamed ? window.hf_class : family.hf_class})}};
    for (const HfKey& k : family.hf_keys) j[k.key] = written(family, k, c);
    if (c.window > 0)
        for (const HfKey& k : window.keys) j[k.key] = written(family, k, c);
    j["model_type"] = renamed ? window.model_types[0] : family.name;
    for (const HfKey& k : shared_keys(family)) j[k.key] = written(family, k, c);
    j["torch_dtype"] = "float32";
    j["use_cache"] = true;
    const Json token = delimiter >= 0 ? Json(delimiter) : Json();
    j["bos_token_id"] = token;
    j["eos_token_id"] = token;
    // Without the key, transformers takes the default of the class, for OLMo 2 token 1, and does not train that token.
    j["pad_token_id"] = nullptr;
    const DecoderConfig back = decoder_config(j, {family}, "config.json");
    for (const ModelField& f : family.fields)
        CHECK_USAGE(f.get(back) == f.get(c), "{} {}: cannot be saved: Hugging Face's config.json of {} means {}",
                    f.name(), f.text(c), family.title, f.text(back));
    return j;
}

DecoderConfig decoder_config(const Json& j, const std::vector<ModelFamily>& among, const std::string& path,
                             std::vector<std::string>* harmless) {
    HfReader r(j, path);
    const auto type = r.get<std::string>("model_type", "");
    std::vector<std::string> names;
    for (const ModelFamily& f : among) names.push_back(f.name);
    const auto family = std::find_if(among.begin(), among.end(), [&](const ModelFamily& f) { return f.reads(type); });
    CHECK_USAGE(family != among.end(), "{}: model_type is '{}'; only {} is supported", path, type, joined(names, ", "));
    DecoderConfig c = family->config(family->default_preset);
    for (const std::vector<HfKey>& keys : {family->hf_keys, shared_keys(*family)})
        for (const HfKey& k : keys) read(c, *family, k, r);
    family->read_hf(c, r);
    // Names, storage, generation and regularization, and the options of heads for other tasks than language modeling.
    r.ignore({"architectures", "transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache",
              "bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "id2label", "label2id",
              "problem_type", "output_attentions", "output_hidden_states", "return_dict", "gradient_checkpointing"});
    r.require("is_encoder_decoder", false, false);
    r.require("add_cross_attention", false, false);
    r.require("chunk_size_feed_forward", 0, 0);
    const std::vector<std::string> names_of_harmless = r.finish(harmless_keys());
    if (harmless) *harmless = names_of_harmless;
    c.preset = "checkpoint";
    try {
        validate(c);
    } catch (const UsageError& error) { throw UsageError(path + ": " + error.what()); }
    return c;
}

}  // namespace teon
