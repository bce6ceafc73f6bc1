// Text generation: a decoder's forward pass, a token at a time, against a cache of keys and values.
#pragma once

#include <memory>
#include <vector>

#include "model/decoder.h"

namespace teon {

// B sequences that grow together: every call adds the same number of tokens to each. Prompts of different lengths start
// with as many tokens as the shortest has; the longer ones are fed on, one by one, where the others are fed what was
// sampled.
class Generator {
public:
    virtual ~Generator() = default;

    // Begins anew with B x T prompt tokens (row b * T + t, on the host; 1 <= T <= capacity) in one pass. Returns logits
    // (B, V) of the token that follows. Throws Error where a token is outside [0, V).
    virtual const std::vector<float>& start(const std::vector<int>& tokens) = 0;
    // Adds one token to each sequence. Returns logits (B, V) of the next. Throws Error if the cache is full.
    virtual const std::vector<float>& step(const std::vector<int>& tokens) = 0;

    virtual int length() const = 0;  // tokens that each sequence has
    virtual int capacity() const = 0;
};

// Device memory of a generator besides the weights, in bytes.
int64_t generator_bytes(const DecoderConfig& c, int B, int capacity, DType dtype);

// Reads the weights where they are, as they are at each call; params and context must outlive it. params must be laid
// out by decoder_params(c). Throws UsageError if capacity is beyond the learned positions.
std::unique_ptr<Generator> make_generator(const DecoderConfig& c, const ParamStore& params, int B, int capacity,
                                          Context& context);

}  // namespace teon
