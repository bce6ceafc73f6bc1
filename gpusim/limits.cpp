#include "gpusim/limits.h"

#include <algorithm>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/error.h"

namespace teon::gpusim {

namespace {

constexpr uint64_t kMostThreads = 1024;
constexpr uint64_t kMostThreadsZ = 64;
constexpr uint64_t kMostBlocksX = 0x7fffffff;
constexpr uint64_t kMostBlocksYZ = 65535;
constexpr uint64_t kMostOfCluster = 16;  // 8, or 16 where a kernel asks for it

size_t without_static(const Program& p, size_t bytes) {
    const size_t used = round_up(p.static_shared, std::max<size_t>(p.dynamic_align, 1));
    return bytes - std::min(bytes, used);
}

}  // namespace

size_t most_dynamic_shared(const Program& program, const GpuSheet& device) {
    return without_static(program, device.block_shared());
}
size_t unasked_dynamic_shared(const Program& program) { return without_static(program, kSharedUnasked); }

cudaError_t check_launch(const Program& p, const GpuSheet& device, size_t granted, const Launch& l) {
    const uint64_t threads = l.block.count();
    const auto refuse = [&](cudaError_t code, const std::string& why) {
        return cpu::fail(code, "launch of {}: {}", p.name, why);
    };
    const auto text = [](const Extent3& e) { return fmt::format("{} x {} x {}", e.x, e.y, e.z); };
    if (threads == 0 || threads > kMostThreads || l.block.z > kMostThreadsZ)
        return refuse(cudaErrorInvalidConfiguration, fmt::format("a block of {} threads; at most {}, {} along z",
                                                                 text(l.block), kMostThreads, kMostThreadsZ));
    if (l.grid.count() == 0 || l.grid.x > kMostBlocksX || l.grid.y > kMostBlocksYZ || l.grid.z > kMostBlocksYZ)
        return refuse(cudaErrorInvalidConfiguration,
                      fmt::format("a grid of {} blocks; at most {} along y and z", text(l.grid), kMostBlocksYZ));
    const Extent3& c = l.cluster;
    if (c.count() > 1 && device.capability < 90) return refuse(cudaErrorInvalidValue, "clusters need sm_90");
    if (c.count() == 0 || c.count() > kMostOfCluster || l.grid.x % c.x || l.grid.y % c.y || l.grid.z % c.z)
        return refuse(cudaErrorInvalidConfiguration,
                      fmt::format("clusters of {} blocks for a grid of {}; at most {}, and the grid a multiple",
                                  text(c), text(l.grid), kMostOfCluster));
    if (p.max_threads && threads > static_cast<uint64_t>(p.max_threads))
        return refuse(cudaErrorLaunchOutOfResources,
                      fmt::format("{} threads; its __launch_bounds__ are {}", threads, p.max_threads));
    if (p.static_shared > kSharedUnasked)  // ptxas refuses it
        return refuse(cudaErrorInvalidValue,
                      fmt::format("{} bytes of static shared memory; at most {}", p.static_shared, kSharedUnasked));
    if (l.dynamic_shared > std::min(granted, most_dynamic_shared(p, device)))
        return refuse(
            cudaErrorInvalidValue,
            fmt::format("{} bytes of dynamic shared memory beside {} static ones; {} were granted, and a block has {}",
                        l.dynamic_shared, p.static_shared, granted, device.block_shared()));
    return cudaSuccess;
}

}  // namespace teon::gpusim
