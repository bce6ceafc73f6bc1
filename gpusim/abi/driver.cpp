// The functions of the driver that a program gets from the runtime: "cuTensorMapEncodeTiled" (CUDA Driver API, Tensor
// Map Object Management).
#include <cstdio>
#include <cstring>
#include <iterator>

#include "cpu/error.h"
#include "gpusim/abi/layouts.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

namespace {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE
constexpr uint64_t kAddressUnit = 16;
constexpr uint64_t kMostStride = uint64_t{1} << 40;
constexpr uint64_t kMostExtent = uint64_t{1} << 32;
constexpr uint32_t kMostBox = 256;

int refuse(const char* why) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: %s\n", why);
    return kInvalidValue;
}

// Without interleaving. Copies transfer every element of the box, with 0 for elements outside of
// the tensor.
int encode_tiled(void* out, int type, uint32_t rank, void* address, const uint64_t* extents, const uint64_t* strides,
                 const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int,
                 int not_a_number) {
    TensorMap m;
    if (reinterpret_cast<uintptr_t>(out) % 64 != 0) return refuse("a map that is not aligned to 64 bytes");
    if (rank < 1 || rank > TensorMap::kMaxRank) return refuse("a rank that is not 1 to 5");
    if (type < 0 || type >= static_cast<int>(std::size(TensorMap::kBytesOf)) || interleave || not_a_number ||
        swizzle > kTensorMapSwizzle128)
        return refuse("a type, interleaving, swizzle or fill that is not modelled");
    m.rank = static_cast<uint8_t>(rank);
    m.type = static_cast<uint8_t>(type);
    m.element_bytes = TensorMap::kBytesOf[type];
    m.swizzle_bytes = static_cast<uint8_t>(swizzle ? 16 << swizzle : 0);
    m.address = reinterpret_cast<uintptr_t>(address);
    m.strides[0] = m.element_bytes;
    if (m.address % kAddressUnit != 0) return refuse("an address that is not a multiple of 16");
    for (uint32_t d = 0; d < rank; ++d) {
        if (extents[d] == 0 || extents[d] >= kMostExtent) return refuse("an extent that is not 1 to 2^32 - 1");
        if (box[d] == 0 || box[d] > kMostBox) return refuse("a box that is not 1 to 256 elements wide");
        if (element_strides[d] != 1) return refuse("an element stride that is not 1");
        if (d > 0 && (strides[d - 1] % kAddressUnit != 0 || strides[d - 1] >= kMostStride))
            return refuse("a stride that is not a multiple of 16 below 2^40");
        m.extents[d] = static_cast<uint32_t>(extents[d]);
        m.box[d] = box[d];
        if (d > 0) m.strides[d] = strides[d - 1];
    }
    const uint32_t row = m.box[0] * m.element_bytes;
    if (row % kAddressUnit != 0) return refuse("a box whose rows are not a multiple of 16 bytes");
    if (m.swizzle_bytes && row > m.swizzle_bytes) return refuse("a box whose rows are longer than the swizzle");
    std::memcpy(out, &m, sizeof m);
    return 0;
}

}  // namespace
}  // namespace teon::gpusim

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                                        unsigned long long, int* status) {
    const bool is_known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = is_known ? reinterpret_cast<void*>(&teon::gpusim::encode_tiled) : nullptr;
    if (status) *status = is_known ? 0 : 1;  // cudaDriverEntryPointSymbolNotFound
    return is_known ? cudaSuccess : teon::cpu::fail(cudaErrorInvalidValue, symbol);
}
