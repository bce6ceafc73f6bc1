// Tensor-core and asynchronous-copy instructions for kernels, as functions of a warp. nvcc turns each into one PTX
// instruction (sm_80 and later). The host executes them, slowly, as the PTX manual describes ("ldmatrix", "Matrix
// fragments for mma.m16n8k16", "cp.async" in https://docs.nvidia.com/cuda/parallel-thread-execution), and copies
// immediately; the modelled GPU copies as late as permitted.
//
// Fragments. Lane l of a warp has g = l / 4 and c = 2 (l % 4). An 8 x 8 matrix of bf16 or f16 is distributed so that
// lane l holds its elements (g, c) and (g, c + 1), the first in the lower half of a 32-bit register. Lane l holds these
// elements of the operands of mma:
//
//   A (16 x 16)  a[0]: (g, c)  a[1]: (g + 8, c)  a[2]: (g, c + 8)  a[3]: (g + 8, c + 8), and the column to the right
//   B (16 x 8)   b0: rows c, c + 1 of column g; b1: rows c + 8, c + 9
//   D (16 x 8)   d[0], d[1]: (g, c), (g, c + 1); d[2], d[3]: (g + 8, c), (g + 8, c + 1)
//
// Two neighbouring D, rounded and packed, therefore form an A: the result of a product can be an operand of the next.
#pragma once

#include "runtime/simt.h"

namespace teon {

// Whether the machine has these instructions; the host only imitates them, for tests.
inline constexpr bool kTensorCores = kGpu;

// An address in shared memory, for address arithmetic in bytes: 32 bits on a GPU.
struct SharedAddress {
#if defined(__CUDACC__)
    uint32_t value;
    __device__ __forceinline__ explicit SharedAddress(const void* p)
        : value(static_cast<uint32_t>(__cvta_generic_to_shared(p))) {}
#else
    uintptr_t value;
    explicit SharedAddress(const void* p) : value(reinterpret_cast<uintptr_t>(p)) {}
#endif
    __device__ __forceinline__ SharedAddress operator+(int bytes) const {
        SharedAddress sum = *this;
        sum.value += static_cast<decltype(value)>(bytes);
        return sum;
    }
    __device__ __forceinline__ SharedAddress operator^(int bits) const {
        SharedAddress flipped = *this;
        flipped.value ^= static_cast<decltype(value)>(bits);
        return flipped;
    }
};

#if defined(__CUDACC__)

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    if constexpr (std::is_same_v<T, bf16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        static_assert(std::is_same_v<T, f16>);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row.value));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row.value));
}

template <typename T = bf16>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, bf16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        static_assert(std::is_same_v<T, f16>);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <int BYTES>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool exists) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    const int bytes = exists ? BYTES : 0;
    if constexpr (BYTES == 16) {  // bypasses the L1 cache: a tile is read once
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared).value), "l"(global),
                     "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(SharedAddress(shared).value), "l"(global),
                     "n"(BYTES), "r"(bytes)
                     : "memory");
    }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

namespace simt {

struct LdmatrixLane {
    const bf16* row;
    uint32_t* r;
};

template <bool TRANS>
void ldmatrix(uint32_t (&r)[4], SharedAddress row, const Site& site) {
    CHECK(row.value % 16 == 0, "ldmatrix: a row must be 16-byte aligned");
    LdmatrixLane lane{reinterpret_cast<const bf16*>(row.value), r};
    warp_collective(
        0xffffffffu, lane,
        [](unsigned, Deposits<LdmatrixLane> lanes) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                for (int l = 0; l < 32; ++l) {
                    const int g = l / 4;
                    const int c = 2 * (l % 4);
                    auto element = [&](int i, int j) { return uint32_t{lanes[8 * matrix + i].row[j].bits}; };
                    lanes[l].r[matrix] =
                        TRANS ? element(c, g) | element(c + 1, g) << 16 : element(g, c) | element(g, c + 1) << 16;
                }
            }
        },
        site);
}

