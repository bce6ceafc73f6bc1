// "Data Movement and Conversion Instructions: mov", "Special Registers", and selection and logic of predicates.
#include "gpusim/move.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

template <typename T>
void select(Warp& w, const Instruction& i, Lanes lanes) {  // d = p ? a : b
    T* d = w.operand<T>(i, 0);
    const T* a = w.operand<T>(i, 1);
    const T* b = w.operand<T>(i, 2);
    const Lanes p = *w.operand<Lanes>(i, 3);
    T chosen[32];
    for (int l = 0; l < 32; ++l) chosen[l] = p >> l & 1 ? a[l] : b[l];
    for (int l = 0; l < 32; ++l) d[l] = lanes >> l & 1 ? chosen[l] : d[l];
}

template <typename T>
void moves(Table& t, std::initializer_list<const char*> types) {
    constexpr auto bytes = static_cast<uint8_t>(sizeof(T));
    for (const std::string type : types) {
        t["mov." + type] = each_lane([](T a) { return a; });
        t["selp." + type] = {&select<T>, {bytes, bytes, bytes, 0}};
    }
}

}  // namespace

void add_move_rows(Table& t) {
    moves<uint16_t>(t, {"b16", "u16", "s16"});
    moves<uint32_t>(t, {"b32", "u32", "s32", "f32"});
    moves<uint64_t>(t, {"b64", "u64", "s64", "f64"});
    t["mov.pred"] = each_predicate([](Lanes a) { return a; });
    t["not.pred"] = each_predicate([](Lanes a) { return ~a; });
    t["and.pred"] = each_predicate([](Lanes a, Lanes b) { return a & b; });
    t["or.pred"] = each_predicate([](Lanes a, Lanes b) { return a | b; });
    t["xor.pred"] = each_predicate([](Lanes a, Lanes b) { return a ^ b; });
}

void to_window(Warp& w, const Instruction& i, Lanes lanes) {
    uint64_t* d = w.operand<uint64_t>(i, 0);
    for_lanes(lanes, [&](int l) {
        d[l] = static_cast<uint64_t>(i.offset) +
               (i.width == 8 ? w.operand<uint64_t>(i, 1)[l] : w.operand<uint32_t>(i, 1)[l]);
    });
}

// mov.b32 {a, b}, c: a is the lowest part.
void split(Warp& w, const Instruction& i, Lanes lanes) {
    const int parts = i.count - 1;
    const uint8_t* from = w.operand<uint8_t>(i, parts);
    for (int k = 0; k < parts; ++k) {
        uint8_t* d = w.operand<uint8_t>(i, k);
        for_lanes(lanes,
                  [&](int l) { std::memcpy(d + l * i.bytes, from + l * i.bytes * parts + k * i.bytes, i.bytes); });
    }
}

void join(Warp& w, const Instruction& i, Lanes lanes) {
    const int parts = i.count - 1;
    uint8_t* d = w.operand<uint8_t>(i, 0);
    for (int k = 0; k < parts; ++k) {
        const uint8_t* from = w.operand<uint8_t>(i, k + 1);
        for_lanes(lanes,
                  [&](int l) { std::memcpy(d + l * i.bytes * parts + k * i.bytes, from + l * i.bytes, i.bytes); });
    }
}

