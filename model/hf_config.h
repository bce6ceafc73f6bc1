// Reading and writing Hugging Face's config.json: what the families (gpt2.cpp, llama.cpp) do it with.
#pragma once

#include <initializer_list>
#include <set>
#include <string>

#include "files/json.h"
#include "model/decoder_config.h"

namespace teon {

// The fields of one config.json (or of an object in it). Absent and null ones are the default; every field must have
// been asked for or ignored by the time of finish(), so that nothing that changes the computation goes unnoticed.
// Everything throws UsageError naming file and field.
class HfReader {
public:
    HfReader(nlohmann::json j, std::string path) : j_(std::move(j)), path_(std::move(path)) {}

    const std::string& path() const { return path_; }
    bool has(const std::string& key) const { return j_.contains(key) && !j_[key].is_null(); }

    template <typename T>
    T get(const std::string& key, T otherwise) {
        known_.insert(key);
        return JsonObject(j_, path_).get(key, std::move(otherwise));
    }
    // Only this value of a field is computed here; where it is absent, `otherwise` is meant.
    template <typename T>
    void require(const std::string& key, T computed, T otherwise) {
        const T value = get(key, otherwise);
        CHECK_USAGE(value == computed, "{}: {} is {}; only {} is computed here", path_, key, shown(value),
                    shown(computed));
    }
    // Fields without influence on logits and loss.
    void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }
    HfReader object(const std::string& key);
    void finish() const;

private:
    nlohmann::json j_;
    std::string path_;
    std::set<std::string> known_;
};

// Rotary base and linear scaling, in the one or two places where versions of transformers put them.
void read_rope(DecoderConfig& c, HfReader& r);
nlohmann::ordered_json rope_base_json(const DecoderConfig& c);
nlohmann::ordered_json rope_scaling_json(const DecoderConfig& c);

}  // namespace teon
