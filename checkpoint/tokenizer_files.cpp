#include "checkpoint/tokenizer_files.h"

#include <filesystem>
#include <map>
#include <sstream>

#include "base/check.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

std::string tokenizer_folder(const std::string& shard) {
    return (std::filesystem::path(shard).parent_path() / "tokenizer").string();
}

namespace {

// Returns a tokenizer.json (https://huggingface.co/docs/tokenizers) made from GPT-2's encoder.json and vocab.bpe.
Json gpt2_tokenizer_json(const Json& vocab, const std::string& merges, const std::string& delimiter) {
    Json pairs = Json::array();
    std::istringstream lines(merges);
    std::string line;
    std::getline(lines, line);  // the version
    while (std::getline(lines, line))
        if (!line.empty()) pairs.push_back(line);
    const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
    Json file = {{"version", "1.0"},
                 {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}},
                 {"pre_tokenizer", byte_level},
                 {"decoder", byte_level}};
    if (vocab.contains(delimiter))
        file["added_tokens"] = Json::array({{{"id", vocab[delimiter]},
                                             {"content", delimiter},
                                             {"single_word", false},
                                             {"lstrip", false},
                                             {"rstrip", false},
                                             {"normalized", false},
                                             {"special", true}}});
    return file;
}

// Returns the text of a token, empty if it has none. Throws UsageError naming `path`, the file.
std::string text_of(const Json& file, int token, const std::string& path) {
    const auto added = JsonObject(file, path).get<Json>("added_tokens", Json::array());
    CHECK_USAGE(added.is_array(), "{}: added_tokens is not a list", path);
    for (const Json& item : added.items()) {
        const JsonObject entry(item, path + ": added_tokens");
        if (entry.at<int>("id") == token) return entry.at<std::string>("content");
    }
    for (const auto& [text, id] : file["model"]["vocab"].members())
        if (id == token) return text;
    return "";
}

// Makes Hugging Face's library put the token before each text, unless the tokenizer has a template.
void begin_texts_with(Json& file, int token, const std::string& path) {
    const std::string text = text_of(file, token, path);
    const Json before = std::as_const(file)["post_processor"];
    const bool byte_level = before["type"] == "ByteLevel";
    if (text.empty() || (!before.is_null() && !byte_level)) return;
    const Json special = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
    const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    Json tokens = Json::object();
    tokens[text] = {{"id", text}, {"ids", Json::array({token})}, {"tokens", Json::array({text})}};
    const Json processor = {{"type", "TemplateProcessing"},
                            {"single", Json::array({special, first})},
                            {"pair", Json::array({special, first, second})},
                            {"special_tokens", tokens}};
    file["post_processor"] =
        byte_level ? Json{{"type", "Sequence"}, {"processors", Json::array({before, processor})}} : processor;
}

// The token that stands for what the tokenizer has no token for. A byte-level BPE needs none and has `delimiter`, as
// GPT-2's published folder does: CTranslate2 opens no GPT-2 without one.
Json unknown_token(const Json& file, const std::string& delimiter) {
    const Json& model = file["model"];
    if (model["unk_token"].is_text()) return model["unk_token"];
    if (model["unk_id"].is_whole() && model["vocab"].is_array()) {
        const auto id = static_cast<size_t>(model["unk_id"].number());
        const std::vector<Json>& pieces = model["vocab"].items();
        if (id < pieces.size() && pieces[id].size() > 0) return pieces[id].items()[0];
    }
    return delimiter.empty() ? Json() : Json(delimiter);
}

