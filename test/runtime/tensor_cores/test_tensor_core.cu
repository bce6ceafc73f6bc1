// Compares each instruction with the figures of the PTX manual (PTX ISA, "Matrix fragments for mma.m16n8k16",
// "ldmatrix", "cp.async"), which number the elements of a fragment and show the thread that holds each element.
#include "runtime/tensor_cores/tensor_core.h"

#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

namespace {

// ---- ldmatrix -----------------------------------------------------------------------------------

// rows (32, 8): row i of matrix m is rows[8 m + i], at place[8 m + i] in shared memory. out (32 lanes, 4).
template <bool TRANS>
__global__ void ldmatrix_kernel(uint32_t* out, const bf16* rows, const int* place) {
    wait_for_earlier_kernels();
    SHARED(bf16, memory, 64 * 8);
    const int lane = static_cast<int>(threadIdx.x);
    for (int j = 0; j < 8; ++j) memory[place[lane] * 8 + j] = rows[lane * 8 + j];
    __syncthreads();
    uint32_t r[4];
    if constexpr (TRANS) {
        ldmatrix_x4_trans(r, SharedAddress(memory + place[lane] * 8));
    } else {
        ldmatrix_x4(r, SharedAddress(memory + place[lane] * 8));
    }
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

std::vector<bf16> numbered(int n) {
    std::vector<bf16> x(n);
    for (int i = 0; i < n; ++i) x[i].bits = static_cast<uint16_t>(0x1000 + i);
    return x;
}

template <bool TRANS>
std::vector<uint32_t> run_ldmatrix() {
    Stream stream;
    const std::vector<bf16> rows = numbered(32 * 8);
    std::vector<int> place(32);
    for (int i = 0; i < 32; ++i) place[i] = (i * 37 + 11) % 64;  // arbitrary, all different
    Guarded<bf16> on_device(rows, stream);
    Guarded<int> places(place, stream);
    Guarded<uint32_t> out(32 * 4, stream);
    launch<ldmatrix_kernel<TRANS>>({1, 32}, stream, out.data(), on_device.data(), places.data());
    return out.get();
}

// ---- mma ----------------------------------------------------------------------------------------

// The row and column of element i of a lane's fragment in the manual's figures; 0 <= i < 8, 4, 4 for A, B, D.
struct Place {
    int row, column;
};
Place place_a(int lane, int i) {
    const int group = lane / 4;
    const int thread = lane % 4;
    const bool upper = (i >= 0 && i < 2) || (i >= 4 && i < 6);
    return {upper ? group : group + 8, i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8};
}
Place place_b(int lane, int i) { return {i < 2 ? lane % 4 * 2 + (i & 1) : lane % 4 * 2 + (i & 1) + 8, lane / 4}; }
Place place_d(int lane, int i) { return {i < 2 ? lane / 4 : lane / 4 + 8, lane % 4 * 2 + (i & 1)}; }

// The registers of the fragments: a (32, 4), b (32, 2), d (32, 4).
template <typename T>
__global__ void mma_kernel(float* d, const uint32_t* a, const uint32_t* b) {
    wait_for_earlier_kernels();
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t a_fragment[4];
    float sum[4];
    for (int i = 0; i < 4; ++i) {
        a_fragment[i] = a[lane * 4 + i];
        sum[i] = d[lane * 4 + i];
    }
    mma_m16n8k16<T>(sum, a_fragment, b[lane * 2], b[lane * 2 + 1]);
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sum[i];
}

// Returns D + A B for A (16, 16), B (16, 8), D (16, 8), computed from fragments.
template <typename T = bf16>
std::vector<float> run_mma(const std::vector<float>& A, const std::vector<float>& B, const std::vector<float>& D) {
    std::vector<uint32_t> a(32 * 4);
    std::vector<uint32_t> b(32 * 2);
    std::vector<float> d(32 * 4);
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 8; ++i) {
            const Place p = place_a(lane, i);
            a[lane * 4 + i / 2] |= uint32_t{T(A[p.row * 16 + p.column]).bits} << 16 * (i % 2);
        }
        for (int i = 0; i < 4; ++i) {
            const Place pb = place_b(lane, i);
            const Place pd = place_d(lane, i);
            b[lane * 2 + i / 2] |= uint32_t{T(B[pb.row * 8 + pb.column]).bits} << 16 * (i % 2);
            d[lane * 4 + i] = D[pd.row * 8 + pd.column];
        }
    }
    Stream stream;
    Guarded<uint32_t> on_a(a, stream);
    Guarded<uint32_t> on_b(b, stream);
    Guarded<float> on_d(d, stream);
    launch<mma_kernel<T>>({1, 32}, stream, on_d.data(), on_a.data(), on_b.data());
    const std::vector<float> fragments = on_d.get();
    std::vector<float> result(16 * 8, std::numeric_limits<float>::quiet_NaN());
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const Place p = place_d(lane, i);
            result[p.row * 8 + p.column] = fragments[lane * 4 + i];
        }
    return result;
}