struct MmaLane {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
};

}  // namespace simt

template <typename T>
uint32_t pack(float low, float high) {
    return T(low).bits | uint32_t{T(high).bits} << 16;
}

inline void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row, const simt::Site& site = simt::Site::current()) {
    simt::ldmatrix<false>(r, row, site);
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row, const simt::Site& site = simt::Site::current()) {
    simt::ldmatrix<true>(r, row, site);
}

template <typename T = bf16>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  const simt::Site& site = simt::Site::current()) {
    simt::MmaLane lane{d, a, {b0, b1}};
    simt::warp_collective(
        0xffffffffu, lane,
        [](unsigned, simt::Deposits<simt::MmaLane> lanes) {
            float A[16][16];
            float B[16][8];
            float D[16][8];
            auto element = [](uint32_t bits) {
                T x;
                x.bits = static_cast<uint16_t>(bits);
                return static_cast<float>(x);
            };
            auto low = [&](uint32_t x) { return element(x); };
            auto high = [&](uint32_t x) { return element(x >> 16); };
            for (int l = 0; l < 32; ++l) {
                const int g = l / 4;
                const int c = 2 * (l % 4);
                const simt::MmaLane& lane = lanes[l];
                for (int half : {0, 1}) {
                    for (int right : {0, 1}) {
                        A[g + 8 * half][c + 8 * right] = low(lane.a[half + 2 * right]);
                        A[g + 8 * half][c + 8 * right + 1] = high(lane.a[half + 2 * right]);
                    }
                    B[c + 8 * half][g] = low(lane.b[half]);
                    B[c + 8 * half + 1][g] = high(lane.b[half]);
                    D[g + 8 * half][c] = lane.d[2 * half];
                    D[g + 8 * half][c + 1] = lane.d[2 * half + 1];
                }
            }
            for (int i = 0; i < 16; ++i) {
                for (int k = 0; k < 16; ++k) {
                    for (int j = 0; j < 8; ++j) D[i][j] += A[i][k] * B[k][j];
                }
            }
            for (int l = 0; l < 32; ++l) {
                const int g = l / 4;
                const int c = 2 * (l % 4);
                for (int i = 0; i < 4; ++i) lanes[l].d[i] = D[g + i / 2 * 8][c + i % 2];
            }
        },
        site);
}

template <int BYTES>
void cp_async(void* shared, const void* global, bool exists) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    const bool aligned =
        (reinterpret_cast<uintptr_t>(shared) | (exists ? reinterpret_cast<uintptr_t>(global) : 0)) % BYTES == 0;
    CHECK(aligned, "cp_async: {} bytes must come from and go to multiples of {} bytes", BYTES, BYTES);
    if (exists)
        std::memcpy(shared, global, BYTES);
    else
        std::memset(shared, 0, BYTES);
}

inline void cp_async_commit() {}

template <int N>
void cp_async_wait() {}

#endif

// The functions, on both backends:
//
//   pack<T>(low, high)              rounds both to T, bf16 or f16, to nearest even; low is in the lower half
//   ldmatrix_x4(r, row)             r[i] = this lane's part of matrix i. Row j of matrix i begins at the `row` of lane
//                                   8 i + j, in shared memory, 16-byte aligned
//   ldmatrix_x4_trans(r, row)       the same for the transposed matrices
//   mma_m16n8k16<T>(d, a, b0, b1)   D += A B, operands of T, bf16 or f16, float sums; the order of the 16 products
//                                   depends on the machine
//   cp_async<BYTES>(shared, global, exists)
//                                   starts to copy 4, 8 or 16 bytes, aligned to their size; if not `exists`, writes
//                                   zeros and reads nothing
//   cp_async_commit()               makes a group of the copies that this thread has started since its last commit
//   cp_async_wait<N>()              waits until all but the last N groups of this thread are complete and visible to
//                                   this thread; a barrier makes them visible to others

}  // namespace teon