// The special token with one of the names that padding usually has, or null.
Json padding_token(const Json& file) {
    for (const Json& token : file["added_tokens"].items())
        for (const char* name : {"<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"})
            if (token["content"] == Json(name)) return token["content"];
    return {};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> tokenizer_files(const std::string& folder, int max_length, int begin) {
    namespace fs = std::filesystem;
    std::map<std::string, std::string> files;
    std::error_code error;
    std::error_code unreadable;
    for (const std::string& name : names_in(folder, error)) {
        const fs::path path = fs::path(folder) / name;
        const fs::file_status status = fs::status(path, unreadable);
        if (fs::status_known(status) && !fs::is_regular_file(status)) continue;
        CHECK_USAGE(is_utf8(name), "{}: the name is not UTF-8, in which a checkpoint lists its files; rename it",
                    path.string());
        constexpr int64_t kMaxFile = int64_t{256} << 20;
        files[name] = read_text(path.string(), kMaxFile);
    }
    if (error) throw ReadError(fmt::format("{}: cannot be listed: {}", folder, error.message()));
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [name, content] : files) result.push_back({"tokenizer/" + name, content});

    if (!files.count("description.json")) return result;
    const std::string path = folder + "/description.json";
    const Json parsed = parse_json(files["description.json"], path);
    const JsonObject description(parsed, path);
    const auto kind = description.get<std::string>("kind", "");
    // Hugging Face's name of each file, and its class of each kind of tokenizer.
    const std::map<std::string, std::string> names = {{"tokenizer.json", "tokenizer.json"},
                                                      {"tokenizer.model", "tokenizer.model"},
                                                      {"encoder.json", "vocab.json"},
                                                      {"vocab.bpe", "merges.txt"}};
    const std::map<std::string, std::string> classes = {{"gpt2", "PreTrainedTokenizerFast"},
                                                        {"huggingface", "PreTrainedTokenizerFast"},
                                                        {"sentencepiece", "LlamaTokenizer"}};
    const auto tokenizer_class = classes.find(kind);
    if (tokenizer_class == classes.end()) return result;  // bytes: Hugging Face has no such tokenizer
    const auto delimiter = description.get<std::string>("delimiter_text", "");
    const auto read = [&](const char* name) { return parse_json(files[name], folder + "/" + name); };
    std::string& library_file = files["tokenizer.json"];
    Json library;
    // A SentencePiece model as a tokenizer.json; null: it has no equal there, so that no class would give its tokens.
    // Folders of versions before 0.3 do not say.
    const bool converted = kind == "sentencepiece" && parsed.contains("huggingface");
    if (converted && parsed["huggingface"].is_null()) return result;
    if (converted) {
        library = read("huggingface.json");
    } else if (!library_file.empty()) {
        library = read("tokenizer.json");
    } else if (files.count("encoder.json") && files.count("vocab.bpe")) {
        CHECK_USAGE(is_utf8(files["vocab.bpe"]), "{}/vocab.bpe: not a text in UTF-8", folder);
        library = gpt2_tokenizer_json(read("encoder.json"), files["vocab.bpe"], delimiter);
    }
    if (begin >= 0 && library.is_object()) begin_texts_with(library, begin, folder + "/tokenizer.json");
    // The published GPT-2's file does not name its model; not every reader guesses it.
    if (const Json& model = std::as_const(library)["model"]; model.contains("merges") && !model.contains("type"))
        library["model"]["type"] = "BPE";
    library_file = library.is_null() ? "" : json_text(library) + "\n";
    for (const auto& [ours, theirs] : names)
        if (!files[ours].empty()) result.push_back({theirs, files[ours]});
    Json config;
    if (files.count("tokenizer_config.json")) {
        config = read("tokenizer_config.json");
    } else {
        config = {{"tokenizer_class", tokenizer_class->second}, {"bos_token", delimiter}, {"eos_token", delimiter}};
    }
    if (library.is_object()) {  // a class of a model would build another tokenizer, and flags another template
        config["tokenizer_class"] = "PreTrainedTokenizerFast";
        config.erase("add_bos_token");
        config.erase("add_eos_token");
        // Version 4 of transformers writes the configuration's value into the pre-tokenizer, false if there is none.
        const Json split = std::as_const(library)["pre_tokenizer"];
        if (split.contains("add_prefix_space")) config["add_prefix_space"] = split["add_prefix_space"];
        for (const auto& [key, token] : {std::pair("unk_token", unknown_token(library, delimiter)),
                                         std::pair("pad_token", padding_token(library))})
            if (!token.is_null() && std::as_const(config)[key].is_null()) config[key] = token;
    } else {
        config["add_bos_token"] = begin >= 0;
        config["add_eos_token"] = false;
    }
    config["model_max_length"] = max_length;
    // Without it, version 4 of transformers adds token_type_ids, which generate() of these models refuses.
    config["model_input_names"] = Json::array({"input_ids", "attention_mask"});
    result.push_back({"tokenizer_config.json", json_text(config, {.indent = 2}) + "\n"});
    return result;
}

}  // namespace teon