std::vector<double> product(const std::vector<float>& A, const std::vector<float>& B, const std::vector<float>& D) {
    std::vector<double> sum(D.begin(), D.end());
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j)
            for (int k = 0; k < 16; ++k) sum[i * 8 + j] += static_cast<double>(A[i * 16 + k]) * B[k * 8 + j];
    return sum;
}

std::vector<float> integers(int n, uint64_t seed) {
    std::vector<float> x;
    for (int v : random_ints(n, seed, 17)) x.push_back(static_cast<float>(v - 8));
    return x;
}

template <typename T>
__global__ void pack_kernel(uint32_t* packed, const float* x, int pairs) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(threadIdx.x);
    if (i < pairs) packed[i] = pack<T>(x[2 * i], x[2 * i + 1]);
}

template <typename T>
void packs() {
    std::vector<float> x = random_values<float>(40, 8, 100.0);
    for (float v :
         {0.0f, -0.0f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f, std::numeric_limits<float>::infinity(), -2.0f})
        x.push_back(v);
    Stream stream;
    Guarded<float> in(x, stream);
    Guarded<uint32_t> out(std::ssize(x) / 2, stream);
    launch<pack_kernel<T>>({1, 32}, stream, out.data(), in.data(), static_cast<int>(x.size() / 2));
    const std::vector<uint32_t> packed = out.get();
    for (size_t i = 0; i < packed.size(); ++i) {
        INFO(x[2 * i] << " " << x[2 * i + 1]);
        REQUIRE((packed[i] & 0xffffu) == T(x[2 * i]).bits);
        REQUIRE((packed[i] >> 16) == T(x[2 * i + 1]).bits);
    }
}

// ---- cp_async -----------------------------------------------------------------------------------

// out (64 threads, BYTES): the bytes that thread i copies if i < count, else 0. Thread i ^ 33 reads them from shared
// memory.
template <int BYTES>
__global__ void copy_kernel(unsigned char* out, const unsigned char* in, int count) {
    wait_for_earlier_kernels();
    SHARED(unsigned char, memory, 64 * BYTES);
    const int i = static_cast<int>(threadIdx.x);
    const int other = i ^ 33;
    cp_async<BYTES>(memory + i * BYTES, in + i * BYTES, i < count);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int j = 0; j < BYTES; ++j) out[other * BYTES + j] = memory[other * BYTES + j];
}

template <int BYTES>
void copies(int count) {
    INFO(BYTES << " bytes, " << count << " threads");
    Stream stream;
    std::vector<unsigned char> in(64 * BYTES);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned char>(i * 7 + 1);
    Guarded<unsigned char> on_device(in, stream);
    Guarded<unsigned char> out(64 * BYTES, stream);
    launch<copy_kernel<BYTES>>({1, 64}, stream, out.data(), on_device.data(), count);
    std::fill(in.begin() + count * BYTES, in.end(), static_cast<unsigned char>(0));
    REQUIRE(same_bits(out.get(), in));
}

// Passes `steps` tiles, one float4 per thread, through a ring of two stages. Each thread sums its neighbour's elements.
__global__ void pipeline_kernel(float* out, const float* in, int steps) {
    wait_for_earlier_kernels();
    SHARED(float, memory, 2 * 64 * 4);
    const int i = static_cast<int>(threadIdx.x);
    const int neighbour = (i + 32) % 64;
    auto fetch = [&](int step) {
        cp_async<16>(memory + (step % 2 * 64 + i) * 4, in + (step * 64 + i) * 4, step < steps);
        cp_async_commit();
    };
    float sum = 0.0f;
    fetch(0);
    for (int step = 0; step < steps; ++step) {
        __syncthreads();  // all threads have read the stage that is overwritten now
        fetch(step + 1);
        cp_async_wait<1>();
        __syncthreads();
        for (int j = 0; j < 4; ++j) sum += memory[(step % 2 * 64 + neighbour) * 4 + j];
    }
    out[i] = sum;
}

}  // namespace

