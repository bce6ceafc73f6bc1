#include "checkpoint/tokenizer_files.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;
using nlohmann::json;

namespace {

using Files = std::map<std::string, std::string>;

Files files_of(const std::string& folder, int begin = -1) {
    Files files;
    for (const auto& [path, content] : tokenizer_files(folder, 128, begin))
        REQUIRE(files.emplace(path, content).second);
    return files;
}

}  // namespace

TEST_CASE("checkpoint/tokenizer_files: GPT-2's files are copied and translated") {
    TempDir folder;
    REQUIRE(files_of(folder / "none").empty());
    const Files written = {{"description.json", R"({"kind": "gpt2", "delimiter_text": "<|endoftext|>"})"},
                           {"encoder.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})"},
                           {"vocab.bpe", "#version: 0.2\na b\n"},
                           {"tokens.bin", std::string("\0\xff", 2)}};
    for (const auto& [name, content] : written) write_file(folder / name, content);
    Files files = files_of(folder.path(), 3);
    for (const auto& [name, content] : written) REQUIRE(files["tokenizer/" + name] == content);
    REQUIRE(files["vocab.json"] == written.at("encoder.json"));
    REQUIRE(files["merges.txt"] == written.at("vocab.bpe"));
    const json library = json::parse(files["tokenizer.json"]);
    const json config = json::parse(files["tokenizer_config.json"]);
    REQUIRE(library["model"]["merges"] == json({"a b"}));
    REQUIRE(library["added_tokens"][0]["id"] == 3);
    REQUIRE(library["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] == json({3}));
    REQUIRE(config["tokenizer_class"] == "PreTrainedTokenizerFast");
    REQUIRE(config["eos_token"] == "<|endoftext|>");
    REQUIRE(config["unk_token"] == "<|endoftext|>");  // as in GPT-2's own folder
    REQUIRE(config["model_max_length"] == 128);
    REQUIRE(config["model_input_names"] == json({"input_ids", "attention_mask"}));
    REQUIRE(!json::parse(files_of(folder.path())["tokenizer.json"]).contains("post_processor"));
}

TEST_CASE("checkpoint/tokenizer_files: a SentencePiece model is exported as its tokenizer.json, if it has one") {
    TempDir folder;
    write_file(folder / "tokenizer.model", "binary");
    const auto describe = [&](const std::string& rest) {
        write_file(folder / "description.json", R"({"kind": "sentencepiece", "delimiter_text": "<s>")" + rest + "}");
    };
    describe("");  // versions before 0.3: a BPE, hopefully
    Files files = files_of(folder.path(), 1);
    json config = json::parse(files["tokenizer_config.json"]);
    REQUIRE(config["tokenizer_class"] == "LlamaTokenizer");
    REQUIRE(config["add_bos_token"] == true);
    REQUIRE(!files.count("tokenizer.json"));
    describe(R"(, "huggingface": null)");
    REQUIRE(files_of(folder.path(), 1).size() == 2);  // the folder's own, under tokenizer/
    write_file(folder / "huggingface.json", R"({"added_tokens": [{"id": 1, "content": "<s>"}], "model": {}})");
    describe(R"(, "huggingface": "huggingface.json")");
    files = files_of(folder.path(), 1);
    config = json::parse(files["tokenizer_config.json"]);
    REQUIRE(config["tokenizer_class"] == "PreTrainedTokenizerFast");
    REQUIRE(!config.contains("add_bos_token"));
    REQUIRE(json::parse(files["tokenizer.json"])["post_processor"]["special_tokens"]["<s>"]["ids"] == json({1}));
    REQUIRE(files["tokenizer.model"] == "binary");
}

TEST_CASE(
    "checkpoint/tokenizer_files: the library's file names its model, and the tokens for unknown text and padding") {
    TempDir folder;
    write_file(folder / "description.json", R"({"kind": "huggingface", "delimiter_text": "</s>"})");
    const auto exported = [&](const std::string& model, const std::string& own = "") {
        write_file(folder / "tokenizer.json",
                   R"({"added_tokens": [{"id": 1, "content": "<pad>"}], "model": )" + model + "}");
        if (!own.empty()) write_file(folder / "tokenizer_config.json", own);
        Files files = files_of(folder.path());
        json config = json::parse(files["tokenizer_config.json"]);
        config["type"] = json::parse(files["tokenizer.json"])["model"].value("type", "none");
        return config;
    };
    json config = exported(R"({"merges": [], "unk_token": "<unk>", "vocab": {}})");
    REQUIRE(config["type"] == "BPE");
    REQUIRE(config["unk_token"] == "<unk>");
    REQUIRE(config["pad_token"] == "<pad>");
    config = exported(R"({"type": "Unigram", "unk_id": 1, "vocab": [["a", 0], ["?", 0]]})");
    REQUIRE(config["type"] == "Unigram");
    REQUIRE(config["unk_token"] == "?");
    REQUIRE(exported(R"({"vocab": {}})")["type"] == "none");  // a WordLevel or a WordPiece
    REQUIRE(exported(R"({"merges": [], "unk_token": null})")["unk_token"] == "</s>");
    config = exported(R"({"merges": []})", R"({"unk_token": "own", "pad_token": {"content": "[P]"}})");
    REQUIRE(config["unk_token"] == "own");
    REQUIRE(config["pad_token"]["content"] == "[P]");
}

TEST_CASE("checkpoint/tokenizer_files: a tokenizer that cannot be read or is damaged is named") {
    TempDir folder;
    const auto read = [&] { tokenizer_files(folder.path(), 128, 0); };
    const auto complaint = [&] { return error_of(read); };
    write_file(folder / "description.json", "{}");
    REQUIRE(error_of_unreadable(folder.path(), read) == folder.path() + ": cannot be listed: Permission denied");
    write_file(folder / "description.json", R"({"kind": "huggingface"})");
    for (const char* text : {"{", R"({"added_tokens": [{"id": 0, "content": 5}]})",
                             R"({"added_tokens": [{"content": 5}]})", R"({"added_tokens": 3})"}) {
        write_file(folder / "tokenizer.json", text);
        INFO(text << ": " << complaint());
        REQUIRE(complaint().find(folder / "tokenizer.json") == 0);
    }
    std::filesystem::remove(folder / "tokenizer.json");
    write_file(folder / "description.json", R"({"kind": "gpt2"})");
    write_file(folder / "encoder.json", "{}");
    write_file(folder / "vocab.bpe", "#version: 0.2\na \xff\n");
    REQUIRE(complaint() == folder / "vocab.bpe: not a text in UTF-8");
    std::filesystem::remove(folder / "vocab.bpe");
    write_file(folder / "\xff", "");  // manifest.json names every file
    REQUIRE(contains(complaint(), "/\xff: the name is not UTF-8"));
}
