// The kernel language: all that a kernel file may use besides the headers of kernels/. Kernels keep CUDA's spelling
// (__global__, threadIdx, __syncthreads, __shfl_xor_sync, atomicAdd, ...). nvcc compiles them for a GPU and g++ for the
// host, where OS threads run the blocks, and the threads of a block are fibers (cpu/simt.h). Only these have their own
// spelling:
//
//     template <typename T>
//     __global__ void __launch_bounds__(256) scale_kernel(T* out, const T* in, float factor, int64_t n) {
//         wait_for_earlier_kernels();       // first in every kernel, which may start before they end
//         SHARED(float, partial, 32);       // float partial[32] in shared memory, 16-byte aligned
//         DYN_SHARED(float, row);           // float* row: the launch's dynamic shared memory, 16-byte aligned
//         float total = block_sum(x);       // see the end of this file
//     }
//     launch<scale_kernel<T>>({blocks, 256, smem_bytes}, stream, out, in, factor, n);
//
// Rules for kernel authors:
// - All warps of a block that have not returned reach the same barriers, each warp with all its lanes together. The
//   lanes of a warp must not leave a branch or loop that contains a barrier at different times, nor return at different
//   times from inside it (nvcc may copy the barrier, and lanes that wait at different copies never meet).
// - Masks are explicit and name no lane that has returned.
// - Blocks are multiples of 32 threads and never wait for each other.
// - No float atomics into losses or gradients (their order is not fixed).
// - Offsets are int64_t.
// The CPU's runtime turns some violations into errors. The modelled GPU turns all of them into errors, and also finds
// races in shared memory (docs/modelled_gpu.md).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/profiler.h"
#include "runtime/vec.h"

#if !defined(__CUDACC__)
#include "cpu/launch.h"
#endif

