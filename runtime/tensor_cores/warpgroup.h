// Instructions of Hopper for kernels, as functions: copies of tiles by the tensor memory accelerator, barriers that
// count their bytes, and products of warpgroups (four warps, the first a multiple of four). They exist only on sm_90a:
// a kernel calls them inside `if constexpr (kWarpgroups)`. Elsewhere its code is empty; has_warpgroup_code() reports
// this at launch. "PTX ISA" (docs.nvidia.com/cuda/parallel-thread-execution) has the rules, which the modelled GPU
// checks (docs/modelled_gpu.md).
//
// Tiles. A row has 64 elements of 16 bits, 128 bytes. Chunk c (16 bytes) of row r is in the place of chunk c ^ (r % 8)
// ("128-Byte swizzling mode"), where tensor_copy writes it. A tile begins at a multiple of 1,024 bytes.
//
// Products. D (64 x N) += A (64 x 16) B (16 x N). Warp w of the warpgroup holds rows 16 w to 16 w + 15 of D and, if A
// is in registers, of A, in the layout of mma (runtime/tensor_cores/tensor_core.h); d[n] holds columns 8 n to 8 n + 7.
// A product has ended only when it has been waited for; until then, nothing may access its registers or write its
// tiles.
#pragma once

#include "runtime/simt.h"
#include "runtime/tensor_cores/tensor_core.h"
#include "runtime/tensor_cores/tensor_map.h"

namespace teon {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kWarpgroups = true;
#else
inline constexpr bool kWarpgroups = false;
#endif

inline constexpr int kWarpgroupThreads = 128;

// An attribute of a kernel: each COUNT blocks along x form a cluster, if the device runs code with kWarpgroups. Code
// for other devices would not compile with it.
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#define TEON_CLUSTER(COUNT) __cluster_dims__(COUNT, 1, 1)
#else
#define TEON_CLUSTER(COUNT)
#endif

// Returns whether the code of Kernel that this device runs was compiled with kWarpgroups. Such a kernel has static
// shared arrays in that code, and only there.
template <auto Kernel>
bool has_warpgroup_code() {
#if defined(__CUDACC__)
    const cudaFuncAttributes attributes = detail::code_attributes<Kernel>();
    return attributes.binaryVersion == 90 && attributes.sharedSizeBytes > 0;
#else
    return false;
#endif
}

// A tile, or a part of one, as an operand ("Matrix Descriptor"). An operand whose rows (of A) or columns (of B) are
// rows of the tile begins at any multiple of 16 elements in a row. An operand whose rows (of A) or columns (of B) are
// columns of the tile begins at any multiple of eight rows; those from 64 on are in another tile, `next` bytes further
// on.
struct TileOperand {
    uint32_t low, high = 1024 >> 4 | 1u << 30;
    __device__ __forceinline__ explicit TileOperand(SharedAddress begin, int next = 0)
        : low((begin.value & 0x3ffffu) >> 4 | static_cast<uint32_t>(next >> 4) << 16) {}
    // The operand `bytes` (a multiple of 16) further on. One addition suffices because tiles end below 256 KiB.
    __device__ __forceinline__ TileOperand operator+(int bytes) const {
        TileOperand behind = *this;
        behind.low += static_cast<uint32_t>(bytes >> 4);
        return behind;
    }
    __device__ __forceinline__ uint64_t bits() const { return uint64_t{high} << 32 | low; }
};

#if defined(__CUDACC__)

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier).value), "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier).value) : "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier).value),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
    for (int ended = 0; !ended;) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(SharedAddress(barrier).value), "r"(parity)
                     : "memory");
    }
}

__device__ __forceinline__ void tensor_copy(SharedAddress tile, const TensorMap& map, int column, int row, int batch,
                                            uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(tile.value),
        "l"(&map), "r"(SharedAddress(barrier).value), "r"(column), "r"(row), "r"(batch)
        : "memory");
}

__device__ __forceinline__ void tensor_copy_to_blocks(SharedAddress tile, const TensorMap& map, int column, int row,
                                                      int batch, uint64_t* barrier, int blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(tile.value),
        "l"(&map), "r"(SharedAddress(barrier).value), "r"(column), "r"(row), "r"(batch),
        "h"(static_cast<uint16_t>((1 << blocks) - 1))
        : "memory");
}

