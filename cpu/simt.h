// The kernel language on a CPU. OS threads (cpu/threads.h) run the blocks; the threads of a block are fibers of one OS
// thread. A fiber runs the block's threads one after the other in a plain loop, into which the kernel is inlined. Only
// if a thread has to wait (at a barrier or warp collective) is the fiber suspended with that thread, and another fiber
// continues the loop. A kernel that never waits needs no switch, and a kernel of warp collectives keeps 32 fibers busy.
// Only runtime/simt.h includes this file; kernels and runtime files include that one.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "cpu/include/cuda_runtime.h"

// Kernels are inlined into the loop that runs them, run_threads, and (gnu_inline) not compiled a second time.
#define __global__ inline __attribute__((always_inline, gnu_inline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim;
inline constinit thread_local dim3 gridDim;

namespace teon::simt {

using Site = std::source_location;  // the line of a barrier or collective, for error messages

// Called once when all lanes (or threads) of a group have arrived; data[i] is the deposit of lane (or thread) i.
using Combine = void (*)(unsigned mask_or_count, void* const* data);

inline constexpr int kMaxThreads = 1024;  // of a block
inline constexpr int kMaxWarps = kMaxThreads / 32;

struct Fiber;
struct Cancelled {};  // unwinds the other threads of a block after one of them has failed

// The block that this OS thread runs. Bit i of a lane mask is lane i of the warp.
struct Block {
    // The running thread; -1 if no thread can run.
    int thread;
    int warp;
    int live;                        // threads that have not returned
    int arrived;                     // live threads that wait at the barrier
    uint32_t warps;                  // warps with runnable lanes (the current warp's bit may be stale)
    uint32_t runnable[kMaxWarps];    // lanes that have not started or no longer wait
    uint32_t suspended[kMaxWarps];   // lanes whose fiber is suspended inside the kernel
    uint32_t at_barrier[kMaxWarps];  // lanes that wait at the barrier
    bool flat;                       // blockDim.y == blockDim.z == 1
    bool cancelled;                  // a thread has failed: suspended threads are unwound, others never start
    uint64_t launch;                 // number of the launch that the fields below belong to
    int count;                       // threads of the block
    unsigned char* dynamic_shared;
    uint3 coordinates[kMaxThreads];  // threadIdx by linear thread, unless flat

    // The function to run, and the error that ended it.
    void (*body)(const void* args);
    const void* args;
    const char* name;
    std::exception_ptr* error;  // null between blocks

    // Warp collectives that wait for some of their lanes: bit i of pending[w] means that group[32 * w + i] is in use.
    // In each at least one lane waits, and a lane waits in only one, so 32 per warp are enough.
    struct Group {
        uint32_t mask, arrived;
        Combine combine;
        Site site;
    };
    uint32_t pending[kMaxWarps];
    Group group[kMaxThreads];
    Combine barrier_combine;
    Site barrier_site;
    void* data[kMaxThreads];    // deposits of waiting threads
    Fiber* owner[kMaxThreads];  // fibers of suspended threads
    Fiber* fiber;               // the running fiber
    Fiber* idle;                // list of fibers without a thread

    // Makes the first runnable thread the current one; returns false if there is none. A warp runs as long as it can,
    // so that few fibers are in use.
    bool take_next() {
        if (runnable[warp] == 0) {
            warps &= ~(1u << warp);
            if (warps == 0) return false;
            warp = __builtin_ctz(warps);
        }
        const uint32_t lanes = runnable[warp];
        runnable[warp] = lanes & (lanes - 1);
        thread = 32 * warp + __builtin_ctz(lanes);
        if (flat) {
            threadIdx.x = static_cast<unsigned>(thread);
        } else {
            threadIdx = coordinates[thread];
        }
        return true;
    }

    bool is_suspended() const { return suspended[warp] >> (thread & 31) & 1; }

