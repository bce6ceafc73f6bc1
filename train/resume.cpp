#include "train/resume.h"

#include <filesystem>

#include "base/hash.h"
#include "files/file.h"
#include "files/json.h"
#include "train/run_folder.h"

namespace teon {

namespace fs = std::filesystem;

std::optional<ResumePoint> find_resume_point(const std::string& run_folder) {
    ResumePoint point;
    point.checkpoint = find_checkpoint(run_folder);
    if (!point.checkpoint.folder.empty()) {
        point.state = read_training_state(point.checkpoint.folder);
        return point;
    }
    CHECK(point.checkpoint.passed_over.empty(), "--resume: no checkpoint in {} is whole: {}", run_folder,
          faults_of(point.checkpoint));
    return std::nullopt;
}

static std::string identity_of(const std::string& run_folder, int64_t step) {
    std::string manifest;
    try {
        manifest = read_text(run_folder + "/" + checkpoint_name(step) + "/manifest.json", int64_t{64} << 20);
    } catch (const Error&) {  // this rank does not see it
    }
    return fmt::format("{} {:016x}", step, hash_of(manifest));
}

std::string identity_of(const std::string& run_folder, const std::optional<ResumePoint>& point) {
    return point ? identity_of(run_folder, point->state.step) : "";
}

ResumePoint resume_point(const std::string& run_folder, const std::string& identity, int rank) {
    const int64_t step = std::stoll(identity);
    const std::string folder = run_folder + "/" + checkpoint_name(step);
    CHECK(becomes_visible([&] { return identity_of(run_folder, step) == identity; }),
          "--resume: rank {} does not see {} as rank 0 does, which resumes from it; --out must be one folder for all "
          "ranks, on a file system that their machines share",
          rank, folder);
    const std::optional<std::string> fault = checkpoint_fault(folder);
    CHECK(!fault, "--resume: {}", *fault);
    return {{folder, {}}, read_training_state(folder)};
}

void adopt_model(Options& o, const ModelFamily& family, const std::optional<ResumePoint>& resume) {
    if (!resume) {
        if (!o.init_from.empty()) o.adopted = open_model(o.init_from, {family});
        return;
    }
    const std::string before = resume->state.run["options"].value("init-from", "");
    const std::string content = resume->state.run.value("init_from", "");
    if (o.given_flags.count("--init-from") && o.init_from != before) {
        CHECK_USAGE(!before.empty(),
                    "--init-from {}: this run did not begin from a model; leave the flag out, or begin another run",
                    o.init_from);
        const PublishedModel named_model = open_model(o.init_from, {family});
        CHECK_USAGE(named_model.folder == before || named_model.content == content,
                    "--init-from {}: this run began with another model, {}; leave the flag out to continue it, or "
                    "begin another run",
                    o.init_from, before);
    }
    o.init_from = before;
    if (o.init_from.empty()) return;
    o.adopted = describe_model(resume->checkpoint.folder, {family});
    o.adopted->content = content;
}

void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(run_folder, error)) {
        const fs::path& path = entry.path();
        if (path.extension() == ".tmp" && checkpoint_step(path.stem().string())) fs::remove_all(path);
    }
    if (!point) return;
    for (const auto& [folder, fault] : point->checkpoint.passed_over) {
        fs::remove_all(folder + ".damaged");
        fs::rename(folder, folder + ".damaged");
    }
}

}  // namespace teon
