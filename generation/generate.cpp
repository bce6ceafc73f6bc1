#include "generation/generate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>

#include "base/standard_streams.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/published_model.h"
#include "checkpoint/weights.h"
#include "data/tokenizer.h"
#include "files/file.h"
#include "files/json.h"
#include "generation/sampling.h"
#include "model/decoder.h"
#include "model/families.h"
#include "options/command_line.h"
#include "runtime/linalg/library.h"

namespace teon {

namespace {

// Settings of generation_config.json that change tokens and have no flag. They are off at 0 or, the latter, at 1.
constexpr std::string_view kOffAt0[] = {"bad_words_ids",
                                        "begin_suppress_tokens",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "min_length",
                                        "min_new_tokens",
                                        "min_p",
                                        "no_repeat_ngram_size",
                                        "sequence_bias",
                                        "stop_strings",
                                        "suppress_tokens"};
constexpr std::string_view kOffAt1[] = {"num_beams", "repetition_penalty", "typical_p"};
constexpr size_t kMaxPromptBytes = size_t{4} << 20;  // more than the largest context has

// Returns standard input without its last line break, which most programs add.
std::string prompt_from_standard_input() {
    std::string text;
    std::vector<char> block(size_t{64} << 10);
    for (ssize_t n = 1; n != 0 && text.size() <= kMaxPromptBytes;) {
        n = ::read(STDIN_FILENO, block.data(), block.size());
        if (n < 0 && errno == EINTR) continue;
        CHECK_USAGE(n >= 0, "--prompt -: standard input cannot be read: {}", std::strerror(errno));
        text.append(block.data(), static_cast<size_t>(n));
    }
    CHECK_USAGE(text.size() <= kMaxPromptBytes, "--prompt -: standard input has more than {}, too much for any prompt",
                bytes_text(static_cast<double>(kMaxPromptBytes)));
    if (text.ends_with('\n')) text.pop_back();
    CHECK_USAGE(!text.empty(), "--prompt -: standard input is empty or closed");
    return text;
}

// Says how the model's generation_config.json asks for other sampling; empty: it does not. As in transformers, its
// temperature, top_k and top_p count only with do_sample.
std::string other_sampling(const PublishedModel& model, const SamplingOptions& o) {
    const JsonObject asked(model.generation, model.folder + ": generation_config.json");
    const SamplingOptions defaults;  // transformers' own
    const bool sampled = asked.get("do_sample", false);
    const double temperature = sampled ? asked.get<double>("temperature", defaults.temperature) : 0;
    const int top_k = asked.get("top_k", defaults.top_k);
    const double top_p = asked.get("top_p", defaults.top_p);
    const bool same = sampled ? static_cast<float>(temperature) == o.temperature && top_k == o.top_k && top_p == o.top_p
                              : o.temperature == 0;
    bool says = false;
    for (const char* key : {"do_sample", "temperature", "top_k", "top_p"}) says |= asked.has(key);
    std::string flags = same || !says ? "" : fmt::format(" --temperature {}", temperature);
    if (!flags.empty() && sampled) flags += fmt::format(" --top-k {} --top-p {}", top_k, top_p);
    std::vector<std::string_view> others;
    const auto add_unless_off = [&](std::string_view key, int off) {
        const Json& value = std::as_const(model.generation)[key];
        if (!value.is_null() && value != Json(off)) others.push_back(key);
    };
    for (const std::string_view key : kOffAt0) add_unless_off(key, 0);
    for (const std::string_view key : kOffAt1) add_unless_off(key, 1);
    if (flags.empty() && others.empty()) return "";
    return fmt::format("{}{}{}", asked.name(), flags.empty() ? "" : " asks for" + flags + ", which only flags set",
                       others.empty() ? "" : "; not built: " + joined(others, ", "));
}

// Describes a sampled text: its length, why it ended, and what repeats it.
std::string summary(const GenerateOptions& o, const std::vector<int>& text, size_t prompt, const PublishedModel& model,
                    double seconds, int64_t seed) {
    const double rate = static_cast<double>(text.size()) / seconds;
    std::string line = fmt::format("{} tokens, {:.1f} tokens/s", text.size(), rate);
    line += model.limits.ends(text.back()) ? "; the text ended" : "; --sample-tokens ended it";
    const int context = model.config.max_T;
    if (prompt + text.size() > static_cast<size_t>(context) + 1)
        line += fmt::format("; longer than the context of {}: the last tokens follow from at least {} before them",
                            context, (context + 1) / 2);
    if (o.sampling.temperature > 0) line += fmt::format("; --seed {}", seed);
    return line;
}

// Returns the checkpoint of the lowest validation loss if `name` is a run that kept it, and says so if it is not the
// newest; else the name.
std::string best_of(const std::string& name) {
    const std::optional<int64_t> best = is_folder(name) ? best_checkpoint(name) : std::nullopt;
    if (!best) return name;
    const std::string path = name + "/" + checkpoint_name(*best);
    const int64_t newest = list_checkpoints(name).back();
    const std::string note = fmt::format("{} has the run's lowest validation loss; {}/{} is the newest", path, name,
                                         checkpoint_name(newest));
    if (newest != *best) print_error(fmt::format("generate: {}\n", shortened(note)));
    return path;
}

int run(const std::vector<ModelFamily>& families, int argc, const char* const* argv) {
    std::optional<GenerateOptions> o = parse_generate_options(families, argc, argv);
    if (!o) return 0;
    if (o->sampling.prompt == "-") o->sampling.prompt = prompt_from_standard_input();
    if (o->seed < 0) o->seed = static_cast<int64_t>(std::random_device()());
    const PublishedModel model = open_model(best_of(o->checkpoint), families);
    for (const std::string& note : notes_on(model)) print_error(fmt::format("generate: {}\n", note));
    if (const std::string note = other_sampling(model, o->sampling); !note.empty())
        print_error(fmt::format("generate: {}\n", shortened(note)));
    const bool needs_tokenizer = !o->as_tokens || !o->sampling.prompt.empty() || !o->tokenizer.empty();
    const std::unique_ptr<Tokenizer> tokenizer =
        needs_tokenizer ? open_tokenizer(o->tokenizer.empty() ? model.folder : o->tokenizer) : nullptr;
    if (!o->tokenizer.empty()) {
        CHECK_USAGE(tokenizer, "--tokenizer {}: has neither description.json, tokenizer.json nor tokenizer.model",
                    o->tokenizer);
        CHECK_USAGE(tokenizer->vocab_size() <= model.config.V, "--tokenizer {}: has {} tokens, the model only {}",
                    o->tokenizer, tokenizer->vocab_size(), model.config.V);
    }
    const std::vector<int> prompt = prompt_of(o->sampling, tokenizer.get(), model.limits, model.config.V);
    check_prompt_fits(prompt.size(), model.config.max_T);
    const SafetensorsModel weights(model.folder);

    require_device();
    Context context;
    const DType dtype = choose_dtype(o->dtype).dtype;
    ParamStore params(decoder_params(model.config), dtype, context.stream, false);
    load_weights(params, weights, context.stream);
    const int capacity = sample_capacity(o->sampling, prompt.size(), model.config.max_T);
    const std::unique_ptr<Generator> generator = make_generator(model.config, params, 1, capacity, context);

    // Without a tokenizer, only numbers can be shown.
    const bool numbers = o->as_tokens || !tokenizer;
    bool begins_text = true;
    auto show = [&](int token) {  // a token that ends texts is shown as a number, but not as text
        if (numbers)
            print_output(fmt::format("{} ", token));
        else if (!model.limits.ends(token))
            print_output(tokenizer->bytes(token, begins_text));
        begins_text = false;
        return true;
    };
    bool prompt_shown = false;  // with the first token: a prompt or weights that are refused leave no output
    auto show_with_prompt = [&](int token) {
        if (!prompt_shown)
            for (size_t i = !numbers && prompt[0] == model.limits.begin; i < prompt.size(); ++i) show(prompt[i]);
        prompt_shown = true;
        return show(token);
    };
    for (int i = 0; i < o->samples; ++i) {
        const int64_t seed = o->seed + i;
        begins_text = true;
        prompt_shown = false;
        if (o->samples > 1 && !numbers) print_output(fmt::format("--- text {}, seed {}\n", i + 1, seed));
        const auto begin = std::chrono::steady_clock::now();
        const std::vector<int> text =
            sample(*generator, prompt, o->sampling, model.limits, static_cast<uint64_t>(seed), show_with_prompt);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        print_output("\n");
        print_error(fmt::format("generate: {}\n", summary(*o, text, prompt.size(), model, seconds, seed)));
    }
    return 0;
}

}  // namespace

int generate_main(const std::vector<ModelFamily>& families, int argc, const char* const* argv) {
    try {
        prepare_process();
        return run(families, argc, argv);
    } catch (const UsageError& error) {
        print_error(error_line("generate", message_of(error)));
        return 2;
    } catch (const std::exception& error) {
        print_error(error_line("generate", message_of(error)));
        return 1;
    }
}

}  // namespace teon
