// What the forward pass keeps for the backward pass, and what both need for a moment: one row per tensor. The layers
// declare their rows (their plan()); totals come from here before anything is allocated (--plan-only), and a model
// takes its memory by the same rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/device.h"

namespace teon {

// none: keep everything. cheap: recompute norm outputs and activations (elementwise) in the backward pass. block: keep
// only a block's input and run its forward again. automatic: the least of these that fits the memory, block by block.
enum class Recompute { none, cheap, block, automatic };
template <>
inline constexpr auto kEnumNames<Recompute> = enum_names<Recompute>({{Recompute::none, "none"},
                                                                     {Recompute::cheap, "cheap"},
                                                                     {Recompute::block, "block"},
                                                                     {Recompute::automatic, "auto"}});

// What each block recomputes: `first` in the first `first_blocks` blocks, `others` in the others.
struct RecomputePlan {
    Recompute others = Recompute::none, first = Recompute::none;
    int first_blocks = 0;

    RecomputePlan(Recompute all = Recompute::none) : others(all), first(all) {}
    RecomputePlan(Recompute o, Recompute f, int blocks) : others(o), first(f), first_blocks(blocks) {}
    Recompute of(int block) const { return block < first_blocks ? first : others; }
    // The last of `blocks` blocks that drops tensors, which its backward pass still finds in place; -1: none does.
    int last_dropping(int blocks) const { return (others == Recompute::none ? first_blocks : blocks) - 1; }
};
// From no recomputation to the most, block by block.
std::vector<RecomputePlan> recompute_plans(int blocks);
std::string text(const RecomputePlan& plan);  // "cheap", "none, cheap in the first 3 blocks"

// flash: on tensor cores, without scores in memory; bf16 and head sizes 64 and 128. automatic: flash where it is
// possible and the machine has tensor cores, else gemm.
enum class AttentionKind { automatic, gemm, flash };
template <>
inline constexpr auto kEnumNames<AttentionKind> = enum_names<AttentionKind>({{AttentionKind::automatic, "auto"},
                                                                             {AttentionKind::gemm, "gemm"},
                                                                             {AttentionKind::flash, "flash"}});

// What the products of blocks multiply: their operands as they are stored, or FP8 copies of them (docs/fp8.md).
enum class MatmulDType { same, fp8, fp8_e4m3 };
template <>
inline constexpr auto kEnumNames<MatmulDType> = enum_names<MatmulDType>({{MatmulDType::same, "same"},
                                                                         {MatmulDType::fp8, "fp8"},
                                                                         {MatmulDType::fp8_e4m3, "fp8-e4m3"}});

// How one run uses a model.
struct DecoderRun {
    int B = 1, T = 1;  // the largest micro-batch that will be given
    DType dtype = DType::f32;
    MatmulDType matmul_dtype = MatmulDType::same;
    bool keeps_fp8_weights = true;  // from a step's first micro-batch to its last; else they are cast at each use
    RecomputePlan recompute = {};
    int offloaded_blocks = 0;  // the first ones, whose saved tensors wait in the host's memory; at most all but two
    AttentionKind attention = AttentionKind::automatic;
    // Logits exist of about so many rows at a time, at least, in equal parts; 0: of as many as fit 128 MiB.
    int head_rows = 0;
    bool gelu_fusion = false;  // the MLP's products take GELU and its derivative as epilogues
    // Multiprocessors of a device on which flash attention's backward could go in one pass
    // (flash_attention_one_pass_multiprocessors).
    int one_pass_multiprocessors = 0;
};

// generate: forward only, T is the capacity of the cache of keys and values.
enum class Purpose { train, generate };
// Which policies do without a saved tensor. What cheap drops, block drops too. never: the output of a block, or of what
// is outside of the blocks.
enum class Drop { never, under_block, under_cheap };
enum class Lifetime { saved, scratch };  // from forward to backward; within a layer's pass

// A tensor of the plan, as the layer that declared it knows it; row -1: none.
struct Tensor {
    int row = -1, copy = 0;
};

struct ActivationRow {
    std::string name;
    int64_t bytes = 0;  // of one copy
    int copies = 1;     // L where every layer keeps its own, fewer where blocks are offloaded
    Lifetime lifetime = Lifetime::scratch;
    int64_t offset = 0;  // of the first copy, in bytes
    int tensors = 1;     // that the copies are for
    int64_t total() const { return bytes * copies; }
};

class ActivationPlan {
public:
    ActivationPlan() = default;
    ActivationPlan(const DecoderRun& run, Purpose purpose, int blocks);  // run's choices must be resolved

