#include "cpu/launch.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/integer.h"
#include "cpu/counts.h"
#include "cpu/simt.h"
#include "cpu/stream.h"

namespace teon::cpu {

cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t smem, cudaStream_t stream, void (*body)(const void*),
                   const void* arguments, size_t bytes) {
    ++counters.launches;
    if (const cudaError_t status = check_device(stream, name)) return status;
    if (at_once(stream)) {
        simt::run_grid(name, grid, block, smem, body, arguments);
        return cudaSuccess;
    }
    struct alignas(64) Line {  // as aligned as any argument
        unsigned char bytes[64];
    };
    std::vector<Line> copy(ceil_div(bytes, sizeof(Line)));
    std::memcpy(copy.data(), arguments, bytes);
    return enqueue(stream, name,
                   [=, copy = std::move(copy)] { simt::run_grid(name, grid, block, smem, body, copy.data()); });
}

}  // namespace teon::cpu