namespace {

uint32_t thread(const Warp& w, uint32_t lane) { return 32 * static_cast<uint32_t>(w.index) + lane; }
const Extent3& block(const Warp& w) { return w.block->launch->block; }
const Extent3& grid(const Warp& w) { return w.block->launch->grid; }
const Extent3& cluster(const Warp& w) { return w.block->launch->cluster; }

struct SpecialRegister {
    std::string_view name;
    uint32_t (*value)(const Warp& w, uint32_t lane);  // nullptr: a clock, which counts how often one is read
};
const SpecialRegister kSpecialRegisters[] = {
    {"%tid.x", [](const Warp& w, uint32_t l) { return thread(w, l) % block(w).x; }},
    {"%tid.y", [](const Warp& w, uint32_t l) { return thread(w, l) / block(w).x % block(w).y; }},
    {"%tid.z", [](const Warp& w, uint32_t l) { return thread(w, l) / block(w).x / block(w).y; }},
    {"%ntid.x", [](const Warp& w, uint32_t) { return block(w).x; }},
    {"%ntid.y", [](const Warp& w, uint32_t) { return block(w).y; }},
    {"%ntid.z", [](const Warp& w, uint32_t) { return block(w).z; }},
    {"%ctaid.x", [](const Warp& w, uint32_t) { return w.block->index.x; }},
    {"%ctaid.y", [](const Warp& w, uint32_t) { return w.block->index.y; }},
    {"%ctaid.z", [](const Warp& w, uint32_t) { return w.block->index.z; }},
    {"%nctaid.x", [](const Warp& w, uint32_t) { return grid(w).x; }},
    {"%nctaid.y", [](const Warp& w, uint32_t) { return grid(w).y; }},
    {"%nctaid.z", [](const Warp& w, uint32_t) { return grid(w).z; }},
    {"%laneid", [](const Warp&, uint32_t l) { return l; }},
    {"%warpid", [](const Warp& w, uint32_t) { return static_cast<uint32_t>(w.index); }},
    {"%lanemask_eq", [](const Warp&, uint32_t l) { return 1u << l; }},
    {"%lanemask_lt", [](const Warp&, uint32_t l) { return (1u << l) - 1; }},
    {"%lanemask_le", [](const Warp&, uint32_t l) { return (2u << l) - 1; }},
    {"%lanemask_gt", [](const Warp&, uint32_t l) { return ~((2u << l) - 1); }},
    {"%lanemask_ge", [](const Warp&, uint32_t l) { return ~((1u << l) - 1); }},
    {"%dynamic_smem_size",
     [](const Warp& w, uint32_t) { return static_cast<uint32_t>(w.block->launch->dynamic_shared); }},
    {"%cluster_ctaid.x", [](const Warp& w, uint32_t) { return w.block->index.x % cluster(w).x; }},
    {"%cluster_ctaid.y", [](const Warp& w, uint32_t) { return w.block->index.y % cluster(w).y; }},
    {"%cluster_ctaid.z", [](const Warp& w, uint32_t) { return w.block->index.z % cluster(w).z; }},
    {"%cluster_nctaid.x", [](const Warp& w, uint32_t) { return cluster(w).x; }},
    {"%cluster_nctaid.y", [](const Warp& w, uint32_t) { return cluster(w).y; }},
    {"%cluster_nctaid.z", [](const Warp& w, uint32_t) { return cluster(w).z; }},
    {"%cluster_ctarank", [](const Warp& w, uint32_t) { return w.block->rank; }},
    {"%cluster_nctarank", [](const Warp& w, uint32_t) { return static_cast<uint32_t>(cluster(w).count()); }},
    {"%clusterid.x", [](const Warp& w, uint32_t) { return w.block->index.x / cluster(w).x; }},
    {"%clusterid.y", [](const Warp& w, uint32_t) { return w.block->index.y / cluster(w).y; }},
    {"%clusterid.z", [](const Warp& w, uint32_t) { return w.block->index.z / cluster(w).z; }},
    {"%nclusterid.x", [](const Warp& w, uint32_t) { return grid(w).x / cluster(w).x; }},
    {"%nclusterid.y", [](const Warp& w, uint32_t) { return grid(w).y / cluster(w).y; }},
    {"%nclusterid.z", [](const Warp& w, uint32_t) { return grid(w).z / cluster(w).z; }},
    // One multiprocessor for each block.
    {"%smid",
     [](const Warp& w, uint32_t) {
         const Extent3& at = w.block->index;
         return at.x + grid(w).x * (at.y + grid(w).y * at.z);
     }},
    {"%nsmid", [](const Warp& w, uint32_t) { return static_cast<uint32_t>(grid(w).count()); }},
    // The state of the barrier of all blocks (Launch::cooperative).
    {"%envreg1", [](const Warp& w, uint32_t) { return static_cast<uint32_t>(w.block->launch->cooperative >> 32); }},
    {"%envreg2", [](const Warp& w, uint32_t) { return static_cast<uint32_t>(w.block->launch->cooperative); }},
    {"%clock_hi", [](const Warp&, uint32_t) { return 0u; }},
    {"%clock", nullptr},
    {"%clock64", nullptr},
    {"%globaltimer", nullptr},
};

}  // namespace

int special_register(std::string_view name) {
    const auto* const row = std::ranges::find(kSpecialRegisters, name, &SpecialRegister::name);
    return row == std::end(kSpecialRegisters) ? kNone : static_cast<int>(row - kSpecialRegisters);
}

void move_special(Warp& w, const Instruction& i, Lanes lanes) {
    const auto value = kSpecialRegisters[i.variant].value;
    if (value)
        return for_lanes(lanes, [&](int l) { w.operand<uint32_t>(i, 0)[l] = value(w, static_cast<uint32_t>(l)); });
    const uint64_t now = ++w.block->ticks;
    for_lanes(lanes, [&](int l) { std::memcpy(w.operand<uint8_t>(i, 0) + l * i.width, &now, i.width); });
}

void nothing(Warp&, const Instruction&, Lanes) {}
void wait_for_grid(Warp& w, const Instruction&, Lanes) { w.waited = true; }

}  // namespace teon::gpusim