__device__ __forceinline__ int block_of_cluster() {
    int block;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    return block;
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* barrier, int block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(SharedAddress(barrier).value),
        "r"(block)
        : "memory");
}

__device__ __forceinline__ void named_barrier_wait(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define TEON_D4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TEON_D32(d, n)                                                                                            \
    TEON_D4(d, n), TEON_D4(d, n + 1), TEON_D4(d, n + 2), TEON_D4(d, n + 3), TEON_D4(d, n + 4), TEON_D4(d, n + 5), \
        TEON_D4(d, n + 6), TEON_D4(d, n + 7)
#define TEON_LIST32                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define TEON_LIST64                                                                                                    \
    TEON_LIST32                                                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// type: of A and B. a, b: the assembly operands of A and B. add: the assembly operand that says whether the product is
// added to D. trans: 1 for each operand in shared memory whose columns (of B) or rows (of A) are columns of the tile.
#define TEON_PRODUCT(N, type, list, a, b, add, trans)                                                            \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32." type "." type \
    " {" list "}, " a ", " b ", p, 1, 1, " trans ";\n}"
#define TEON_SHARED128(type, trans)                                                 \
    asm volatile(TEON_PRODUCT("128", type, TEON_LIST64, "%64", "%65", "%66", trans) \
                 : TEON_D32(d, 0), TEON_D32(d, 8)                                   \
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)))

template <typename T = bf16, int N>
__device__ __forceinline__ void warpgroup_multiply(float (&d)[N][4], TileOperand a, TileOperand b, bool add) {
    static_assert(N == 16 || (N == 8 && std::is_same_v<T, bf16>));
    if constexpr (N == 8) {
        asm volatile(TEON_PRODUCT("64", "bf16", TEON_LIST32, "%32", "%33", "%34", "0, 0")
                     : TEON_D32(d, 0)
                     : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)));
    } else if constexpr (std::is_same_v<T, bf16>) {
        TEON_SHARED128("bf16", "0, 0");
    } else {
        static_assert(std::is_same_v<T, f16>);
        TEON_SHARED128("f16", "0, 0");
    }
}
template <typename T>
__device__ __forceinline__ void warpgroup_multiply_transposed(float (&d)[16][4], TileOperand a, TileOperand b,
                                                              bool add) {
    if constexpr (std::is_same_v<T, bf16>) {
        TEON_SHARED128("bf16", "1, 1");
    } else {
        static_assert(std::is_same_v<T, f16>);
        TEON_SHARED128("f16", "1, 1");
    }
}
template <int N>
__device__ __forceinline__ void warpgroup_multiply_columns(float (&d)[N][4], const uint32_t (&a)[4], TileOperand b,
                                                           bool add) {
    static_assert(N == 8 || N == 16);
    if constexpr (N == 8) {
        asm volatile(TEON_PRODUCT("64", "bf16", TEON_LIST32, "{%32, %33, %34, %35}", "%36", "%37", "1")
                     : TEON_D32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(static_cast<int>(add)));
    } else {
        asm volatile(TEON_PRODUCT("128", "bf16", TEON_LIST64, "{%64, %65, %66, %67}", "%68", "%69", "1")
                     : TEON_D32(d, 0), TEON_D32(d, 8)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(static_cast<int>(add)));
    }
}

template <int GROUPS>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
template <int GROUPS, int N>
__device__ __forceinline__ void warpgroup_wait(float (&d)[N][4]) {
    static_assert(N == 8 || N == 16);
    if constexpr (N == 8) {
        asm volatile("wgmma.wait_group.sync.aligned %32;" : TEON_D32(d, 0) : "n"(GROUPS) : "memory");
    } else {
        asm volatile("wgmma.wait_group.sync.aligned %64;" : TEON_D32(d, 0), TEON_D32(d, 8) : "n"(GROUPS) : "memory");
    }
}

