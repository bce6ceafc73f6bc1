// Tests of the kernel language on both backends. test/cpu/test_simt_runtime.cpp tests what only the CPU's runtime does
// (errors instead of hangs, poison, orders).
#include "base/integer.h"
#include "runtime/simt.h"

#include <algorithm>
#include <numeric>

#include "test/support/compare.h"

#include "base/math.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr unsigned kFull = 0xffffffffu;

__device__ __forceinline__ int linear_thread() {
    return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

__device__ __forceinline__ int64_t linear_block() {
    return blockIdx.x + int64_t{gridDim.x} * (blockIdx.y + int64_t{gridDim.y} * blockIdx.z);
}

__device__ __forceinline__ int64_t global_thread() {
    return linear_block() * (blockDim.x * blockDim.y * blockDim.z) + linear_thread();
}

// --- grids and blocks -------------------------------------------------------------------------------------------

// BARRIERS: before and after the computation of the index.
template <bool BARRIERS>
__global__ void coordinates_kernel(unsigned* out) {
    wait_for_earlier_kernels();
    if (BARRIERS) __syncthreads();
    unsigned* o = out + 6 * global_thread();
    if (BARRIERS) __syncthreads();
    o[0] = threadIdx.x;
    o[1] = threadIdx.y;
    o[2] = threadIdx.z;
    o[3] = blockIdx.x;
    o[4] = blockIdx.y;
    o[5] = blockIdx.z;
}

template <auto Kernel>
void check_coordinates(dim3 grid, dim3 block) {
    CAPTURE(grid.x, grid.y, grid.z, block.x, block.y, block.z);
    Stream stream;
    std::vector<unsigned> expected;
    for (unsigned bz = 0; bz < grid.z; ++bz)
        for (unsigned by = 0; by < grid.y; ++by)
            for (unsigned bx = 0; bx < grid.x; ++bx)
                for (unsigned tz = 0; tz < block.z; ++tz)
                    for (unsigned ty = 0; ty < block.y; ++ty)
                        for (unsigned tx = 0; tx < block.x; ++tx)
                            expected.insert(expected.end(), {tx, ty, tz, bx, by, bz});
    Guarded<unsigned> out(static_cast<int64_t>(expected.size()), stream);
    launch<Kernel>({grid, block}, stream, out.data());
    REQUIRE(same_bits(out.get(), expected));
}

// --- barriers and shared memory ---------------------------------------------------------------------------------

// In every round, each thread reads the value that its right neighbour wrote in that round.
__global__ void rotate_kernel(int* out, int rounds) {
    wait_for_earlier_kernels();
    SHARED(int, values, 1024);
    const int t = linear_thread();
    const int n = static_cast<int>(blockDim.x);
    int mine = t;
    for (int r = 0; r < rounds; ++r) {
        values[t] = mine;
        __syncthreads();
        mine = values[(t + 1) % n];
        __syncthreads();
    }
    out[global_thread()] = mine;
}

__global__ void dynamic_shared_kernel(int* out, int per_thread) {
    wait_for_earlier_kernels();
    DYN_SHARED(int, values);
    const int t = linear_thread();
    const int n = static_cast<int>(blockDim.x) * per_thread;
    for (int i = 0; i < per_thread; ++i) values[t * per_thread + i] = t * per_thread + i + static_cast<int>(blockIdx.x);
    __syncthreads();
    int sum = 0;
    for (int i = t; i < n; i += static_cast<int>(blockDim.x)) sum += values[n - 1 - i];
    out[global_thread()] = sum;
}

// Threads from `stay` on return before the first barrier. The others count themselves between barriers.
__global__ void early_return_kernel(int* out, int stay, int rounds) {
    wait_for_earlier_kernels();
    SHARED(int, count, 1);
    const int t = linear_thread();
    if (t >= stay) return;
    if (t == 0) *count = 0;
    for (int r = 0; r < rounds; ++r) {
        __syncthreads();
        atomicAdd(&count[0], 1);
        __syncthreads();
    }
    out[global_thread()] = *count;
}

// In every round one more warp has returned. The remaining threads count themselves between barriers.
__global__ void thinning_kernel(int* out) {
    wait_for_earlier_kernels();
    SHARED(int, count, 32);
    const int t = linear_thread();
    const int warp = t / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    if (t < warps) count[t] = 0;
    __syncthreads();
    for (int r = 0; r < warps; ++r) {
        if (warp < r) return;
        atomicAdd(&count[r], 1);
        __syncthreads();
        if (warp == r && t % 32 == 0) out[linear_block() * warps + r] = count[r];
    }
}

// --- shuffles ---------------------------------------------------------------------------------------------------

template <typename T>
__global__ void shuffle_kernel(T* out, const T* in, int bits, int width) {
    wait_for_earlier_kernels();
    const int64_t i = global_thread();
    out[i] = __shfl_xor_sync(kFull, in[i], bits, width);
}

template <typename T>
void check_shuffle() {
    Stream stream;
    const int n = 96;
    std::vector<T> in(n);
    for (int i = 0; i < n; ++i) in[i] = static_cast<T>(3 * i - 40);
    Guarded<T> device_in(in, stream);
    for (int width : {1, 2, 4, 8, 16, 32})
        for (int bits = 0; bits < 32; ++bits) {
            CAPTURE(width, bits);
            std::vector<T> expected(n);
            for (int i = 0; i < n; ++i) {  // as CUDA defines it: lanes beyond the own segment are not read
                const int end = i / width * width + width;
                expected[i] = in[(i ^ bits) < end ? i ^ bits : i];
            }
            Guarded<T> out(n, stream);
            launch<shuffle_kernel<T>>({1, n}, stream, out.data(), device_in.data(), bits, width);
            REQUIRE(same_bits(out.get(), expected));
        }
}

// Each half warp sums under its own mask, in its own branch and at its own pace; then lanes of each parity do.
__global__ void masks_kernel(int* out) {
    wait_for_earlier_kernels();
    const int lane = linear_thread() % 32;
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int x = lane;
    if (lane < 16) {
        for (int bit = 8; bit > 0; bit /= 2) x += __shfl_xor_sync(half, x, bit);
    } else {
        for (int round = 0; round < 3; ++round) __syncwarp(half);
        for (int bit = 8; bit > 0; bit /= 2) x += __shfl_xor_sync(half, x, bit);
    }
    const unsigned parity = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
    int y = lane;
    for (int bit = 16; bit > 1; bit /= 2) y += __shfl_xor_sync(parity, y, bit);
    out[2 * global_thread()] = x;
    out[2 * global_thread() + 1] = y;
}

// --- reductions -------------------------------------------------------------------------------------------------

// Warp reductions. again: the definition of warp_sum by shuffles, which must give the same bits.
__global__ void warp_reduce_kernel(float* sum, float* again, float* max, int* int_sum, int* int_max, const float* in,
                                   const int* int_in) {
    wait_for_earlier_kernels();
    const int64_t i = global_thread();
    float x = in[i];
    sum[i] = warp_sum(x);
    max[i] = warp_max(x);
    int_sum[i] = warp_sum(int_in[i]);
    int_max[i] = warp_max(int_in[i]);
    for (int bit = 16; bit > 0; bit /= 2) x = x + __shfl_xor_sync(kFull, x, bit);
    again[i] = x;
}

// Several block reductions in a row, without barriers in between. again: a difference of two sums.
__global__ void block_reduce_kernel(float* sum, float* again, float* max, int* int_sum, int* int_max, const float* in,
                                    const int* int_in) {
    wait_for_earlier_kernels();
    const int64_t i = global_thread();
    const float first = block_sum(in[i]);
    const float second = block_sum(2.0f * in[i]);
    sum[i] = first;
    again[i] = second - first;  // doubling is exact
    max[i] = block_max(in[i]);
    int_sum[i] = block_sum(int_in[i]);
    int_max[i] = block_max(int_in[i]);
}

// Sums 32 values by the butterfly, in float.
float butterfly(std::vector<float> x) {
    for (int bit = 16; bit > 0; bit /= 2) {
        const std::vector<float> before = x;
        for (int i = 0; i < 32; ++i) x[i] = before[i] + before[i ^ bit];
    }
    return x[0];
}

// Checks a kernel that reduces groups of `width` threads. sum_of(begin): the sum of a group's values in float.
template <auto Kernel, typename F>
void check_reductions(int blocks, int threads, int width, F sum_of) {
    CAPTURE(blocks, threads);
    Stream stream;
    const int n = threads * blocks;
    const std::vector<float> x = random_values<float>(n, 1);
    std::vector<int> ints = random_ints(n, 2, 2000001);
    for (int& i : ints) i -= 1000000;
    std::vector<float> sum(n);
    std::vector<float> max(n);
    std::vector<int> int_sum(n);
    std::vector<int> int_max(n);
    for (int begin = 0; begin < n; begin += width) {
        const int end = begin + width;
        std::fill(sum.begin() + begin, sum.begin() + end, sum_of(x.begin() + begin));
        std::fill(max.begin() + begin, max.begin() + end, *std::max_element(x.begin() + begin, x.begin() + end));
        std::fill(int_sum.begin() + begin, int_sum.begin() + end,
                  std::accumulate(ints.begin() + begin, ints.begin() + end, 0));
        std::fill(int_max.begin() + begin, int_max.begin() + end,
                  *std::max_element(ints.begin() + begin, ints.begin() + end));
    }
    Guarded<float> in(x, stream);
    Guarded<int> int_in(ints, stream);
    Guarded<float> out_sum(n, stream);
    Guarded<float> out_again(n, stream);
    Guarded<float> out_max(n, stream);
    Guarded<int> out_int_sum(n, stream);
    Guarded<int> out_int_max(n, stream);
    launch<Kernel>({blocks, threads}, stream, out_sum.data(), out_again.data(), out_max.data(), out_int_sum.data(),
                   out_int_max.data(), in.data(), int_in.data());
    REQUIRE(same_bits(out_sum.get(), sum));
    REQUIRE(same_bits(out_again.get(), sum));
    REQUIRE(same_bits(out_max.get(), max));
    REQUIRE(same_bits(out_int_sum.get(), int_sum));
    REQUIRE(same_bits(out_int_max.get(), int_max));
}

// --- atomics and arguments --------------------------------------------------------------------------------------

// Float sums of small integers are exact in any order.
__global__ void atomics_kernel(double* d, unsigned long long* ull, float* f, int* i, int* tickets) {
    wait_for_earlier_kernels();
    atomicAdd(d, 0.5);
    atomicAdd(ull, (1ull << 33) + 1);
    atomicAdd(f, 1.0f);
    tickets[atomicAdd(i, 1)] += 1;
}

// Its arguments are converted to these parameter types.
__global__ void arguments_kernel(double* out, int64_t wide, float narrow, unsigned char byte, const double* in) {
    wait_for_earlier_kernels();
    out[0] = static_cast<double>(wide);
    out[1] = narrow;
    out[2] = byte;
    out[3] = *in;
}

template <typename A, typename B>
__global__ void template_kernel(A* out, B value) {
    wait_for_earlier_kernels();
    if (global_thread() == 0) *out = static_cast<A>(value);
}

// --- math -------------------------------------------------------------------------------------------------------

enum class Function { exp, exp2 };

template <Function function>
__global__ void math_kernel(float* out, const float* in, int64_t n) {
    wait_for_earlier_kernels();
    const int64_t i = global_thread();
    if (i >= n) return;
    if constexpr (function == Function::exp) out[i] = exp_fast(in[i]);
    if constexpr (function == Function::exp2) out[i] = exp2_fast(in[i]);
}

template <Function function>
std::vector<float> evaluate(const std::vector<float>& x) {
    Stream stream;
    const int64_t n = static_cast<int64_t>(x.size());
    Guarded<float> in(x, stream);
    Guarded<float> out(n, stream);
    launch<math_kernel<function>>({ceil_div(n, 256), 256}, stream, out.data(), in.data(), n);
    return out.get();
}

// Returns every `step`-th float of magnitude `from` to `to`, with both signs.
std::vector<float> dense(float from, float to, uint32_t step) {
    std::vector<float> x;
    for (uint32_t u = float_bits(from); u <= float_bits(to); u += step) {
        x.push_back(bits_float(u));
        x.push_back(-bits_float(u));
    }
    return x;
}

double ulp(double y) { return std::ldexp(1.0, std::max(std::ilogb(y), -126) - 23); }

}  // namespace