    // Ends the current thread, which has returned from the kernel. Returns true if the next thread starts on the same
    // fiber; otherwise the fiber becomes idle and the suspended fiber of the new current thread, if any, resumes.
    bool finish_thread() {
        if (--live == arrived) [[unlikely]]
            return finish_last();
        if (!take_next()) [[unlikely]]
            return finish_stuck();
        return !is_suspended();
    }

    // Make the current thread wait at the barrier, or for the lanes of mask. Throw Error if the threads of the group
    // are in different places or cannot all arrive.
    void wait_barrier(Combine combine, void* deposit, const Site& site);
    void wait_warp(unsigned mask, Combine combine, void* deposit, const Site& site);
    // Ends the current thread, which has thrown.
    void fail(std::exception_ptr e);

    bool finish_last();
    bool finish_stuck();
    void release_barrier();
    void suspend();

    int find_group(uint32_t mask) const;

    std::string here() const;
    std::string where(int t) const;
    std::string state_of(int t) const;
    [[noreturn, gnu::cold]] void throw_stuck() const;
    [[noreturn, gnu::cold]] void throw_other_barrier(const Site& site) const;
    [[noreturn, gnu::cold]] void throw_other_operation(const Group& g, const Site& site) const;
    [[noreturn, gnu::cold]] void throw_not_in_mask(unsigned mask, const Site& site) const;
    [[noreturn, gnu::cold]] void throw_incomplete() const;
};

// Not extern: for the address of an extern thread_local the linker emits code that does not set the processor's flags,
// which the null check of g++ 12's undefined-behaviour sanitizer then reads.
inline constinit thread_local Block current_block{};

// Runs threads of the current block, from the current one on, until the next thread is suspended in another fiber.
template <auto Kernel, typename... P>
void run_threads(const void* args) {
    const std::tuple<P...> local = *static_cast<const std::tuple<P...>*>(args);
    Block& b = current_block;
    try {
        do {
            std::apply([](const P&... p) { Kernel(p...); }, local);
        } while (b.finish_thread());
    } catch (const Cancelled&) { b.fail(nullptr); } catch (...) {
        b.fail(std::current_exception());
    }
}

// Runs body for all blocks of the grid. Rethrows the error of the failed block with the lowest index.
void run_grid(const char* name, dim3 grid, dim3 block, size_t smem, void (*body)(const void*), const void* args);

// The deposits of a group: element i belongs to lane (or thread) i.
template <typename Data>
struct Deposits {
    void* const* data;
    Data& operator[](int i) const { return *static_cast<Data*>(data[i]); }
};

// Implements all warp-wide operations. Each lane of mask deposits its Data. The last lane to arrive runs combine(mask,
// lanes), a captureless lambda that reads the deposits and replaces each by the lane's result. Lanes outside of mask
// have no deposit.
template <typename Data, typename F>
void warp_collective(unsigned mask, Data& mine, F, const Site& site) {
    static_assert(std::is_empty_v<F>);
    current_block.wait_warp(
        mask, [](unsigned m, void* const* p) { F{}(m, Deposits<Data>{p}); }, &mine, site);
}

// Likewise for all threads of the block, as a barrier: combine(count, threads).
template <typename Data, typename F>
void block_collective(Data& mine, F, const Site& site) {
    static_assert(std::is_empty_v<F>);
    current_block.wait_barrier([](unsigned count, void* const* p) { F{}(static_cast<int>(count), Deposits<Data>{p}); },
                               &mine, site);
}

// The butterfly x[i] = op(x[i], x[i ^ 16]), ^ 8, ... ^ 1. With a commutative op every lane ends with the same bits, so
// computing half of the lanes in each step is enough.
template <typename T, typename Op>
T butterfly(T (&x)[32], Op op) {
    for (int half = 16; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) x[i] = op(x[i], x[i + half]);
    }
    return x[0];
}

template <typename T, typename Op>
T warp_reduce(T x, Op, const Site& site) {
    warp_collective(
        0xffffffffu, x,
        [](unsigned, Deposits<T> lanes) {
            T v[32];
            for (int i = 0; i < 32; ++i) v[i] = lanes[i];
            const T result = butterfly(v, Op{});
            for (int i = 0; i < 32; ++i) lanes[i] = result;
        },
        site);
    return x;
}

