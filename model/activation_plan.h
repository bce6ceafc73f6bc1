// The tensors that the forward pass saves for the backward pass, and the scratch of both. Layers declare their tensors
// in plan(). The rows of the plan give the totals before anything is allocated (--plan-only), and a model allocates its
// memory from the same rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "model/decoder_run.h"
#include "runtime/cuda/device.h"
#include "runtime/vec.h"

namespace teon {

// The policies that drop a saved tensor and recompute it. block also drops everything that cheap drops. never: for the
// outputs of blocks and for tensors outside of the blocks.
enum class Drop { never, under_block, under_cheap };
enum class Lifetime { saved, scratch };  // saved: from forward to backward; scratch: within a layer's pass

// Memory that layers use one after the other: one buffer each, as large as the largest tensor declared in it. A tensor
// in it is overwritten by the next one, in the next layer or block.
enum class Shared {
    stream_gradient,       // of the residual stream: layers add to it
    norm_output_gradient,  // also that of the attention's heads, before it is the norm's
    norm_input_gradient,
    dropout_input_gradient,
    qkv_gradient,
    mlp_gradient,  // of the activation function's output and, unless a gate makes it wider, of its input
    mlp_gated_gradient,
    norm_scratch,
    attention_scratch,
    activation_scratch,
    rotary_table,  // the same in all layers
    unscaled_rotary_table,
    first_key,  // of the rows of a batch, likewise
    logits,
    fp8_input,  // of a product
    fp8_gradient,
    fp8_gradient_transposed,
    fp8_weight,
    // Generation:
    tokens,
    positions,
    float_logits
};
template <>
inline constexpr auto kEnumNames<Shared> =
    enum_names<Shared>({{Shared::stream_gradient, "gradient of residual stream"},
                        {Shared::norm_output_gradient, "gradient of norm output"},
                        {Shared::norm_input_gradient, "gradient of norm input"},
                        {Shared::dropout_input_gradient, "gradient before dropout"},
                        {Shared::qkv_gradient, "gradient of queries, keys, values"},
                        {Shared::mlp_gradient, "gradient of MLP activation"},
                        {Shared::mlp_gated_gradient, "gradient before activation"},
                        {Shared::norm_scratch, "norm gradient scratch"},
                        {Shared::attention_scratch, "attention scratch"},
                        {Shared::activation_scratch, "activation gradient scratch"},
                        {Shared::rotary_table, "rotary table"},
                        {Shared::unscaled_rotary_table, "rotary table of the window"},
                        {Shared::first_key, "first keys of the window"},
                        {Shared::logits, "logits chunk"},
                        {Shared::fp8_input, "FP8 input of a product"},
                        {Shared::fp8_gradient, "FP8 gradient"},
                        {Shared::fp8_gradient_transposed, "FP8 gradient, transposed"},
                        {Shared::fp8_weight, "FP8 weight"},
                        {Shared::tokens, "tokens"},
                        {Shared::positions, "positions"},
                        {Shared::float_logits, "logits"}});

// A handle to a tensor of the plan. row -1: none.
struct Tensor {
    int row = -1;
    int copy = 0;
};

// A tensor between two layers: one computes x in the forward pass, the other dx in the backward pass.
struct Edge {
    Tensor x = {}, dx = {};  // (N, width) and its gradient
    // FP8: where the layer that computes x (dx) stores its absolute maximum; none if no product reads it.
    Tensor x_maximum = {}, dx_maximum = {};
    int bias = -1;  // row of the last bias added to x, if a LayerNorm reads x and sums the bias's gradient; -1: none
};

struct ActivationRow {
    std::string name;
    int64_t bytes = 0;  // of one copy
    int copies = 1;     // L if every layer keeps its own, fewer if blocks are offloaded
    Lifetime lifetime = Lifetime::scratch;
    int64_t offset = 0;  // of the first copy, in bytes
    int tensors = 1;     // tensors that share the copies
    int block = -1;      // the last block that declared the row
    int64_t total() const { return bytes * copies; }
};

class ActivationPlan {
public:
    ActivationPlan() = default;
    ActivationPlan(const DecoderRun& run, Purpose purpose, int blocks);  // run must not contain `automatic`

    // Tensors declared after this call belong to this block and follow its recompute policy.
    void begin_block(int block) {
        block_ = block;
        policy_ = run_.recompute.of(block);
    }
    // The functions below declare a tensor: N = B * T rows of `width` elements of the storage type (_floats: of float),
    // or `bytes` bytes.
    //
    // A tensor of a block that is saved for the backward pass. Each block has a copy of its own, or, if blocks are
    // offloaded, uses one of device_blocks() copies in turn. Blocks that drop the tensor share one copy. A block
    // declares a name once.
    Tensor saved(const std::string& name, int64_t width, Drop drop);
    Tensor saved_floats(const std::string& name, int64_t width, Drop drop);
    // A saved tensor and its gradient, in shared memory. A product reads neither as FP8 unless the caller adds maxima.
    Edge edge(const std::string& name, int64_t width, Drop drop, Shared gradient_buffer);
    Tensor shared(Shared buffer, int64_t width);
    Tensor shared_bytes(Shared buffer, int64_t bytes);
    Tensor gradient(Shared buffer, int64_t width);  // as shared(), but none unless the plan trains
    Tensor gradient_bytes(Shared buffer, int64_t bytes);
    Tensor cache(const std::string& name, int64_t width);      // one copy for each call; none if the plan trains
    Tensor own_bytes(const std::string& name, int64_t bytes);  // one copy for each call
    // One float for the absolute maximum of a tensor. Every forward pass first sets it to 0. None unless the run
    // multiplies FP8.
    Tensor maximum();
    // The row of all maxima; row -1: none.
    Tensor maxima() const;

    const DecoderRun& run() const { return run_; }
    int64_t N() const { return static_cast<int64_t>(run_.B) * run_.T; }
    bool trains() const { return purpose_ == Purpose::train; }
    bool keeps(Tensor s) const { return rows_[s.row].lifetime == Lifetime::saved; }  // from forward to backward
    const std::vector<ActivationRow>& rows() const { return rows_; }
    int device_blocks() const { return device_blocks_; }  // blocks whose saved tensors fit on the device at once
    // The tensors that the backward pass of each offloaded block reads: its input and its saved tensors.
    const std::vector<std::vector<Tensor>>& offloaded() const { return offloaded_; }
    int64_t offloaded_bytes() const;
    int64_t shared_bytes(Shared buffer) const;  // 0: not declared
    int64_t saved_bytes() const;
    int64_t scratch_bytes() const { return total_bytes() - saved_bytes(); }
    int64_t total_bytes() const;
    void set_offsets();  // call it after every layer has declared its rows

private:
    // If a row has more than `copies` tensors, they use the copies in turn.
    Tensor add(std::string_view name, int64_t bytes, int copies, Lifetime lifetime);
    Tensor save(const std::string& name, int64_t bytes, Drop drop);
    bool keeps(Drop drop) const;
    DecoderRun run_;
    Purpose purpose_ = Purpose::train;
    Recompute policy_ = Recompute::none;
    int block_ = -1, device_blocks_ = 0;
    std::vector<ActivationRow> rows_;
    std::vector<std::vector<Tensor>> offloaded_;  // by block
};

// Owns the memory of a plan.
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
