// Text generation: a decoder's forward pass, a token at a time, against a cache of keys and values.
#pragma once

#include <memory>
#include <vector>

#include "model/decoder.h"

namespace teon {

// B sequences of equal length: every call adds the same number of tokens to each. To start with prompts of different
// lengths, start with the length of the shortest; then feed the rest of the longer ones token by token, and the others
// their sampled tokens.
class Generator {
public:
    virtual ~Generator() = default;

    // Starts over with B x T prompt tokens (row b * T + t, on the host; 1 <= T <= capacity) in one pass. Returns logits
    // (B, V) of the token that follows. Throws Error where a token is outside [0, V).
    virtual const std::vector<float>& start(const std::vector<int>& tokens) = 0;
    // Adds one token to each sequence. Returns logits (B, V) of the next. Throws Error if the cache is full.
    virtual const std::vector<float>& step(const std::vector<int>& tokens) = 0;

    virtual int length() const = 0;  // tokens that each sequence has
    virtual int capacity() const = 0;
};

// Device memory of a generator besides the weights, in bytes.
int64_t generator_bytes(const DecoderConfig& c, int B, int capacity, DType dtype);

// Uses the current weights of params at each call; params and context must outlive it, and decoder_params(c) must have
// laid out params. Throws UsageError if capacity is beyond the learned positions.
std::unique_ptr<Generator> make_generator(const DecoderConfig& c, const ParamStore& params, int B, int capacity,
                                          Context& context);

}  // namespace teon
