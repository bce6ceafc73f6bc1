#include "checkpoint/tokenizer_files.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/check.h"

namespace teon {

std::string tokenizer_folder(const std::string& shard) {
    return (std::filesystem::path(shard).parent_path() / "tokenizer").string();
}

std::vector<std::pair<std::string, std::string>> tokenizer_files(const std::string& folder, int max_length) {
    namespace fs = std::filesystem;
    std::map<std::string, std::string> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        CHECK(file, "{}: cannot be read", entry.path().string());
        files[entry.path().filename().string()] = std::string(std::istreambuf_iterator<char>(file), {});
    }
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [name, content] : files) result.push_back({"tokenizer/" + name, content});

    const nlohmann::json description = nlohmann::json::parse(files["description.json"], nullptr, false);
    if (!description.is_object()) return result;
    const std::string kind = description.value("kind", "");
    // What Hugging Face calls each file, and the class that reads them.
    const std::map<std::string, std::string> names = {{"tokenizer.json", "tokenizer.json"},
                                                      {"tokenizer.model", "tokenizer.model"},
                                                      {"encoder.json", "vocab.json"},
                                                      {"vocab.bpe", "merges.txt"}};
    const std::map<std::string, std::string> classes = {
        {"gpt2", "GPT2Tokenizer"}, {"huggingface", "PreTrainedTokenizerFast"}, {"sentencepiece", "LlamaTokenizer"}};
    const auto tokenizer_class = classes.find(kind);
    if (tokenizer_class == classes.end()) return result;  // bytes: Hugging Face has no such tokenizer
    for (const auto& [ours, theirs] : names)
        if (files.count(ours)) result.push_back({theirs, files[ours]});
    nlohmann::json config = nlohmann::json::parse(files["tokenizer_config.json"], nullptr, false);
    if (!config.is_object()) {
        const std::string delimiter = description.value("delimiter_text", "");
        config = {{"tokenizer_class", tokenizer_class->second}, {"bos_token", delimiter}, {"eos_token", delimiter}};
    }
    config["model_max_length"] = max_length;
    result.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
    return result;
}

}  // namespace teon
