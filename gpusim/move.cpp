// "Data Movement and Conversion Instructions: mov", "Special Registers", and selection and logic of predicates.
#include "gpusim/move.h"

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

// A clock that counts how often it is read: time is not modelled.
void read_clock(Warp& w, const Instruction& i, Lanes lanes) {
    const uint64_t now = ++w.block->ticks;
    for_lanes(lanes, [&](int l) { std::memcpy(w.operand<uint8_t>(i, 0) + l * i.width, &now, i.width); });
}

}  // namespace

namespace {

// The registers of clusters, which all lanes share.
uint32_t of_cluster(Special which, const Block& b) {
    const Extent3& grid = b.launch->grid;
    const Extent3& cluster = b.launch->cluster;
    switch (which) {
        case Special::cluster_ctaid_x:
            return b.index.x % cluster.x;
        case Special::cluster_ctaid_y:
            return b.index.y % cluster.y;
        case Special::cluster_ctaid_z:
            return b.index.z % cluster.z;
        case Special::cluster_nctaid_x:
            return cluster.x;
        case Special::cluster_nctaid_y:
            return cluster.y;
        case Special::cluster_nctaid_z:
            return cluster.z;
        case Special::cluster_ctarank:
            return b.rank;
        case Special::cluster_nctarank:
            return static_cast<uint32_t>(cluster.count());
        case Special::clusterid_x:
            return b.index.x / cluster.x;
        case Special::clusterid_y:
            return b.index.y / cluster.y;
        case Special::clusterid_z:
            return b.index.z / cluster.z;
        case Special::nclusterid_x:
            return grid.x / cluster.x;
        case Special::nclusterid_y:
            return grid.y / cluster.y;
        case Special::nclusterid_z:
            return grid.z / cluster.z;
        default:
            return 0;
    }
}

}  // namespace

void move_special(Warp& w, const Instruction& i, Lanes lanes) {
    Block& b = *w.block;
    const Launch& launch = *b.launch;
    uint32_t* d = w.operand<uint32_t>(i, 0);
    const auto each = [&](auto value) { for_lanes(lanes, [&](int l) { d[l] = value(static_cast<uint32_t>(l)); }); };
    const auto same = [&](uint32_t value) { each([=](uint32_t) { return value; }); };
    const uint32_t first = static_cast<uint32_t>(32 * w.index);
    const uint32_t nx = launch.block.x;
    const uint32_t ny = launch.block.y;
    switch (static_cast<Special>(i.variant)) {
        case Special::tid_x:
            return each([=](uint32_t l) { return (first + l) % nx; });
        case Special::tid_y:
            return each([=](uint32_t l) { return (first + l) / nx % ny; });
        case Special::tid_z:
            return each([=](uint32_t l) { return (first + l) / nx / ny; });
        case Special::ntid_x:
            return same(launch.block.x);
        case Special::ntid_y:
            return same(launch.block.y);
        case Special::ntid_z:
            return same(launch.block.z);
        case Special::ctaid_x:
            return same(b.index.x);
        case Special::ctaid_y:
            return same(b.index.y);
        case Special::ctaid_z:
            return same(b.index.z);
        case Special::nctaid_x:
            return same(launch.grid.x);
        case Special::nctaid_y:
            return same(launch.grid.y);
        case Special::nctaid_z:
            return same(launch.grid.z);
        case Special::laneid:
            return each([](uint32_t l) { return l; });
        case Special::warpid:
            return same(static_cast<uint32_t>(w.index));
        case Special::lanemask_eq:
            return each([](uint32_t l) { return 1u << l; });
        case Special::lanemask_lt:
            return each([](uint32_t l) { return (1u << l) - 1; });
        case Special::lanemask_le:
            return each([](uint32_t l) { return (2u << l) - 1; });
        case Special::lanemask_gt:
            return each([](uint32_t l) { return ~((2u << l) - 1); });
        case Special::lanemask_ge:
            return each([](uint32_t l) { return ~((1u << l) - 1); });
        case Special::dynamic_smem_size:
            return same(static_cast<uint32_t>(launch.dynamic_shared));
        case Special::smid:  // one multiprocessor for each block
            return same(b.index.x + launch.grid.x * (b.index.y + launch.grid.y * b.index.z));
        case Special::nsmid:
            return same(static_cast<uint32_t>(launch.grid.count()));
        case Special::clock:
            return read_clock(w, i, lanes);
        case Special::clock_high:
            return same(0);
        case Special::grid_barrier_high:
            return same(static_cast<uint32_t>(launch.cooperative >> 32));
        case Special::grid_barrier_low:
            return same(static_cast<uint32_t>(launch.cooperative));
        default:
            return same(of_cluster(static_cast<Special>(i.variant), b));
    }
}

void nothing(Warp&, const Instruction&, Lanes) {}
void wait_for_grid(Warp& w, const Instruction&, Lanes) { w.waited = true; }

}  // namespace teon::gpusim
