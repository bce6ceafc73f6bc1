// What a container or batch system lets this process have of the machine: limits of Linux control groups (version 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace teon::cpu {

struct CgroupLimits {
    std::optional<double> cpus = {};          // processor seconds per second
    std::optional<int64_t> memory_left = {};  // bytes; files that the system only caches count as left
};

// The tightest limits on the way from the process's group, as `self` names it, to the root of the file system that is
// mounted at `mount`. Nothing where there is no limit, no version 2 or something unreadable.
CgroupLimits cgroup_limits(const std::string& mount = "/sys/fs/cgroup", const std::string& self = "/proc/self/cgroup");

}  // namespace teon::cpu
