// llm.c's trainer train_gpt2_fp32.cu for ten steps. Arguments: a file that it may write, and the losses of
// llm_train.c.
#include <cuda_runtime.h>

// The trainer relies on zeros in new memory: its softmax leaves the upper triangle of the attention's weights as it
// was, and the product with V reads it. Drivers give a new process zeros; the model gives NaN.
template <typename T>
cudaError_t allocate_zeros(T** p, size_t bytes) {
    const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(p), bytes);
    return status == cudaSuccess ? cudaMemset(*p, 0, bytes) : status;
}
#define cudaMalloc allocate_zeros
#define TESTING
#include "train_gpt2_fp32.cu"
#undef cudaMalloc

#include "host.h"
#include "llm_train.h"

int main(int count, char** arguments) {
    if (count != kSteps + 2) return 2;
    cublasCheck(cublasCreate(&cublas_handle));
    float losses[kSteps];
    train(arguments[1], losses);
    std::vector<double> reference;
    for (int step = 0; step < kSteps; ++step) reference.push_back(std::atof(arguments[step + 2]));
    // Adam divides by the root of a mean of squares: small differences of gradients grow from step to step.
    return foreign::row("llm.c train_gpt2_fp32.cu, ten steps against train_gpt2.c",
                        std::vector<double>(losses, losses + kSteps), reference, 1e-4)
               ? 0
               : 1;
}
