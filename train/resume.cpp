#include "train/resume.h"

#include <filesystem>

#include "options/version.h"

namespace teon {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

json data_json(const std::vector<ShardInfo>& shards) {
    json list = json::array();  // without folders: data may be moved
    for (const ShardInfo& s : shards)
        list.push_back({{"file", fs::path(s.path).filename().string()}, {"tokens", s.tokens}});
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

json run_json(const ModelFamily& family, const Setup& s) {
    const DecoderConfig& c = s.config;
    return {
        {"program", family.program},
        {"version", source_version()},
        {"options", options_json(family, s.options)},
        {"model",
         {{"layers", c.L}, {"channels", c.C}, {"heads", c.NH}, {"kv_heads", c.NKV}, {"ffn", c.F}, {"vocab_size", c.V}}},
        {"ranks", s.placement.ranks},
        {"micro_batch", s.run.B},
        {"steps", s.steps},
        {"data", data_json(s.train_shards)}};
}

void check_unchanged(const ModelFamily& family, const json& saved, const Setup& setup) {
    const json now = run_json(family, setup);
    CHECK_USAGE(saved.value("program", "") == now.at("program").get<std::string>(),
                "--resume: the run in --out is one of {}", saved.value("program", "?"));
    std::vector<std::string> changed = changed_options(family, saved.value("options", json::object()), setup.options);
    const bool same_ranks = saved.value("ranks", 1) == setup.placement.ranks;  // others may need another micro-batch
    for (const char* key : {"model", "micro_batch", "steps"})
        if ((same_ranks || std::string_view(key) != "micro_batch") && saved.value(key, json()) != now[key])
            changed.push_back(fmt::format("{} {} (was {})", key, now[key].dump(), saved.value(key, json()).dump()));
    if (saved.value("data", json()) != now["data"]) changed.push_back("the training shards of --data");
    CHECK_USAGE(changed.empty(),
                "--resume: this run must go on as it began, but these changed: {}; or begin another with --init-from",
                fmt::join(changed, ", "));
}

void clear_remains(const std::string& run_folder, const FoundCheckpoint& found) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(run_folder, error)) {
        const fs::path& path = entry.path();
        if (path.extension() == ".tmp" && checkpoint_step(path.stem().string())) fs::remove_all(path);
    }
    for (const auto& [folder, fault] : found.passed_over) {
        fs::remove_all(folder + ".damaged");
        fs::rename(folder, folder + ".damaged");
    }
}

}  // namespace teon
