// The race detector: what it finds, in kernels whose results are right in every order of threads, and what it must let
// pass.
#include "cpu/race.h"

#include "runtime/simt.h"
#include "runtime/tensor_core.h"
#include "test/optim/schedule.h"
#include "test/support/catch.h"
#include "test/support/skip.h"

using namespace teon;
using test::ContainsSubstring;

namespace {

// What the kernel throws when one block of it runs, "" if nothing. Not through a stream, where an error would stay.
template <auto Kernel>
std::string race_of(const char* name, int threads, size_t smem = 0) {
    std::vector<float> out(1024, 0.0f);
    const std::tuple<float*> arguments(out.data());
    return test::error_of([&] {
        simt::run_grid(name, dim3(1), dim3(static_cast<unsigned>(threads)), smem, &simt::run_threads<Kernel, float*>,
                       &arguments);
    });
}

std::string at(int line) { return "cpu/test_race.cu:" + std::to_string(line); }

__device__ int thread_id() { return static_cast<int>(threadIdx.x); }

// --- races -----------------------------------------------------------------------------------------------------------

// Everybody writes the same.
constexpr int kSameValue = __LINE__ + 3;
__global__ void same_value_kernel(float* out) {
    SHARED(float, flag, 1);
    flag[0] = 1.0f;
    __syncthreads();
    out[thread_id()] = flag[0];
}

// The barrier after the reading is missing, but all rounds write the same.
constexpr int kRoundWrite = __LINE__ + 4, kRoundRead = kRoundWrite + 2;
__global__ void repeated_kernel(float* out) {
    SHARED(float, values, 64);
    for (int round = 0; round < 2; round++) {
        values[thread_id()] = 3.0f;
        __syncthreads();
        out[thread_id()] += values[63 - thread_id()];
    }
}

// What is read too early does not count.
constexpr int kUnusedWrite = __LINE__ + 3, kUnusedRead = kUnusedWrite + 2;
__global__ void unused_kernel(float* out) {
    SHARED(unsigned, values, 32);
    values[thread_id()] = 7;
    volatile unsigned* neighbour = &values[thread_id() ^ 1];
    out[thread_id()] = static_cast<float>(*neighbour & 0u);
}

// Only the lower lanes meet.
__global__ void wrong_mask_kernel(float* out) {
    SHARED(float, values, 32);
    if (thread_id() == 3) values[3] = 0.0f;
    __syncwarp(thread_id() < 16 ? 0x0000ffffu : 0xffff0000u);
    if (thread_id() == 20) out[0] = 0.0f * values[3];
}

// A shuffle makes lanes meet, but promises nothing about memory.
__global__ void shuffle_kernel(float* out) {
    SHARED(float, values, 32);
    values[thread_id()] = 1.0f;
    out[thread_id()] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    out[thread_id()] += values[thread_id() ^ 1];
}

// The last of many readers is the writer itself.
__global__ void last_reader_kernel(float* out) {
    DYN_SHARED(float, value);
    if (thread_id() == 0) value[0] = 1.0f;
    __syncthreads();
    out[thread_id()] = value[0];
    if (thread_id() == 63) value[0] = 1.0f;
}

// Half of a word each, and one who takes all of it.
__global__ void overlap_kernel(float* out) {
    SHARED(uint16_t, halves, 64);
    halves[thread_id()] = 0;
    const volatile uint32_t* words = reinterpret_cast<const uint32_t*>(halves);
    if (thread_id() == 5) out[0] = static_cast<float>(words[16] & 0u);
}

// The copy has landed for the thread that started it only.
__global__ void copy_kernel(float* out) {
    DYN_SHARED(float, values);
    cp_async<4>(values + thread_id(), out + thread_id(), true);
    cp_async_commit();
    cp_async_wait<0>();
    out[512 + thread_id()] = 0.0f * values[63 - thread_id()];
}

// --- none ------------------------------------------------------------------------------------------------------------

__global__ void barriers_kernel(float* out) {
    SHARED(float, values, 64);
    DYN_SHARED(float, more);
    for (int round = 0; round < 3; round++) {
        values[thread_id()] = more[thread_id()] = 1.0f;
        __syncthreads();
        out[thread_id()] += values[63 - thread_id()] + more[(thread_id() + 5) % 64];
        out[thread_id()] += block_sum(values[0]);  // a barrier, too
    }
}

__global__ void warps_kernel(float* out) {
    SHARED(float, values, 64);
    for (int round = 0; round < 3; round++) {
        values[thread_id()] = 1.0f;
        __syncwarp();
        out[thread_id()] += values[thread_id() ^ 15];
        __syncwarp(thread_id() % 32 < 16 ? 0x0000ffffu : 0xffff0000u);
        values[thread_id() ^ 1] = 2.0f;
        __syncwarp();
    }
}

// Knowledge travels: 0 tells 1, 1 tells 2.
__global__ void chain_kernel(float* out) {
    SHARED(float, value, 1);
    if (thread_id() == 0) value[0] = 1.0f;
    if (thread_id() <= 1) __syncwarp(0x3u);
    if (thread_id() == 1 || thread_id() == 2) __syncwarp(0x6u);
    if (thread_id() == 2) out[0] = value[0];
}

__global__ void neighbours_kernel(float* out) {
    SHARED(bf16, values, 64);
    values[thread_id()] = bf16(1.0f);
    out[thread_id()] = values[thread_id()];
    values[thread_id()] = bf16(2.0f);
}

__global__ void atomics_kernel(float* out) {
    SHARED(int, count, 1);
    if (thread_id() == 0) count[0] = 0;
    __syncthreads();
    atomicAdd(&count[0], 1);
    __syncthreads();
    out[thread_id()] = static_cast<float>(count[0]);
}

}  // namespace

