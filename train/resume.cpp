#include "train/resume.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "files/file.h"
#include "options/option_table.h"
#include "options/version.h"
#include "train/run_folder.h"

namespace teon {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

// Without folders: data may be moved.
json shards_json(const DataSet& data) {
    json list = json::array();
    for (const ShardInfo& s : data.shards) {
        list.push_back({{"file", fs::path(s.path).filename().string()}, {"tokens", s.tokens}, {"content", s.content}});
        if (!data.mixture.empty()) list.back()["share"] = data.mixture[static_cast<size_t>(s.source)];
    }
    return list;
}

json data_json(const Setup& s) {
    return {{"train", shards_json(s.train)},    {"val", shards_json(s.val)},      {"eval_windows", s.eval_windows},
            {"vocab_size", s.train.vocab_size}, {"delimiter", s.train.delimiter}, {"tokenizer", s.train.tokenizer}};
}

// The first of the shards that is not what it was; empty if all are. A shard may have another name.
std::string changed_shard(const json& before, const json& now) {
    if (before.size() != now.size()) return fmt::format("{} shards (was {})", now.size(), before.size());
    for (size_t i = 0; i < now.size(); ++i)
        for (const char* key : {"tokens", "content", "share"})
            if (before[i].value(key, json()) != now[i].value(key, json()))
                return fmt::format("{} of {}", key, now[i]["file"].get<std::string>());
    return "";
}

// What must not change of the data, by name.
std::vector<std::string> changed_data(const json& before, const json& now) {
    std::vector<std::string> changed;
    const bool old_version = before.is_array();  // before 0.2: names and sizes of the training shards
    if (old_version) {
        json names = now["train"];
        for (json& shard : names) shard.erase("content");
        if (before != names) changed.push_back("the training shards of --data, or their shares");
        return changed;
    }
    const std::string shard = changed_shard(before.value("train", json::array()), now["train"]);
    if (!shard.empty()) changed.push_back(fmt::format("the training shards of --data ({})", shard));
    for (const char* key : {"delimiter", "tokenizer", "vocab_size"})
        if (before.value(key, json()) != now[key])
            changed.push_back(
                fmt::format("the {} of --data {} (was {})", key, now[key].dump(), before.value(key, json()).dump()));
    return changed;
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const std::string& run_folder) {
    ResumePoint point;
    point.found = find_checkpoint(run_folder);
    if (!point.found.folder.empty()) {
        point.state = read_training_state(point.found.folder);
        return point;
    }
    std::string faults;
    for (const auto& [folder, fault] : point.found.passed_over) faults += (faults.empty() ? "" : "; ") + fault;
    CHECK(faults.empty(), "--resume: no checkpoint in {} is whole: {}", run_folder, faults);
    return std::nullopt;
}

std::optional<ResumePoint> resume_point_of_rank_0(const std::string& run_folder, std::optional<ResumePoint> own,
                                                  Context& context) {
    const auto identity = [&](int64_t step) {
        const std::string path = run_folder + "/" + checkpoint_name(step) + "/manifest.json";
        std::string manifest;
        try {
            manifest = read_text(path, int64_t{64} << 20);
        } catch (const Error&) {  // not there, as this rank sees it
        }
        return fmt::format("{} {:016x}", step, hash_of(manifest));
    };
    const std::string theirs = text_of_rank_0(own ? identity(own->state.step) : "", context);
    if (theirs.empty()) return std::nullopt;
    if (context.comm->rank() == 0) return own;
    const int64_t step = std::stoll(theirs);
    const std::string folder = run_folder + "/" + checkpoint_name(step);
    const auto deadline = std::chrono::steady_clock::now() + kSharedFolderPatience;
    while (identity(step) != theirs) {
        CHECK(
            std::chrono::steady_clock::now() < deadline,
            "--resume: rank {} does not see {} as rank 0 does, which resumes from it; --out must be one folder for all "
            "ranks, on a file system that their machines share",
            context.comm->rank(), folder);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    const std::optional<std::string> fault = checkpoint_fault(folder);
    CHECK(!fault, "--resume: {}", *fault);
    return ResumePoint{{folder, {}}, read_training_state(folder)};
}

json run_json(const ModelFamily& family, const Setup& s) {
    return {{"program", family.program()},
            {"version", source_version()},
            {"options", options_json(family, s.options)},
            {"model", model_json(family.fields, s.config)},
            {"ranks", s.placement.ranks},
            {"micro_batch", s.run.B},
            {"steps", s.steps},
            {"warmup_steps", warmup_steps(s.options.schedule, s.steps)},
            {"init_from", s.options.adopted ? s.options.adopted->content : ""},
            {"data", data_json(s)}};
}

json experiment_json(const ModelFamily& family, const Setup& s) {
    json run = run_json(family, s), train = json::array();
    for (size_t i = 0; i < std::max<size_t>(s.train.mixture.size(), 1); ++i)
        train.push_back({{"content", content_of(s.train, static_cast<int>(i))},
                         {"share", s.train.mixture.empty() ? 1.0 : s.train.mixture[i]}});
    return {{"program", run["program"]},
            {"options", deciding_options(family, s.options)},
            {"model", run["model"]},
            {"steps", s.steps},
            {"eval_windows", s.eval_windows},
            {"data",
             {{"train", train},
              {"val", content_of(s.val)},
              {"vocab_size", s.train.vocab_size},
              {"delimiter", s.train.delimiter},
              {"tokenizer", s.train.tokenizer}}},
            {"init_from", run["init_from"]}};
}

void adopt_model(Options& o, const ModelFamily& family, const std::string& checkpoint, const TrainingState* saved) {
    if (checkpoint.empty()) {
        if (!o.init_from.empty()) o.adopted = open_model(o.init_from, {family});
        return;
    }
    std::string content;
    if (saved) {
        const std::string before = saved->run.value("/options/init-from"_json_pointer, "");
        content = saved->run.value("init_from", "");
        if (o.given.count("--init-from") && o.init_from != before) {
            CHECK_USAGE(!before.empty(), "--init-from {}: this run began with weights of its own; begin another run",
                        o.init_from);
            const PublishedModel given = open_model(o.init_from, {family});
            CHECK_USAGE(given.folder == before || given.content == content,
                        "--init-from {}: this run began with another model, {}; leave the flag out to continue it, or "
                        "begin another run",
                        o.init_from, before);
        }
        o.init_from = before;
    }
    if (o.init_from.empty()) return;
    o.adopted = describe_model(checkpoint, {family});
    o.adopted->content = content;
}

namespace {

// Whether the updates so far would have been the same in a run of the new length.
bool may_change_length(const Schedule& schedule, int64_t done, int64_t before, int64_t now) {
    if (done > now) return false;
    if (schedule.kind == ScheduleKind::constant) return true;
    return schedule.kind == ScheduleKind::constant_linear &&
           done <= std::min(steps_before_decay(schedule, before), steps_before_decay(schedule, now));
}

}  // namespace

json check_unchanged(const ModelFamily& family, const TrainingState& state, const Setup& setup) {
    const json now = run_json(family, setup), &saved = state.run;
    CHECK_USAGE(saved.value("program", "") == now.at("program").get<std::string>(),
                "--resume: the run in --out is one of {}", saved.value("program", "?"));
    std::vector<std::string> changed = changed_options(family, saved.value("options", json::object()), setup.options);
    const bool same_ranks = saved.value("ranks", 1) == setup.placement.ranks;  // others may need another micro-batch
    const auto compare = [&](const std::string& key, const json& is, const json& was) {
        if (is != was) changed.push_back(fmt::format("{} {} (was {})", key, is.dump(), was.dump()));
    };
    // A field that was added since has its preset's value in older checkpoints.
    json model = model_json(family.fields, family.config(family.default_preset));
    model.update(saved.value("model", json::object()));
    for (const auto& [key, value] : now["model"].items()) compare(key, value, model[key]);
    if (same_ranks) compare("micro_batch", now["micro_batch"], saved.value("micro_batch", json()));
    const json data = saved.value("data", json::array());
    for (std::string& what : changed_data(data, now["data"])) changed.push_back(std::move(what));
    const int64_t before = saved.value("steps", int64_t{0});
    const Schedule& schedule = setup.options.schedule;
    const bool lengthened = before != setup.steps;
    if (lengthened && !may_change_length(schedule, state.step, before, setup.steps))
        changed.push_back(fmt::format(
            "steps {} (was {}; {} are done, and --schedule {} {})", setup.steps, before, state.step,
            name_of(schedule.kind),
            schedule.kind == ScheduleKind::constant_linear ? "can be given another length before its decay only"
            : schedule.kind == ScheduleKind::constant      ? "can be given another length from there on"
                                                           : "depends on the length from its first step on"));
    CHECK_USAGE(changed.empty(),
                "--resume: this run must go on as it began, but these changed: {}; or begin another with --init-from",
                fmt::join(changed, ", "));
    json changes = saved.value("changes", json::array());
    const auto add = [&](const char* event, std::string reason) {
        changes.push_back({{"step", state.step}, {"event", event}, {"reason", std::move(reason)}});
    };
    if (lengthened) {
        std::string text = fmt::format("the run ends after {} steps instead of {}", setup.steps, before);
        if (schedule.kind == ScheduleKind::constant_linear)
            text += fmt::format("; the decay begins after step {} instead of {}",
                                steps_before_decay(schedule, setup.steps), steps_before_decay(schedule, before));
        add("length_changed", std::move(text));
    }
    if (data.is_object()) {
        std::string what = changed_shard(data.value("val", json::array()), now["data"]["val"]);
        const json windows = data.value("eval_windows", json());
        if (what.empty() && windows != now["data"]["eval_windows"])
            what = fmt::format("{} windows (was {})", setup.eval_windows, windows.dump());
        if (!what.empty())
            add("validation_changed",
                fmt::format("--val-data: {}; validation losses before and after step {} are not comparable", what,
                            state.step));
    }
    return changes;
}

void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(run_folder, error)) {
        const fs::path& path = entry.path();
        if (path.extension() == ".tmp" && checkpoint_step(path.stem().string())) fs::remove_all(path);
    }
    if (!point) return;
    for (const auto& [folder, fault] : point->found.passed_over) {
        fs::remove_all(folder + ".damaged");
        fs::rename(folder, folder + ".damaged");
    }
}

}  // namespace teon
