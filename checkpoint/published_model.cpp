#include "checkpoint/published_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <span>
#include <utility>

#include "base/standard_streams.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_weight.h"
#include "checkpoint/weights.h"
#include "data/tokenizer.h"
#include "files/json.h"
#include "files/script.h"
#include "model/decoder.h"
#include "model/families.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

// Returns the tokens of a key that is a token, a list of tokens or null.
std::vector<int> tokens_of(const Json& j, const char* key, const std::string& path) {
    const Json& value = j[key];
    std::vector<int> tokens;
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& token : list.items()) {
        if (token.is_null()) continue;
        CHECK_USAGE(token.is_whole() && token.number() >= 0 && token.number() <= INT_MAX,
                    "{}: {} is {}, expected a token or a list of tokens", path, key, shown(value));
        tokens.push_back(token.get<int>());
    }
    return tokens;
}

// As in transformers, texts end as generation_config.json says, if there is one: without eos_token_id they do not end.
// The token that begins texts may be in either file.
void read_text_limits(PublishedModel& m, const Json& config, const fs::path& folder) {
    const std::string path = (folder / "config.json").string();
    const std::string other = (folder / "generation_config.json").string();
    std::vector<int> begin = tokens_of(config, "bos_token_id", path);
    m.limits.end = tokens_of(config, "eos_token_id", path);
    if (path_exists(other)) {
        m.generation = read_json(other);
        const std::vector<int> own = tokens_of(m.generation, "bos_token_id", other);
        if (!own.empty()) begin = own;
        std::vector<int> end = tokens_of(m.generation, "eos_token_id", other);
        m.endless = end.empty() && !m.limits.end.empty();
        m.limits.end = std::move(end);
    }
    if (!begin.empty()) m.limits.begin = begin[0];
}

// Returns the folder of the model hf:OWNER/NAME or hf:OWNER/NAME:REVISION, which scripts/fetch_model.py fetches or
// finds in the hub's cache; any other name as it is.
std::string local_model(const std::string& name) {
    if (!name.starts_with("hf:")) return name;
    print_error(name + ": from the Hugging Face Hub or its cache\n");
    constexpr double kPatienceSeconds = 7 * 24 * 3600.0;  // the hub's client itself gives up sooner if nothing arrives
    return Script("fetch_model.py", {name}, kPatienceSeconds).ask(Json::object(), "folder").get<std::string>(name);
}

}  // namespace

PublishedModel describe_model(const std::string& folder, const std::vector<ModelFamily>& families) {
    const fs::path beside = is_folder(folder) ? fs::path(folder) : fs::path(folder).parent_path();
    const std::string path = (beside / "config.json").string();
    CHECK_USAGE(path_exists(path), "{}: there is no config.json beside these weights to say which model they belong to",
                path);
    Json j = read_json(path);
    PublishedModel model;
    model.folder = folder;
    check_program(j, families, path);
    check_quantization(std::as_const(j)["quantization_config"], path);
    j.erase("quantization_config");
    model.config = decoder_config(j, families, path, &model.harmless_keys);
    model.dropout = std::exchange(model.config.dropout, 0.0f);
    read_text_limits(model, j, beside);
    return model;
}

static std::string best_note(const PublishedModel& model) {
    if (model.run.empty()) return "";
    const std::optional<int64_t> best = best_checkpoint(model.run);
    if (!best) return "";
    const std::string name = checkpoint_name(*best);
    const std::string newest = fs::path(model.folder).filename().string();
    if (name == newest) return "";
    return shortened(fmt::format("{} is the newest checkpoint; the one with the lowest validation loss is {}/{} ({})",
                                 newest, model.run, kBestLink, name));
}

std::vector<std::string> notes_on(const PublishedModel& model) {
    constexpr size_t kShown = 3;
    std::vector<std::string> notes;
    if (const std::vector<std::string>& names = model.unused; !names.empty()) {
        notes.push_back(shortened(fmt::format(
            "{}: not used: {}{}", model.folder, joined(std::span(names).first(std::min(kShown, names.size())), ", "),
            names.size() > kShown ? fmt::format(" and {} others", names.size() - kShown) : "")));
    }
    if (std::string note = best_note(model); !note.empty()) notes.push_back(std::move(note));
    if (!model.harmless_keys.empty())
        notes.push_back(shortened(
            fmt::format("{}: config.json: no effect on results: {}", model.folder, joined(model.harmless_keys, ", "))));
    if (model.endless)
        notes.push_back(
            shortened(fmt::format("{}: generation_config.json has no eos_token_id, so config.json's does "
                                  "not end texts either, as in transformers",
                                  model.folder)));
    return notes;
}

PublishedModel open_model(const std::string& name, const std::vector<ModelFamily>& families) {
    return refusing_as_usage([&] {
        const std::string folder = local_model(name);
        std::error_code error;
        std::string weights_folder = folder;
        const bool file = fs::is_regular_file(folder, error);
        CHECK_USAGE(file || is_folder(folder), "{}: no such folder or file of weights", folder);
        if (file || SafetensorsModel::in(folder)) {
            verify_model(folder);
        } else {
            const FoundCheckpoint checkpoint = find_checkpoint(folder);
            weights_folder = checkpoint.folder;
            CHECK_USAGE(!weights_folder.empty() || checkpoint.passed_over.empty(),
                        "{}: no checkpoint in it is whole: {}", folder, faults_of(checkpoint));
            CHECK_USAGE(!path_exists((fs::path(folder) / "adapter_config.json").string()),
                        "{}: has an adapter without its model; save the merged model: model.merge_and_unload()",
                        folder);
            CHECK_USAGE(!weights_folder.empty(), "{}: has neither model.safetensors nor a complete checkpoint", folder);
        }
        PublishedModel m = describe_model(weights_folder, families);
        if (weights_folder != folder) m.run = folder;
        const SafetensorsModel weights(weights_folder);
        m.unused = check_weights(decoder_params(m.config), weights);
        m.content = weights.content();
        return m;
    });
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model) {
    const fs::path folder = is_folder(model) ? fs::path(model) : fs::path(model).parent_path();
    for (const fs::path& candidate : {folder / "tokenizer", folder})
        if (Tokenizer::is_in(candidate.string())) return std::make_unique<Tokenizer>(candidate.string());
    return nullptr;
}

}  // namespace teon
