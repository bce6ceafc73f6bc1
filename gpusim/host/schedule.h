// When queued work runs: in the thread that waits for it, one operation at a time, in one of two orders.
//     CUDA_ORDER=late         only the operation that a thread waits for, and its predecessors (the default)
//     CUDA_ORDER=random:SEED  any call may also run other operations that are ready
// Work that no thread waits for runs after a while, as on a GPU. With CUDA_DRY=1 work is queued but does nothing:
// calls, launches and products of any size are checked.
#pragma once

#include <string>

namespace teon::gpusim {

// Sets the order to "late" or "random:SEED" and returns the previous one. Throws Error for other text.
std::string set_order(const std::string& order);

}  // namespace teon::gpusim
