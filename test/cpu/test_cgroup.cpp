#include <filesystem>
#include <fstream>

#include "cpu/cgroup.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::cpu;
using test::TempDir;

namespace {

void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("cpu/cgroup: the tightest limit from the process's group up to the root applies") {
    TempDir folder;
    const std::string mount = folder / "cgroup", self = folder / "self";
    write(self, "1:cpu:/elsewhere\n0::/batch/job\n");
    write(mount + "/cpu.max", "800000 100000\n");
    write(mount + "/batch/cpu.max", "250000 100000\n");
    write(mount + "/batch/job/cpu.max", "max 100000\n");
    write(mount + "/batch/memory.max", "8000\n");
    write(mount + "/batch/memory.current", "3000\n");
    write(mount + "/batch/memory.stat", "anon 500\nfile 2000\nshmem 600\nfile_mapped 77\n");
    write(mount + "/batch/job/memory.max", "max\n");
    write(mount + "/batch/job/memory.current", "3000\n");
    const CgroupLimits limits = cgroup_limits(mount, self);
    REQUIRE(limits.cpus == 2.5);
    REQUIRE(limits.memory_left == 8000 - 3000 + (2000 - 600));
}

TEST_CASE("cpu/cgroup: in a container the root's limit applies, whatever the group's name") {
    TempDir folder;
    write(folder / "self", "0::/not/mounted/here\n");
    write(folder / "cgroup/cpu.max", "200000 100000\n");
    write(folder / "cgroup/memory.max", "1000\n");
    write(folder / "cgroup/memory.current", "1500\n");
    const CgroupLimits limits = cgroup_limits(folder / "cgroup", folder / "self");
    REQUIRE(limits.cpus == 2.0);
    REQUIRE(limits.memory_left == 0);
}

TEST_CASE("cpu/cgroup: there is no limit if none is set or none can be read") {
    TempDir folder;
    const CgroupLimits absent = cgroup_limits(folder / "cgroup", folder / "self");
    REQUIRE_FALSE(absent.cpus);
    REQUIRE_FALSE(absent.memory_left);
    write(folder / "self", "0::/\n");
    write(folder / "cgroup/cpu.max", "max 100000\n");
    write(folder / "cgroup/memory.max", "garbage\n");
    const CgroupLimits odd = cgroup_limits(folder / "cgroup", folder / "self");
    REQUIRE_FALSE(odd.cpus);
    REQUIRE_FALSE(odd.memory_left);
}
