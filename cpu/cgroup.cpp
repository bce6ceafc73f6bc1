#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/text.h"
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

// A version of control groups: its files in a group's folder, and its keys in memory.stat. Each number may be -1 or,
// for memory, near 2^63 if there is no limit.
struct Version {
    const char *memory_limit, *memory_used, *cached, *shared;
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"};
constexpr Version kVersion2{"memory.max", "memory.current", "file", "shmem"};
constexpr int64_t kUnlimited = int64_t{1} << 60;

std::optional<double> cpu_quota(const fs::path& group) {
    std::ifstream in(group / "cpu.max");  // "200000 100000": microseconds of each period, or "max"
    double quota = 0;
    double period = 0;
    if (!(in >> quota >> period)) {  // version 1
        quota = static_cast<double>(number(group / "cpu.cfs_quota_us").value_or(0));
        period = static_cast<double>(number(group / "cpu.cfs_period_us").value_or(0));
    }
    return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<int64_t> memory_left(const fs::path& group, const Version& version) {
    const std::optional<int64_t> limit = number(group / version.memory_limit);
    const std::optional<int64_t> used = number(group / version.memory_used);
    if (!limit || !used || *limit < 0 || *limit >= kUnlimited) return std::nullopt;
    // Cached files include shared memory (/dev/shm), which the system cannot drop.
    const auto stat = [&](const char* key) { return number(group / "memory.stat", key).value_or(0); };
    return std::clamp<int64_t>(*limit - *used + stat(version.cached) - stat(version.shared), 0, *limit);
}

// Calls visit(folder) for the group and the groups above it. In a container the line may name a group outside of it;
// the root is then the container's own group.
template <typename F>
void for_groups_up_to_root(const fs::path& mount, fs::path group, F visit) {
    for (;; group = group.parent_path()) {
        visit(mount / group);
        if (group.empty()) return;
    }
}

template <typename T>
void tighten(std::optional<T>& limit, std::optional<T> other) {
    if (other && (!limit || *other < *limit)) limit = other;
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& mount, const std::string& self) {
    CgroupLimits limits;
    std::ifstream in(self);
    for (std::string line; std::getline(in, line);) {  // "0::/batch/job", or in version 1 "5:cpu,cpuacct:/batch/job"
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(":/", first + 1);
        if (second == std::string::npos) continue;
        const fs::path group = line.substr(second + 2);
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controllers.empty())
            for_groups_up_to_root(mount, group, [&](const fs::path& folder) {
                tighten(limits.cpus, cpu_quota(folder));
                tighten(limits.memory_left, memory_left(folder, kVersion2));
            });
        for (const std::string& controller : split(controllers))
            for_groups_up_to_root(fs::path(mount) / controller, group, [&](const fs::path& folder) {
                if (controller == "cpu") tighten(limits.cpus, cpu_quota(folder));
                if (controller == "memory") tighten(limits.memory_left, memory_left(folder, kVersion1));
            });
    }
    return limits;
}

}  // namespace teon::cpu
