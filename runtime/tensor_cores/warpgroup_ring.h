// How the warpgroups of a block on sm_90a share work: the first (the producer) copies tiles into rings in shared
// memory, the others (the consumers) multiply them.
#pragma once

#include "runtime/tensor_cores/tensor_tile.h"
#include "runtime/tensor_cores/warpgroup.h"

namespace teon {

inline constexpr int kHopperConsumers = 2;
inline constexpr int kHopperThreads = (1 + kHopperConsumers) * kWarpgroupThreads;

// The position of a warp in a ring of stages, and the parity of its round.
template <int STAGES>
struct HopperStage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == STAGES) {
            index = 0;
            parity ^= 1;
        }
    }
};

// The mbarriers of RINGS rings. Each stage has one that completes when the stage's data have arrived (`full`) and one
// that completes when all warps of the consumers have read it (`empty`), those of all BLOCKS blocks of the cluster.
template <int STAGES, int RINGS = 1, int BLOCKS = 1>
struct HopperRings {
    static constexpr int kCount = 2 * RINGS * STAGES;
    uint64_t* memory;
    __device__ __forceinline__ uint64_t* full(int stage, int ring = 0) const { return memory + ring * STAGES + stage; }
    __device__ __forceinline__ uint64_t* empty(int stage, int ring = 0) const { return full(stage, RINGS + ring); }
    __device__ __forceinline__ void arrive_empty(int stage, int ring = 0) const {
        const int lane = lane_of_thread();
        __syncwarp();
        if constexpr (BLOCKS == 1) {
            if (lane == 0) mbarrier_arrive(empty(stage, ring));
        } else {
            if (lane < BLOCKS) mbarrier_arrive_at(empty(stage, ring), lane);
        }
    }

    // Called by thread 0, before init() of the kernel's other rings. fills: the arrivals at each `full`.
    __device__ __forceinline__ void make(int fills) const {
        for (int ring = 0; ring < RINGS; ++ring) {
            for (int stage = 0; stage < STAGES; ++stage) {
                mbarrier_init(full(stage, ring), fills);
                mbarrier_init(empty(stage, ring), 4 * kHopperConsumers * BLOCKS);
            }
        }
    }
    // Called by all threads.
    __device__ __forceinline__ void init(int fills) const {
        if (threadIdx.x == 0) {
            make(fills);
            mbarrier_init_done();
        }
        if constexpr (BLOCKS == 1) {
            __syncthreads();
        } else {
            cluster_arrive();
            cluster_wait();
        }
    }
};

// The number of a consumer, and of a warp in it.
__device__ __forceinline__ int hopper_consumer() { return warp_of_thread() / 4 - 1; }
__device__ __forceinline__ int hopper_warp() { return warp_of_thread() % 4; }

// The warps of the first warpgroup call produce(), the others consume(). Each thread begins with 168 registers; the
// producer keeps PRODUCER of them and gives the others to the consumers.
template <int PRODUCER, typename Produce, typename Consume>
__device__ __forceinline__ void hopper_roles(Produce produce, Consume consume) {
    constexpr int kConsumer = 168 + (168 - PRODUCER) / kHopperConsumers;
    if (warp_of_thread() < 4) {
        give_registers<PRODUCER>();
        produce();
    } else {
        take_registers<kConsumer>();
        consume();
    }
}

}  // namespace teon