TEST_CASE("runtime/simt: 1, 2 and 3-dimensional grids and blocks run every thread once, with its coordinates") {
    for (dim3 block :
         {dim3(1), dim3(7), dim3(32), dim3(1024), dim3(5, 3), dim3(1, 33), dim3(4, 3, 2), dim3(3, 5, 64)}) {
        for (dim3 grid : {dim3(1), dim3(5), dim3(3, 2), dim3(2, 1, 3), dim3(1, 4)}) {
            check_coordinates<coordinates_kernel<false>>(grid, block);
            check_coordinates<coordinates_kernel<true>>(grid, block);
        }
    }
}

TEST_CASE("runtime/simt: an empty grid does nothing, and an impossible one is refused") {
    Stream stream;
    Guarded<unsigned> out(6, stream);
    const auto run = [&](const LaunchConfig& config) { launch<coordinates_kernel<false>>(config, stream, out.data()); };
    run({0, 32});
    run({dim3(3, 0), 32});
    REQUIRE(same_bits(out.get(), std::vector<unsigned>(6, 0xffffffffu)));
    REQUIRE_THROWS_AS(run({1, 0}), Error);
    REQUIRE_THROWS_AS(run({1, 1025}), Error);
    REQUIRE_THROWS_AS(run({1, dim3(1, 1, 65)}), Error);
    REQUIRE_THROWS_AS(run({-1, 32}), Error);
    REQUIRE_THROWS_AS(run({int64_t{1} << 31, 32}), Error);
    REQUIRE_THROWS_AS(run({dim3(1, 65536), 32}), Error);
    REQUIRE_THROWS_AS(run({1, 32, 228 * 1024}), Error);
    REQUIRE(same_bits(out.get(), std::vector<unsigned>(6, 0xffffffffu)));
}

