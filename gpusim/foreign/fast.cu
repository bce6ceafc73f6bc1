// The matrix products of fast.cu: TMA, warp specialization, clusters, multicast, stores of tiles, by number.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cuda/barrier>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

typedef __nv_bfloat16 bf16;
#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))
#define cudaCheck(status) foreign::check(status, #status)
#include "driver.h"
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
    const auto call = [&](auto kernel, auto... more) { kernel(m, n, k, da.data(), db.data(), dc.data(), more...); };
    if (number == 1) call(runKernel1);
    if (number == 2) call(runKernel2);
    if (number == 3) call(runKernel3, nullptr);
    if (number == 4) call(runKernel4, nullptr);
    if (number == 5) call(runKernel5, nullptr);
    if (number == 6) call(runKernel6, nullptr);
    if (number == 7) call(runKernel7, nullptr);
    if (number == 8) call(runKernel8, nullptr);
    if (number == 9) call(runKernel9, nullptr);
    if (number == 10) call(runKernel10, nullptr);
    if (number == 11) call(runKernel11, nullptr);
    if (number == 12) call(runKernel12, nullptr);
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
