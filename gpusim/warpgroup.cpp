// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
//
// Each warp of a warpgroup computes its own 16 rows of D when it reaches the instruction. A product is an operation of
// the warpgroup. It stays in flight until a warp waits for it, which says that the parts of all four warps have ended:
// published kernels release a buffer by one thread of the warpgroup. Accesses that conflict with a product in flight
// are found before the kernel runs for registers, and while it runs for shared memory.
#include "gpusim/warpgroup.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/dtype.h"
#include "gpusim/half.h"
#include "gpusim/opcodes.h"

namespace teon::gpusim {

namespace {

constexpr int kRows = 16;           // of D per warp
constexpr uint32_t kBytesOfK = 32;  // that a product takes of each row of A
constexpr uint32_t kMostK = 32;     // elements of 8 bits

// Of A or B.
enum class Element : uint8_t { bf16, f16, e4m3, e5m2 };

// The values of all bytes.
template <typename T>
std::array<float, 256> values_of_bytes() {
    std::array<float, 256> values;
    for (uint32_t bits = 0; bits < 256; ++bits)
        values[bits] = static_cast<float>(std::bit_cast<T>(static_cast<uint8_t>(bits)));
    return values;
}

// Widens 16 bytes of elements; returns their number.
uint32_t widen(const uint8_t* bytes, Element type, float* out) {
    static const std::array<float, 256> e4m3s = values_of_bytes<e4m3>();
    static const std::array<float, 256> e5m2s = values_of_bytes<e5m2>();
    if (type == Element::e4m3 || type == Element::e5m2) {
        const auto& values = type == Element::e4m3 ? e4m3s : e5m2s;
        for (uint32_t e = 0; e < 16; ++e) out[e] = values[bytes[e]];
        return 16;
    }
    uint16_t halves[8];
    std::memcpy(halves, bytes, sizeof halves);
    for (uint32_t e = 0; e < 8; ++e)
        out[e] = type == Element::f16 ? HalfF16::widen(halves[e]) : HalfBf16::widen(halves[e]);
    return 8;
}

Element element_of(uint8_t variant, uint8_t is_e5m2) {
    if (variant & product::kFp8) return variant & is_e5m2 ? Element::e5m2 : Element::e4m3;
    return variant & product::kF16 ? Element::f16 : Element::bf16;
}

// "Matrix Descriptor": the layout of an operand in shared memory. Only swizzled layouts are
// modelled: rows of `row_bytes` (128, 64 or 32) in groups of eight. K-major: a row holds elements along K, and the
// stride leads to the next eight rows. MN-major (transposed): a row holds elements along M or N, the leading offset
// leads to the next elements along M or N, and the stride to the next eight along K ("Strides").
struct Descriptor {
    uint32_t start, leading, stride, row_bytes;

