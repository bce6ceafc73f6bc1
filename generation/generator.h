// Text generation: a decoder's forward pass, one token at a time, with a cache of keys and values.
#pragma once

#include <memory>
#include <vector>

#include "model/decoder.h"

namespace teon {

// Generates B sequences of equal length: every call adds the same number of tokens to each. For prompts of different
// lengths, call start() with the first tokens of each, as many as the shortest prompt has. Then pass step() the next
// token of a longer prompt, or the sampled token of a sequence whose prompt has ended.
class Generator {
public:
    virtual ~Generator() = default;

    // Discards the sequences and starts with B x T prompt tokens (index b * T + t, on the host; 1 <= T <= capacity) in
    // one pass. Returns logits (B, V) of the next token. Throws Error if a token is outside [0, V).
    virtual const std::vector<float>& start(const std::vector<int>& tokens) = 0;
    // Adds one token to each sequence. Returns logits (B, V) of the next token. Throws Error if the cache is full.
    virtual const std::vector<float>& step(const std::vector<int>& tokens) = 0;

    virtual int length() const = 0;  // tokens in each sequence
    virtual int capacity() const = 0;
};

// Device memory of a generator without the weights, in bytes.
int64_t generator_bytes(const DecoderConfig& c, int B, int capacity, DType dtype);

// params must have the table decoder_params(c). The generator uses the current weights of params at each call; params
// and context must outlive it. Throws UsageError if capacity exceeds the model's context.
std::unique_ptr<Generator> make_generator(const DecoderConfig& c, const ParamStore& params, int B, int capacity,
                                          Context& context);

}  // namespace teon
