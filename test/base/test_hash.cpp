#include "base/hash.h"

#include <string>

#include "test/support/catch.h"

using namespace teon;

TEST_CASE("base/hash: the hash of no bytes is XXH3's, and data in pieces has the same hash as the whole") {
    // https://github.com/Cyan4973/xxHash: the hash of no bytes.
    REQUIRE(hash_of("") == 0x2d06800538d394c2);
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 31);
    Hash pieces;
    for (size_t at = 0; at < text.size(); at += 7)
        pieces.update(text.data() + at, std::min<size_t>(7, text.size() - at));
    REQUIRE(pieces.digest() == hash_of(text));
    Hash moved = std::move(pieces);
    moved.update("x", 1);
    REQUIRE(moved.digest() == hash_of(text + "x"));
}