namespace teon {

namespace detail {

// What launches share whatever the kernel is compiled once (simt.cu), not for every kernel.
[[noreturn]] void refuse_extent(const std::string& count);

}  // namespace detail

// The extent of a grid or block: a count, or a dim3. A count may be 0 (an empty grid).
struct Extent {
    dim3 size;
    Extent(dim3 d) : size(d) {}
    template <typename Int>
    requires std::is_integral_v<Int> Extent(Int n) : size(static_cast<unsigned>(n)) {
        if (n < 0 || static_cast<uint64_t>(n) > 0x7fffffffu) detail::refuse_extent(std::to_string(n));
    }
};

// Blocks of the grid, threads of a block (1 to 1024), dynamic shared memory in bytes.
struct LaunchConfig {
    dim3 grid, block;
    size_t smem;
    LaunchConfig(Extent grid, Extent block, size_t smem = 0) : grid(grid.size), block(block.size), smem(smem) {}
    bool empty() const { return grid.x == 0 || grid.y == 0 || grid.z == 0; }
};

namespace detail {

// Each backend refuses launches that either of them cannot run.
void check_launch(const LaunchConfig& c);
[[noreturn]] void refuse_launch(const std::string& kernel, const LaunchConfig& c, cudaError_t status);

// Returns the kernel's name without namespaces, such as "scale_kernel<float>", from the compiler's spelling of
// kernel_name<Kernel>.
std::string kernel_name(std::string_view function);
template <auto Kernel>
std::string kernel_name() {
    return kernel_name(__PRETTY_FUNCTION__);
}

}  // namespace detail

#if defined(__CUDACC__)

#define SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define DYN_SHARED(T, name)                                                \
    extern __shared__ __align__(1024) unsigned char teon_dynamic_shared[]; \
    T* const name = reinterpret_cast<T*>(teon_dynamic_shared)

// Waits until all earlier work on the kernel's stream has ended and is visible, and lets the next kernel start, which
// then waits likewise ("programmatic dependent launch", sm_90 and later). The start of a kernel thereby overlaps the
// end of the previous one. A kernel that touches memory before this call has a race; dev/check_layers.py checks
// that every kernel begins with it.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

namespace detail {

// Returns the attributes of the code of Kernel that this device runs; zeros if there is no such code, as a launch will
// report. Any other failure is thrown: taken for missing code, it would quietly select another kernel.
template <auto Kernel>
cudaFuncAttributes code_attributes() {
    cudaFuncAttributes attributes = {};
    const cudaError_t status = cudaFuncGetAttributes(&attributes, Kernel);
    if (status == cudaErrorInvalidDeviceFunction || status == cudaErrorNoKernelImageForDevice) {
        (void)cudaGetLastError();
        return {};
    }
    CHECK(status == cudaSuccess, "asking for the code of {}: {} ({})", kernel_name<Kernel>(),
          cudaGetErrorString(status), cudaGetErrorName(status));
    return attributes;
}

// Returns whether the code of Kernel that this device runs was compiled with the wait above. Toolkit and driver can
// capture such launches into graphs since CUDA 12.3.
template <auto Kernel>
bool may_start_early() {
    int driver = 0;
    const cudaError_t status = cudaDriverGetVersion(&driver);
    CHECK(status == cudaSuccess, "asking for the driver's version: {}", cudaGetErrorString(status));
    return CUDART_VERSION >= 12030 && driver >= 12030 && code_attributes<Kernel>().ptxVersion >= 90;
}

// Returns the bytes of Kernel's static shared arrays, padded to the alignment of the dynamic array that follows them.
template <auto Kernel>
size_t static_shared_bytes() {
    return (code_attributes<Kernel>().sharedSizeBytes + 1023) / 1024 * 1024;
}

// Lets launches of Kernel use `bytes` of dynamic shared memory.
template <auto Kernel>
cudaError_t allow_shared_bytes(size_t bytes) {
    return cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <auto Kernel, typename... P>
cudaError_t start(const LaunchConfig& c, const Stream& stream, P... args) {
    static const bool early = may_start_early<Kernel>();
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = c.grid;
    config.blockDim = c.block;
    config.dynamicSmemBytes = c.smem;
    config.stream = static_cast<cudaStream_t>(stream.handle());
    config.attrs = &attribute;
    config.numAttrs = early && stream.kernels() == Kernels::fastest ? 1 : 0;
    return cudaLaunchKernelEx(&config, Kernel, args...);
}

}  // namespace detail

// Does nothing on a GPU; for a CPU see cpu/simt.h.
inline int set_simt_threads(int) { return 1; }

// x[i] = op(x[i], x[i ^ 16]), then ^ 8, ... ^ 1, over the lanes i of a warp.
namespace simt {

// The place of a call, for messages of the CPU's runtime (cpu/simt.h). A GPU has none.
struct Site {
    __device__ static constexpr Site current() { return {}; }
};

template <typename T, typename Op>
__device__ __forceinline__ T warp_reduce(T x, Op op, const Site&) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, bit));
    return x;
}

template <typename T, typename Op>
__device__ __forceinline__ T block_reduce(T x, Op op, const Site& site) {
    SHARED(T, per_warp, 32);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32;
    x = warp_reduce(x, op, site);
    if (thread % 32 == 0) per_warp[thread / 32] = x;
    __syncthreads();
    x = warp_reduce(thread % 32 < warps ? per_warp[thread % 32] : Op::template identity<T>(), op, site);
    __syncthreads();  // the next call writes per_warp again
    return x;
}

}  // namespace simt

#else

inline void wait_for_earlier_kernels() {}  // here a stream runs its kernels one after the other

