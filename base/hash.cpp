#include "base/hash.h"

#ifndef __clang__  // g++ 12 warns inside its own AVX-512 header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace teon {

struct Hash::State {
    XXH3_state_t xxh3;  // aligned to 64 bytes, and so State is, also by new
};

void Hash::Free::operator()(State* state) const { delete state; }

Hash::Hash() : state_(new State) { XXH3_64bits_reset(&state_->xxh3); }
void Hash::update(const void* data, size_t bytes) { XXH3_64bits_update(&state_->xxh3, data, bytes); }
uint64_t Hash::digest() const { return XXH3_64bits_digest(&state_->xxh3); }

uint64_t hash_of(const std::string& text) {
    Hash hash;
    hash.update(text.data(), text.size());
    return hash.digest();
}

}  // namespace teon
