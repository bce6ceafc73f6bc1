#include "train/resume.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "files/file.h"
#include "files/hash.h"
#include "options/option_table.h"
#include "options/version.h"
#include "train/run_folder.h"

namespace teon {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

json data_json(const DataSet& data) {
    json list = json::array();  // without folders: data may be moved
    for (const ShardInfo& s : data.shards) {
        list.push_back({{"file", fs::path(s.path).filename().string()}, {"tokens", s.tokens}});
        if (!data.mixture.empty()) list.back()["share"] = data.mixture[static_cast<size_t>(s.source)];
    }
    return list;
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
    const DecoderConfig& c = s.config;
    return {{"program", family.program()},
            {"version", source_version()},
            {"options", options_json(family, s.options)},
            {"model",
             {{"layers", c.L},
              {"channels", c.C},
              {"heads", c.NH},
              {"kv_heads", c.NKV},
              {"head_size", c.HS()},
              {"ffn", c.F},
              {"mlp", name_of(c.mlp)},
              {"vocab_size", c.V},
              {"context", c.max_T},
              {"norm_eps", as_written(c.norm_eps)},
              {"rope_base", as_written(c.rope_base)},
              {"rope_scaling", as_written(c.rope_scaling)},
              {"tied_head", c.tied_head}}},
            {"ranks", s.placement.ranks},
            {"micro_batch", s.run.B},
            {"steps", s.steps},
            {"warmup_steps", warmup_steps(s.options.schedule, s.steps)},
            {"data", data_json(s.train)}};
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

std::string check_unchanged(const ModelFamily& family, const TrainingState& state, const Setup& setup) {
    const json now = run_json(family, setup), &saved = state.run;
    CHECK_USAGE(saved.value("program", "") == now.at("program").get<std::string>(),
                "--resume: the run in --out is one of {}", saved.value("program", "?"));
    std::vector<std::string> changed = changed_options(family, saved.value("options", json::object()), setup.options);
    const bool same_ranks = saved.value("ranks", 1) == setup.placement.ranks;  // others may need another micro-batch
    for (const char* key : {"model", "micro_batch"})
        if ((same_ranks || std::string_view(key) != "micro_batch") && saved.value(key, json()) != now[key])
            changed.push_back(fmt::format("{} {} (was {})", key, now[key].dump(), saved.value(key, json()).dump()));
    if (saved.value("data", json()) != now["data"]) changed.push_back("the training shards of --data, or their shares");
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
    if (!lengthened) return "";
    std::string text = fmt::format("the run ends after {} steps instead of {}", setup.steps, before);
    if (schedule.kind == ScheduleKind::constant_linear)
        text += fmt::format("; the decay begins after step {} instead of {}", steps_before_decay(schedule, setup.steps),
                            steps_before_decay(schedule, before));
    return text;
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
