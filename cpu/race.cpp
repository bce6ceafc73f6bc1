#include "cpu/race.h"

#if defined(TEON_UNKIND)

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"

extern "C" const char __executable_start;

namespace teon::simt::race {

namespace {

// Shared memory is watched in pieces of this size, the smallest that kernels store.
constexpr uintptr_t kPiece = 2;

struct Access {
    uint32_t epoch = 0;  // barriers of this OS thread's blocks so far; 0: there was no access
    uint32_t clock = 0;  // of the thread
    uint32_t code = 0;   // where, as an offset into the program
    uint16_t thread = 0;
};

// The last accesses to a piece. Of the reads since the last write: the last one, the last by another thread of that
// thread's warp, and the last by another warp. If any read is not ordered before a later access, one of these is not.
struct Piece {
    Access write, read, read_in_warp, read_elsewhere;
};

struct Memory {
    uintptr_t begin = 0;
    size_t bytes = 0;
    Piece* pieces = nullptr;
};

struct Race {
    Access first, second;
    bool first_writes = false, second_writes = false;
};

// One per OS thread. Whatever lies before the last barrier is ordered. Since then only lanes of one warp have met, and
// known[t][l] is what thread t knows of lane l of its warp: all until then (Lamport's clocks).
struct Detector {
    const int* thread;  // that runs
    int count;
    std::array<Memory, 16> memory;
    uint32_t epoch;
    std::array<std::array<uint32_t, 32>, kMaxThreads> known;
    bool found;
    Race race;
};

constinit thread_local Detector detector{};
thread_local std::map<uintptr_t, std::vector<Piece>> pieces_by_address;

bool ordered(const Access& earlier, const Access& now) {
    if (earlier.epoch != now.epoch || earlier.thread == now.thread) return true;
    return earlier.thread / 32 == now.thread / 32 && earlier.clock <= detector.known[now.thread][earlier.thread % 32];
}

void report(const Access& earlier, bool earlier_writes, const Access& now, bool now_writes) {
    if (detector.found) return;
    detector.found = true;
    detector.race = {earlier, now, earlier_writes, now_writes};
}

void touch_piece(Piece& piece, const Access& now, bool write) {
    if (!ordered(piece.write, now)) report(piece.write, true, now, write);
    if (write) {
        for (const Access* read : {&piece.read, &piece.read_in_warp, &piece.read_elsewhere})
            if (!ordered(*read, now)) report(*read, false, now, true);
        piece = {now, {}, {}, {}};
    } else {
        if (piece.read.thread / 32 != now.thread / 32) {
            piece.read_elsewhere = piece.read;
            piece.read_in_warp = {};
        } else if (piece.read.thread != now.thread) {
            piece.read_in_warp = piece.read;
        }
        piece.read = now;
    }
}

void touch_at(const void* p, size_t bytes, bool write, const void* code) {
    Detector& d = detector;
    const auto address = reinterpret_cast<uintptr_t>(p);
    for (int i = 0; i < d.count; i++) {
        const Memory& memory = d.memory[i];
        if (address - memory.begin >= memory.bytes) continue;
        const auto thread = static_cast<uint16_t>(*d.thread);
        const auto offset = static_cast<uint32_t>(static_cast<const char*>(code) - &__executable_start);
        const Access now{d.epoch, d.known[thread][thread % 32] + 1, offset, thread};
        const uintptr_t begin = address - memory.begin, end = std::min(begin + bytes, memory.bytes);
        for (uintptr_t j = begin / kPiece; j * kPiece < end; j++) touch_piece(memory.pieces[j], now, write);
        return;
    }
}

// "kernels/norm.h:160": the innermost line around this place that is not the runtime's own.
std::string line_of(const Access& access) {
    const uint32_t call = access.code - 1;  // the code is where the call returns to
    std::string result = fmt::format("code {:#x}", call);
    FILE* lines = popen(fmt::format("addr2line -i -e /proc/{}/exe {:#x}", getpid(), call).c_str(), "r");
    if (lines == nullptr) return result;
    bool found = false;
    for (char text[4096]; std::fgets(text, sizeof text, lines) != nullptr;) {
        std::string line(text, std::strcspn(text, " \n"));
        const bool ours = line.find("/runtime/") != line.npos || line.find("/cpu/simt") != line.npos;
        if (found || line.starts_with("?")) continue;
        found = !ours;
        const size_t name = line.rfind('/'), folder = name == line.npos || name == 0 ? name : line.rfind('/', name - 1);
        result = folder == line.npos ? line : line.substr(folder + 1);
    }
    pclose(lines);
    return result;
}

}  // namespace

void begin_block(const int* thread, const void* dynamic_shared, size_t smem) {
    detector.thread = thread;
    detector.count = 0;
    detector.found = false;
    barrier();
    add_memory(dynamic_shared, smem);
}

void barrier() {
    // Clocks continue, so that what threads knew of each other before does not order what follows.
    if (++detector.epoch != 0) return;
    for (auto& [address, pieces] : pieces_by_address) std::fill(pieces.begin(), pieces.end(), Piece{});
    detector.epoch = 1;
}

void warp_barrier(int warp, unsigned mask) {
    std::array<uint32_t, 32> all{};
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) detector.known[32 * warp + lane][lane]++;  // all that it has done so far
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            for (int l = 0; l < 32; l++) all[l] = std::max(all[l], detector.known[32 * warp + lane][l]);
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) detector.known[32 * warp + lane] = all;
}

