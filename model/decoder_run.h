// How one run uses a model: its micro-batch, types and kernels, and what it recomputes and offloads to save memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/enum_names.h"
#include "runtime/vec.h"

namespace teon {

// none: keep everything. cheap: recompute norm outputs and activations (elementwise) in the backward pass. block: keep
// only a block's input and run its forward pass again. automatic: the least recomputation that fits the memory, decided
// block by block.
enum class Recompute { none, cheap, block, automatic };
template <>
inline constexpr auto kEnumNames<Recompute> = enum_names<Recompute>({{Recompute::none, "none"},
                                                                     {Recompute::cheap, "cheap"},
                                                                     {Recompute::block, "block"},
                                                                     {Recompute::automatic, "auto"}});

// The recomputation of each block: `first` in the first `first_blocks` blocks, `others` in the others.
struct RecomputePlan {
    Recompute others = Recompute::none, first = Recompute::none;
    int first_blocks = 0;

    RecomputePlan(Recompute all = Recompute::none) : others(all), first(all) {}
    RecomputePlan(Recompute o, Recompute f, int blocks) : others(o), first(f), first_blocks(blocks) {}
    Recompute of(int block) const { return block < first_blocks ? first : others; }
    // The last of `blocks` blocks that drops tensors; -1: none. Its backward pass still finds them in memory.
    int last_dropping(int blocks) const { return (others == Recompute::none ? first_blocks : blocks) - 1; }
};
// All plans, from no recomputation to the most, one block at a time.
std::vector<RecomputePlan> recompute_plans(int blocks);
std::string text(const RecomputePlan& plan);  // "cheap", "none, cheap in the first 3 blocks"

// flash: on tensor cores, without scores in memory; only bf16 and head sizes 64 and 128. automatic: flash if it is
// supported and the machine has tensor cores, else gemm.
enum class AttentionKind { automatic, gemm, flash };
template <>
inline constexpr auto kEnumNames<AttentionKind> = enum_names<AttentionKind>({{AttentionKind::automatic, "auto"},
                                                                             {AttentionKind::gemm, "gemm"},
                                                                             {AttentionKind::flash, "flash"}});

// The operands of the products in blocks: as they are stored, or FP8 copies of them (docs/fp8.md).
enum class MatmulDType { same, fp8, fp8_e4m3 };
template <>
inline constexpr auto kEnumNames<MatmulDType> = enum_names<MatmulDType>({{MatmulDType::same, "same"},
                                                                         {MatmulDType::fp8, "fp8"},
                                                                         {MatmulDType::fp8_e4m3, "fp8-e4m3"}});

struct DecoderRun {
    int B = 1, T = 1;  // the largest micro-batch
    DType dtype = DType::f32;
    MatmulDType matmul_dtype = MatmulDType::same;
    bool fast_accumulation = false;  // of FP8, in the forward pass (runtime/linalg/gemm.h)
    bool keeps_fp8_weights = true;   // for all micro-batches of a step; else they are cast at each use
    RecomputePlan recompute = {};
    int offloaded_blocks = 0;  // the first blocks move their saved tensors to host memory; at most L - 2
    AttentionKind attention = AttentionKind::automatic;
    bool on_gpu = kGpu;  // a plan may be of another device than this program's
    // Minimum rows of a chunk of logits; chunks are about equal. 0: chunks as large as fit 128 MiB.
    int head_rows = 0;
    uint64_t seed = 0;  // of dropout's masks
};

// generate: forward only; T is the capacity of the key/value cache.
enum class Purpose { train, generate };

}  // namespace teon
