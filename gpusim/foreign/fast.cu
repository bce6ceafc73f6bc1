// The matrix products of fast.cu: TMA, warp specialization, clusters, multicast, stores of tiles, by number.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cuda/barrier>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

// The driver's function, from the runtime: no program here needs the driver's library.
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                           const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                           const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
        map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
}

typedef __nv_bfloat16 bf16;
#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))
#define cudaCheck(status) foreign::check(status, #status)
#include "host.h"

#include "examples/matmul/matmul_1.cuh"
#include "examples/matmul/matmul_10.cuh"
#include "examples/matmul/matmul_11.cuh"
#include "examples/matmul/matmul_12.cuh"
#include "examples/matmul/matmul_2.cuh"
#include "examples/matmul/matmul_3.cuh"
#include "examples/matmul/matmul_4.cuh"
#include "examples/matmul/matmul_5.cuh"
#include "examples/matmul/matmul_6.cuh"
#include "examples/matmul/matmul_7.cuh"
#include "examples/matmul/matmul_8.cuh"
#include "examples/matmul/matmul_9.cuh"

using namespace foreign;

namespace {

bool run(int number, int m, int n, int k) {
    const auto a = random_values<bf16>(static_cast<size_t>(m) * k, 1);
    const auto b = random_values<bf16>(static_cast<size_t>(n) * k, 2);
    const Device<bf16> da(a);
    const Device<bf16> db(b);
    const Device<bf16> dc(static_cast<size_t>(m) * n);
    switch (number) {
        case 1:
            runKernel1(m, n, k, da.data(), db.data(), dc.data());
            break;
        case 2:
            runKernel2(m, n, k, da.data(), db.data(), dc.data());
            break;
        case 3:
            runKernel3(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 4:
            runKernel4(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 5:
            runKernel5(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 6:
            runKernel6(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 7:
            runKernel7(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 8:
            runKernel8(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 9:
            runKernel9(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 10:
            runKernel10(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 11:
            runKernel11(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
        case 12:
            runKernel12(m, n, k, da.data(), db.data(), dc.data(), nullptr);
            break;
    }
    // C is stored by columns: C[j m + i] is row i of A times row j of B. The first product has rows, and B of k rows.
    const auto element_of_a = [&](int i, int l) { return double(float(a[size_t(i) * k + l])); };
    const auto c = number == 1 ? matrix_product(m, n, k, element_of_a,
                                                [&](int l, int j) { return double(float(b[size_t(l) * n + j])); })
                               : matrix_product(
                                     n, m, k, [&](int j, int l) { return double(float(b[size_t(j) * k + l])); },
                                     [&](int l, int i) { return element_of_a(i, l); });
    char name[40];
    std::snprintf(name, sizeof name, "fast.cu, product %d", number);
    return row(name, dc.doubles(), c, 0.004);  // half of a bf16's last bit is 2^-9
}

}  // namespace

// The numbers of the products. From the sixth on they need whole groups of 16 x 8 tiles of 128 x 256.
int main(int count, char** arguments) {
    bool right = true;
    for (int k = 1; k < count; ++k) {
        const int number = std::atoi(arguments[k]);
        right &= number < 6 ? run(number, 512, 512, 384) : run(number, 2048, 2048, 256);
    }
    return right ? 0 : 1;
}