TEST_CASE(
    "runtime/tensor_cores/tensor_core: ldmatrix gives lane l elements 2 (l % 4) and the next of row l / 4, .trans of "
    "column l / 4") {
    const std::vector<bf16> rows = numbered(32 * 8);
    for (bool trans : {false, true}) {
        const std::vector<uint32_t> r = trans ? run_ldmatrix<true>() : run_ldmatrix<false>();
        for (int lane = 0; lane < 32; ++lane)
            for (int m = 0; m < 4; ++m) {
                INFO("lane " << lane << " register " << m << (trans ? " trans" : ""));
                const int row = trans ? lane % 4 * 2 : lane / 4;
                const int column = trans ? lane / 4 : lane % 4 * 2;
                const int at = (8 * m + row) * 8 + column;
                REQUIRE((r[lane * 4 + m] & 0xffffu) == rows[at].bits);
                REQUIRE((r[lane * 4 + m] >> 16) == rows[at + (trans ? 8 : 1)].bits);
            }
    }
}

TEST_CASE("runtime/tensor_cores/tensor_core: mma multiplies fragments that are laid out as the manual says") {
    // Sums of these integers are exact in every order.
    const std::vector<float> A = integers(16 * 16, 1);
    const std::vector<float> B = integers(16 * 8, 2);
    const std::vector<float> D = integers(16 * 8, 3);
    REQUIRE(compare(run_mma(A, B, D), product(A, B, D), 0.0));
    REQUIRE(compare(run_mma<f16>(A, B, D), product(A, B, D), 0.0));
    // One nonzero element each, so that a sum cannot hide a misplaced element.
    for (int k = 0; k < 16; ++k) {
        std::vector<float> one(16 * 16);
        std::vector<float> other(16 * 8);
        one[(k * 5 + 3) % 16 * 16 + k] = 3.0f;
        other[k * 8 + k * 3 % 8] = 5.0f;
        REQUIRE(compare(run_mma(one, other, D), product(one, other, D), 0.0));
    }
}

TEST_CASE("runtime/tensor_cores/tensor_core: mma adds in float, whatever the order") {
    auto rounded = [](std::vector<float> x) {
        for (float& v : x) v = static_cast<float>(bf16(v));
        return x;
    };
    const std::vector<float> A = rounded(random_values<float>(16 * 16, 4));
    const std::vector<float> B = rounded(random_values<float>(16 * 8, 5));
    const std::vector<float> D = random_values<float>(16 * 8, 6);
    std::vector<double> tolerance;
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) {
            double sum = std::abs(D[i * 8 + j]);
            for (int k = 0; k < 16; ++k) sum += std::abs(static_cast<double>(A[i * 16 + k]) * B[k * 8 + j]);
            tolerance.push_back(16 * 2 * kUnitRoundoff<float> * sum);  // 16 additions; tensor cores may truncate
        }
    REQUIRE(compare(run_mma(A, B, D), product(A, B, D), tolerance));
}

TEST_CASE("runtime/tensor_cores/tensor_core: mma lets NaN and infinity through, in their own row and column only") {
    std::vector<float> A = integers(16 * 16, 7);
    std::vector<float> B(16 * 8, 1.0f);
    std::vector<float> D(16 * 8, 0.0f);
    A[5 * 16 + 2] = std::numeric_limits<float>::quiet_NaN();
    A[9 * 16 + 4] = std::numeric_limits<float>::infinity();
    const std::vector<float> result = run_mma(A, B, D);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) {
            REQUIRE(std::isnan(result[i * 8 + j]) == (i == 5));
            REQUIRE(std::isinf(result[i * 8 + j]) == (i == 9));
        }
}

TEST_CASE("runtime/tensor_cores/tensor_core: pack rounds to nearest even and puts its first argument low") {
    packs<bf16>();
    packs<f16>();
}

TEST_CASE("runtime/tensor_cores/tensor_core: cp_async copies 4, 8 and 16 bytes, and zeros where nothing exists") {
    for (int count : {0, 1, 37, 64}) {
        copies<4>(count);
        copies<8>(count);
        copies<16>(count);
    }
}

TEST_CASE("runtime/tensor_cores/tensor_core: groups of copies land in order") {
    constexpr int kSteps = 5;
    std::vector<float> in(kSteps * 64 * 4);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    std::vector<float> sums(64);
    for (int i = 0; i < 64; ++i)
        for (int step = 0; step < kSteps; ++step)
            for (int j = 0; j < 4; ++j) sums[i] += in[(step * 64 + (i + 32) % 64) * 4 + j];
    Stream stream;
    Guarded<float> on_device(in, stream);
    Guarded<float> out(64, stream);
    launch<pipeline_kernel>({1, 64}, stream, out.data(), on_device.data(), kSteps);
    REQUIRE(same_bits(out.get(), sums));
}
