// Ten steps of llm.c's trainers in float. llm_train.cu includes this after train_gpt2_fp32.cu, and llm_train.c after
// train_gpt2.c, whose losses are the reference. C and CUDA.
#pragma once

#include "llm_model.h"

static void train(const char* path, float* losses) {
    write_model(path, 0);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, path);
    int inputs[kBatch * kTokens];
    int targets[kBatch * kTokens];
    uint64_t state = 7;
    for (int step = 0; step < kSteps; ++step) {
        next_batch(inputs, targets, &state);
        gpt2_forward(&model, inputs, targets, kBatch, kTokens);
        losses[step] = model.mean_loss;
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        // A large epsilon: else Adam would make steps of the full rate of gradients that are 0 but for rounding.
        // No decay: the trainers decay different parameters.
        gpt2_update(&model, 0.03f, 0.9f, 0.999f, 0.01f, 0.0f, step + 1);
    }
    gpt2_free(&model);
    remove(path);
}
