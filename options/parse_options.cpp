#include "options/parse_options.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "files/file.h"
#include "files/json.h"
#include "optim/methods.h"
#include "optim/stacks.h"
#include "options/command_line.h"
#include "options/config_file.h"
#include "options/flags.h"
#include "options/likes.h"
#include "options/removed.h"

namespace teon {

namespace {

// "muon, normuon or teon"
std::string methods_with(const OptionRow& row) {
    std::vector<std::string> names;
    for (const MethodInfo& m : methods())
        if (row.methods(m)) names.emplace_back(name_of(m.method));
    return alternatives(names);
}

// Whether only other optimizers have the flag.
bool is_of_other_methods(const OptionRow& row, Method method) { return row.methods && !row.methods(info_of(method)); }

// Sets the defaults that follow from other flags.
void set_defaults(const Options& o, const OptionTable& table) {
    for (const OptionRow& row : table.rows)
        if (row.follow && (!o.is_chosen(row.flag) || is_of_other_methods(row, o.optimizer.method))) row.follow();
}

bool is_met(const OptionTable& table, const Need& need) {
    const Json value = table.row(need.flag).get();
    if (need.values.empty()) return !value.is_null() && value != false && value != 0 && value != "";
    return std::any_of(need.values.begin(), need.values.end(), [&](const std::string& v) { return value == v; });
}

// "--offload activations or all", "--keep-last N", "--eval-only"
std::string as_flags(const OptionTable& table, const Need& need) {
    const OptionRow& row = table.row(need.flag);
    const std::string value = need.values.empty() && !row.is_switch ? row.type : alternatives(need.values);
    return row.flag + (value.empty() ? "" : " ") + value +
           (need.remark.empty() ? "" : fmt::format(" ({})", need.remark));
}

// Throws UsageError if a given flag has no meaning because of another flag's value.
void check_needs(const Options& o, const OptionTable& table) {
    for (const OptionRow& row : table.rows) {
        if (!o.given_flags.count(row.flag)) continue;
        std::vector<std::string> ways;
        if (is_of_other_methods(row, o.optimizer.method))
            ways.push_back("--optimizer " + methods_with(row));
        else if (std::none_of(row.needs.begin(), row.needs.end(), [&](const Need& n) { return is_met(table, n); }))
            for (const Need& need : row.needs) ways.push_back(as_flags(table, need));
        CHECK_USAGE(ways.empty(), "{} has no meaning without {}; give that, or leave out {}", row.flag,
                    alternatives(ways), row.flag);
    }
}

// Throws UsageError if flags exclude or need one another, and clears values that given flags replace.
void check_conflicts(Options& o, const OptionTable& table) {
    const auto is_given = [&](const char* flag) { return o.given_flags.count(flag) > 0; };
    std::vector<std::string> lengths;
    for (const char* flag : {"--steps", "--tokens", "--epochs"})
        if (is_given(flag)) lengths.push_back(flag);
    CHECK_USAGE(lengths.size() <= 1, "{}: give one of them", joined(lengths, " and "));
    if (lengths.empty() && !o.steps && !o.tokens && o.epochs == 0) o.epochs = 1;
    if (!lengths.empty()) {  // replaces the length in a run's config.json
        if (lengths[0] != "--steps") o.steps = 0;
        if (lengths[0] != "--tokens") o.tokens = 0;
        if (lengths[0] != "--epochs") o.epochs = 0;
    }

    CHECK_USAGE(!is_given("--warmup-steps") || !is_given("--warmup-ratio"),
                "--warmup-steps and --warmup-ratio: give one of them");
    if (is_given("--warmup-ratio")) o.warmup_steps = -1;  // replaces the number in a run's config.json
    // Otherwise the size, of which --update-rms is the short form, would replace the scale.
    CHECK_USAGE(!is_given("--update-scale") || o.optimizer.update_scale == scale_of(o.optimizer),
                "--update-scale {}: has no --update-rms {}; leave out one of them", name_of(o.optimizer.update_scale),
                as_written(o.optimizer.update_rms));
    if (is_given("--prompt") && !is_given("--prompt-tokens")) o.sampling.prompt_tokens.clear();
    if (is_given("--prompt-tokens") && !is_given("--prompt")) o.sampling.prompt.clear();
    if (!o.plan_for.empty()) o.plan_only = true;
    check_needs(o, table);
    if (!offloads_activations(o.offload)) o.offload_blocks = 0;  // a run's config.json may have a number
    if (o.eval_only) {
        CHECK_USAGE(o.resume || !o.init_from.empty(),
                    "--eval-only: of what? Give --init-from FOLDER, or --resume --out RUN");
        CHECK_USAGE(!o.data.empty() || !o.val_data.empty() || !o.hellaswag.empty(),
                    "--eval-only: on what? Give --val-data or --hellaswag");
        CHECK_USAGE(o.eval_stride == 0 || !o.document_mask,
                    "--eval-stride {}: its windows have no --document-mask; leave out one of them", o.eval_stride);
        return;
    }
    CHECK_USAGE(o.patience == 0 || o.eval_every > 0, "--patience {}: needs evaluations; give --eval-every N",
                o.patience);
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

// Takes the flags that are not given from the config.json of the run in --out, which continues, or else of the run that
// --config names. Returns whether a run continues with all of its values. If its file is damaged, flags alone must
// describe the run, and they are compared with its checkpoint.
bool take_over_config(Options& o, const OptionTable& table, const std::string& program, FlagsGiven& given) {
    const std::string own = o.out + "/config.json";
    if (o.resume && !o.out.empty() && path_exists(own)) {
        const Options before = o;
        try {
            read_run_config(own, table, program, given);
            o.micro_batch = before.micro_batch;  // taken from the checkpoint, if the number of ranks is the same
            return true;
        } catch (const Error& error) {
            o = before;
            o.config_fault = error.what();
        }
    }
    if (!given.run_config.empty()) read_run_config(given.run_config, table, program, given);
    return false;
}

}  // namespace

std::optional<Options> parse_options(const ModelFamily& family, int argc, const char* const* argv,
                                     const std::function<void(const Options&)>& before_resume) {
    Options o;
    o.model = family.default_preset;
    const OptionTable table = option_table(family, o);
    std::optional<FlagsGiven> given = parse_flags(table, program_text(family), argc, argv);
    if (!given) return std::nullopt;
    if (!o.resumed_folder.empty()) {
        CHECK_USAGE(o.out.empty() || o.out == o.resumed_folder, "--resume {}: but --out is {}; give one of them",
                    o.resumed_folder, o.out);
        CHECK_USAGE(is_folder(o.resumed_folder), "--resume {}: no such folder", o.resumed_folder);
        o.out = o.resumed_folder;
    }
    if (!o.like.empty()) given->by_like = apply(*like_named(o.like), table, given->by_user);
    if (o.resume && !o.out.empty() && before_resume) before_resume(o);
    const bool continues = take_over_config(o, table, family.program(), *given);
    o.given_flags = given->by_user;
    o.given_before = given->by_run;
    o.given_before.merge(given->by_like);
    // Only a run that continues compares its flags with the checkpoint.
    CHECK_USAGE(o.config_fault.empty() || !(o.plan_only || o.eval_only), "{}", o.config_fault);
    try {
        if (!continues) set_defaults(o, table);
        check_conflicts(o, table);
        if (!o.like.empty()) o.like_text = like_text(*like_named(o.like), table);
    } catch (const UsageError&) {
        CHECK_USAGE(o.config_fault.empty(), "{}", o.config_fault);  // the reason why flags are missing
        throw;
    }
    return o;
}

Json given_json(const ModelFamily& family, const Options& options) {
    Options copy = options;
    Json list = Json::array();
    for (const OptionRow& row : option_table(family, copy).rows)
        if (row.logged && !row.this_call && copy.is_chosen(row.flag)) list.push_back(row.flag.substr(2));
    return list;
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
