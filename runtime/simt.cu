// The parts of a launch that do not depend on the kernel.
#include "runtime/simt.h"

namespace teon::detail {

void refuse_extent(const std::string& count) {
    throw Error(fmt::format("launch: an extent of {} is not in [0, 2^31)", count));
}

void check_launch(const LaunchConfig& c) {
    const int64_t threads = int64_t{c.block.x} * c.block.y * c.block.z;
    CHECK(threads >= 1 && threads <= 1024 && c.block.z <= 64,
          "launch: a block of {} x {} x {} threads; it must hold 1 to 1024, at most 64 of them along z", c.block.x,
          c.block.y, c.block.z);
    CHECK(c.grid.x <= 0x7fffffffu && c.grid.y <= 65535 && c.grid.z <= 65535,
          "launch: a grid of {} x {} x {} blocks; the most is 2147483647 x 65535 x 65535", c.grid.x, c.grid.y,
          c.grid.z);
    CHECK(c.smem <= 227 * 1024, "launch: {} bytes of dynamic shared memory; no device has more than {}", c.smem,
          227 * 1024);
}

void refuse_launch(const std::string& kernel, const LaunchConfig& c, cudaError_t status) {
    throw Error(fmt::format(
        "launch of {} on {} x {} x {} blocks of {} x {} x {} threads with {} bytes of dynamic "
        "shared memory: {}",
        kernel, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.smem, cudaGetErrorString(status)));
}

std::string kernel_name(std::string_view function) {
    const size_t equals = function.find("Kernel = ");
    const size_t begin = equals == function.npos ? 0 : equals + 9;
    const size_t end = function.find_first_of(";]", begin);
    std::string name(function.substr(begin, end == function.npos ? end : end - begin));
    for (const std::string_view scope : {"teon::", "{anonymous}::", "(anonymous namespace)::", "<unnamed>::"})
        for (size_t at = name.find(scope); at != name.npos; at = name.find(scope)) name.erase(at, scope.size());
    // nvcc derives the name of an unnamed namespace from the file name.
    constexpr std::string_view kUnnamed = "_GLOBAL__N__";
    for (size_t at = name.find(kUnnamed); at != name.npos; at = name.find(kUnnamed))
        name.erase(at, name.find("::", at) + 2 - at);
    return name;
}

}  // namespace teon::detail
