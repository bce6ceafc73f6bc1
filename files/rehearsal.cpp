#include "files/rehearsal.h"

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.h"

namespace teon {

std::string rehearse_save(const std::string& run_folder, FileOps& files) {
    const std::string staged = run_folder + "/.trial.tmp";  // left by a killed run, both are removed first
    const std::string folder = run_folder + "/.trial";
    int file = -1;
    const std::pair<const char*, std::function<int()>> operations[] = {
        {"remove a folder", [&] { return files.remove_folder(staged); }},
        {"remove a folder", [&] { return files.remove_folder(folder); }},
        {"make a folder", [&] { return files.make_folder(staged); }},
        {"make a file", [&] { return file = files.create(staged + "/file"); }},
        {"write to a file", [&] { return files.write(file, "trial", 5) > 0 ? 0 : -1; }},
        {"sync a file", [&] { return files.sync(file); }},
        {"close a file", [&] { return files.close(std::exchange(file, -1)); }},
        {"sync a folder", [&] { return files.sync_folder(staged); }},
        {"rename a folder", [&] { return files.rename(staged, folder); }},
        {"sync the run's folder", [&] { return files.sync_folder(run_folder); }},
        {"remove a folder", [&] { return files.remove_folder(folder); }},
    };
    for (const auto& [what, operation] : operations) {
        if (operation() >= 0) continue;
        const std::string why = std::strerror(errno);
        if (file >= 0) files.close(file);
        files.remove_folder(staged);
        throw UsageError(
            fmt::format("--out {}: no checkpoint can be saved there: cannot {} (a trial, before step 1): {}",
                        run_folder, what, why));
    }
    // As --keep-best makes its link.
    const bool linked = files.link("nowhere", staged) >= 0 && files.rename(staged, folder) >= 0;
    const std::string refused = linked ? "" : std::strerror(errno);
    files.remove_folder(staged);
    files.remove_folder(folder);
    return refused;
}

}  // namespace teon
