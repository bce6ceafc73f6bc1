// The limits that a container or batch system sets for this process with Linux control groups (versions 1 and 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace teon::cpu {

struct CgroupLimits {
    std::optional<double> cpus = {};          // processor seconds per second
    std::optional<int64_t> memory_left = {};  // bytes; memory that only caches files counts as left
};

// Returns the tightest limits of the process's group, which the file `self` names, and of the groups above it, up to
// the root of the file system mounted at `mount`; version 1 has a folder there for each controller. A limit is empty if
// none is set or a file cannot be read.
CgroupLimits cgroup_limits(const std::string& mount = "/sys/fs/cgroup", const std::string& self = "/proc/self/cgroup");

}  // namespace teon::cpu
