// The SIMT runtime: fibers, the scheduler of one block, grids over OS threads. The hot path is in simt.h.
#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <climits>
#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/simt.h"
#include "cpu/threads.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace teon::simt {

namespace bc = boost::context::detail;

// A stack and the context in which it was suspended. The OS thread's own stack is the fiber main_fiber.
struct Fiber {
    bc::fcontext_t context = nullptr;
    Fiber* next_idle = nullptr;
    const void* stack = nullptr;  // lowest address and size, for the address sanitizer
    size_t stack_bytes = 0;
    void* fake_stack = nullptr;
};

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 512 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

// The stacks of one OS thread, allocated on demand and kept until the thread ends. Below each stack is a guard page, so
// that an overflow ends the program instead of overwriting the next stack. Each guard page costs two mappings, of which
// Linux allows a process 65530 unless vm.max_map_count says otherwise. Therefore, once 16384 stacks have a guard page,
// only the lowest stack of each further slab gets one.
class FiberPool {
public:
    ~FiberPool() {
        slabs_in_use -= static_cast<int>(slabs_.size());
        for (char* slab : slabs_) {
#if defined(__SANITIZE_ADDRESS__)
            __asan_unpoison_memory_region(slab, kFibersPerSlab * stride_);
#endif
            munmap(slab, kFibersPerSlab * stride_);
        }
    }

    // Allocates a slab and returns a list of its fibers, which have never run.
    Fiber* grow(void (*entry)(bc::transfer_t)) {
        void* memory = mmap(nullptr, kFibersPerSlab * stride_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(memory != MAP_FAILED, "simt: no memory for {} fiber stacks of {} bytes", kFibersPerSlab, kStackBytes);
        char* slab = static_cast<char*>(memory);
        slabs_.push_back(slab);
        const bool guard_each = ++slabs_in_use <= kGuardedSlabs;
        Fiber* list = nullptr;
        for (int i = kFibersPerSlab - 1; i >= 0; --i) {
            char* bottom = slab + i * stride_ + page_;
            CHECK((!guard_each && i > 0) || mprotect(bottom - page_, page_, PROT_NONE) == 0,
                  "simt: no guard page for a fiber stack; raise vm.max_map_count or lower TEON_THREADS");
            // The Fiber is at the top of its stack. Stacks begin at different cache sets, because the tops of equally
            // aligned stacks would evict each other from the first-level cache.
            const size_t colour = static_cast<size_t>(i % 16) * 256;
            char* top = bottom + kStackBytes - colour - sizeof(Fiber);
            top -= reinterpret_cast<uintptr_t>(top) % 64;
            Fiber* fiber = new (top) Fiber;
            fiber->stack = bottom;
            fiber->stack_bytes = static_cast<size_t>(top - bottom);
            fiber->context = bc::make_fcontext(top, fiber->stack_bytes, entry);
            fiber->next_idle = list;
            list = fiber;
        }
        return list;
    }

private:
    static constexpr int kFibersPerSlab = 32;
    static constexpr int kGuardedSlabs = 16384 / kFibersPerSlab;
    static inline std::atomic<int> slabs_in_use = 0;  // of all OS threads
    const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t stride_ = kStackBytes + page_;
    std::vector<char*> slabs_;
};

// Dynamic shared memory of one OS thread.
class SharedMemory {
public:
    ~SharedMemory() { release(); }

