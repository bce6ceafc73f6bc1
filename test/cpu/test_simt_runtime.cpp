// Tests what the CPU's SIMT runtime does beyond a device: errors instead of hangs, and exceptions.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "cpu/error.h"
#include "runtime/simt.h"
#include "test/cpu/device_error.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"
#include "test/support/skip.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr unsigned kFull = 0xffffffffu;

std::string line(int n) { return "test_simt_runtime.cpp:" + std::to_string(n); }

int thread_id() { return static_cast<int>(threadIdx.x); }

// --- faulty kernels; constants hold the lines that the messages must name -----------------------------------------

constexpr int kBarrierA = __LINE__ + 5;
constexpr int kBarrierB = kBarrierA + 2;
__global__ void divergent_barriers_kernel(int where) {
    __syncthreads();
    if (thread_id() < where) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

constexpr int kShuffleA = __LINE__ + 4;
constexpr int kShuffleB = kShuffleA + 2;
__global__ void divergent_shuffles_kernel(int* out) {
    if (thread_id() % 32 < 16) {
        out[thread_id()] = __shfl_xor_sync(kFull, 1, 1);
    } else {
        out[thread_id()] = __shfl_xor_sync(kFull, 2, 1);
    }
}

constexpr int kMasks = __LINE__ + 1;
__global__ void different_masks_kernel() { __syncwarp(thread_id() == 5 ? 0x0000003fu : kFull); }

constexpr int kLaneBarrier = __LINE__ + 4;
constexpr int kLaneShuffle = kLaneBarrier + 2;
__global__ void lane_at_barrier_kernel(int lane) {
    if (thread_id() == lane) {
        __syncthreads();
    } else {
        __shfl_xor_sync(kFull, 1, 1);
    }
}

constexpr int kMissing = __LINE__ + 3;
__global__ void returned_lane_kernel(int lane) {
    if (thread_id() == lane) return;
    __syncwarp();
}

constexpr int kNotMine = __LINE__ + 1;
__global__ void not_in_mask_kernel() { __syncwarp(0x7fffffffu); }

constexpr int kBlockSum = __LINE__ + 3;
__global__ void incomplete_block_sum_kernel(float* out) {
    if (thread_id() == 3) return;
    out[thread_id()] = block_sum(1.0f);
}

constexpr int kWarpHere = __LINE__ + 4;
constexpr int kBarrierThere = kWarpHere + 2;
__global__ void warp_against_barrier_kernel() {
    if (thread_id() == 40) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

struct Counted {
    static inline std::atomic<int> alive = 0;
    Counted() { ++alive; }
    ~Counted() { --alive; }
};

// Throws after some threads wait at a barrier and others have not begun.
__global__ void throwing_kernel(int block, int thread) {
    Counted counted;
    if (thread_id() % 2 == 0) __syncwarp(0x55555555u);
    if (static_cast<int>(blockIdx.x) >= block && thread_id() == thread)
        throw UsageError("block " + std::to_string(blockIdx.x));
    __syncthreads();
}

__global__ void foreign_exception_kernel() { throw 42; }

__global__ void sum_kernel(float* out, const float* in) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const float w = warp_sum(in[i]);
    const float b = block_sum(in[i]) + block_max(w);
    __syncthreads();
    out[i] = w + 3.0f * b + __shfl_xor_sync(kFull, in[i], 5);
}

void check_usable() {
    Stream stream;
    const std::vector<float> x(256, 1.0f);
    Guarded<float> in(x, stream);
    Guarded<float> out(256, stream);
    launch<sum_kernel>({2, 128}, stream, out.data(), in.data());
    REQUIRE(same_bits(out.get(), std::vector<float>(256, 32.0f + 3.0f * (128.0f + 32.0f) + 1.0f)));
}

template <auto Kernel, typename... Args>
std::string launch_error(LaunchConfig config, Args... args) {
    Stream stream;
    const std::string message = device_error_of([&] { launch<Kernel>(config, stream, args...); });
    check_usable();
    return message;
}

void names(const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) REQUIRE_THAT(message, ContainsSubstring(part));
}