TEST_CASE("runtime/simt: barriers order shared memory in blocks of 1 to 1024 threads") {
    Stream stream;
    for (int n : {1, 2, 31, 32, 33, 64, 97, 256, 511, 1024}) {
        CAPTURE(n);
        const int blocks = 3;
        const int rounds = 5;
        std::vector<int> expected(blocks * n);
        for (int i = 0; i < blocks * n; ++i) expected[i] = (i % n + rounds) % n;
        Guarded<int> out(blocks * n, stream);
        launch<rotate_kernel>({blocks, n}, stream, out.data(), rounds);
        REQUIRE(same_bits(out.get(), expected));
    }
}

TEST_CASE("runtime/simt: dynamic shared memory, beyond 48 KiB too") {
    Stream stream;
    for (int per_thread : {1, 7, 60, 150}) {  // 150 * 256 ints are 150 KiB
        CAPTURE(per_thread);
        const int threads = 256;
        const int blocks = 4;
        const int n = threads * per_thread;
        std::vector<int> expected(blocks * threads);
        for (int b = 0; b < blocks; ++b)
            for (int i = 0; i < n; ++i) expected[b * threads + i % threads] += n - 1 - i + b;
        Guarded<int> out(blocks * threads, stream);
        launch<dynamic_shared_kernel>({blocks, threads, n * sizeof(int)}, stream, out.data(), per_thread);
        REQUIRE(same_bits(out.get(), expected));
    }
}