    // The tensors declared from here on belong to this block, and its recompute policy holds for them.
    void begin_block(int block) {
        block_ = block;
        policy_ = run_.recompute.of(block);
    }
    // N = B * T rows of `width` elements of the storage type, or of floats. A tensor of a name that is there already is
    // another copy where the policy keeps it, else the memory of all that are not kept, as large as the largest. Where
    // blocks are offloaded there are copies for device_blocks() blocks, which all blocks use in turn.
    Tensor saved(const std::string& name, int64_t width, Drop drop);
    Tensor saved_floats(const std::string& name, int64_t width, Drop drop);
    Tensor shared(const std::string& name, int64_t width);
    Tensor shared_bytes(const std::string& name, int64_t bytes);
    Tensor cache(const std::string& name, int64_t width);     // a copy each, for generation alone
    Tensor gradient(const std::string& name, int64_t width);  // shared, for training alone
    Tensor gradient_bytes(const std::string& name, int64_t bytes);
    Tensor own_bytes(const std::string& name, int64_t bytes);  // a copy each
    // The absolute maximum of a tensor, a float that a forward pass begins by setting to 0; none unless the run
    // multiplies FP8.
    Tensor maximum();
    // All of them, to their `bytes`; row -1: none.
    Tensor maxima() const;

    const DecoderRun& run() const { return run_; }
    int64_t N() const { return static_cast<int64_t>(run_.B) * run_.T; }
    bool trains() const { return purpose_ == Purpose::train; }
    bool keeps(Tensor s) const { return rows_[s.row].lifetime == Lifetime::saved; }  // from forward to backward
    const std::vector<ActivationRow>& rows() const { return rows_; }
    int device_blocks() const { return device_blocks_; }  // whose saved tensors the device holds at a time
    // What the backward pass of each offloaded block reads: its input and what it saves.
    const std::vector<std::vector<Tensor>>& offloaded() const { return offloaded_; }
    int64_t offloaded_bytes() const;
    int64_t saved_bytes() const;
    int64_t scratch_bytes() const { return total_bytes() - saved_bytes(); }
    int64_t total_bytes() const;
    void set_offsets();  // once every layer has declared its rows

private:
    // Beyond `copies` tensors of a name they use these in turn.
    Tensor add(const std::string& name, int64_t bytes, int copies, Lifetime lifetime);
    Tensor save(const std::string& name, int64_t bytes, Drop drop);
    bool keeps(Drop drop) const;
    DecoderRun run_;
    Purpose purpose_ = Purpose::train;
    Recompute policy_ = Recompute::none;
    int block_ = -1, device_blocks_ = 0;
    std::vector<ActivationRow> rows_;
    std::vector<std::vector<Tensor>> offloaded_;  // by block
};

// The memory of a plan.
class Activations {
public:
    explicit Activations(const ActivationPlan& plan) : plan_(plan), memory_(plan.total_bytes()) {}
    const ActivationPlan& plan() const { return plan_; }
    int64_t bytes(Tensor s) const { return plan_.rows()[s.row].bytes; }
    template <typename T>
    T* at(Tensor s) const {
        if (s.row < 0) return nullptr;
        const ActivationRow& row = plan_.rows()[s.row];
        return reinterpret_cast<T*>(memory_.data() + row.offset + s.copy * row.bytes);
    }

private:
    const ActivationPlan plan_;
    Buffer<std::byte> memory_;
};

}  // namespace teon
