// A rank's parameters and gradients in memory.
#pragma once

#include <functional>
#include <memory>

#include "model/param_layout.h"
#include "runtime/context.h"

namespace teon {

// A buffer and its layout. Copies share the memory.
class ParamBuffer {
public:
    ParamBuffer() = default;                                                                   // no memory
    ParamBuffer(ParamLayout layout, DType dtype, const Stream& stream, bool offload = false);  // zeroed
    const ParamLayout& layout() const { return layout_; }
    template <typename T>
    T* data() const {
        return reinterpret_cast<T*>(memory_ ? memory_->data() : nullptr);
    }
    template <typename T>
    T* at(int64_t element) const {  // number in the table
        return data<T>() + layout_.at(element);
    }

private:
    ParamLayout layout_;
    std::shared_ptr<OffloadableBuffer<std::byte>> memory_;
};

class ParamStore {
public:
    // Zeroes all buffers, including the gaps between parameters. Models that only run forward pass gradients = false:
    // there are no gradients then and, in bf16, no masters.
    ParamStore(const ParamTable& table, DType dtype, const Stream& stream, bool gradients = true,
               const ParamShard& shard = {});
    const ParamTable& table() const { return table_; }
    DType dtype() const { return dtype_; }
    Sharding sharding() const { return sharding_; }
    bool offloads() const { return offloads_; }

    // The buffers of ParamLayouts. If one does not exist, the buffer that replaces it.
    const ParamBuffer& masters() const { return masters_; }
    const ParamBuffer& weights() const { return weights_; }      // updates write them: copy, or masters in float
    const ParamBuffer& read_weights() const { return read_; }    // passes read them: weight_windows, or weights
    const ParamBuffer& gradients() const { return gradients_; }  // the backward pass writes them
    const ParamBuffer& sums() const { return sums_; }            // updates read them: sums, or gradients
    bool has_weight_windows() const { return sharding_ == Sharding::all; }
    bool has_gradient_windows() const { return sharding_ >= Sharding::gradients; }

    // A whole parameter, for passes. With weight windows, valid only for the layer that use() has made available.
    template <typename T>
    T* work(int row) const {
        return read_.at<T>(table_[row].offset);
    }
    float* grad(int row) const { return gradients_.at<float>(table_[row].offset); }
    // Announces that a pass is about to read the weights of `layer` (-1: the weights outside of the windows), and then
    // the weights of the layer `next` (-1: none).
    void use(int layer, int next) const {
        if (on_use) on_use(layer, next);
    }
    std::function<void(int layer, int next)> on_use;  // gathers the weights if they have windows

    // To set n elements of a parameter from the element `first` on, write them to staging(row, first), then call
    // place(row, first, n). This may overwrite their gradients. Without masters there is staging for kStagedElements,
    // or for a row that has more.
    static constexpr int64_t kStagedElements = 4 << 20;
    float* staging(int row, int64_t first = 0) const;
    void place(int row, int64_t first, int64_t n, const Stream& stream);
    void initialize(uint64_t seed, const Stream& stream);  // as the table's Init says; needs masters

    // Only without sharding: whole buffers.
    float* master(int row) const { return masters_.at<float>(table_[row].offset); }
    void* work_all() const { return weights_.data<void>(); }
    // The working weights in bf16; nullptr in float, where the master weights are the working weights.
    bf16* work_copy() const { return dtype_ == DType::f32 ? nullptr : weights_.data<bf16>(); }
    bf16* work_copy_at(int64_t element) const { return dtype_ == DType::f32 ? nullptr : weights_.at<bf16>(element); }

private:
    const ParamTable table_;
    DType dtype_;
    Sharding sharding_;
    bool offloads_;
    ParamBuffer masters_, weights_, read_, gradients_, sums_;
    ParamBuffer staging_;  // without masters
};

}  // namespace teon
