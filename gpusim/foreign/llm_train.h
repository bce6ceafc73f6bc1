// Ten steps of llm.c's trainer on a small model and random tokens. llm_train.cu includes this after
// train_gpt2_fp32.cu, and llm_train.c after train_gpt2.c, whose losses are the reference. C and CUDA.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// The trainer leaves the gradients of padded vocabulary as they were, and none is padded here.
// With sequences of one warp's width the race that the model finds in the softmax's gradient changes no result.
enum { kTokens = 32, kBatch = 4, kVocabulary = 128, kPadded = 128 };
enum { kLayers = 2, kHeads = 2, kChannels = 128, kSteps = 10 };

static float random_of(uint64_t* state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1.0);
}

// Writes a checkpoint as train_gpt2.py does: a header, then all parameters.
static void write_model(const char* path) {
    int header[256] = {20240326, 3, kTokens, kVocabulary, kLayers, kHeads, kChannels, kPadded};
    const size_t block = 12 * (size_t)kChannels * kChannels + 13 * kChannels;
    const size_t count = (size_t)(kPadded + kTokens + 2) * kChannels + kLayers * block;
    FILE* const file = fopen(path, "wb");
    fwrite(header, sizeof(int), 256, file);
    uint64_t state = 1;
    for (size_t k = 0; k < count; ++k) {
        const float value = 0.3f * random_of(&state);
        fwrite(&value, sizeof value, 1, file);
    }
    fclose(file);
}

static void train(const char* path, float* losses) {
    write_model(path);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, path);
    int inputs[kBatch * kTokens];
    int targets[kBatch * kTokens];
    uint64_t state = 7;
    for (int step = 0; step < kSteps; ++step) {
        for (int k = 0; k < kBatch * kTokens; ++k) {
            inputs[k] = (int)(50.0f + 49.0f * random_of(&state));
            targets[k] = (3 * inputs[k] + 1) % kVocabulary;
        }
        gpt2_forward(&model, inputs, targets, kBatch, kTokens);
        losses[step] = model.mean_loss;
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        // A large epsilon: else Adam would make steps of the full rate of gradients that are 0 but for rounding.
        gpt2_update(&model, 0.03f, 0.9f, 0.999f, 0.01f, 0.1f, step + 1);
    }
    gpt2_free(&model);
    remove(path);
}
