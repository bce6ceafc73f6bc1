// The state of a running block and its warps.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "gpusim/program.h"
#include "gpusim/shared_memory.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

// The addresses [begin, end) that a kernel may access.
struct Range {
    uintptr_t begin, end;
};

// The order in which warps run. In random order, the lanes of a warp run together only where an instruction requires
// it.
struct Order {
    enum class Kind { forward, reverse, random } kind = Kind::forward;
    uint64_t seed = 0;
};
Order parse_order(const std::string& text);  // "forward", "reverse" or "random:SEED"; else throws UsageError

struct Launch {
    Extent3 grid, block;
    Extent3 cluster = {};  // blocks
    size_t dynamic_shared = 0;
    bool early = false;  // starts before preceding work ends; device memory only after griddepcontrol.wait
    Order order;
    uint64_t cooperative = 0;  // all blocks run at the same time, and their barrier has its state at this address
};

// The first generic addresses of parameters, shared and local memory. The host has no memory there.
inline constexpr uint64_t kParameterWindow = uint64_t{1} << 59;
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 60;
inline constexpr uint64_t kLocalWindow = uint64_t{1} << 61;

// Lanes at the same instruction.
struct Group {
    int32_t at;
    Lanes lanes;
    bool waits = false;  // for other lanes or for a barrier
};

// A cp.async that has not been waited for.
struct Copy {
    uint32_t to;
    const void* from;
    uint8_t bytes, filled;  // the first `filled` bytes are copied, the others become zeros
    int group;
};

// A wgmma that the warp has not waited for.
struct Product {
    int number;  // counts the warp's products
    SharedMemory::Reads reads;
    bool ended = false;  // another warp of the warpgroup has waited for it
};

// A bulk copy from shared memory that its thread has not waited for.
struct BulkRead {
    int group;
    SharedMemory::Reads reads;
};

struct Block;
struct Cluster;
struct Count;

struct Warp {
    const Program* program = nullptr;
    Block* block = nullptr;
    int index = 0;
    uint8_t* registers = nullptr;
    uint8_t* local = nullptr;
    Lanes live = 0;
    std::vector<Group> groups;
    bool at_barrier = false, waited = false;  // waited: griddepcontrol.wait has been executed
    Range near{1, 0};                         // the allocation that was accessed last
    std::array<std::vector<Copy>, 32> copies;
    std::array<int, 32> committed{};
    std::array<std::vector<BulkRead>, 32> bulk_reads;
    std::array<int, 32> bulk_committed{};
    std::vector<View> seen_of;                          // as clock.seen, of each block of the cluster
    uint32_t cluster_arrivals = 0, cluster_passes = 0;  // at the barrier of the cluster
    Lanes cluster_passed = 0;                           // lanes that have passed its current phase
    std::vector<Product> products;
    int products_begun = 0;
    std::vector<int> begun_at_commit;      // products_begun at each wgmma.commit_group
    int registers_held = 0;                // per thread, set by setmaxnreg
    bool blocked = false;                  // a poll keeps the warp from running
    uint64_t loops = 0;                    // branches back since it began, in a cooperative launch
    const Instruction* refused = nullptr;  // the last poll that was not ready
    SyncClock clock;
    Count* counts = nullptr;  // by instruction; null if nothing is counted

    template <typename T>
    T* at(uint32_t place) {
        return reinterpret_cast<T*>(registers + place);
    }
    template <typename T>
    T* operand(const Instruction& i, int k) {
        return at<T>(i.operands[k]);
    }
};

// What is ordered before some point, in the memory of the own block and, in a cluster, of each of its blocks by rank.
struct Views {
    View of_block{};
    std::vector<View> of_ranks = {};  // empty outside of clusters, and then `of_block` counts
};

// "mbarrier: Phase, Expected arrival count, Pending arrival count, tx-count".
struct Mbarrier {
    uint32_t expected = 0, pending = 0;
    int64_t transactions = 0;  // outstanding bytes
    uint64_t phase = 0;
    Views arrived, released;  // what is ordered before the end of the current and the previous phase
    const Instruction* made_by = nullptr;
};

struct NamedBarrier {
    uint32_t arrived = 0, count = 0;  // threads
    Views view;
};

// A copy into shared memory that is in flight.
struct BulkCopy {
    const Instruction* instruction;
    Warp* warp;
    int lane;
    uint32_t to, mbarrier;
    uint32_t ranks;  // of the blocks of the cluster that receive it
    TensorMap map;
    int32_t at[TensorMap::kMaxRank];
};

// An access to the shared memory of a block by another block of its cluster, recorded for each kRemoteUnit bytes.
struct RemoteAccess {
    uint32_t rank;
    int warp;
    uint32_t time;  // of the warp's clock
    bool writes;
};
inline constexpr uint32_t kRemoteUnit = 8;
// The last access of a warp of another block, or its arrival at an mbarrier: the block must not end before it.
struct LastRemote {
    Warp* warp;
    const Instruction* instruction;
    int lane;
    uint32_t time;
};

struct Block {
    const Program* program = nullptr;
    const Launch* launch = nullptr;
    const std::vector<Range>* memory = nullptr;  // sorted
    const uint8_t* parameters = nullptr;
    Extent3 index;
    Cluster* cluster = nullptr;           // null: a block without a cluster
    uint32_t rank = 0;                    // in the cluster
    Views* at_cluster_barrier = nullptr;  // what arrived at its current and its previous phase, of all blocks
    bool has_ended = false;
    SharedMemory shared;
    std::vector<Warp> warps;
    uint64_t random = 0;
    uint64_t idle = 0;   // consecutive polls that were not ready
    uint64_t ticks = 0;  // how often a clock was read
    std::map<uint32_t, Mbarrier> mbarriers;
    std::unordered_map<uint32_t, std::vector<RemoteAccess>> remote;
    std::map<const Warp*, LastRemote> last_remote;
    std::array<NamedBarrier, 16> named;
    std::vector<BulkCopy> bulk;  // oldest first
    // For each warpgroup, the sequence of wgmma instructions that its warps execute, with their descriptors.
    struct Step {
        const Instruction* instruction;
        uint64_t a, b;
        bool operator==(const Step&) const = default;
    };
    std::vector<std::vector<Step>> warpgroups;
};

// Throws Error with the kernel, file and line, instruction, block, warp, lane and the problem.
[[noreturn]] void fail(const Warp& w, const Instruction& i, int lane, const std::string& what);
template <typename First, typename... More>
[[noreturn]] void fail(const Warp& w, const Instruction& i, int lane, fmt::format_string<First, More...> what,
                       First&& first, More&&... more) {
    fail(w, i, lane, fmt::format(what, std::forward<First>(first), std::forward<More>(more)...));
}
// The same if the first alarm ends a kernel; else prints it, once for each line, and returns (gpusim/report.h).
void alarm(const Warp& w, const Instruction& i, int lane, const std::string& what);
// Reports behaviour that the manual forbids but that published kernels rely on: once for each line, on stderr.
void note(const Warp& w, const Instruction& i, int lane, const std::string& what);
std::vector<std::string> notes();  // all so far
inline int first_lane(Lanes lanes) { return std::countr_zero(lanes); }

template <typename Body>
inline void for_lanes(Lanes lanes, Body&& body) {
    for (; lanes; lanes &= lanes - 1) body(std::countr_zero(lanes));
}

}  // namespace teon::gpusim
