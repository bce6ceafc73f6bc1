#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "train/ranks.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

std::string lock_path(const std::string& folder) { return folder + "/lock"; }

// The content of the lock file: the process, its machine, and a random number that no other run has.
std::string owner() {
    char host[256] = "?";
    ::gethostname(host, sizeof host - 1);
    std::random_device random;
    return fmt::format("process {} on {}, {:08x}{:08x}\n", ::getpid(), host, random(), random());
}

std::string read_lock(const std::string& folder) {
    try {
        return read_text(lock_path(folder), 4096);
    } catch (const Error&) { return ""; }
}

// Whether the entry may be there before a run begins: a damaged checkpoint, a hidden file, an empty one (the shell's
// for a redirected output) or a launcher's log.
bool may_precede_run(const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    std::error_code error;
    return name.starts_with('.') || name.starts_with("step_") || extension == ".log" || extension == ".out" ||
           extension == ".err" || (entry.is_regular_file(error) && entry.file_size(error) == 0);
}

// Throws UsageError if the folder holds other files and nothing that a run writes first.
void check_not_foreign(const std::string& path) {
    std::error_code error;
    if (fs::exists(lock_path(path), error) || fs::exists(path + "/metrics.jsonl", error) ||
        !list_checkpoints(path).empty())
        return;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
        CHECK_USAGE(may_precede_run(entry), "--out {}: is a folder with other files ({}) and no run; name a new folder",
                    path, shown(entry.path().filename().string()));
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) {
    check(path);
    std::error_code error;
    if (fs::is_directory(path, error)) lock();
}

void RunFolder::check(const std::string& path) {
    std::error_code error;
    if (fs::is_directory(path, error)) return check_not_foreign(path);
    CHECK_USAGE(!fs::exists(path, error), "--out {}: is not a folder", path);
    fs::path parent = fs::absolute(path).parent_path();
    while (!fs::exists(parent, error) && parent != parent.parent_path()) parent = parent.parent_path();
    CHECK_USAGE(fs::is_directory(parent, error) && ::access(parent.c_str(), W_OK) == 0,
                "--out {}: cannot be made: {} cannot be written", path, parent.string());
}

void RunFolder::create(bool resumes) {
    std::error_code error;
    fs::create_directories(path_, error);
    CHECK_USAGE(!error && ::access(path_.c_str(), W_OK) == 0, "--out {}: cannot be written: {}", path_,
                error ? error.message() : std::strerror(errno));
    if (lock_ < 0) lock();
    if (!resumes) check_new(path_);
}

void RunFolder::check_new(const std::string& path) {
    CHECK_USAGE(list_checkpoints(path).empty(),
                "--out {}: already holds a run; name another folder, or continue it with --resume", path);
}

// Locks both the folder and the file in it, because the file may be removed and NFS does not lock folders.
void RunFolder::lock() {
    const auto take = [&](const Descriptor& file) {
        if (::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;  // or this file system has no locks
        const std::string other = read_lock(path_);
        throw Error(fmt::format("--out {}: another process is writing it{}", path_,
                                other.empty() ? "" : " (" + other.substr(0, other.find(',')) + ")"));
    };
    folder_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    CHECK_USAGE(folder_ >= 0, "--out {}: cannot be opened: {}", path_, std::strerror(errno));
    take(folder_);
    const std::string path = lock_path(path_);
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
    CHECK_USAGE(file >= 0, "--out {}: {} cannot be written: {}", path_, path, std::strerror(errno));
    struct stat status;
    CHECK(::fstat(file, &status) == 0 && S_ISREG(status.st_mode), "{}: is not a regular file", path);
    take(file);
    CHECK(::ftruncate(file, 0) == 0, "{}: cannot be written: {}", path, std::strerror(errno));
    const std::string text = owner();
    write_all(file, text.data(), text.size(), path);
    lock_ = std::move(file);
}

bool becomes_visible(const std::function<bool()>& visible) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!visible()) {
        if (std::chrono::steady_clock::now() >= deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return true;
}

void write_status(const std::string& folder, const Json& status) {
    write_file_atomically(folder + "/status.json", json_text(status, {.in_order = true}) + "\n");
}

void check_same_folder(const std::string& path, Context& context) {
    const std::string theirs = broadcast_from_rank_0(read_lock(path), context);
    CHECK(becomes_visible([&] { return read_lock(path) == theirs; }),
          "--out {}: rank {} does not see what rank 0 writes there; it must be one folder for all ranks, on a file "
          "system that their machines share, not a disk of one machine",
          path, context.comm->rank());
}

}  // namespace teon