std::string end_block(std::string (*where)(int thread)) {
    detector.count = 0;
    if (!detector.found) return "";
    const Race& race = detector.race;
    const auto says = [&](const Access& access, bool writes) {
        return fmt::format("thread {} {} at {}", where(access.thread), writes ? "writes" : "reads", line_of(access));
    };
    return fmt::format("a race for shared memory: {}, {}, the same bytes, and no barrier stands between",
                       says(race.first, race.first_writes), says(race.second, race.second_writes));
}

void add_memory(const void* begin, size_t bytes) {
    if (bytes == 0) return;
    CHECK(detector.count < static_cast<int>(detector.memory.size()),
          "a kernel with more than {} arrays in shared memory", detector.memory.size() - 1);
    const auto address = reinterpret_cast<uintptr_t>(begin);
    std::vector<Piece>& pieces = pieces_by_address[address];
    if (pieces.size() * kPiece < bytes) pieces.resize((bytes + kPiece - 1) / kPiece);
    detector.memory[detector.count++] = {address, bytes, pieces.data()};
}

[[gnu::noinline]] void touch(const void* p, size_t bytes, bool write) {
    touch_at(p, bytes, write, __builtin_return_address(0));
}

}  // namespace teon::simt::race

// What -fsanitize=thread calls (gcc/sanitizer.def).
extern "C" {

using teon::simt::race::touch_at;

#define ACCESS(name, bytes)                                                                     \
    void __tsan_read##name(void* p) { touch_at(p, bytes, false, __builtin_return_address(0)); } \
    void __tsan_write##name(void* p) { touch_at(p, bytes, true, __builtin_return_address(0)); }
ACCESS(1, 1)
ACCESS(2, 2)
ACCESS(4, 4)
ACCESS(8, 8)
ACCESS(16, 16)
#undef ACCESS
#define ACCESS(bytes)                                                                                      \
    void __tsan_unaligned_read##bytes(void* p) { touch_at(p, bytes, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##bytes(void* p) { touch_at(p, bytes, true, __builtin_return_address(0)); }
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS
void __tsan_read_range(void* p, size_t bytes) { touch_at(p, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t bytes) { touch_at(p, bytes, true, __builtin_return_address(0)); }
void __tsan_vptr_update(void*, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_init() {}

#define FETCH(bits, type, operation)                                                  \
    type __tsan_atomic##bits##_fetch_##operation(volatile type* p, type value, int) { \
        return __atomic_fetch_##operation(p, value, __ATOMIC_SEQ_CST);                \
    }
#define COMPARE_EXCHANGE(bits, type, kind, weak)                                                                 \
    bool __tsan_atomic##bits##_compare_exchange_##kind(volatile type* p, type* expected, type value, int, int) { \
        return __atomic_compare_exchange_n(p, expected, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
    }
#define ATOMIC(bits, type)                                                                                        \
    type __tsan_atomic##bits##_load(const volatile type* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
    void __tsan_atomic##bits##_store(volatile type* p, type value, int) {                                         \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                             \
    }                                                                                                             \
    type __tsan_atomic##bits##_exchange(volatile type* p, type value, int) {                                      \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                             \
    FETCH(bits, type, add)                                                                                        \
    FETCH(bits, type, sub)                                                                                        \
    FETCH(bits, type, and)                                                                                        \
    FETCH(bits, type, or)                                                                                         \
    FETCH(bits, type, xor)                                                                                        \
    COMPARE_EXCHANGE(bits, type, strong, false)                                                                   \
    COMPARE_EXCHANGE(bits, type, weak, true)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

#endif
