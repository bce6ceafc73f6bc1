#include "model/activation_offload.h"

namespace teon {

ActivationOffload::ActivationOffload(const Activations& memory, const Stream& compute)
    : memory_(memory),
      compute_(compute),
      device_blocks_(memory.plan().device_blocks()),
      host_(memory.plan().offloaded_bytes()) {
    std::byte* host = host_.data();
    for (const std::vector<Tensor>& tensors : memory.plan().offloaded()) {
        blocks_.push_back({host, Event()});
        for (const Tensor s : tensors) host += memory.bytes(s);
    }
}

// Queues copy(device, host, bytes, stream) for each tensor, after the work that the compute stream has so far.
template <typename Copy>
void ActivationOffload::move(int block, Copy copy) {
    Block& b = blocks_[static_cast<size_t>(block)];
    computed_.record(compute_);
    computed_.make_wait(stream_);
    std::byte* host = b.host;
    for (const Tensor s : memory_.plan().offloaded()[static_cast<size_t>(block)]) {
        copy(memory_.at<std::byte>(s), host, memory_.bytes(s), stream_);
        host += memory_.bytes(s);
    }
    b.moved.record(stream_);
}

// The block overwrites the saved tensors of the block that used the same memory before.
void ActivationOffload::before_forward(int block) {
    if (block >= device_blocks_) blocks_[static_cast<size_t>(block - device_blocks_)].moved.make_wait(compute_);
}

void ActivationOffload::after_forward(int block) {
    if (block < std::ssize(blocks_))
        move(block, [](void* device, void* host, auto bytes, auto& s) { download_bytes(host, device, bytes, s); });
}

void ActivationOffload::before_backward(int block) {
    if (block < std::ssize(blocks_)) blocks_[static_cast<size_t>(block)].moved.make_wait(compute_);
}

// The block's memory is free: the next block that uses it is uploaded.
void ActivationOffload::after_backward(int block) {
    if (block >= device_blocks_) move(block - device_blocks_, upload_bytes);
}

}  // namespace teon
