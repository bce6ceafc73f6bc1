// Launches kernels on a CPU, for runtime/simt.h.
#pragma once

#include <cstddef>

#include "cpu/counts.h"
#include "cpu/device.h"
#include "cpu/simt.h"
#include "cpu/stream.h"

namespace teon::cpu {

// Runs Kernel(arguments...) in every thread of grid x block, with smem bytes of dynamic shared memory. `name` must
// never be freed.
template <auto Kernel, typename... P>
cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
                   const std::tuple<P...>& arguments) {
    ++counters.launches;
    if (const cudaError_t status = check_device(stream, name)) return status;
    return submit(stream, name,
                  [=] { simt::run_grid(name, grid, block, smem, &simt::run_threads<Kernel, P...>, &arguments); });
}

}  // namespace teon::cpu
