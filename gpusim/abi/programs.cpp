// Functions that other programs call and this project's own do not: copies and fills that wait, streams by default
// flags, symbols, attributes of the device, occupancy ("CUDA Runtime API").
#include <algorithm>
#include <climits>
#include <cstring>
#include <map>

#include "base/check.h"
#include "cpu/error.h"
#include "cpu/stream.h"
#include "gpusim/abi/devices.h"
#include "gpusim/abi/kernels.h"

using namespace teon::gpusim;
using teon::cpu::fail;

namespace {

constexpr int kMostThreads = 1024;
constexpr int kRegisters = 65536;
constexpr int kReservedShared = 1024;

// cudaDeviceAttr, as far as it is modelled: those of a block and of a multiprocessor follow from the properties.
const std::map<int, int>& attributes() {
    static const std::map<int, int> all = [] {
        const teon::GpuSheet& d = device();
        const int shared = static_cast<int>(d.block_shared());
        return std::map<int, int>{{1, kMostThreads},        // ThreadsPerBlock
                                  {2, kMostThreads},        // BlockX
                                  {3, kMostThreads},        // BlockY
                                  {4, 64},                  // BlockZ
                                  {5, INT_MAX},             // GridX
                                  {6, 65535},               // GridY
                                  {7, 65535},               // GridZ
                                  {8, 48 * 1024},           // SharedPerBlock
                                  {9, 65536},               // ConstantMemory
                                  {10, 32},                 // Warp
                                  {12, kRegisters},         // RegistersPerBlock
                                  {13, -1},                 // ClockRate; not modelled, like such properties
                                  {16, d.multiprocessors},  // Multiprocessors
                                  {18, 0},                  // Integrated
                                  {20, 0},                  // ComputeMode; any number of threads and processes
                                  {39, threads_of_multiprocessor()},  // ThreadsPerMultiprocessor
                                  {41, 1},                            // UnifiedAddressing
                                  {75, d.capability / 10},            // Major
                                  {76, d.capability % 10},            // Minor
                                  {81, shared + kReservedShared},     // SharedPerMultiprocessor
                                  {82, kRegisters},                   // RegistersPerMultiprocessor
                                  {83, 0},                            // ManagedMemory
                                  {95, 1},                            // CooperativeLaunch
                                  {97, shared},                       // SharedOptin
                                  {106, blocks_of_multiprocessor()},  // BlocksPerMultiprocessor
                                  {120, d.capability >= 90}};         // ClusterLaunch
    }();
    return all;
}

}  // namespace

// The blocks of a kernel that fit on a multiprocessor, with the registers that __launch_bounds__ leave a thread, as
// ptxas's number is not known. They leave room for one block at least.
cudaError_t teon::gpusim::count_blocks(int* blocks, const void* function, int threads, size_t dynamic_shared) {
    *blocks = 0;
    KernelLimits limits;
    if (const cudaError_t status = limits_of_kernel(function, limits)) return status;
    if (threads <= 0) return fail(cudaErrorInvalidValue, "occupancy of blocks of {} threads", threads);
    if (threads > limits.threads) return cudaSuccess;
    const size_t shared = limits.static_shared + dynamic_shared + kReservedShared;
    const int warps = (threads + 31) / 32;
    const int by_threads = threads_of_multiprocessor() / (32 * warps);
    const int by_shared = static_cast<int>((device().block_shared() + kReservedShared) / shared);
    const int by_registers = std::max(1, kRegisters / (limits.registers * 32 * warps));
    *blocks = std::min({by_threads, by_shared, blocks_of_multiprocessor(), by_registers});
    return cudaSuccess;
}

namespace {

cudaError_t copy_and_wait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return teon::cpu::device_error();
    if (kind == cudaMemcpyHostToHost) {
        std::memcpy(to, from, bytes);
        return teon::cpu::device_error();
    }
    if (const cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return status;
    return cudaStreamSynchronize(nullptr);
}

// Copies rows one after the other: a row may not be longer than the distance to the next.
cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                      cudaMemcpyKind kind, cudaStream_t stream) {
    if (width > to_pitch || width > from_pitch)
        return fail(cudaErrorInvalidValue, "cudaMemcpy2D: rows of {} bytes, {} and {} apart", width, to_pitch,
                    from_pitch);
    for (size_t row = 0; row < height; ++row)
        if (const cudaError_t status =
                cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                                static_cast<const char*>(from) + row * from_pitch, width, kind, stream))
            return status;
    return cudaSuccess;
}

// Copies to or from a variable of the program's device code.
cudaError_t copy_symbol(const void* symbol, void* host, size_t bytes, size_t offset, bool to_symbol,
                        cudaStream_t stream) {
    void* address = nullptr;
    size_t size = 0;
    if (const cudaError_t status = address_of_symbol(symbol, &address, &size)) return status;
    if (offset > size || bytes > size - offset)
        return fail(cudaErrorInvalidValue, "{} bytes at byte {} of a variable of {} bytes", bytes, offset, size);
    char* const at = static_cast<char*>(address) + offset;
    std::vector<char> staged(to_symbol ? bytes : 0);
    if (to_symbol) std::memcpy(staged.data(), host, bytes);
    return teon::cpu::enqueue(stream, "a copy of a symbol", [=, staged = std::move(staged)] {
        to_symbol ? std::memcpy(at, staged.data(), bytes) : std::memcpy(host, at, bytes);
    });
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return copy_and_wait(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) { return cudaMemsetAsync(to, byte, bytes, nullptr); }
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, stream);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    const cudaError_t status = copy_rows(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
    return status == cudaSuccess ? cudaStreamSynchronize(nullptr) : status;
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind,
                                    cudaStream_t stream) {
    return copy_symbol(symbol, const_cast<void*>(from), bytes, offset, true, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind,
                                      cudaStream_t stream) {
    return copy_symbol(symbol, to, bytes, offset, false, stream);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    const cudaError_t status = cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
    return status == cudaSuccess ? cudaStreamSynchronize(nullptr) : status;
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
    return address_of_symbol(symbol, address, nullptr);
}
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) { return address_of_symbol(symbol, nullptr, bytes); }

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return flags ? fail(cudaErrorInvalidValue, "cudaEventRecordWithFlags: flags") : cudaEventRecord(event, stream);
}

cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int index) {
    if (!teon::cpu::is_device(index)) return fail(cudaErrorInvalidDevice, "there is no device {}", index);
    const auto it = attributes().find(attribute);
    if (it == attributes().end()) return fail(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute {}", attribute);
    *value = it->second;
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t dynamic_shared, unsigned) {
    return count_blocks(blocks, function, threads, dynamic_shared);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t dynamic_shared) {
    return count_blocks(blocks, function, threads, dynamic_shared);
}

// Hints, which change no result.
cudaError_t cudaFuncSetCacheConfig(const void*, int) { return teon::cpu::device_error(); }
cudaError_t cudaDeviceSetCacheConfig(int) { return teon::cpu::device_error(); }

}  // extern "C"