    unsigned char* reserve(size_t bytes) {
        if (bytes > bytes_ || p_ == nullptr) {
            release();
            bytes_ = (bytes + kAlignment) / kAlignment * kAlignment;
            p_ = static_cast<unsigned char*>(std::aligned_alloc(kAlignment, bytes_));
            CHECK(p_ != nullptr, "simt: no memory for {} bytes of dynamic shared memory", bytes_);
        }
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(p_, bytes_);
        __asan_poison_memory_region(p_ + bytes, bytes_ - bytes);
#endif
        return p_;
    }

private:
    void release() {
#if defined(__SANITIZE_ADDRESS__)
        if (p_ != nullptr) __asan_unpoison_memory_region(p_, bytes_);
#endif
        std::free(p_);
        p_ = nullptr;
        bytes_ = 0;
    }
    static constexpr size_t kAlignment = 1024;
    unsigned char* p_ = nullptr;
    size_t bytes_ = 0;
};

thread_local FiberPool fiber_pool;
thread_local SharedMemory shared_memory;
constinit thread_local Fiber main_fiber;

// Runs first after a switch, on the new stack. `data` is the fiber that has just been left.
bc::transfer_t note_left(bc::transfer_t from) {
    static_cast<Fiber*>(from.data)->context = from.fctx;
    return from;
}

void leave([[maybe_unused]] Fiber* from, [[maybe_unused]] Fiber* to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
}

void arrive([[maybe_unused]] Fiber* previous_fiber, [[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &previous_fiber->stack, &previous_fiber->stack_bytes);
#endif
}

// Switches to a fiber that has run before. Uses ontop_fcontext, which returns from note_left with a `ret` that matches
// the call here. jump_fcontext arrives with a jump, after which the processor mispredicts every `ret` up to the kernel
// (14 ns of 23 ns per switch). For the same reason there is only one copy of this call.
[[gnu::noinline]] void switch_to(Fiber* to) {
    Block& b = current_block;
    Fiber* from = b.fiber;
    b.fiber = to;
    leave(from, to);
    const bc::transfer_t back = bc::ontop_fcontext(to->context, from, note_left);
    arrive(static_cast<Fiber*>(back.data), from->fake_stack);
}

// Marks the current thread as no longer suspended and returns its fiber.
Fiber* resumed() {
    Block& b = current_block;
    b.suspended[b.warp] &= ~(1u << (b.thread & 31));
    return b.owner[b.thread];
}

void fiber_entry(bc::transfer_t from) {
    Fiber* starter = static_cast<Fiber*>(note_left(from).data);
    arrive(starter, nullptr);
    switch_to(starter);
    Block& b = current_block;
    for (;;) {
        b.body(b.args);
        b.fiber->next_idle = b.idle;
        b.idle = b.fiber;
        switch_to(b.thread < 0 ? &main_fiber : resumed());
    }
}

// Runs a new fiber up to its loop and returns.
void start(Fiber* fiber) {
    Block& b = current_block;
    Fiber* from = b.fiber;
    b.fiber = fiber;
    leave(from, fiber);
    const bc::transfer_t back = bc::jump_fcontext(fiber->context, from);
    arrive(static_cast<Fiber*>(note_left(back).data), from->fake_stack);
}

Fiber* take_idle() {
    Block& b = current_block;
    if (b.idle == nullptr) {
        b.idle = fiber_pool.grow(fiber_entry);
        for (Fiber* fiber = b.idle; fiber != nullptr; fiber = fiber->next_idle) start(fiber);
    }
    Fiber* fiber = b.idle;
    b.idle = fiber->next_idle;
    return fiber;
}

std::string text(const uint3& i) { return fmt::format("({}, {}, {})", i.x, i.y, i.z); }

std::string text(const Site& site) { return fmt::format("{}:{}", site.file_name(), site.line()); }

bool same(const Site& a, const Site& b) {
    return a.line() == b.line() && a.column() == b.column() &&
           (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

uint3 thread_index(int t, const dim3& size) {
    const unsigned i = static_cast<unsigned>(t);
    return {i % size.x, i / size.x % size.y, i / size.x / size.y};
}

}  // namespace

// --- the scheduler of one block ---------------------------------------------------------------------------------

// Suspends the current thread, and returns when it is current again.
void Block::suspend() {
    const int me = thread;
    if (!take_next()) throw_stuck();
    if (thread == me) return;
    Fiber* to = is_suspended() ? resumed() : take_idle();
    owner[me] = fiber;
    suspended[me / 32] |= 1u << (me & 31);
    switch_to(to);
    if (cancelled) throw Cancelled{};
}

void Block::release_barrier() {
    if (barrier_combine != nullptr) {
        if (live != count || count % 32 != 0) throw_incomplete();
        barrier_combine(static_cast<unsigned>(count), data);
    }
    arrived = 0;
    warps = 0;
    for (int w = 0; 32 * w < count; ++w) {
        runnable[w] = at_barrier[w];
        at_barrier[w] = 0;
        if (runnable[w] != 0) warps |= 1u << w;
    }
    warp = __builtin_ctz(warps);
}

void Block::wait_barrier(Combine combine, void* deposit, const Site& site) {
    if (arrived == 0) {
        barrier_combine = combine;
        barrier_site = site;
    } else if (combine != barrier_combine || !same(site, barrier_site)) {
        throw_other_barrier(site);
    }
    data[thread] = deposit;
    at_barrier[warp] |= 1u << (thread & 31);
    if (++arrived == live) release_barrier();
    suspend();
}

// Returns the slot of the current warp's group with this mask, or a free slot.
int Block::find_group(uint32_t mask) const {
    for (uint32_t lanes_left = pending[warp]; lanes_left != 0; lanes_left &= lanes_left - 1) {
        const int slot = __builtin_ctz(lanes_left);
        if (group[32 * warp + slot].mask == mask) return slot;
    }
    return __builtin_ctz(~pending[warp]);
}

void Block::wait_warp(unsigned mask, Combine combine, void* deposit, const Site& site) {
    const uint32_t bit = 1u << (thread & 31);
    if ((mask & bit) == 0) throw_not_in_mask(mask, site);
    const int slot = find_group(mask);
    Group& g = group[32 * warp + slot];
    if ((pending[warp] >> slot & 1) == 0) {
        pending[warp] |= 1u << slot;
        g = {mask, 0, combine, site};
    } else if (g.combine != combine || !same(g.site, site)) {
        throw_other_operation(g, site);
    }
    data[thread] = deposit;
    g.arrived |= bit;
    if (g.arrived == mask) {
        pending[warp] &= ~(1u << slot);
        if (combine != nullptr) combine(mask, data + 32 * warp);
        runnable[warp] |= mask;
    }
    suspend();
}

bool Block::finish_last() {
    if (live == 0) {
        thread = -1;
    } else {  // the others wait at the barrier, for this thread to arrive or return
        try {
            release_barrier();
            take_next();
        } catch (...) { fail(std::current_exception()); }
    }
    return false;
}

bool Block::finish_stuck() {
    try {
        throw_stuck();
    } catch (...) { fail(std::current_exception()); }
    return false;
}

// The block's error is that of its first failure. The current thread has been unwound. All suspended threads are
// unwound too, one after the other, which destroys the objects of the kernel's frames.
void Block::fail(std::exception_ptr e) {
    if (!cancelled) {
        cancelled = true;
        *error = e;
        warps = 0;
        for (int w = 0; 32 * w < count; ++w) {
            runnable[w] = suspended[w];
            at_barrier[w] = 0;
            pending[w] = 0;
            if (runnable[w] != 0) warps |= 1u << w;
        }
        arrived = 0;
    }
    if (!take_next()) thread = -1;
}

// --- errors -----------------------------------------------------------------------------------------------------

std::string Block::here() const { return fmt::format("kernel {}, block {}", name, text(blockIdx)); }

std::string Block::where(int t) const { return text(thread_index(t, blockDim)); }

std::string Block::state_of(int t) const {
    if (t >= count) return fmt::format("does not exist in a block of {} threads", count);
    const int w = t / 32;
    const uint32_t bit = 1u << (t & 31);
    if (at_barrier[w] & bit) return "waits at the barrier at " + text(barrier_site);
    for (uint32_t lanes_left = pending[w]; lanes_left != 0; lanes_left &= lanes_left - 1) {
        const Group& g = group[32 * w + std::countr_zero(lanes_left)];
        if (g.arrived & bit)
            return fmt::format("waits in the warp operation at {} with mask {:#x}", text(g.site), g.mask);
    }
    return "has returned";
}

// No thread can run, but some wait. A barrier is released as soon as all live threads have reached it, so a warp
// operation must wait for a lane that never arrives.
void Block::throw_stuck() const {
    int w = 0;
    while (pending[w] == 0) ++w;
    const Group& g = group[32 * w + std::countr_zero(pending[w])];
    const int waiting = 32 * w + std::countr_zero(g.arrived);
    const int missing = 32 * w + std::countr_zero(g.mask & ~g.arrived);
    throw Error(
        fmt::format("{}: thread {} {}, but lane {} of its warp, thread {}, {}; all lanes of a mask must reach the "
                    "same operation",
                    here(), where(waiting), state_of(waiting), missing & 31, where(missing), state_of(missing)));
}

void Block::throw_other_barrier(const Site& site) const {
    int other = 0;
    while ((at_barrier[other / 32] >> (other & 31) & 1) == 0) ++other;
    throw Error(
        fmt::format("{}: thread {} is at the barrier at {}, thread {} at another one, at {}; all live threads of a "
                    "block must reach the same barrier",
                    here(), where(thread), text(site), where(other), text(barrier_site)));
}

void Block::throw_other_operation(const Group& g, const Site& site) const {
    const int other = 32 * warp + std::countr_zero(g.arrived);
    throw Error(
        fmt::format("{}: thread {} is in the warp operation at {}, thread {} in another one with the same mask, at "
                    "{}; the lanes of a mask must meet in one operation",
                    here(), where(thread), text(site), where(other), text(g.site)));
}

void Block::throw_not_in_mask(unsigned mask, const Site& site) const {
    throw Error(fmt::format("{}: thread {} is not in the mask {:#x} of its own warp operation at {}", here(),
                            where(thread), mask, text(site)));
}

void Block::throw_incomplete() const {
    throw Error(
        fmt::format("{}: the block-wide operation at {} needs all threads of a block of whole warps; {} of {} have "
                    "returned",
                    here(), text(barrier_site), count - live, count));
}

// --- grids ----------------------------------------------------------------------------------------------------

namespace {

// Runs one block and returns its error.
std::exception_ptr run_block(int64_t index) {
    Block& b = current_block;
    b.fiber = &main_fiber;
    Fiber* const first = take_idle();  // throws if there is no memory, before the block begins
    std::exception_ptr error;
    b.error = &error;
    b.cancelled = false;
    const uint64_t i = static_cast<uint64_t>(index);
    blockIdx = {static_cast<unsigned>(i % gridDim.x), static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    b.live = b.count;
    b.arrived = 0;
    b.warps = 0;
    for (int w = 0; 32 * w < b.count; ++w) {
        const int lanes = b.count - 32 * w;
        b.runnable[w] = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        b.warps |= 1u << w;
    }
    b.warp = 0;
    b.take_next();
    switch_to(first);
    b.error = nullptr;
    return error;
}

void begin_launch(const char* name, dim3 grid, dim3 block, size_t smem, void (*body)(const void*), const void* args) {
    Block& b = current_block;
    const int count = static_cast<int>(block.x * block.y * block.z);
    const bool flat = block.y == 1 && block.z == 1;
    if (!flat && (b.count != count || blockDim.x != block.x || blockDim.y != block.y || b.flat)) {
        for (int t = 0; t < count; ++t) b.coordinates[t] = thread_index(t, block);
    }
    threadIdx = {0, 0, 0};
    blockDim = block;
    gridDim = grid;
    b.count = count;
    b.flat = flat;
    b.dynamic_shared = shared_memory.reserve(smem);
    b.body = body;
    b.args = args;
    b.name = name;
}

}  // namespace

void run_grid(const char* name, dim3 grid, dim3 block, size_t smem, void (*body)(const void*), const void* args) {
    CHECK(current_block.error == nullptr, "kernel {}: launched from inside of kernel {}", name, current_block.name);
    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    const int64_t chunk = std::max<int64_t>(1, blocks / (16 * cpu::thread_count()));
    static std::atomic<uint64_t> launches = 0;
    const uint64_t launch = ++launches;
    cpu::parallel_for(blocks, chunk, [&](int64_t i) {
        if (current_block.launch != launch) {
            begin_launch(name, grid, block, smem, body, args);
            current_block.launch = launch;
        }
        if (std::exception_ptr e = run_block(i)) std::rethrow_exception(e);
    });
}

}  // namespace teon::simt

namespace teon {

int set_simt_threads(int threads) { return cpu::set_thread_count(threads); }
}  // namespace teon
