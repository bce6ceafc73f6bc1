#include "options/parse_options.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "files/file.h"
#include "files/json.h"
#include "optim/methods.h"
#include "options/command_line.h"
#include "options/config_file.h"
#include "options/flags.h"
#include "options/removed.h"

namespace teon {

namespace {

// "muon, normuon or teon"
std::string methods_with(const OptionRow& row) {
    std::vector<std::string_view> names;
    for (const MethodInfo& m : methods())
        if (row.methods(m)) names.push_back(name_of(m.method));
    const std::string_view last = names.back();
    names.pop_back();
    return names.empty() ? std::string(last) : fmt::format("{} or {}", joined(names, ", "), last);
}

Options defaults_of(const ModelFamily& family) {
    Options o;
    o.model = family.default_preset;
    return o;
}

// Returns the model's width, as far as flags say it: --channels or, without it, the preset's; else 0.
int channels_of(const ModelFamily& family, const Options& o) {
    if (const int channels = o.fields.value("channels", 0); channels > 0) return channels;
    for (const DecoderConfig& preset : family.presets)
        if (preset.preset == o.model) return preset.C;
    return 0;
}

// A flag whose default follows from other flags.
struct FollowingDefault {
    const char* flag;
    void (*set)(Options& o, int channels);  // channels: the model's width, or 0 if only plan_run() knows the model
};
const FollowingDefault kFollowingDefaults[] = {
    {"--lr", [](Options& o, int) { o.optimizer.lr = info_of(o.optimizer.method).lr; }},
    {"--beta1", [](Options& o, int) { o.optimizer.beta1 = info_of(o.optimizer.method).beta1; }},
    {"--beta2", [](Options& o, int) { o.optimizer.beta2 = info_of(o.optimizer.method).beta2; }},
    {"--adamw-lr",
     [](Options& o, int channels) {
         o.adamw_lr.reset();
         if (channels > 0) o.adamw_lr = default_adamw_lr(channels);
         if (!info_of(o.optimizer.method).orthogonalizes) o.adamw_lr = o.optimizer.lr;
     }},
    {"--adamw-weight-decay", [](Options& o, int) { o.optimizer.adamw_weight_decay = o.optimizer.weight_decay; }},
    {"--min-lr-ratio", [](Options& o, int) { o.min_lr_ratio = row_of(o.schedule.kind).min_lr_ratio; }},
};

// Whether only other optimizers have the flag.
bool is_of_other_methods(const OptionRow& row, Method method) { return row.methods && !row.methods(info_of(method)); }

const OptionRow& row_of(const OptionTable& table, std::string_view flag) {
    return *std::find_if(table.rows.begin(), table.rows.end(), [&](auto& row) { return row.flag == flag; });
}

// Returns the flags of kFollowingDefaults whose value in a run's config.json is the default that followed there. That
// file has a value for every flag; one without a value is returned, too.
std::set<std::string> defaults_in_run(const ModelFamily& family, const FlagsGiven& given_flags) {
    Options run = defaults_of(family);
    set_rows(option_table(family, run), given_flags.by_run);
    Options with_default;
    const OptionTable table = option_table(family, with_default);
    std::set<std::string> flags;
    for (const FollowingDefault& f : kFollowingDefaults) {
        const OptionRow& row = row_of(table, f.flag);
        with_default = run;
        const Json value = row.get();
        f.set(with_default, std::max(channels_of(family, run), 1));
        if (!given_flags.by_run.count(f.flag) || value == row.get()) flags.insert(f.flag);
    }
    return flags;
}

// Sets defaults that follow from other flags. If a run's config.json is read, a flag that had its default there takes
// the default that follows here, from values that may differ.
void set_defaults(Options& o, const ModelFamily& family, const OptionTable& table, const FlagsGiven& given_flags) {
    const std::set<std::string> followed = defaults_in_run(family, given_flags);
    for (const FollowingDefault& f : kFollowingDefaults)
        if (is_of_other_methods(row_of(table, f.flag), o.optimizer.method) ||
            (!given_flags.count(f.flag) && followed.count(f.flag)))
            f.set(o, 0);
    o.schedule.min_lr_ratio = *o.min_lr_ratio;
}

// Throws UsageError if flags exclude or need one another, and clears values that given flags replace.
void check_conflicts(Options& o, const OptionTable& table, const FlagsGiven& given_flags) {
    OptimizerOptions& opt = o.optimizer;
    std::vector<std::string> lengths;
    for (const char* flag : {"--steps", "--tokens", "--epochs"})
        if (given_flags.count(flag)) lengths.push_back(flag);
    CHECK_USAGE(lengths.size() <= 1, "{}: give one of them", joined(lengths, " and "));
    if (lengths.empty() && !o.steps && !o.tokens && o.epochs == 0) o.epochs = 1;
    if (!lengths.empty()) {  // replaces the length in a run's config.json
        if (lengths[0] != "--steps") o.steps = 0;
        if (lengths[0] != "--tokens") o.tokens = 0;
        if (lengths[0] != "--epochs") o.epochs = 0;
    }

    if (given_flags.count("--prompt") && !given_flags.count("--prompt-tokens")) o.sampling.prompt_tokens.clear();
    if (given_flags.count("--prompt-tokens") && !given_flags.count("--prompt")) o.sampling.prompt.clear();

    if (!o.plan_for.empty()) o.plan_only = true;
    auto needs = [&](std::initializer_list<const char*> flags, bool allowed, const char* what) {
        for (const char* flag : flags)
            CHECK_USAGE(allowed || !given_flags.count(flag), "{} has no meaning without {}", flag, what);
    };
    needs({"--resume"}, !o.out.empty(), "--out, the run's folder");
    needs({"--hellaswag"}, o.eval_only, "--eval-only");
    if (o.eval_only) {
        CHECK_USAGE(o.resume || !o.init_from.empty(),
                    "--eval-only: of what? Give --init-from FOLDER, or --resume --out RUN");
        CHECK_USAGE(!o.data.empty() || !o.val_data.empty() || !o.hellaswag.empty(),
                    "--eval-only: on what? Give --val-data or --hellaswag");
        return;
    }
    for (const OptionRow& row : table.rows)
        CHECK_USAGE(!given_flags.count(row.flag) || !is_of_other_methods(row, opt.method),
                    "{} has no meaning without --optimizer {}", row.flag, methods_with(row));
    needs({"--ns-steps", "--ns-form", "--ns-dtype"}, opt.ortho != Ortho::svd, "a Newton-Schulz --ortho");
    needs({"--neuron-beta2"}, opt.neuron_norm || opt.method == Method::normuon, "--neuron-norm or --optimizer normuon");
    needs({"--offload-blocks"}, o.offload.activations, "--offload activations or all");
    if (!o.offload.activations) o.offload_blocks = 0;  // a run's config.json may have a number
    needs({"--rank-logs"}, !o.out.empty(), "--out");
    needs({"--ranks", "--bandwidth"}, o.plan_only,
          "--plan-only (a run's ranks come from local.py, mpirun, torchrun or srun)");
    needs({"--constant-ratio"}, row_of(o.schedule.kind).holds_peak,
          ("--schedule " + schedules_that_hold_peak()).c_str());
    needs({"--min-lr-ratio"}, row_of(o.schedule.kind).fall, "a --schedule that decays");
    needs({"--fast-accumulation"}, o.matmul_dtype != MatmulDType::same, "--matmul-dtype fp8 or fp8-e4m3");
    needs({"--keep-every"}, o.keep_last > 0, "--keep-last");
    CHECK_USAGE(o.patience == 0 || o.eval_every > 0, "--patience {}: needs evaluations; give --eval-every N",
                o.patience);
    needs({"--prompt", "--prompt-tokens", "--sample-tokens", "--temperature", "--top-k"}, o.sample_every > 0,
          "--sample-every");
    CHECK_USAGE(o.plan_only || !o.data.empty() || !o.resume || path_exists(o.out + "/config.json"),
                "--resume: there is no run in {}; check --out, or give --data to begin a run there", o.out);
    CHECK_USAGE(o.plan_only || !o.data.empty(), "--data: missing; name a folder of token shards (make demo shows how)");
}

ProgramText program_text(const ModelFamily& family) {
    const std::string start = fmt::format("./{} --data datasets/NAME --optimizer teon", family.program());
    return {
        family.program(),
        fmt::format("Trains {} language models on token shards, which scripts/prepare.py makes.", family.title),
        {start + " --plan-only  # parameters and memory; touches no device", start + " --out runs/NAME",
         fmt::format("./{} --resume --out runs/NAME  # with the flags that the run began with", family.program()),
         fmt::format("python3 scripts/launch/local.py -n 8 ./{} --config run.toml  # 8 GPUs", family.program())},
        {"--model",  "--data",      "--out",          "--optimizer", "--lr",     "--batch-tokens", "--steps",
         "--tokens", "--epochs",    "--seq-len",      "--dtype",     "--seed",   "--eval-every",   "--checkpoint-every",
         "--resume", "--init-from", "--sample-every", "--plan-only", "--config", "--help",         "--help-all"}};
}

// Returns the words of a command line without --config and its file.
std::vector<const char*> without_config(int argc, const char* const* argv) {
    std::vector<const char*> words;
    for (int i = 0; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--config")
            ++i;
        else if (!word.starts_with("--config="))
            words.push_back(argv[i]);
    }
    return words;
}

// Takes the flags that are not given from the config.json of the run in --out. If that file is damaged, flags alone
// must describe the run, and they are compared with its checkpoint.
void take_over_config(Options& o, const OptionTable& table, const ModelFamily& family, FlagsGiven& given_flags,
                      int argc, const char* const* argv) {
    const std::string path = o.out + "/config.json";
    if (!path_exists(path)) return;
    const Options before = o;
    try {
        if (!given_flags.by_run
                 .empty()) {  // --config names another run's config.json; this run's own file has every flag
            o = defaults_of(family);
            const std::vector<const char*> words = without_config(argc, argv);
            given_flags = *parse_flags(table, program_text(family), static_cast<int>(words.size()), words.data());
        }
        const int micro_batch = o.micro_batch;
        read_config(path, table, family.program(), given_flags);
        o.micro_batch = micro_batch;  // taken from the checkpoint, if the number of ranks is the same
    } catch (const Error& error) {
        o = before;
        o.config_fault = error.what();
        given_flags.by_run.clear();
    }
}

}  // namespace

std::optional<Options> parse_options(const ModelFamily& family, int argc, const char* const* argv,
                                     const std::function<void(const Options&)>& before_resume) {
    Options o = defaults_of(family);
    const OptionTable table = option_table(family, o);
    std::optional<FlagsGiven> given_flags = parse_flags(table, program_text(family), argc, argv);
    if (!given_flags) return std::nullopt;
    if (!o.resumed_folder.empty()) {
        CHECK_USAGE(o.out.empty() || o.out == o.resumed_folder, "--resume {}: but --out is {}; give one of them",
                    o.resumed_folder, o.out);
        CHECK_USAGE(is_folder(o.resumed_folder), "--resume {}: no such folder", o.resumed_folder);
        o.out = o.resumed_folder;
    }
    if (o.resume && !o.out.empty()) {
        if (before_resume) before_resume(o);
        take_over_config(o, table, family, *given_flags, argc, argv);
    }
    o.given_flags = given_flags->by_user;
    // Only a run that continues compares its flags with the checkpoint.
    CHECK_USAGE(o.config_fault.empty() || !(o.plan_only || o.eval_only), "{}", o.config_fault);
    try {
        set_defaults(o, family, table, *given_flags);
        check_conflicts(o, table, *given_flags);
    } catch (const UsageError&) {
        CHECK_USAGE(o.config_fault.empty(), "{}", o.config_fault);  // the reason why flags are missing
        throw;
    }
    return o;
}

Json options_json(const ModelFamily& family, const Options& options) {
    Options copy = options;
    Json j = Json::object();
    for (const OptionRow& row : option_table(family, copy).rows)
        if (row.logged) j[row.flag.substr(2)] = row.get();
    return j;
}

Json deciding_options(const ModelFamily& family, const Options& options) {
    Options copy = options;
    Json j = Json::object();
    for (const OptionRow& row : option_table(family, copy).rows)
        if (row.fixed) j[row.flag.substr(2)] = row.get();
    j.erase("seed");
    j.erase("model");
    for (const ModelField& f : family.fields) j.erase(f.flag().substr(2));
    return j;
}

std::vector<std::string> changed_options(const ModelFamily& family, const Json& saved, const Options& options) {
    for (const auto& [key, value] : saved.members())
        if (const std::string removed = why_removed(key, value); !removed.empty())
            throw UsageError("--resume: the checkpoint's " + removed);
    Options copy = options;
    std::vector<std::string> changed;
    for (const OptionRow& row : option_table(family, copy).rows) {
        const std::string name = row.flag.substr(2);
        if (row.fixed && saved.contains(name) && saved[name] != row.get())
            changed.push_back(fmt::format("{} {} (was {})", row.flag, json_text(row.get()), json_text(saved[name])));
    }
    return changed;
}

}  // namespace teon