    Descriptor(const Warp& w, const Instruction& i, uint64_t bits) {
        const auto field = [&](int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
        constexpr uint32_t kRowBytes[] = {0, 128, 64, 32};
        start = field(0);
        leading = field(16);
        stride = field(32);
        row_bytes = kRowBytes[bits >> 62];
        if (bits & 0x3ff1c000c000c000) fail(w, i, 0, "the descriptor {:#x} has bits that mean nothing", bits);
        if (bits >> 49 & 7) fail(w, i, 0, "the descriptor {:#x} has a base offset, which is not modelled", bits);
        if (row_bytes == 0) fail(w, i, 0, "the descriptor {:#x} is not swizzled, which is not modelled", bits);
        // Published kernels multiply tiles that begin in another row, with a base offset of 0.
        if (start % (8 * row_bytes) >= row_bytes)
            note(w, i, 0,
                 fmt::format("the descriptor's address {} is not in the first of eight rows of {} bytes", start,
                             row_bytes));
    }
    // The address of the two bytes k of row or column x.
    uint32_t address(uint32_t x, uint32_t k, bool transposed) const {
        const uint32_t in_row = row_bytes / 2;
        const uint32_t plain = transposed
                                   ? start + x / in_row * leading + x % in_row * 2 + k % 8 * row_bytes + k / 8 * stride
                                   : start + x / 8 * stride + x % 8 * row_bytes + k * 2;
        return swizzled(plain, row_bytes);
    }
};

// Reads the elements along K of `count` rows or columns as floats: out[k * count + x].
void read_operand(Warp& w, const Instruction& i, const Descriptor& d, bool transposed, uint32_t count, Element type,
                  float* out, SharedMemory::Reads& reads) {
    SharedMemory& shared = w.block->shared;
    const uint32_t along_x = transposed ? 8 : 1;
    const uint32_t along_k = transposed ? 1 : 8;  // steps of 16 bytes, counted in two bytes
    for (uint32_t x = 0; x < count; x += along_x) {
        for (uint32_t k = 0; k < kBytesOfK / 2; k += along_k) {
            const uint32_t at = d.address(x, k, transposed);
            if (at + 16 > shared.size())
                fail(w, i, 0, "16 bytes at byte {} of shared memory, of which the block has {}", at, shared.size());
            bool is_doubtful = false;
            if (!shared.begin_async_read(w.clock, w.index, at, 16, reads, is_doubtful)) fail(w, i, 0, shared.wrong());
            if (is_doubtful) note(w, i, 0, "reads " + shared.wrong());
            float piece[16];
            const uint32_t n = widen(shared.data() + at, type, piece);
            const uint32_t first = k * n / 8;  // element along K
            for (uint32_t e = 0; e < n; ++e)
                out[(transposed ? k : first + e) * count + (transposed ? x + e : x)] = piece[e];
        }
    }
}

// Reads the warp's rows of A from four registers that begin at `operand`: A[k][row]. The register's lanes hold 4 bytes
// of a row each.
void read_registers(Warp& w, const Instruction& i, int operand, Element type, float (*A)[4 * kRows], int first_row) {
    for (int part = 0; part < 4; ++part) {
        const uint32_t* a = w.operand<uint32_t>(i, operand + part);
        for (int l = 0; l < 32; ++l) {
            uint8_t bytes[16] = {};
            float values[16];
            std::memcpy(bytes, a + l, 4);
            const int n = static_cast<int>(widen(bytes, type, values)) / 4;
            for (int e = 0; e < n; ++e)
                A[l % 4 * n + e + part / 2 * 4 * n][first_row + l / 4 + part % 2 * 8] = values[e];
        }
    }
}

void check_warpgroup(Warp& w, const Instruction& i, uint64_t a, uint64_t b) {
    const auto group = static_cast<size_t>(w.index / 4);
    auto& all = w.block->warpgroups;
    all.resize(std::max(all.size(), group + 1));
    if (4 * group + 4 > w.block->warps.size()) fail(w, i, 0, "the warpgroup has fewer than four warps");
    const Block::Step step = {&i, a, b};
    const auto n = static_cast<size_t>(w.products_begun++);
    if (n == all[group].size())
        all[group].push_back(step);
    else if (all[group][n] != step)
        fail(w, i, 0,
             "another warp of the warpgroup has executed wgmma of {} instead, or with other "
             "descriptors",
             w.program->place(*all[group][n].instruction));
}

}  // namespace

void wgmma_fence(Warp&, const Instruction&, Lanes) {}

// Registers as in "Register Fragments for wgmma.mma_async.m64nNk16" and "m64nNk32": warp w of the warpgroup holds rows
// 16 w to 16 w + 15 of A and D; each 8 columns are distributed as by mma.m16n8k16.
void wgmma_product(Warp& w, const Instruction& i, Lanes) {
    const auto N = static_cast<uint32_t>(i.offset);
    const bool half_sums = i.variant & product::kHalfSums;
    const int results = product::results(i.offset, i.variant);
    const bool from_registers = i.variant & product::kRegistersA;
    const bool fp8 = i.variant & product::kFp8;
    const Element type_a = element_of(i.variant, product::kE5m2A);
    const Element type_b = element_of(i.variant, product::kE5m2B);
    const uint32_t K = fp8 ? kBytesOfK : kBytesOfK / 2;
    const int first_row = w.index % 4 * kRows;
    int at = 2 * results;
    Product p = {w.products_begun, {}};
    alignas(64) float A[kMostK][4 * kRows];
    alignas(64) float B[kMostK * 256];
    alignas(64) float D[kRows * 256];
    const auto same = [&](int operand) {
        const uint64_t* d = w.operand<uint64_t>(i, operand);
        for (int l = 1; l < 32; ++l)
            if (d[l] != d[0]) fail(w, i, l, "another descriptor than lane 0's");
        return d[0];
    };
    uint64_t bits_a = 0;
    if (from_registers) {
        read_registers(w, i, at, type_a, A, first_row);
        at += 4;
    } else {
        bits_a = same(at++);
    }
    const uint64_t bits_b = same(at++);
    check_warpgroup(w, i, bits_a, bits_b);
    if (!from_registers)
        read_operand(w, i, Descriptor(w, i, bits_a), !fp8 && i.variant & product::kTransposedA, 4 * kRows, type_a,
                     &A[0][0], p.reads);
    read_operand(w, i, Descriptor(w, i, bits_b), !fp8 && i.variant & product::kTransposedB, N, type_b, B, p.reads);
    const Lanes counts = *w.operand<Lanes>(i, at);
    if (counts != 0 && counts != kAllLanes) fail(w, i, 0, "scale-d differs between lanes");

    const auto element = [&](int r, int l) -> float& {  // element of D in register r of lane l
        return D[static_cast<uint32_t>(l / 4 + r / 2 % 2 * 8) * N +
                 static_cast<uint32_t>(r / 4 * 8 + l % 4 * 2 + r % 2)];
    };
    for (int r = 0; r < results; ++r) {
        const uint32_t* d = w.operand<uint32_t>(i, results + r);
        for (int l = 0; l < 32; ++l) {
            if (half_sums)
                for (int odd = 0; odd < 2; ++odd)
                    element(2 * r + odd, l) = counts ? HalfF16::widen(static_cast<uint16_t>(d[l] >> 16 * odd)) : 0.0f;
            else
                element(r, l) = counts ? std::bit_cast<float>(d[l]) : 0.0f;
        }
    }
    const bool minus = !(i.variant & product::kMinusA) != !(i.variant & product::kMinusB);
    for (int row = 0; row < kRows; ++row) {
        float* const d = D + static_cast<uint32_t>(row) * N;
        for (uint32_t k = 0; k < K; ++k) {
            const float a = minus ? -A[k][first_row + row] : A[k][first_row + row];
            const float* const b = B + k * N;
            for (uint32_t n = 0; n < N; ++n) d[n] += a * b[n];
        }
    }
    for (int r = 0; r < results; ++r) {
        uint32_t* d = w.operand<uint32_t>(i, r);
        for (int l = 0; l < 32; ++l)
            d[l] = half_sums
                       ? HalfF16::narrow(element(2 * r, l)) | uint32_t{HalfF16::narrow(element(2 * r + 1, l))} << 16
                       : std::bit_cast<uint32_t>(element(r, l));
    }
    std::sort(p.reads.begin(), p.reads.end());
    p.reads.erase(std::unique(p.reads.begin(), p.reads.end()), p.reads.end());
    w.products.push_back(std::move(p));
}

void wgmma_commit(Warp& w, const Instruction&, Lanes) { w.begun_at_commit.push_back(w.products_begun); }

namespace {

// Returns the number of the warp's products that a wgmma.wait_group waits for.
int count_awaited(const Warp& w, const Instruction& i) {
    const auto groups = static_cast<int64_t>(w.begun_at_commit.size()) - i.offset;
    return groups > 0 ? w.begun_at_commit[static_cast<size_t>(groups - 1)] : 0;
}

template <typename Body>
void for_warpgroup(const Warp& w, Body&& body) {
    for (Warp& other : w.block->warps)
        if (other.index / 4 == w.index / 4) body(other);
}

}  // namespace

bool have_begun_products(const Warp& w, const Instruction& i) {
    bool all = true;
    for_warpgroup(w, [&](const Warp& other) { all &= other.products_begun >= count_awaited(w, i); });
    return all;
}

void wgmma_wait(Warp& w, const Instruction& i, Lanes) {
    SharedMemory& shared = w.block->shared;
    const int awaited = count_awaited(w, i);
    for (const Product& p : w.products)
        if (p.number < awaited) shared.end_async_reads(w.clock, w.index, p.reads);
    std::erase_if(w.products, [&](const Product& p) { return p.number < awaited; });
    for_warpgroup(w, [&](Warp& other) {
        for (Product& p : other.products) {
            p.ended |= p.number < awaited;
            if (!p.ended) shared.keep_async_reads(other.index, p.reads);
        }
    });
}

// ---- registers ------------------------------------------------------------------------------------------------------

namespace {

// The use of a register: the number of groups committed since a product that uses it began, or kSettled if none is in
// flight; and whether another instruction has written it since the last wgmma.fence.
struct Use {
    static constexpr uint8_t kSettled = 255;
    static constexpr uint8_t kMostGroups = 15;
    uint8_t groups = kSettled;
    bool written = true;
    bool operator==(const Use&) const = default;
};
using State = std::vector<Use>;

bool join(State& into, const State& more) {
    if (into.empty()) {
        into = more;
        return true;
    }
    bool changed = false;
    for (size_t r = 0; r < into.size(); ++r) {
        const Use both = {std::min(into[r].groups, more[r].groups), into[r].written || more[r].written};
        changed |= both != into[r];
        into[r] = both;
    }
    return changed;
}

class RegisterCheck {
public:
    RegisterCheck(const Program& program, const std::vector<bool>& is_constant)
        : program_(program), is_constant_(is_constant) {}

