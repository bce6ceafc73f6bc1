#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cpu/cgroup.h"
#include "cpu/system_memory.h"
#include "test/support/catch.h"
#include "test/support/fuzz.h"
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
    const std::string mount = folder / "cgroup";
    const std::string self = folder / "self";
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

TEST_CASE("cpu/cgroup: the memory of a Slurm job is a limit, unless it is all of the machine's") {
    const size_t before = available_memory() / 2;
    setenv("SLURM_MEM_PER_NODE", "3", 1);
    const size_t in_job = available_memory();
    setenv("SLURM_MEM_PER_NODE", "0", 1);
    const size_t in_whole = available_memory();
    unsetenv("SLURM_MEM_PER_NODE");
    REQUIRE(in_job == 3 << 20);
    REQUIRE(in_whole > std::min<size_t>(before, 64 << 20));
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

TEST_CASE("cpu/cgroup: version 1 keeps each controller's groups in a folder of its own") {
    TempDir folder;
    const std::string mount = folder / "cgroup";
    const std::string self = folder / "self";
    write(self, "11:pids:/batch\n5:cpu,cpuacct:/batch/job\n4:memory:/batch/job\n1:name=systemd:/x\n0::/\n");
    write(mount + "/cpu/batch/job/cpu.cfs_quota_us", "-1\n");
    write(mount + "/cpu/batch/job/cpu.cfs_period_us", "100000\n");
    write(mount + "/cpu/batch/cpu.cfs_quota_us", "150000\n");
    write(mount + "/cpu/batch/cpu.cfs_period_us", "100000\n");
    write(mount + "/memory/batch/memory.limit_in_bytes", "8000\n");
    write(mount + "/memory/batch/memory.usage_in_bytes", "3000\n");
    write(mount + "/memory/batch/memory.stat", "cache 1\nshmem 2\ntotal_cache 2000\ntotal_shmem 600\n");
    write(mount + "/memory/batch/job/memory.limit_in_bytes", "9223372036854771712\n");
    write(mount + "/memory/batch/job/memory.usage_in_bytes", "3000\n");
    const CgroupLimits limits = cgroup_limits(mount, self);
    REQUIRE(limits.cpus == 1.5);
    REQUIRE(limits.memory_left == 8000 - 3000 + (2000 - 600));
}

TEST_CASE("cpu/cgroup: version 1 without a limit sets none") {
    TempDir folder;
    write(folder / "self", "4:memory:/\n5:cpu:/\nnot a line\n7\n:\n");
    write(folder / "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write(folder / "cgroup/memory/memory.usage_in_bytes", "3000\n");
    write(folder / "cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    write(folder / "cgroup/cpu/cpu.cfs_period_us", "100000\n");
    const CgroupLimits limits = cgroup_limits(folder / "cgroup", folder / "self");
    REQUIRE_FALSE(limits.cpus);
    REQUIRE_FALSE(limits.memory_left);
}

TEST_CASE("cpu/cgroup: any content of these files gives no limit or one that is not negative (fuzz)") {
    test::Fuzz fuzz(7);
    const std::vector<std::string> words = {
        "max",    "-1",   "0",    "9223372036854771712", "1e9", "99999999999999999999",
        "memory", ":",    "0::/", "4:memory:/a/../b",    "cpu", "\n",
        " ",      "\xff", "17"};
    const auto text = [&] {
        std::string out;
        for (size_t i = fuzz.below(8); i > 0; --i)
            out += words[fuzz.below(words.size())] + (fuzz.below(2) ? " " : "\n");
        return out;
    };
    for (int i = 0; i < test::fuzz_rounds(60); ++i) {
        TempDir folder;
        write(folder / "self", "4:memory,cpu:/a\n0::/a\n" + text());
        for (const char* group : {"", "a/", "memory/", "memory/a/", "cpu/a/"})
            for (const char* file : {"memory.max", "memory.current", "memory.stat", "memory.limit_in_bytes", "cpu.max",
                                     "memory.usage_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us"})
                if (fuzz.below(2)) write(folder / (std::string("cgroup/") + group + file), text());
        const CgroupLimits limits = cgroup_limits(folder / "cgroup", folder / "self");
        REQUIRE((!limits.cpus || *limits.cpus > 0));
        REQUIRE((!limits.memory_left || *limits.memory_left >= 0));
    }
}