TEST_CASE("cpu/race: races are found in every order of threads, though results are right, and named with both lines") {
    if constexpr (!simt::race::kEnabled) SKIP_TEST("only unkind builds look for races");
    for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
        CAPTURE(order);
        const test::ScopedOrder scope(order);
        const std::string same = race_of<same_value_kernel>("same_value_kernel", 64);
        REQUIRE_THAT(
            same, ContainsSubstring("kernel same_value_kernel, block (0, 0, 0): a race for shared memory: thread (") &&
                      ContainsSubstring("writes at " + at(kSameValue) + ", thread (") &&
                      ContainsSubstring("writes at " + at(kSameValue) + ", the same bytes"));
        const std::string repeated = race_of<repeated_kernel>("repeated_kernel", 64);
        REQUIRE_THAT(repeated, ContainsSubstring("writes at " + at(kRoundWrite)) &&
                                   ContainsSubstring("reads at " + at(kRoundRead)));
        const std::string unused = race_of<unused_kernel>("unused_kernel", 32);
        REQUIRE_THAT(unused, ContainsSubstring("writes at " + at(kUnusedWrite)) &&
                                 ContainsSubstring("reads at " + at(kUnusedRead)));
        const std::string lanes = race_of<wrong_mask_kernel>("wrong_mask_kernel", 32);
        REQUIRE_THAT(lanes, ContainsSubstring("thread (3, 0, 0)") && ContainsSubstring("thread (20, 0, 0)"));
        REQUIRE_THAT(race_of<shuffle_kernel>("shuffle_kernel", 32), ContainsSubstring("a race"));
        REQUIRE_THAT(race_of<last_reader_kernel>("last_reader_kernel", 64, 64), ContainsSubstring("thread (63, 0, 0)"));
        REQUIRE_THAT(race_of<overlap_kernel>("overlap_kernel", 64), ContainsSubstring("thread (5, 0, 0)"));
        REQUIRE_THAT(race_of<copy_kernel>("copy_kernel", 64, 256), ContainsSubstring("a race"));
    }
}

TEST_CASE("cpu/race: barriers, also of a warp's lanes, order what threads do") {
    for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
        CAPTURE(order);
        const test::ScopedOrder scope(order);
        REQUIRE(race_of<barriers_kernel>("barriers_kernel", 64, 256) == "");
        REQUIRE(race_of<warps_kernel>("warps_kernel", 64) == "");
        REQUIRE(race_of<chain_kernel>("chain_kernel", 32) == "");
        REQUIRE(race_of<neighbours_kernel>("neighbours_kernel", 64) == "");
        REQUIRE(race_of<atomics_kernel>("atomics_kernel", 64) == "");
    }
}
