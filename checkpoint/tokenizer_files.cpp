#include "checkpoint/tokenizer_files.h"

#include <filesystem>
#include <map>

#include "files/file.h"
#include "files/json.h"
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
        constexpr int64_t kMaxFile = int64_t{256} << 20;
        files[entry.path().filename().string()] = read_text(entry.path().string(), kMaxFile);
    }
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [name, content] : files) result.push_back({"tokenizer/" + name, content});

    if (!files.count("description.json")) return result;
    const std::string path = folder + "/description.json";
    const nlohmann::json parsed = parse_json(files["description.json"], path);
    const JsonObject description(parsed, path);
    const auto kind = description.get<std::string>("kind", "");
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
    nlohmann::json config;
    if (files.count("tokenizer_config.json")) {
        config = parse_json(files["tokenizer_config.json"], folder + "/tokenizer_config.json");
    } else {
        const auto delimiter = description.get<std::string>("delimiter_text", "");
        config = {{"tokenizer_class", tokenizer_class->second}, {"bos_token", delimiter}, {"eos_token", delimiter}};
    }
    config["model_max_length"] = max_length;
    result.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
    return result;
}

}  // namespace teon
