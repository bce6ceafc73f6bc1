// Which of a machine's devices a thread uses. A CPU is one; the modelled GPU may be several.
#pragma once

namespace teon::cpu {

// The calling thread's device. CUDA_VISIBLE_DEVICES lists those modelled GPUs that the process has; they are of one
// model, and one machine has 8. Without the variable there is one.
int current_device();
// Whether there is a device of this number.
bool is_device(int index);

}  // namespace teon::cpu