__global__ void read_outside_mask_kernel(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, threadIdx.x < 8 ? 8 : 16);
}

// Each frame uses the frame above it, so that no compiler turns the recursion into a loop.
[[gnu::noinline]] int recurse(int depth, volatile char* above) {
    volatile char frame[512];
    frame[depth % 512] = above[depth % 512];
    return depth == 0 ? 0 : recurse(depth - 1, frame) + 1 + (frame[depth % 512] & above[depth % 512] & 0);
}

__global__ void deep_kernel(int* out, int depth) {
    volatile char frame[512] = {};
    *out = recurse(depth, frame);
}

// Slow enough that no OS thread runs two blocks while another has none.
__global__ void slow_kernel(int* out) {
    if (thread_id() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    __syncthreads();
    if (thread_id() == 0) out[blockIdx.x] = 1;
}

__global__ void nested_kernel() { check_usable(); }

}  // namespace

TEST_CASE("cpu/simt: threads at different barriers are an error that names both lines") {
    for (int where : {1, 31, 32, 50, 63}) {
        CAPTURE(where);
        names(launch_error<divergent_barriers_kernel>({1, 64}, where),
              {"kernel divergent_barriers_kernel, block (0, 0, 0)", line(kBarrierA), line(kBarrierB)});
    }
}

TEST_CASE("cpu/simt: lanes in different warp operations are an error that names both lines") {
    std::vector<int> out(64);
    names(launch_error<divergent_shuffles_kernel>({1, 64}, out.data()), {line(kShuffleA), line(kShuffleB)});
    names(launch_error<different_masks_kernel>({1, 32}), {line(kMasks), "0x3f", "0xffffffff", "thread (5, 0, 0)"});
}

TEST_CASE("cpu/simt: a lane that waits at a barrier or has returned is an error, not a hang") {
    for (int lane : {0, 7, 31, 45}) {
        CAPTURE(lane);
        const std::string thread = "thread (" + std::to_string(lane) + ", 0, 0), ";
        names(launch_error<lane_at_barrier_kernel>({3, 64}, lane),
              {thread + "waits at the barrier", line(kLaneBarrier), line(kLaneShuffle)});
        names(launch_error<returned_lane_kernel>({1, 64}, lane), {thread + "has returned", line(kMissing)});
    }
    names(launch_error<returned_lane_kernel>({1, 48}, 1000), {"does not exist in a block of 48 threads"});
}

TEST_CASE("cpu/simt: a barrier that part of a block cannot reach is an error that names both lines") {
    names(launch_error<warp_against_barrier_kernel>({1, 64}), {line(kWarpHere), line(kBarrierThere)});
}

TEST_CASE("cpu/simt: a lane outside of its own mask and an incomplete block are errors") {
    names(launch_error<not_in_mask_kernel>({1, 32}), {line(kNotMine), "thread (31, 0, 0)"});
    std::vector<float> out(64);
    names(launch_error<incomplete_block_sum_kernel>({1, 64}, out.data()), {line(kBlockSum), "1 of 64 have returned"});
}

TEST_CASE("cpu/simt: an exception in a kernel unwinds its block and is thrown by launch") {
    Stream stream;
    for (int threads : {1, 4}) {
        CAPTURE(threads);
        const ScopedThreads os_threads(threads);
        for (int thread : {0, 1, 33, 63}) {
            // Blocks 5 and later throw; the lowest one is reported, whichever ran first.
            REQUIRE_THROWS_AS(launch<throwing_kernel>({40, 64}, stream, 5, thread), UsageError);
            REQUIRE(device_error_of([&] { launch<throwing_kernel>({40, 64}, stream, 5, thread); }) == "block 5");
            REQUIRE(Counted::alive == 0);
            check_usable();
        }
        REQUIRE_THROWS_AS(launch<foreign_exception_kernel>({4, 32}, stream), int);
        check_usable();
    }
}

