#include "data/text_encoder.h"

#include <filesystem>

#include "base/check.h"
#include "files/json.h"

namespace teon {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kPatienceSeconds = 120;  // a library on a slow disk of a network takes a minute to load

// Returns the project's folder, which is the program's or above it (build/cpu).
fs::path project_folder() {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
        if (fs::exists(folder / "scripts" / "encode_text.py", error)) return folder;
    throw Error(
        fmt::format("{}: scripts/encode_text.py, which encodes text, is not in its folder or above", program.string()));
}

// The project's .venv has the libraries, if it exists.
std::vector<std::vector<std::string>> commands(const std::string& folder) {
    const fs::path project = project_folder(), python = project / ".venv" / "bin" / "python";
    const std::string script = (project / "scripts" / "encode_text.py").string();
    std::error_code error;
    std::vector<std::vector<std::string>> found = {{"python3", script, folder}};
    if (fs::exists(python, error)) found.insert(found.begin(), {python.string(), script, folder});
    return found;
}

// Sends the request and returns the value of `key` in the answer.
json answer_of(LineServer& server, const json& request, const char* key, const std::string& folder) {
    const json answer = parse_json(server.ask(request.dump()), "the answer of scripts/encode_text.py",
                                   {.bytes = int64_t{1} << 30, .values = 1 << 28});
    CHECK_USAGE(!answer.contains("error"), "the tokenizer in {}: {}", folder,
                JsonObject(answer, folder).get<std::string>("error", ""));
    return JsonObject(answer, "the answer of scripts/encode_text.py").at<json>(key);
}

}  // namespace

TextEncoder::TextEncoder(const std::string& folder) : folder_(folder), server_(commands(folder), kPatienceSeconds) {}

std::vector<int> TextEncoder::encode(std::string_view text) {
    CHECK_USAGE(is_utf8(text), "a text to encode is not UTF-8");
    std::vector<int> tokens;
    for (const json& token : answer_of(server_, {{"text", text}}, "tokens", folder_))
        tokens.push_back(json_value<int>(token, folder_ + ": token"));
    return tokens;
}

std::string TextEncoder::tokens_bin() {
    const auto digits = json_value<std::string>(answer_of(server_, {{"table", true}}, "tokens_bin", folder_), folder_);
    const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::string bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes.push_back(static_cast<char>(value(digits[i]) << 4 | value(digits[i + 1])));
    return bytes;
}

}  // namespace teon
