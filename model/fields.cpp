#include "model/fields.h"

#include <algorithm>

#include "base/text.h"
#include "files/json.h"

namespace teon {

// The upper limits keep products of a few sizes, which count elements or bytes, from overflowing.
const ModelFields& model_fields() {
    using C = DecoderConfig;
    const std::string preset = "preset's";
    static const ModelFields all = {
        {"layers", &C::L, 1, 1024, "transformer blocks", preset},
        {.key = "channels",
         .member = &C::C,
         .least = 1,
         .most = 65536,
         .help = "width of the residual stream; the MLP's width follows it",
         .default_text = preset,
         .follow = [](C& c, const C& before) { c.F = static_cast<int>(int64_t{c.F} * c.C / before.C); }},
        {.key = "heads",
         .member = &C::NH,
         .least = 1,
         .most = 1024,
         .help = "query heads",
         .default_text = preset,
         .follow = [](C& c, const C&) { c.NKV = c.NH; }},
        {"kv_heads", &C::NKV, 1, 1024, "key/value heads", "preset's, or --heads"},
        {.key = "head_size",
         .member = &C::head_size,
         .least = 1,
         .most = 4096,
         .help = "elements of a head",
         .default_text = "preset's, or --channels / --heads",
         .rotary = true,
         .otherwise = [](const C& c) { return c.HS(); }},
        {"ffn", &C::F, 1, 1 << 20, "width of the MLP", preset},
        {.key = "mlp", .member = &C::mlp, .help = "activation of the MLP", .default_text = preset},
        {.key = "vocab_size",
         .member = &C::V,
         .least = 2,
         .most = 1 << 24,
         .help = "tokens in the vocabulary",
         .default_text = "the data's manifest.json, or the preset's",
         .in_preset = false},
        {"context", &C::max_T, 1, kMaxContext},  // --seq-len limits a run's context
        {.key = "norm_eps",
         .member = &C::norm_eps,
         .most = 1,
         .help = "epsilon of the layer norms",
         .default_text = preset,
         .in_preset = false},
        {.key = "rope_base",
         .member = &C::rope_base,
         .least = 1,
         .most = 1e12,
         .help = "base of the rotary frequencies",
         .default_text = preset,
         .rotary = true,
         .in_preset = false},
        {.key = "rope_scaling",
         .member = &C::rope_scaling,
         .least = 1e-3,
         .most = 1e6,
         .help = "positions are divided by this (linear scaling)",
         .rotary = true,
         .in_preset = false},
        {.key = "window",
         .member = &C::window,
         .most = kMaxContext,
         .help = "tokens that a token attends to, itself and those before it; 0: all of them",
         .in_preset = false},
        {.key = "full_every",
         .member = &C::full_every,
         .most = 1024,
         .help = "every N-th layer attends to all tokens, and it alone scales positions; 0: each layer has --window",
         .family = "olmo2",
         .in_preset = false},
        {.key = "dropout",
         .member = &C::dropout,
         .most = 0.99,
         .help = "probability of dropping an element of the embedding, of the attention's probabilities and of each "
                 "branch's output while training; attention then multiplies matrices",
         .in_preset = false,
         .of_run = true},
        // The fields below have no flag: the family or the model of --init-from decides them.
        {"tied_head", &C::tied_head},
        {.key = "init_std", .member = &C::init_std, .most = 1e3, .logged = false},
        {.key = "attention_biases", .member = &C::attention_biases, .logged = false},
        {.key = "attention_out_bias", .member = &C::attention_out_bias, .logged = false},
        {.key = "mlp_biases", .member = &C::mlp_biases, .logged = false},
        {.key = "norm_placement", .member = &C::norm_placement, .logged = false},
        {.key = "qk_norm", .member = &C::qk_norm, .logged = false},
        {.key = "rope_low_turns", .member = &C::rope_low_turns, .most = 1e6, .logged = false},
        {.key = "rope_high_turns", .member = &C::rope_high_turns, .most = 1e6, .logged = false},
        {.key = "rope_original_context", .member = &C::rope_original_context, .most = kMaxContext, .logged = false},
        {.key = "rope_attention", .member = &C::rope_attention, .most = 1e3, .logged = false},
        {.key = "unrotated_every", .member = &C::unrotated_every, .most = 1024, .logged = false},
    };
    return all;
}

const ModelField& field_of(const ModelFields& fields, const std::string& key) {
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const ModelField& f) { return f.key == key; });
    CHECK(field != fields.end(), "a model has no field '{}'", key);
    return *field;
}

std::string ModelField::flag() const {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
}

Json ModelField::get(const DecoderConfig& c) const {
    return std::visit(
        [&]<typename T>(T DecoderConfig::*m) -> Json {
            if constexpr (std::is_enum_v<T>)
                return name_of(c.*m);
            else if constexpr (std::is_same_v<T, float>)
                return as_written(c.*m);
            else
                return c.*m || !otherwise ? Json(c.*m) : Json(otherwise(c));
        },
        member);
}

std::string ModelField::text(const DecoderConfig& c) const {
    const Json value = get(c);
    return value.is_text() ? value.get<std::string>() : json_text(value);
}

void ModelField::set(DecoderConfig& c, const Json& value, const std::string& where) const {
    const DecoderConfig before = c;
    std::visit(
        [&]<typename T>(T DecoderConfig::*m) {
            if constexpr (std::is_enum_v<T>) {
                const auto named = value_named<T>(value.get<std::string>(where));
                CHECK_USAGE(named, "{} is {}, which is unknown", where, shown(value));
                c.*m = *named;
            } else {
                c.*m = value.get<T>(where);
                if constexpr (!std::is_same_v<T, bool>)
                    CHECK_USAGE(least <= c.*m && c.*m <= most, "{} is {}, expected a {}number from {} to {}", where,
                                shown(value), std::is_same_v<T, int> ? "whole " : "", least, most);
            }
        },
        member);
    if (follow) follow(c, before);
}

Json model_json(const ModelFields& fields, const DecoderConfig& c) {
    Json model = Json::object();
    for (const ModelField& f : fields)
        if (f.logged) model[f.key] = f.get(c);
    return model;
}

DecoderConfig with_fields(const ModelFields& fields, DecoderConfig c, const Json& values) {
    for (const ModelField& f : fields)
        if (values.contains(f.key)) f.set(c, values[f.key], f.name());
    return c;
}

void validate(const DecoderConfig& c) {
    for (const ModelField& f : model_fields()) {
        const auto check = [&]<typename T>(T DecoderConfig::*m) {
            if constexpr (std::is_same_v<T, int> || std::is_same_v<T, float>)
                CHECK_USAGE((f.otherwise && c.*m == 0) || (f.least <= c.*m && c.*m <= f.most),
                            "{} {}: must be between {} and {}", f.name(), c.*m, f.least, f.most);
        };
        std::visit(check, f.member);
    }
    CHECK_USAGE(c.head_size > 0 || c.C % c.NH == 0, "--channels {} is not a multiple of --heads {}", c.C, c.NH);
    CHECK_USAGE(c.full_every == 0 || c.window > 0, "--full-every {}: needs --window", c.full_every);
    CHECK_USAGE(c.NH % c.NKV == 0, "--heads {} is not a multiple of --kv-heads {}", c.NH, c.NKV);
    CHECK_USAGE(c.positions != PositionKind::rotary || c.HS() % 2 == 0,
                "rotary positions need an even head size, but a head of this model has {} elements", c.HS());
}

}  // namespace teon
