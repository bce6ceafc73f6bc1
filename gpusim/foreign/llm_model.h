// A small model and random tokens for llm.c's trainers. C and CUDA.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// The trainer leaves the gradients of padded vocabulary as they were, and none is padded here. The classifier of
// train_gpt2.cu (f1e2ace6) does not end for every model; for this one it does.
// With sequences of one warp's width the race that the model finds in the softmax's gradient changes no result.
enum { kTokens = 32, kBatch = 4, kVocabulary = 8192, kPadded = 8192 };
enum { kLayers = 2, kHeads = 2, kChannels = 128, kSteps = 10 };

static float random_of(uint64_t* state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1.0);
}

// Writes a checkpoint as train_gpt2.py does: a header, then all parameters, in float or, truncated, in bf16.
static void write_model(const char* path, int is_bf16) {
    int header[256] = {20240326, is_bf16 ? 5 : 3, kTokens, kVocabulary, kLayers, kHeads, kChannels, kPadded};
    const size_t block = 12 * (size_t)kChannels * kChannels + 13 * kChannels;
    const size_t count = (size_t)(kPadded + kTokens + 2) * kChannels + kLayers * block;
    FILE* const file = fopen(path, "wb");
    fwrite(header, sizeof(int), 256, file);
    uint64_t state = 1;
    for (size_t k = 0; k < count; ++k) {
        const float value = 0.3f * random_of(&state);
        const size_t bytes = is_bf16 ? 2 : 4;
        fwrite((const char*)(&value) + (4 - bytes), bytes, 1, file);
    }
    fclose(file);
}

static void next_batch(int* inputs, int* targets, uint64_t* state) {
    for (int k = 0; k < kBatch * kTokens; ++k) {
        inputs[k] = (int)(50.0f + 49.0f * random_of(state));
        targets[k] = (3 * inputs[k] + 1) % kVocabulary;
    }
}
