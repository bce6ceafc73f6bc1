// llm.c's trainer train_gpt2.cu for ten steps, in the precision of its flags (ENABLE_BF16, ENABLE_FP32). Arguments: a
// file that it may write, and the losses of llm_train.c, which begins with the same weights in float.
#include <cuda_runtime.h>

// Of managed memory, which the trainer takes only where there is no other. CUDA 13 has another last parameter.
#define cudaMemAdvise(memory, bytes, advice, place) cudaErrorNotSupported
#define TESTING
#include "train_gpt2.cu"
#undef cudaMemAdvise

#include "host.h"
#include "llm_model.h"

namespace {

void train(const char* path, std::vector<double>& losses) {
    const bool is_bf16 = sizeof(floatX) == 2;
    write_model(path, is_bf16);
    char empty[] = "";
    char method[] = "mpi";  // not used by one process
    multi_gpu_config = multi_gpu_config_init(1, 0, 1, empty, empty, method);
    common_start(/*override_enable_tf32=*/false, /*print_device_info=*/false);
    GPT2 model;
    gpt2_init_common(&model);
    gpt2_build_from_checkpoint(&model, path);
    set_zero_configs(&multi_gpu_config, 0, model.num_parameters);
    gpt2_allocate_state(&model, kBatch, kTokens);
    int inputs[kBatch * kTokens];
    int targets[kBatch * kTokens];
    uint64_t state = 7;
    for (int step = 0; step < kSteps; ++step) {
        next_batch(inputs, targets, &state);
        gpt2_forward(&model, inputs, kBatch, kTokens);
        gpt2_backward_and_reduce(&model, inputs, targets, 1, 0);
        losses.push_back(model.mean_loss);
        // As in llm_train.h.
        gpt2_update(&model, 0.03f, 0.9f, 0.999f, 0.01f, 0.0f, 1.0f, step + 1, &multi_gpu_config);
    }
    gpt2_free(&model);
    common_free(model);
    remove(path);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != kSteps + 2) return 2;
    std::vector<double> losses;
    train(arguments[1], losses);
    std::vector<double> reference;
    for (int step = 0; step < kSteps; ++step) reference.push_back(std::atof(arguments[step + 2]));
    const bool is_bf16 = sizeof(floatX) == 2;
    return foreign::row(is_bf16 ? "llm.c train_gpt2.cu in bf16, ten steps against train_gpt2.c"
                                : "llm.c train_gpt2.cu in float, ten steps against train_gpt2.c",
                        losses, reference, is_bf16 ? 0.002 : 1e-5)
               ? 0
               : 1;
}