TEST_CASE("runtime/simt: threads that have returned are not waited for and not run again") {
    Stream stream;
    for (int n : {32, 96, 256})
        for (int stay : {1, 5, 31, 32}) {
            CAPTURE(n, stay);
            std::vector<int> expected(n, -1);
            for (int i = 0; i < stay; ++i) expected[i] = 4 * stay;
            Guarded<int> out(n, stream);
            launch<early_return_kernel>({1, n}, stream, out.data(), stay, 4);
            REQUIRE(same_bits(out.get(), expected));
        }
}

TEST_CASE("runtime/simt: barriers count the threads that are left") {
    Stream stream;
    for (int n : {32, 64, 256}) {
        CAPTURE(n);
        const int warps = n / 32;
        std::vector<int> expected(2 * warps);
        for (int i = 0; i < 2 * warps; ++i) expected[i] = n - i % warps * 32;
        Guarded<int> out(2 * warps, stream);
        launch<thinning_kernel>({2, n}, stream, out.data());
        REQUIRE(same_bits(out.get(), expected));
    }
}

TEST_CASE("runtime/simt: shuffles in all widths, of 4- and 8-byte types") {
    check_shuffle<int>();
    check_shuffle<float>();
    check_shuffle<double>();
    check_shuffle<unsigned long long>();
}

TEST_CASE("runtime/simt: parts of a warp shuffle under masks of their own") {
    Stream stream;
    const int n = 64;
    std::vector<int> expected;
    for (int i = 0; i < n; ++i) {
        expected.push_back(i % 32 < 16 ? 120 : 376);
        expected.push_back(i % 2 == 0 ? 240 : 256);
    }
    Guarded<int> out(2 * n, stream);
    launch<masks_kernel>({1, n}, stream, out.data());
    REQUIRE(same_bits(out.get(), expected));
}

TEST_CASE("runtime/simt: warp_sum and warp_max equal the butterfly of shuffles bit for bit") {
    check_reductions<warp_reduce_kernel>(5, 128, 32, [](auto x) { return butterfly({x, x + 32}); });
}

TEST_CASE("runtime/simt: block_sum and block_max reduce warps, then their results, for all block sizes") {
    for (int threads = 32; threads <= 1024; threads += 32)
        check_reductions<block_reduce_kernel>(2, threads, threads, [&](auto x) {
            std::vector<float> per_warp(32);
            for (int w = 0; w < threads; w += 32) per_warp[w / 32] = butterfly({x + w, x + w + 32});
            return butterfly(per_warp);
        });
}