#undef TEON_D4
#undef TEON_D32
#undef TEON_LIST32
#undef TEON_LIST64
#undef TEON_PRODUCT
#undef TEON_SHARED128

#else

// Only declared, because `if constexpr (kWarpgroups)` leaves no call.
void mbarrier_init(uint64_t* barrier, int arrivals);
void mbarrier_init_done();
void mbarrier_arrive(uint64_t* barrier);
void mbarrier_expect(uint64_t* barrier, int bytes);
void mbarrier_wait(uint64_t* barrier, int parity);
void tensor_copy(SharedAddress tile, const TensorMap& map, int column, int row, int batch, uint64_t* barrier);
void tensor_copy_to_blocks(SharedAddress tile, const TensorMap& map, int column, int row, int batch, uint64_t* barrier,
                           int blocks);
int block_of_cluster();
void cluster_arrive();
void cluster_wait();
void mbarrier_arrive_at(uint64_t* barrier, int block);
void named_barrier_wait(int id, int threads);
void named_barrier_arrive(int id, int threads);
template <int COUNT>
void give_registers();
template <int COUNT>
void take_registers();
void warpgroup_begin();
void warpgroup_commit();
template <typename T = bf16, int N>
void warpgroup_multiply(float (&d)[N][4], TileOperand a, TileOperand b, bool add);
template <typename T>
void warpgroup_multiply_transposed(float (&d)[16][4], TileOperand a, TileOperand b, bool add);
template <int N>
void warpgroup_multiply_columns(float (&d)[N][4], const uint32_t (&a)[4], TileOperand b, bool add);
template <int GROUPS>
void warpgroup_wait();
template <int GROUPS, int N>
void warpgroup_wait(float (&d)[N][4]);

#endif

// The functions:
//
//   mbarrier_init(barrier, arrivals)    one thread initializes a barrier of 8 bytes in shared memory, and then calls
//   mbarrier_init_done()                before the block's next __syncthreads
//   mbarrier_arrive(barrier)            one arrival; a phase ends with the last arrival and the last byte
//   mbarrier_expect(barrier, bytes)     one arrival, and adds to the bytes that copies will bring in this phase
//   mbarrier_wait(barrier, parity)      waits until the phase of that parity (0 for the first) has ended; for a new
//                                       barrier, parity 1 has
//   tensor_copy(tile, map, column, row, batch, barrier)
//                                       one thread starts the copy of the tile that begins with that element; the
//                                       barrier counts its bytes
//   tensor_copy_to_blocks(..., barrier, blocks)
//                                       the same for the first `blocks` blocks of the cluster: the tile arrives at
//                                       this address in each, and each one's barrier counts its bytes
//   mbarrier_arrive_at(barrier, block)  one arrival at this barrier of a block of the cluster
//   block_of_cluster()                  this block's number in its cluster (TEON_CLUSTER)
//   cluster_arrive(), cluster_wait()    a barrier of all threads of the cluster. A block must not end while another
//                                       one copies to it or arrives at its barriers
//   named_barrier_wait(id, threads)     bar.sync of that many threads, whole warps; id 1 to 15 (__syncthreads uses 0)
//   named_barrier_arrive(id, threads)   the same without waiting
//   give_registers<COUNT>()             all warps of a warpgroup reduce their registers to COUNT per thread, or
//   take_registers<COUNT>()             wait until they have COUNT; COUNT is a multiple of 8
//   warpgroup_begin()                   makes writes to the products' registers visible to the products that follow
//   warpgroup_multiply<T>(d, a, b, add) D = A B, or D += A B if `add`: rows of A and columns of B are rows of tiles of
//                                       T, bf16 or f16
//   warpgroup_multiply_transposed<T>(d, a, b, add)
//                                       the same; rows of A and columns of B are columns of tiles
//   warpgroup_multiply_columns(d, a, b, add)
//                                       the same with A in registers, bf16; columns of B are columns of tiles
//   warpgroup_commit()                  makes a group of the products since the last commit
//   warpgroup_wait<GROUPS>()            waits until all but the last GROUPS groups have ended
//   warpgroup_wait<GROUPS>(d)           the same, for groups of which one was the last to use d

}  // namespace teon
