#include "data/text_encoder.h"

#include "base/check.h"
#include "files/json.h"
#include "files/script.h"

namespace teon {

namespace {

constexpr double kPatienceSeconds = 120;  // a library on a slow disk of a network takes a minute to load

// Sends the request and returns the value of `key` in the answer.
Json answer_of(LineServer& server, const Json& request, const char* key, const std::string& folder) {
    const Json answer = parse_json(server.ask(json_text(request)), "the answer of scripts/encode_text.py",
                                   {.bytes = int64_t{1} << 30, .values = 1 << 28});
    CHECK_USAGE(!answer.contains("error"), "the tokenizer in {}: {}", folder,
                JsonObject(answer, folder).get<std::string>("error", ""));
    return JsonObject(answer, "the answer of scripts/encode_text.py").at<Json>(key);
}

}  // namespace

TextEncoder::TextEncoder(const std::string& folder)
    : folder_(folder), server_(script_commands("encode_text.py", {folder}), kPatienceSeconds) {}

std::vector<int> TextEncoder::encode(std::string_view text) {
    CHECK_USAGE(is_utf8(text), "a text to encode is not UTF-8");
    std::vector<int> tokens;
    const Json answer = answer_of(server_, {{"text", text}}, "tokens", folder_);
    for (const Json& token : answer.items()) tokens.push_back(token.get<int>(folder_ + ": token"));
    return tokens;
}

std::string TextEncoder::tokens_bin() {
    const auto digits = answer_of(server_, {{"table", true}}, "tokens_bin", folder_).get<std::string>(folder_);
    const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::string bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes.push_back(static_cast<char>(value(digits[i]) << 4 | value(digits[i + 1])));
    return bytes;
}

}  // namespace teon
