// Brings what the first blocks save for their backward pass to pinned memory of the host after their forward pass, and
// back ahead of their backward pass. The copies run on a stream of their own, beside what the other blocks compute:
//
//     compute, 6 blocks of which 2 stay    forward 0  1  2  3  4  5    backward 5  4  3  2  1  0
//     copies                                          0  1  2  3                   3  2  1  0
#pragma once

#include <vector>

#include "model/activation_plan.h"

namespace teon {

class ActivationOffload {
public:
    ActivationOffload(const Activations& memory, const Stream& compute);  // outlive this

    // The passes of a block, of which a forward pass is followed by a backward pass, are queued between these calls.
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
    std::vector<Block> blocks_;  // that are offloaded
};

}  // namespace teon
