#include "plan/description.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/tokenizer_files.h"
#include "data/text_identity.h"
#include "files/json.h"
#include "options/parse_options.h"
#include "options/version.h"
#include "runtime/linalg/library.h"

namespace teon {

namespace {

// Describes shards for --resume, which compares the description: their number, their tokens and a hash of their content
// and order. There may be 100,000 of them; config.json lists them. Names and folders do not count, because data may be
// moved. `list`: {"tokens", "content"} of each, in a mixture with "share".
Json shards_summary(const Json& list) {
    Hash hash;
    int64_t tokens = 0;
    for (const Json& shard : list.items()) {
        const int64_t n = shard.value("tokens", int64_t{0});
        const std::string row = fmt::format("{} {} {}\n", n, shard.value("content", ""), json_text(shard["share"]));
        hash.update(row.data(), row.size());
        tokens += n;
    }
    return {{"shards", list.size()}, {"tokens", tokens}, {"hash", fmt::format("{:016x}", hash.digest())}};
}

Json shards_summary(const DataSet& data) {
    Json list = Json::array();
    for (const ShardInfo& s : data.shards) {
        Json& shard = list.push_back({{"tokens", s.tokens}, {"content", s.content}});
        if (!data.mixture.empty()) shard["share"] = data.mixture[static_cast<size_t>(s.source)];
    }
    return shards_summary(list);
}

Json shards_with_paths(const DataSet& data) {
    Json list = Json::array();
    for (const ShardInfo& s : data.shards)
        list.push_back({{"path", s.path}, {"tokens", s.tokens}, {"content", s.content}, {"source", s.source}});
    return list;
}

// Identifies the text of the evaluated windows for scripts/compare.py; null if the tokens' bytes are not known.
Json validation_text_json(const RunPlan& p) {
    if (p.val.shards.empty()) return nullptr;
    const std::optional<TextIdentity> text =
        text_identity(p.val, tokenizer_folder(p.val.shards.front().path), p.run.T, p.eval_windows);
    if (!text) return nullptr;
    Json beginnings = Json::object();
    for (const auto& [bytes, hash] : text->beginnings) beginnings[std::to_string(bytes)] = hash;
    Json json = {{"bytes", text->bytes}, {"beginnings", beginnings}};
    int64_t tokens = 0;
    for (const ShardInfo& s : p.val.shards) tokens += s.tokens;
    const bool whole = p.eval_windows * p.run.T * 50 >= tokens * 49;  // but for the remainders of its shards
    if (whole && !p.val.text.empty()) json["source"] = p.val.text;
    return json;
}

Json mixture_json(const DataSet& data) {
    Json list = Json::array();
    for (size_t i = 0; i < data.mixture.size(); ++i)
        list.push_back({{"source", data.sources[i]}, {"share", data.mixture[i]}});
    return list;
}

Json stacks_json(const RunPlan& p) {
    Json stacks = Json::array();
    for (const Stack& stack : p.optimizer_plan.stacks) {
        Json names = Json::array();
        for (int param : stack.params) names.push_back(p.params[param].name);
        stacks.push_back({{"role", name_of(stack.role)},
                          {"m", stack.m},
                          {"n", stack.n},
                          {"mode", stack.mode},
                          {"form", name_of(stack.form)},
                          {"flops", stack.flops},
                          {"parameters", names}});
    }
    return stacks;
}

// Describes how shards differ from those of a checkpoint, which version 0.2 lists; empty if they do not.
std::string changed_shards(const Json& saved, const Json& now) {
    const Json before = saved.is_array() ? shards_summary(saved) : saved;
    for (const char* key : {"shards", "tokens"})
        if (before[key] != now[key])
            return fmt::format("{} {} (was {})", json_text(now[key]), key, json_text(before[key]));
    return before == now ? "" : "other content or order";
}

// Returns the names of the data's properties that must not change but did.
std::vector<std::string> changed_data(const Json& before, const Json& now) {
    std::vector<std::string> changed;
    const std::string shard = changed_shards(before.value("train", Json::array()), now["train"]);
    if (!shard.empty())
        changed.push_back(
            fmt::format("the training shards of --data ({}; the run's config.json lists its own)", shard));
    for (const char* key : {"delimiter", "tokenizer", "vocab_size"})
        if (before[key] != now[key])
            changed.push_back(
                fmt::format("the {} of --data {} (was {})", key, json_text(now[key]), json_text(before[key])));
    return changed;
}

const char* length_rule(const ScheduleRow& row) {
    if (!row.fall) return "can change its length";
    return row.holds_peak ? "can change its length only before the decay" : "depends on the length from its first step";
}

// Whether the updates so far would have been the same in a run of the new length.
bool may_change_length(const Schedule& schedule, int64_t done, int64_t before, int64_t now) {
    if (done > now) return false;
    const ScheduleRow& row = row_of(schedule.kind);
    if (!row.fall) return true;
    return row.holds_peak && done <= std::min(steps_before_decay(schedule, before), steps_before_decay(schedule, now));
}

}  // namespace

Json run_json(const RunPlan& p) {
    Json run = {{"program", p.family->program()},
                {"version", source_version()},
                {"options", options_json(*p.family, p.options)},
                {"model", model_json(p.family->fields, p.config)},
                {"ranks", p.ranks},
                {"micro_batch", p.run.B},
                {"head_rows", p.is_gpu ? Json(p.run.head_rows) : Json()},
                {"sharding", name_of(p.sharding)},
                {"steps", p.steps},
                {"warmup_steps", warmup_steps(p.options.schedule, p.steps)},
                {"init_from", p.options.adopted ? p.options.adopted->content : ""},
                {"data",
                 {{"train", shards_summary(p.train)},
                  {"val", shards_summary(p.val)},
                  {"eval_windows", p.eval_windows},
                  {"vocab_size", p.train.vocab_size},
                  {"delimiter", p.train.delimiter},
                  {"tokenizer", p.train.tokenizer}}}};
    if (!p.train.mixture.empty()) run["data"]["mixture_in_turn"] = p.options.mixture_in_turn;
    return run;
}

Json experiment_json(const RunPlan& p) {
    const Json run = run_json(p);
    Json train = Json::array();
    for (size_t i = 0; i < std::max<size_t>(p.train.mixture.size(), 1); ++i)
        train.push_back({{"content", content_of(p.train, static_cast<int>(i))},
                         {"share", p.train.mixture.empty() ? 1.0 : p.train.mixture[i]}});
    return {{"program", run["program"]},
            {"options", deciding_options(*p.family, p.options)},
            {"model", run["model"]},
            {"steps", p.steps},
            {"eval_windows", p.eval_windows},
            {"data",
             {{"train", train},
              {"val", content_of(p.val)},
              {"vocab_size", p.train.vocab_size},
              {"delimiter", p.train.delimiter},
              {"tokenizer", p.train.tokenizer}}},
            {"init_from", run["init_from"]}};
}

Json config_json(const RunPlan& p, const DeviceInfo& device, const Json& changes) {
    const DecoderConfig& c = p.config;
    Json model = {{"family", c.family}, {"preset", c.preset}, {"parameters", p.params.logical_size()}};
    model.update(model_json(p.family->fields, c));
    Json memory = Json::object();
    for (const auto* parts : {&p.memory, &p.host_memory})
        for (const auto& [part, bytes] : *parts) memory[name_of(part)] = bytes;
    return {{"program", p.family->program()},
            {"version", source_version()},
            {"device",
             {{"name", device.name},
              {"backend", backend_name()},
              {"memory_bytes", device.total_bytes},
              {"products", linalg_library().name}}},
            {"storage", {{"dtype", name_of(p.run.dtype)}, {"reason", p.dtype_reason}}},
            {"options", options_json(*p.family, p.options)},
            {"given", given_json(*p.family, p.options)},
            {"model", model},
            {"seed", p.options.seed},
            {"experiment", experiment_json(p)},
            {"changes", changes},
            {"run",
             {{"steps", p.steps},
              {"micro_batch", p.run.B},
              {"micro_steps", p.micro_steps},
              {"ranks", p.ranks},
              {"sharding", name_of(p.sharding)},
              {"attention", name_of(p.run.attention)},
              {"recompute", text(p.run.recompute)},
              {"offloaded_blocks", p.run.offloaded_blocks},
              {"eval_windows", p.eval_windows}}},
            {"memory_bytes", memory},
            {"data",
             {{"train", shards_with_paths(p.train)},
              {"val", shards_with_paths(p.val)},
              {"val_text", validation_text_json(p)},
              {"mixture", mixture_json(p.train)},
              {"vocab_size", p.train.vocab_size},
              {"delimiter", p.train.delimiter},
              {"tokenizer", p.train.tokenizer},
              {"val_bytes_of", p.val.counts_text() ? "source" : "tokens"}}},
            {"stacks", stacks_json(p)}};
}

Json check_unchanged(const RunPlan& p, const TrainingState& state) {
    const Json now = run_json(p);
    const Json& saved = state.run;
    CHECK_USAGE(saved.value("program", "") == now.value("program", ""), "--resume: the run in --out is one of {}",
                saved.value("program", "?"));
    std::vector<std::string> changed = changed_options(*p.family, saved.value("options", Json::object()), p.options);
    const bool same_ranks = saved.value("ranks", 1) == p.ranks;  // other numbers may need another micro-batch
    const auto compare = [&](const std::string& key, const Json& is, const Json& was) {
        if (is != was) changed.push_back(fmt::format("{} {} (was {})", key, json_text(is), json_text(was)));
    };
    // A field added since an older checkpoint has the default preset's value in it.
    Json model = model_json(p.family->fields, p.family->config(p.family->default_preset));
    model.update(saved.value("model", Json::object()));
    for (const auto& [key, value] : now["model"].members()) compare(key, value, model[key]);
    if (same_ranks) compare("micro_batch", now["micro_batch"], saved["micro_batch"]);
    const Json data = saved.value("data", Json::object());
    for (std::string& what : changed_data(data, now["data"])) changed.push_back(std::move(what));
    const int64_t before = saved.value("steps", int64_t{0});
    const Schedule& schedule = p.options.schedule;
    const bool lengthened = before != p.steps;
    if (lengthened && !may_change_length(schedule, state.step, before, p.steps))
        changed.push_back(fmt::format("steps {} (was {}; {} are done, and --schedule {} {})", p.steps, before,
                                      state.step, name_of(schedule.kind), length_rule(row_of(schedule.kind))));
    CHECK_USAGE(
        changed.empty(),
        "--resume: these differ from the run that was saved: {}; undo them, or begin another run with --init-from",
        joined(changed, ", "));
    Json changes = saved.value("changes", Json::array());
    const auto add = [&](const char* event, std::string reason) {
        changes.push_back({{"step", state.step}, {"event", event}, {"reason", std::move(reason)}});
    };
    if (lengthened) {
        std::string text = fmt::format("the run ends after {} steps instead of {}", p.steps, before);
        if (row_of(schedule.kind).fall)
            text += fmt::format("; the decay begins after step {} instead of {}", steps_before_decay(schedule, p.steps),
                                steps_before_decay(schedule, before));
        add("length_changed", std::move(text));
    }
    std::string what = changed_shards(data.value("val", Json::array()), now["data"]["val"]);
    const Json windows = data["eval_windows"];
    if (what.empty() && windows != now["data"]["eval_windows"])
        what = fmt::format("{} windows (was {})", p.eval_windows, json_text(windows));
    if (!what.empty())
        add("validation_changed",
            fmt::format("--val-data: {}; validation losses before and after step {} are not comparable", what,
                        state.step));
    return changes;
}

}  // namespace teon
