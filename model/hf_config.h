// Tools with which the families (gpt2.cpp, llama.cpp, ...) read and write Hugging Face's config.json.
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "files/json.h"
#include "model/decoder_config.h"

namespace teon {

// Fields that do not change logits or loss, and the values for which that is known; none: every value.
using HarmlessKeys = std::map<std::string, std::vector<Json>>;

// Fields of a config.json that versions of transformers and other programs write.
const HarmlessKeys& harmless_keys();

// Reads the fields of a config.json, or of an object in it. An absent or null field has its default. finish() throws if
// a field was neither read nor ignored nor is known to be harmless, so that no field that changes the computation goes
// unnoticed. All functions throw UsageError naming the file and the field.
class HfReader {
public:
    HfReader(Json j, std::string path) : j_(std::move(j)), path_(std::move(path)) {}

    const std::string& path() const { return path_; }
    bool has(const std::string& key) const { return j_.contains(key) && !j_[key].is_null(); }
    bool names(const std::string& key) const { return j_.contains(key); }  // even if it is null

    template <typename T>
    T get(const std::string& key, T otherwise) {
        known_.insert(key);
        return JsonObject(j_, path_).get(key, std::move(otherwise));
    }
    // Throws unless the field has the value `computed`, the only one implemented here. An absent field is `otherwise`.
    template <typename T>
    void require(const std::string& key, T computed, T otherwise) {
        const T value = get(key, otherwise);
        CHECK_USAGE(value == computed, "{}: {} is {}; only {} is supported", path_, key, shown(value), shown(computed));
    }
    // Accepts fields that do not change logits or loss.
    void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }
    HfReader object(const std::string& key);
    // Returns the names of the fields that are in `harmless` only.
    std::vector<std::string> finish(const HarmlessKeys& harmless = {}) const;

private:
    Json j_;
    std::string path_;
    std::set<std::string> known_;
};

// Reads sliding_window, the number of keys that a row sees, its own included (docs/extending.md). As in transformers,
// null is none, and a file without the key has 4096.
int read_window(HfReader& r);
// A list of `count`: each n-th is `nth` (n = 0: none), the rest are `others`.
Json every_nth(int count, int n, const Json& nth, const Json& others);
// The n of such a list in the file. Throws UsageError if it is none. otherwise: the n of a file without the key.
int read_every_nth(HfReader& r, const std::string& key, int count, const Json& nth, const Json& others, int otherwise);
// layer_types of a model with a window.
Json layer_types_json(const DecoderConfig& c);
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kFullAttention = "full_attention";

// Reads rotary base and scaling from the places where versions of transformers write them. Throws UsageError if
// the places contradict each other. otherwise: the base of a file without the key.
void read_rope(DecoderConfig& c, HfReader& r, float otherwise = 10000.0f);
Json rope_base_json(const DecoderConfig& c);
Json rope_scaling_json(const DecoderConfig& c);
Json dropout_json(const DecoderConfig& c);

}  // namespace teon
