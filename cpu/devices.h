// The machine's devices. A CPU is one device; there may be several modelled GPUs.
#pragma once

namespace teon::cpu {

// Returns the calling thread's device. A machine has 8 modelled GPUs of one model. CUDA_VISIBLE_DEVICES lists those
// that the process may use; without the variable it uses one.
int current_device();
// Returns whether there is a device with this number.
bool is_device(int index);

}  // namespace teon::cpu