// Reduces each warp, then the warps' results, padded to 32 with the identity: the tree of the device's block_reduce.
template <typename T, typename Op>
T block_reduce(T x, Op, const Site& site) {
    block_collective(
        x,
        [](int count, Deposits<T> threads) {
            T per_warp[32];
            for (int w = 0; w < 32; ++w) {
                per_warp[w] = Op::template identity<T>();
                if (32 * w >= count) continue;
                T v[32];
                for (int i = 0; i < 32; ++i) v[i] = threads[32 * w + i];
                per_warp[w] = butterfly(v, Op{});
            }
            const T result = butterfly(per_warp, Op{});
            for (int i = 0; i < count; ++i) threads[i] = result;
        },
        site);
    return x;
}

// A shuffle: every lane deposits a value and the index of the lane to read. A lane outside of mask reads as NaN bits.
template <typename T>
T shuffle(unsigned mask, T value, int source, const Site& site) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles move 4 or 8 bytes");
    struct Wish {
        T value;
        int source;
    } wish{value, source};
    warp_collective(
        mask, wish,
        [](unsigned m, Deposits<Wish> lanes) {
            T v[32];
            std::memset(v, 0xff, sizeof(v));
            for (unsigned lanes_left = m; lanes_left != 0; lanes_left &= lanes_left - 1) {
                const int i = std::countr_zero(lanes_left);
                v[i] = lanes[i].value;
            }
            for (unsigned lanes_left = m; lanes_left != 0; lanes_left &= lanes_left - 1) {
                Wish& lane = lanes[std::countr_zero(lanes_left)];
                lane.value = v[lane.source];
            }
        },
        site);
    return wish.value;
}

// The storage of SHARED, one per OS thread.
template <typename T, int N>
struct SharedArray {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory is raw memory");
    static_assert(sizeof(T) * N <= 48 * 1024, "a device has 48 KiB of static shared memory");
    alignas(64) unsigned char bytes[sizeof(T) * N];
    using Array = T[N];
    Array& values() { return reinterpret_cast<Array&>(bytes); }
};

inline int lane_id() { return current_block.thread & 31; }

}  // namespace teon::simt

#define SHARED(T, name, count)                                                            \
    static constinit thread_local ::teon::simt::SharedArray<T, (count)> name##_storage{}; \
    auto& name = name##_storage.values()
#define DYN_SHARED(T, name) T* const name = reinterpret_cast<T*>(::teon::simt::current_block.dynamic_shared)

// CUDA's functions, with the caller's line as an additional last argument.

inline void __syncthreads(const teon::simt::Site& site = teon::simt::Site::current()) {
    teon::simt::current_block.wait_barrier(nullptr, nullptr, site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const teon::simt::Site& site = teon::simt::Site::current()) {
    teon::simt::current_block.wait_warp(mask, nullptr, nullptr, site);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  const teon::simt::Site& site = teon::simt::Site::current()) {
    const int lane = teon::simt::lane_id();
    const int source = lane ^ bits;
    const int end = (lane & ~(width - 1)) + width;
    return teon::simt::shuffle(mask, value, source < end ? source : lane, site);
}

// Returns the old value. Does not order other memory accesses.
template <typename T>
requires std::is_arithmetic_v<T> T atomicAdd(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}

// Likewise.
template <typename T>
requires std::is_integral_v<T> T atomicMax(T* address, std::type_identity_t<T> value) {
    std::atomic_ref<T> at(*address);
    T old = at.load(std::memory_order_relaxed);
    while (old < value && !at.compare_exchange_weak(old, value, std::memory_order_relaxed)) {}
    return old;
}

namespace teon {

// Sets the number of OS threads that run blocks and the tiles of products, which may exceed the number of processors.
// Returns the previous number. For tests: results do not depend on it.
int set_simt_threads(int threads);

}  // namespace teon
