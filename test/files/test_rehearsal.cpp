#include "files/rehearsal.h"

#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

// File operations of which one fails, by its number.
struct OneFails : FileOps {
    int at = -1;
    int code = 0;
    int calls = 0;
    int after(int status) {
        if (calls++ != at) return status;
        errno = code;
        return -1;
    }
    int make_folder(const std::string& path) override { return after(FileOps::make_folder(path)); }
    int create(const std::string& path) override { return calls == at ? after(-1) : after(FileOps::create(path)); }
    ssize_t write(int file, const void* data, size_t bytes) override {
        return after(static_cast<int>(FileOps::write(file, data, bytes)));
    }
    int sync(int file) override { return after(FileOps::sync(file)); }
    int close(int file) override { return after(FileOps::close(file)); }
    int sync_folder(const std::string& path) override { return after(FileOps::sync_folder(path)); }
    int rename(const std::string& from, const std::string& to) override { return after(FileOps::rename(from, to)); }
    int link(const std::string& to, const std::string& path) override { return after(FileOps::link(to, path)); }
    int remove_folder(const std::string& path) override { return after(FileOps::remove_folder(path)); }
};

}  // namespace

TEST_CASE("files/rehearsal: each operation of a save that a disk refuses is named, and nothing is left") {
    const std::vector<std::string> operations = {"remove a folder",       "remove a folder", "make a folder",
                                                 "make a file",           "write to a file", "sync a file",
                                                 "close a file",          "sync a folder",   "rename a folder",
                                                 "sync the run's folder", "remove a folder"};
    for (const int code : {EINVAL, EPERM, ENOSYS, EIO, ENOSPC})
        for (size_t at = 0; at < operations.size() + 3; ++at) {
            const TempDir folder;
            OneFails files;
            files.at = static_cast<int>(at);
            files.code = code;
            INFO("operation " << at);
            if (at >= operations.size()) {
                const bool links = at < operations.size() + 2;
                REQUIRE(rehearse_save(folder.path(), files) == (links ? std::strerror(code) : ""));
            } else {
                REQUIRE_THROWS_WITH(
                    rehearse_save(folder.path(), files),
                    fmt::format("--out {}: no checkpoint can be saved there: cannot {} (a trial, before "
                                "step 1): {}",
                                folder.path(), operations[at], std::strerror(code)));
            }
            files.at = -1;
            REQUIRE(rehearse_save(folder.path(), files) == "");
            REQUIRE(std::filesystem::is_empty(folder.path()));
        }
}