TEST_CASE("cpu/simt: a launch from inside of a kernel is refused") {
    REQUIRE(contains(launch_error<nested_kernel>({1, 32}), "nested_kernel"));
}

TEST_CASE("cpu/simt: a shuffle from a lane outside of the mask gives NaN") {
    Stream stream;
    Guarded<float> out(16, stream);
    launch<read_outside_mask_kernel>({1, 32}, stream, out.data());
    const std::vector<float> values = out.get();
    for (int i = 0; i < 16; ++i) REQUIRE((i < 8 ? values[i] == 1.0f : std::isnan(values[i])));
}

TEST_CASE("cpu/simt: results do not depend on the number of OS threads") {
    Stream stream;
    const int threads = 256;
    const int blocks = 37;
    const int n = threads * blocks;
    Guarded<float> in(random_values<float>(n, 5), stream);
    const auto run = [&] {
        Guarded<float> out(n, stream);
        launch<sum_kernel>({blocks, threads}, stream, out.data(), in.data());
        return bytes_of(out.get());
    };
    REQUIRE(same_with_any_threads(run, {1, 2, 3, 8}));
}

TEST_CASE("cpu/simt: two OS threads may launch at the same time") {
    const int n = 256 * 20;
    const std::vector<float> x = random_values<float>(n, 6);
    std::vector<std::vector<float>> results(4);
    {
        std::vector<std::jthread> launchers;
        for (auto& result : results) {
            launchers.emplace_back([&result, &x] {
                Stream stream;
                Guarded<float> in(x, stream);
                Guarded<float> out(static_cast<int64_t>(x.size()), stream);
                for (int round = 0; round < 20; ++round) launch<sum_kernel>({20, 256}, stream, out.data(), in.data());
                result = out.get();
            });
        }
    }
    for (const auto& result : results) REQUIRE(same_bits(result, results[0]));
}

TEST_CASE("cpu/simt: many OS threads with large blocks stay below the system's limit of mappings") {
    Stream stream;
    constexpr int kThreads = 70;
    constexpr int kBlocks = 3 * kThreads;  // 2 x 70 x 512 mappings if each stack had a guard page
    const ScopedThreads os_threads(kThreads);
    std::vector<int> out(kBlocks);
    launch<slow_kernel>({kBlocks, 512}, stream, out.data());
    REQUIRE(out == std::vector<int>(kBlocks, 1));
    check_usable();
}

TEST_CASE("cpu/simt: a launch without memory for stacks fails, and the next one works") {
#if defined(__SANITIZE_ADDRESS__)
    SKIP_TEST("the address sanitizer does not survive a limit of memory");
#endif
    std::string without;
    std::string with = "not run";
    const ScopedThreads os_threads(1);
    std::thread([&] {  // a new thread has no stacks yet
        Stream stream;
        std::vector<int> out(1);
        const auto run = [&] { return error_of([&] { launch<slow_kernel>({1, 64}, stream, out.data()); }); };
        rlimit before{};
        getrlimit(RLIMIT_AS, &before);
        const rlimit none{1, before.rlim_max};
        setrlimit(RLIMIT_AS, &none);
        without = run();
        setrlimit(RLIMIT_AS, &before);
        with = run();
    })
        .join();
    REQUIRE(contains(without, "no memory for 32 fiber stacks"));
    REQUIRE(with == "");
}

TEST_CASE("cpu/simt: a stack overflow ends the program") {
    Stream stream;
    int out = 0;
    launch<deep_kernel>({1, 1}, stream, &out, 20);
    stream.synchronize();
    REQUIRE(out == 20);
    const pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);  // the sanitizer's report
        std::signal(SIGSEGV, SIG_DFL);
        launch<deep_kernel>({1, 1}, stream, &out, 100000);
        stream.synchronize();
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) != 0));
}