TEST_CASE("runtime/simt: atomicAdd loses nothing over many blocks and threads") {
    Stream stream;
    const int blocks = 300;
    const int threads = 160;
    const int n = blocks * threads;
    Guarded<double> d(std::vector<double>{0.0}, stream);
    Guarded<unsigned long long> ull(std::vector<unsigned long long>{0}, stream);
    Guarded<float> f(std::vector<float>{0.0f}, stream);
    Guarded<int> i(std::vector<int>{0}, stream);
    Guarded<int> tickets(std::vector<int>(n, 0), stream);
    launch<atomics_kernel>({blocks, threads}, stream, d.data(), ull.data(), f.data(), i.data(), tickets.data());
    REQUIRE(d.get()[0] == 0.5 * n);
    REQUIRE(ull.get()[0] == ((1ull << 33) + 1) * n);
    REQUIRE(f.get()[0] == static_cast<float>(n));
    REQUIRE(i.get()[0] == n);
    REQUIRE(same_bits(tickets.get(), std::vector<int>(n, 1)));  // each old value was returned once
}

TEST_CASE("runtime/simt: arguments are converted to the kernel's parameter types") {
    Stream stream;
    Guarded<double> in(std::vector<double>{0.25}, stream);
    Guarded<double> out(4, stream);
    launch<arguments_kernel>({1, 1}, stream, out.data(), 1 << 30, 0.5, 65, in.data());
    REQUIRE(same_bits(out.get(), std::vector<double>{1073741824.0, 0.5, 65.0, 0.25}));
    Guarded<float> one(1, stream);
    launch<template_kernel<float, int>>({2, 32}, stream, one.data(), int64_t{3});
    REQUIRE(one.get()[0] == 3.0f);
}

TEST_CASE("base/math: exp_fast and exp2_fast over all magnitudes of normal results") {
    // On a CPU the error is at most 2 ulp, of exp_fast 1 (.91 among 44 million floats). On a GPU it is
    // 2 + floor(|1.173 x|) ulp for __expf (CUDA C++ Programming Guide, mathematical functions) and 2^-22, up to 4 ulp,
    // for ex2.approx (PTX ISA), which was 2.03 ulp on an H200. Both flush subnormal results.
    const bool host = std::string(backend_name()) == "cpu";
    const auto check = [&](const std::vector<float>& x, const std::vector<float>& y, auto reference, auto ulps) {
        for (size_t i = 0; i < x.size(); ++i) {
            const double expected = reference(static_cast<double>(x[i]));
            if (expected < 0x1p-126 || expected > 0x1.fffffep127) continue;
            const double error = std::abs(y[i] - expected) / ulp(expected);
            if (!(error <= ulps(x[i]))) FAIL("f(" << x[i] << ") = " << y[i] << ", off by " << error << " ulp");
        }
    };
    const std::vector<float> x = dense(1e-10f, 89.0f, 97);
    const std::vector<float> x2 = dense(1e-10f, 129.0f, 97);
    check(
        x, evaluate<Function::exp>(x), [](double v) { return std::exp(v); },
        [&](float v) { return host ? 1.0 : 3.0 + std::floor(std::abs(1.173 * v)); });
    check(
        x2, evaluate<Function::exp2>(x2), [](double v) { return std::exp2(v); },
        [&](float) { return host ? 2.0 : 4.0; });
}

TEST_CASE("base/math: exp_fast and exp2_fast at the ends of the range") {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float huge = std::numeric_limits<float>::max();
    const std::vector<float> x = {-inf, -huge, -1000.0f, -200.0f, inf, huge, 1000.0f, 200.0f, 0.0f, -0.0f};
    const std::vector<float> expected = {0, 0, 0, 0, inf, inf, inf, inf, 1, 1};
    REQUIRE(same_bits(evaluate<Function::exp>(x), expected));
    REQUIRE(same_bits(evaluate<Function::exp2>(x), expected));
    for (float y : evaluate<Function::exp>({nan, -nan})) REQUIRE(std::isnan(y));
    for (float y : evaluate<Function::exp2>({nan, -nan})) REQUIRE(std::isnan(y));
    // A subnormal result is right to one step of subnormals, or flushed to zero.
    for (const float v : {-87.5f, -90.0f, -95.0f, -100.0f, -103.0f, -103.9f, -104.0f, -110.0f}) {
        const float y = evaluate<Function::exp>({v})[0];
        REQUIRE((y == 0.0f || std::abs(y - std::exp(static_cast<double>(v))) <= 0x1p-149));
    }
}