    void step(State& s, const Instruction& i, const uint32_t* operands, bool report) const {
        if (i.run == &wgmma_fence) {
            for (Use& use : s) use.written = false;
        } else if (i.run == &wgmma_commit) {
            for (Use& use : s)
                if (use.groups < Use::kMostGroups) ++use.groups;
        } else if (i.run == &wgmma_wait) {
            for (Use& use : s)
                if (use.groups > i.offset) use.groups = Use::kSettled;
        } else if (i.run == &wgmma_product) {
            const int results = product::results(i.offset, i.variant);
            const int last = 2 * results + (i.variant & product::kRegistersA ? 4 : 0);
            for (int o = results; o < last; ++o) {
                Use& use = s[operands[o]];
                if (report && use.written) refuse(i, "reads a register that was written since the last wgmma.fence");
                use = {0, false};
            }
        } else if (i.count == 2 && i.destinations == 1 && opcode_name(i.opcode).starts_with("mov.")) {
            // nvcc copies values to renamed registers, and ptxas removes the copies.
            s[operands[0]] = is_constant_[operands[1]] ? Use{} : s[operands[1]];
        } else {
            for (int o = 0; o < i.count; ++o) {
                if (report && s[operands[o]].groups != Use::kSettled)
                    refuse(i, "touches a register of a wgmma that no wgmma.wait_group has ended");
                if (o < i.destinations) s[operands[o]] = {};
            }
        }
    }

private:
    [[noreturn]] void refuse(const Instruction& i, const char* what) const {
        throw Error(fmt::format("kernel {}: {}: {}: {}", program_.name, program_.place_in_kernel(i),
                                opcode_name(i.opcode), what));
    }
    const Program& program_;
    const std::vector<bool>& is_constant_;
};

}  // namespace

void check_product_registers(const Program& program, size_t registers, const std::vector<bool>& is_constant) {
    const RegisterCheck check(program, is_constant);
    std::map<int32_t, State> at;  // the state that branches bring to their target
    for (const Instruction& i : program.code)
        if (i.target != kNone) at[i.target];
    for (bool changed = true, report = false; changed || !report;) {
        report = !changed;
        changed = false;
        State s(registers);
        const uint32_t* operands = program.operands.data();
        for (size_t k = 0; k < program.code.size(); operands += program.code[k++].count) {
            const Instruction& i = program.code[k];
            if (const auto it = at.find(static_cast<int32_t>(k)); it != at.end()) {
                if (!s.empty()) changed |= join(it->second, s);
                s = it->second;
            }
            if (s.empty()) continue;  // not reached, or not yet
            check.step(s, i, operands, report);
            if (i.target != kNone) changed |= join(at[i.target], s);
            if ((i.kind == Kind::branch || i.kind == Kind::exit) && i.guard == kNone) s.clear();
        }
    }
}

}  // namespace teon::gpusim
