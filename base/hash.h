// The 64-bit hash XXH3 (https://xxhash.com). It detects damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace teon {

class Hash {
public:
    Hash();
    void update(const void* data, size_t bytes);
    uint64_t digest() const;  // of all data so far

private:
    struct State;  // xxHash's
    struct Free {
        void operator()(State* state) const;
    };
    std::unique_ptr<State, Free> state_;
};

uint64_t hash_of(const std::string& text);

}  // namespace teon
