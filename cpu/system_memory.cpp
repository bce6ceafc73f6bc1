#include "cpu/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "cpu/cgroup.h"

namespace teon::cpu {

size_t total_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

size_t available_memory() {
    size_t system = total_memory();
    std::ifstream in("/proc/meminfo");
    for (std::string key, rest; in >> key && std::getline(in, rest);)
        if (key == "MemAvailable:") system = std::strtoull(rest.c_str(), nullptr, 10) * 1024;
    const char* const job = std::getenv("SLURM_MEM_PER_NODE");  // MiB; 0: all of it
    if (const size_t mib = job ? std::strtoull(job, nullptr, 10) : 0) system = std::min(system, mib << 20);
    return std::min<size_t>(system, cgroup_limits().memory_left.value_or(system));
}

bool has_memory(size_t bytes) { return bytes <= 64 << 20 || bytes <= available_memory(); }

}  // namespace teon::cpu
