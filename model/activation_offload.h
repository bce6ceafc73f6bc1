// Moves the saved tensors of the first blocks to pinned host memory after the blocks' forward pass, and back to the
// device before their backward pass. The copies run on a separate stream and overlap the other blocks' computation:
//
//     compute, 6 blocks of which 2 stay    forward 0  1  2  3  4  5    backward 5  4  3  2  1  0
//     copies                                          0  1  2  3                   3  2  1  0
#pragma once

#include <vector>

#include "model/activation_plan.h"

namespace teon {

class ActivationOffload {
public:
    ActivationOffload(const Activations& memory, const Stream& compute);  // both must outlive this

    // Call these before and after the forward and the backward pass of a block are queued. Every forward pass must be
    // followed by a backward pass.
    void before_forward(int block);
    void after_forward(int block);
    void before_backward(int block);
    void after_backward(int block);

private:
    template <typename Copy>
    void move(int block, Copy copy);

    const Activations& memory_;
    const Stream& compute_;
    const int device_blocks_;
    PinnedBuffer<std::byte> host_;
    Stream stream_;
    Event computed_;
    struct Block {
        std::byte* host;
        Event moved;
    };
    std::vector<Block> blocks_;  // the offloaded blocks
};

}  // namespace teon
