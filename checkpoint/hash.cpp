#include "checkpoint/hash.h"

// g++ 12 warns inside its own AVX-512 header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace teon {

namespace {
XXH3_state_t* of(const std::shared_ptr<void>& state) { return static_cast<XXH3_state_t*>(state.get()); }
}  // namespace

Hash::Hash() : state_(XXH3_createState(), [](void* p) { XXH3_freeState(static_cast<XXH3_state_t*>(p)); }) {
    XXH3_64bits_reset(of(state_));
}
void Hash::update(const void* data, size_t bytes) { XXH3_64bits_update(of(state_), data, bytes); }
uint64_t Hash::digest() const { return XXH3_64bits_digest(of(state_)); }

uint64_t hash_of(const std::string& text) {
    Hash hash;
    hash.update(text.data(), text.size());
    return hash.digest();
}

}  // namespace teon
