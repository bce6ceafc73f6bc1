#include "model/hf_config.h"

#include <optional>

namespace teon {

HfReader HfReader::object(const std::string& key) {
    const auto inner = get<nlohmann::json>(key, nlohmann::json::object());
    CHECK_USAGE(inner.is_object(), "{}: {} is {}, not an object", path_, key, shown(inner));
    return HfReader(inner, fmt::format("{}: {}", path_, key));
}

void HfReader::finish() const {
    for (const auto& [key, value] : j_.items())
        CHECK_USAGE(known_.count(key) || value.is_null(),
                    "{}: {} is {}, which is unknown; remove it if logits do not depend on it", path_, key,
                    shown(value));
}

void read_rope(DecoderConfig& c, HfReader& r) {
    std::optional<float> base, factor;
    std::optional<std::string> type;
    auto take = [](auto& field, HfReader& from, const char* key) {
        using Value = typename std::remove_reference_t<decltype(field)>::value_type;
        const Value value = from.get(key, Value());
        if (!from.has(key)) return;
        CHECK_USAGE(!field || *field == value, "{}: {} is {}, but another field of the file says {}", from.path(), key,
                    value, *field);
        field = value;
    };
    take(base, r, "rope_theta");
    for (const char* place : {"rope_parameters", "rope_scaling"}) {
        HfReader rope = r.object(place);
        take(base, rope, "rope_theta");
        take(type, rope, "rope_type");
        take(type, rope, "type");
        take(factor, rope, "factor");
        CHECK_USAGE(!type || *type == "default" || *type == "linear",
                    "{}: rope_type is {}; only default and linear are supported", rope.path(), *type);
        rope.finish();
    }
    c.rope_base = base.value_or(10000.0f);
    c.rope_scaling = factor.value_or(1.0f);
    CHECK_USAGE((type == "linear") == factor.has_value(), "{}: rope_type is {}, but its factor is {}", r.path(),
                type.value_or("default"), factor ? fmt::format("{}", *factor) : "missing");
}

nlohmann::ordered_json rope_base_json(const DecoderConfig& c) { return as_written(c.rope_base); }

nlohmann::ordered_json dropout_json(const DecoderConfig& c) { return as_written(c.dropout); }

nlohmann::ordered_json rope_scaling_json(const DecoderConfig& c) {
    if (c.rope_scaling == 1.0f) return nullptr;
    return {{"rope_type", "linear"}, {"factor", as_written(c.rope_scaling)}};
}

}  // namespace teon
