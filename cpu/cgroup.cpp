#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cpu/cgroup.h"

namespace teon::cpu {

namespace {

namespace fs = std::filesystem;

// Returns the number after `key`, or the file's first number if `key` is empty; nothing if it is missing or "max".
std::optional<int64_t> number(const fs::path& path, const std::string& key = "") {
    std::ifstream in(path);
    std::string word;
    while (!key.empty() && in >> word && word != key) in.ignore(1 << 20, '\n');
    int64_t value = 0;
    return in >> value ? std::optional(value) : std::nullopt;
}

std::optional<double> cpu_quota(const fs::path& group) {
    std::ifstream in(group / "cpu.max");  // "200000 100000": microseconds of each period, or "max"
    double quota = 0, period = 0;
    return in >> quota >> period && quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<int64_t> memory_left(const fs::path& group) {
    const std::optional<int64_t> most = number(group / "memory.max"), used = number(group / "memory.current");
    if (!most || !used) return std::nullopt;
    // "file" includes shared memory (/dev/shm), which the system cannot drop.
    const auto stat = [&](const char* key) { return number(group / "memory.stat", key).value_or(0); };
    return std::clamp<int64_t>(*most - *used + stat("file") - stat("shmem"), 0, *most);
}

template <typename T>
void tighten(std::optional<T>& limit, std::optional<T> other) {
    if (other && (!limit || *other < *limit)) limit = other;
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& mount, const std::string& self) {
    CgroupLimits limits;
    std::ifstream in(self);
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with("0::/")) continue;  // version 2; in a container it may name a group outside
        for (fs::path group = fs::path(line.substr(4));; group = group.parent_path()) {
            tighten(limits.cpus, cpu_quota(mount / group));
            tighten(limits.memory_left, memory_left(mount / group));
            if (group.empty()) break;
        }
    }
    return limits;
}

}  // namespace teon::cpu
