#include "options/sampling_options.h"

#include <fmt/core.h>

#include <cmath>

#include "base/text.h"
#include "files/json.h"
#include "model/family.h"
#include "options/command_line.h"

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

std::optional<GenerateOptions> parse_generate_options(const std::vector<ModelFamily>& families, int argc,
                                                      const char* const* argv) {
    GenerateOptions o;
    std::vector<std::string> titles;
    for (const ModelFamily& family : families) titles.push_back(family.title);
    OptionTable t;
    t.group("Model");
    t.text("--checkpoint", o.checkpoint, "FOLDER",
           fmt::format("config.json and model.safetensors of a model ({}), a run, for its best checkpoint or else its "
                       "newest, or hf:OWNER/NAME",
                       joined(titles, ", ")));
    t.text("--tokenizer", o.tokenizer, "FOLDER",
           "tokenizer of weights without one: a folder of tokens that scripts/prepare.py made, or one with "
           "tokenizer.json or tokenizer.model")
        .default_text = "the checkpoint's";
    t.choice("--dtype", o.dtype, {{"auto", std::nullopt}, {"float", DType::f32}, {"bf16", DType::bf16}},
             "storage of weights and activations; auto: bf16 on a GPU and on a CPU that multiplies bf16 in hardware, "
             "else float");
    t.group("Text");
    add_sampling_flags(t, o.sampling);
    t.toggle("--as-tokens", o.as_tokens, "print token numbers, including the first, instead of text");
    t.integer("--samples", o.samples, 1, 1'000'000, "texts to sample");
    t.integer("--seed", o.seed, 0, 1'000'000'000'000'000, "of sampling; further texts have the numbers that follow")
        .default_text = "a new one in each call, which is printed";
    const ProgramText program = {
        "generate",
        "Sample text from a checkpoint.",
        {"./generate --checkpoint runs/NAME --prompt \"Once upon a time\"",
         "./generate --checkpoint runs/NAME/step_00001000 --temperature 0  # the likeliest token each time",
         "./generate --checkpoint runs/NAME --temperature 0.8 --top-p 0.95 --samples 3",
         "./generate --checkpoint runs/NAME --prompt - < prompt.txt  # the prompt from standard input",
         "./generate --checkpoint FOLDER --prompt-tokens 15496,995 --as-tokens  # a published model, by tokens"},
        {"--checkpoint", "--prompt", "--sample-tokens", "--temperature", "--top-k", "--top-p", "--samples", "--seed",
         "--dtype", "--help", "--help-all"}};
    const std::optional<FlagsGiven> given = parse_flags(t, program, argc, argv);
    if (!given) return std::nullopt;
    CHECK_USAGE(given->run_config.empty(),
                "--config {}: is JSON; write the flags as TOML, lines like temperature = 0.8", given->run_config);
    CHECK_USAGE(!o.checkpoint.empty(), "--checkpoint: missing; give the folder of a checkpoint or a run");
    return o;
}

}  // namespace teon
