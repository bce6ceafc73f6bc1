// ThunderKittens' product of bf16 matrices for Hopper: a producer with TMA, consumers with wgmma and setmaxnreg, and
// copies of tiles to device memory. Tiles are of 128 x 256; the last row of tiles is not part of a group.
#include "driver.h"
#include "host.h"

#define main main_of_benchmark
#include "kernels/gemm/bf16_h100/bf16_h100_gemm.cu"
#undef main

// Of the driver, too.
extern "C" CUresult CUDAAPI cuGetErrorString(CUresult, const char** text) {
    *text = "";
    return CUDA_SUCCESS;
}

int main() {
    using Product = matmul_template<2, 4, 2>;
    const int m = 384;
    const int n = 512;
    const int k = 640;
    const auto a = foreign::random_values<__nv_bfloat16>(size_t(m) * k, 1);
    const auto b = foreign::random_values<__nv_bfloat16>(size_t(k) * n, 2);
    const foreign::Device<__nv_bfloat16> da(a);
    const foreign::Device<__nv_bfloat16> db(b);
    const foreign::Device<__nv_bfloat16> dc(size_t(m) * n);
    foreign::check(cudaFuncSetAttribute(prototype::lcf::kernel<Product>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        MAX_SHARED_MEMORY - 1024),
                   "cudaFuncSetAttribute");
    const dim3 grid(4);  // fewer blocks than tiles: some have two
    inner_run<Product>(da.data(), db.data(), dc.data(), m, n, k, grid,
                       dim3(kittens::prototype::detail::NUM_THREADS_v<Product>));
    const auto reference = foreign::matrix_product(
        m, n, k, [&](int i, int l) { return double(float(a[size_t(i) * k + l])); },
        [&](int l, int j) { return double(float(b[size_t(l) * n + j])); });
    return foreign::row("ThunderKittens, bf16", dc.doubles(), reference, 0.004) ? 0 : 1;
}
