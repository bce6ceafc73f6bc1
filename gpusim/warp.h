// The state of a block and of its warps while they run.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpusim/program.h"
#include "gpusim/shared_memory.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

// Addresses [begin, end) that a kernel may touch.
struct Range {
    uintptr_t begin, end;
};

struct Extent3 {
    uint32_t x = 1, y = 1, z = 1;
    uint64_t count() const { return uint64_t{x} * y * z; }
};

// In which order warps run, and whether the lanes of a warp run together where nothing demands it.
struct Order {
    enum class Kind { forward, reverse, random } kind = Kind::forward;
    uint64_t seed = 0;
};
Order parse_order(const std::string& text);  // "forward", "reverse", "random:SEED"; throws UsageError

struct Launch {
    Extent3 grid, block;
    size_t dynamic_shared = 0;
    bool early = false;  // before the work ahead has ended: memory may be touched after griddepcontrol.wait only
    Order order;
};

// Generic addresses of parameters, shared and local memory begin here, where no address of the host is.
inline constexpr uint64_t kParameterWindow = uint64_t{1} << 59, kSharedWindow = uint64_t{1} << 60,
                          kLocalWindow = uint64_t{1} << 61;

// Lanes that are at the same instruction.
struct Group {
    int32_t at;
    Lanes lanes;
    bool waits = false;  // for other lanes or for a barrier
};

// A cp.async that has not been waited for.
struct Copy {
    uint32_t to;
    const void* from;
    uint8_t bytes, filled;  // zeros behind the first `filled`
    int group;
};

// A wgmma that has not been waited for.
struct Product {
    int group;
    SharedMemory::Reads reads;
};

struct Block;
struct Count;

struct Warp {
    const Program* program = nullptr;
    Block* block = nullptr;
    int index = 0;
    uint8_t* registers = nullptr;
    uint8_t* local = nullptr;
    Lanes live = 0;
    std::vector<Group> groups;
    bool at_barrier = false, waited = false;  // waited: griddepcontrol.wait was executed
    Range near{1, 0};                         // the allocation of the last access
    std::array<std::vector<Copy>, 32> copies;
    std::array<int, 32> committed{};
    std::vector<Product> products;
    int products_committed = 0, products_begun = 0;
    int registers_held = 0;                // of a thread, by setmaxnreg
    bool blocked = false;                  // a poll keeps it from going on
    const Instruction* refused = nullptr;  // the last poll that was not ready
    SyncClock clock;
    Count* counts = nullptr;  // of the kernel's instructions; null: nobody counts

    template <typename T>
    T* at(uint32_t place) {
        return reinterpret_cast<T*>(registers + place);
    }
    template <typename T>
    T* operand(const Instruction& i, int k) {
        return at<T>(i.operands[k]);
    }
};

// "mbarrier: Phase, Expected arrival count, Pending arrival count, tx-count".
struct Mbarrier {
    uint32_t expected = 0, pending = 0;
    int64_t transactions = 0;  // bytes that are still to come
    uint64_t phase = 0;
    View arrived{}, released{};  // what is ordered before the end of this phase, and of the one before
};

struct NamedBarrier {
    uint32_t arrived = 0, count = 0;  // threads
    View view{};
};

// A copy of a tensor's tile that is under way.
struct BulkCopy {
    const Instruction* instruction;
    Warp* warp;
    int lane;
    uint32_t to, mbarrier;
    TensorMap map;
    int32_t at[TensorMap::kMaxRank];
};

struct Block {
    const Program* program = nullptr;
    const Launch* launch = nullptr;
    const std::vector<Range>* memory = nullptr;  // sorted
    const uint8_t* parameters = nullptr;
    Extent3 index;
    SharedMemory shared;
    std::vector<Warp> warps;
    uint64_t random = 0;
    uint64_t idle = 0;  // polls in a row that found nothing
    std::map<uint32_t, Mbarrier> mbarriers;
    std::array<NamedBarrier, 16> named;
    std::vector<BulkCopy> bulk;  // oldest first
    // Of each warpgroup: the wgmma that its warps execute, one after the other, by instruction and descriptors.
    struct Step {
        const Instruction* instruction;
        uint64_t a, b;
        bool operator==(const Step&) const = default;
    };
    std::vector<std::vector<Step>> warpgroups;
};

// Throws Error: kernel, file and line, instruction, block, warp and lane, and what is wrong.
[[noreturn]] void fail(const Warp& w, const Instruction& i, int lane, const std::string& what);
inline int first_lane(Lanes lanes) { return std::countr_zero(lanes); }

template <typename Body>
inline void for_lanes(Lanes lanes, Body&& body) {
    for (; lanes; lanes &= lanes - 1) body(std::countr_zero(lanes));
}

}  // namespace teon::gpusim
