// Clusters of two blocks on sm_90a: they read each other's shared memory, share tiles that one copy brings to both,
// release them by arrivals at each other's mbarriers, and store tiles by bulk copies. gpusim/test/plant_faults.py
// plants faults in its PTX.
//
//     nvcc -std=c++17 -cudart shared -lineinfo --no-compress -gencode arch=compute_90a,code=compute_90a clusters.cu
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int kThreads = 64;
constexpr int kColumns = 32;  // of a tile, in words
constexpr int kRows = 4;      // of a tile
constexpr int kStages = 2;
constexpr int kTiles = 6;
constexpr int kWords = kColumns * kRows;
constexpr int kBytes = kWords * 4;

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ uint32_t rank_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ uint32_t at_rank(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void wait(uint32_t mbarrier, uint32_t parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(mbarrier),
        "r"(parity)
        : "memory");
}

// out[i] = in of the other block of the cluster, at the same thread.
__global__ void __cluster_dims__(2, 1, 1) exchange(const uint32_t* in, uint32_t* out) {
    __shared__ uint32_t words[kThreads];
    const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    words[threadIdx.x] = in[i];
    sync_cluster();
    uint32_t word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];"
                 : "=r"(word)
                 : "r"(at_rank(shared_address(words + threadIdx.x), rank_in_cluster() ^ 1))
                 : "memory");
    sync_cluster();  // the other block must not end, nor overwrite its words, before they are read
    words[threadIdx.x] = word;
    out[i] = words[threadIdx.x];
}

// Tile t of the result of block b is the sum of tiles 0 to t of the input, plus b. The blocks of a cluster take turns
// in copying tiles to both of them.
__global__ void __cluster_dims__(2, 1, 1)
    prefix_sums(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out) {
    __shared__ alignas(128) uint32_t tiles[kStages][kWords];
    __shared__ alignas(128) uint32_t results[kWords];
    __shared__ uint64_t full[kStages];
    __shared__ uint64_t empty[kStages];
    const uint32_t rank = rank_in_cluster();
    const bool leads = threadIdx.x == 0;
    if (leads) {
        for (int stage = 0; stage < kStages; ++stage) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[stage])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(shared_address(&empty[stage])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
    const auto copy = [&](int tile) {  // by thread 0 of the block whose turn it is; each block expects the bytes
        const int stage = tile % kStages;
        const uint32_t mbarrier = shared_address(&full[stage]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "n"(kBytes) : "memory");
        if (tile % 2 != static_cast<int>(rank)) return;
        if (tile >= kStages) wait(shared_address(&empty[stage]), (tile / kStages - 1) & 1);
        const uint16_t receivers = 3;
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tiles[stage])),
            "l"(&in), "r"(0), "r"(tile * kRows), "r"(mbarrier), "h"(receivers)
            : "memory");
    };
    for (int tile = 0; tile < kStages && leads; ++tile) copy(tile);
    uint32_t sums[kWords / kThreads] = {};
    for (int tile = 0; tile < kTiles; ++tile) {
        const int stage = tile % kStages;
        wait(shared_address(&full[stage]), tile / kStages & 1);
        for (int k = 0; k < kWords / kThreads; ++k) sums[k] += tiles[stage][k * kThreads + threadIdx.x];
        __syncthreads();  // all threads have read the tile, and thread 0 has seen the last store end
        if (leads) {      // the block that copies the stage's next tile is the same
            const uint32_t there = at_rank(shared_address(&empty[stage]), static_cast<uint32_t>(tile % 2));
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
            if (tile + kStages < kTiles) copy(tile + kStages);
        }
        for (int k = 0; k < kWords / kThreads; ++k) results[k * kThreads + threadIdx.x] = sums[k] + blockIdx.x;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (leads) {
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out),
                         "r"(0), "r"((static_cast<int>(blockIdx.x) * kTiles + tile) * kRows),
                         "r"(shared_address(results))
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
    }
    sync_cluster();  // the other block may still copy to this one, or arrive here
}

static void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::printf("CUDA error: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

// A tensor map of rows of kColumns words, in tiles of kRows rows.
static CUtensorMap map_of(uint32_t* address, int rows) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status));
    CUtensorMap map;
    const cuuint64_t extents[] = {kColumns, static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[] = {kColumns * 4};
    const cuuint32_t box[] = {kColumns, kRows};
    const cuuint32_t steps[] = {1, 1};
    if (reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
            &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, address, extents, strides, box, steps,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        std::exit(1);
    return map;
}

static std::vector<uint32_t> run_exchange(const std::vector<uint32_t>& in, int blocks, uint32_t* from, uint32_t* to) {
    std::vector<uint32_t> out(static_cast<size_t>(blocks) * kThreads);
    exchange<<<blocks, kThreads>>>(from, to);
    check(cudaGetLastError());
    check(cudaMemcpy(out.data(), to, out.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out.size(); ++i)
        if (out[i] != in[i ^ kThreads]) {
            std::printf("exchange: element %zu is wrong\n", i);
            std::exit(1);
        }
    return out;
}

int main() {
    constexpr int kBlocks = 4;
    std::vector<uint32_t> in(static_cast<size_t>(kTiles) * kWords);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i * 2654435761u >> 7);
    uint32_t* from;
    uint32_t* to;
    const size_t count = in.size() * kBlocks;
    check(cudaMalloc(&from, in.size() * 4));
    check(cudaMalloc(&to, count * 4));
    check(cudaMemcpy(from, in.data(), in.size() * 4, cudaMemcpyHostToDevice));
    run_exchange(in, kBlocks, from, to);
    prefix_sums<<<kBlocks, kThreads>>>(map_of(from, kTiles * kRows), map_of(to, kBlocks * kTiles * kRows));
    check(cudaGetLastError());
    std::vector<uint32_t> out(count);
    check(cudaMemcpy(out.data(), to, count * 4, cudaMemcpyDeviceToHost));
    for (uint32_t block = 0; block < kBlocks; ++block) {
        std::vector<uint32_t> sums(kWords, block);
        for (size_t i = 0; i < in.size(); ++i) {
            sums[i % kWords] += in[i];
            if (out[block * in.size() + i] != sums[i % kWords]) {
                std::printf("prefix_sums: element %zu of block %u is wrong\n", i, block);
                return 1;
            }
        }
    }
    std::printf("right\n");
    return 0;
}
