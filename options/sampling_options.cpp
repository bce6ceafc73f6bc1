#include "options/sampling_options.h"

#include <cmath>

#include "base/text.h"
#include "files/json.h"
#include "options/option_table.h"

namespace teon {

void add_sampling_flags(OptionTable& table, SamplingOptions& o) {
    table.add(
        "--prompt", "TEXT", "beginning of the sampled text", "nothing",
        [&o](const std::string& text) { o.prompt = text; }, [&o] { return Json(o.prompt); });
    table
        .add(
            "--prompt-tokens", "N,...", "the prompt as tokens, which needs no tokenizer", "",
            [&o](const std::string& text) {
                o.prompt_tokens.clear();
                for (const std::string& item : split(text)) {
                    const auto token = parse_number(item);
                    CHECK_USAGE(token && *token == std::floor(*token) && *token >= 0 && *token < 1 << 24,
                                "--prompt-tokens {}: not a token; write whole numbers, e.g. 15496,995", item);
                    o.prompt_tokens.push_back(static_cast<int>(*token));
                }
            },
            [&o] { return Json::array_of(o.prompt_tokens); })
        .is_list = true;
    table.integer("--sample-tokens", o.sample_tokens, 1, 1 << 20, "tokens to sample, at most");
    table.number("--temperature", o.temperature, 0, 100,
                 "what logits are divided by; 0, or a number that float rounds to it: always the likeliest token");
    table.integer("--top-k", o.top_k, 0, 1 << 24, "sample among this many of the likeliest tokens; 0: all");
    table.number("--top-p", o.top_p, 0, 1,
                 "of these, sample among the likeliest tokens whose probabilities sum to this; 0: always the likeliest "
                 "token; 1: all");
}

}  // namespace teon