namespace detail {

template <auto Kernel>
size_t static_shared_bytes() {
    return cpu::kStaticSharedBytes;
}

template <auto Kernel>
cudaError_t allow_shared_bytes(size_t bytes) {  // an inlined kernel has no address
    return cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <auto Kernel, typename... P>
cudaError_t start(const LaunchConfig& c, const Stream& stream, P... args) {
    static_assert((std::is_trivially_copyable_v<P> && ...), "a launch copies its arguments as bytes");
    static const std::string name = kernel_name<Kernel>();
    const std::tuple<P...> arguments(args...);
    return cpu::launch(name.c_str(), c.grid, c.block, c.smem, static_cast<cudaStream_t>(stream.handle()),
                       &simt::run_threads<Kernel, P...>, &arguments, sizeof(arguments));
}

}  // namespace detail

#endif

namespace detail {

template <auto Kernel, typename... P, typename... Args>
void launch(std::type_identity<void (*)(P...)>, const LaunchConfig& c, const Stream& stream, Args&&... args) {
    static_assert(sizeof...(P) == sizeof...(Args), "launch: the kernel takes another number of arguments");
    static_assert((std::is_trivially_copyable_v<P> && ...), "launch: a kernel's parameters are copied as bytes");
    check_launch(c);
    if (c.empty()) return;
    cudaError_t status = cudaSuccess;
    static const size_t granted = 48 * 1024 - static_shared_bytes<Kernel>();  // bytes that every device grants unasked
    if (c.smem > granted) status = allow_shared_bytes<Kernel>(c.smem);
    if (status == cudaSuccess) status = start<Kernel, P...>(c, stream, static_cast<P>(args)...);
    if (status != cudaSuccess) refuse_launch(kernel_name<Kernel>(), c, status);
}

}  // namespace detail

// Returns the most dynamic shared memory, in bytes, that a block of Kernel may have on the current device: the limit of
// a block minus the static arrays of Kernel.
template <auto Kernel>
size_t most_dynamic_shared() {
    static const size_t limit = device_info().block_shared_bytes - detail::static_shared_bytes<Kernel>();
    return limit;
}

// Launches Kernel(args...) on c.grid x c.block, after the work that is already on the stream. The arguments are
// converted to the parameter types of the kernel. An empty grid does nothing. Throws Error if the launch is refused;
// later failures are reported by synchronize(). On a CPU, the kernel has ended when this returns, and the exception of
// the first failing block is rethrown.
template <auto Kernel, typename... Args>
void launch(const LaunchConfig& c, const Stream& stream, Args&&... args) {
    const ProfileScope profile(stream, detail::kernel_name<Kernel>);
    detail::launch<Kernel>(std::type_identity<decltype(Kernel)>(), c, stream, std::forward<Args>(args)...);
}

namespace simt {

struct Sum {
    template <typename T>
    __device__ static T identity() {
        return T(0);
    }
    template <typename T>
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
};

struct Max {
    template <typename T>
    __device__ static T identity() {
        if constexpr (std::is_same_v<T, float>)
            return -__builtin_huge_valf();
        else
            return std::numeric_limits<T>::lowest();
    }
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

}  // namespace simt

// Reductions of float or int over the 32 lanes of a warp, all of which must take part, or over all threads of a block,
// a multiple of 32 of which none has returned. Every thread gets the result. Its bits depend neither on the backend nor
// on the schedule: a butterfly over lane bits 16, 8, 4, 2, 1, then the same over the warps. The block forms are
// barriers. The maximum ignores NaN, as fmaxf does. `site`: the caller, for messages.
template <typename T>
__device__ __forceinline__ T warp_sum(T x, const simt::Site& site = simt::Site::current()) {
    return simt::warp_reduce(x, simt::Sum{}, site);
}
template <typename T>
__device__ __forceinline__ T warp_max(T x, const simt::Site& site = simt::Site::current()) {
    return simt::warp_reduce(x, simt::Max{}, site);
}
template <typename T>
__device__ __forceinline__ T block_sum(T x, const simt::Site& site = simt::Site::current()) {
    return simt::block_reduce(x, simt::Sum{}, site);
}
template <typename T>
__device__ __forceinline__ T block_max(T x, const simt::Site& site = simt::Site::current()) {
    return simt::block_reduce(x, simt::Max{}, site);
}

}  // namespace teon
