#include "base/sha256.h"

#include "test/support/catch.h"

using namespace teon;

TEST_CASE("base/sha256: FIPS 180-4's examples have their digests, and pieces of any length the digest of the whole") {
    for (const bool uses_instructions : {true, false}) {
        auto digest = [&](const std::string& text, size_t step) {
            Sha256 hash(uses_instructions);
            for (size_t i = 0; i < text.size(); i += step)
                hash.update(text.data() + i, std::min(step, text.size() - i));
            return hash.hex_digest();
        };
        REQUIRE(digest("", 1) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        REQUIRE(digest("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        REQUIRE(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7) ==
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        REQUIRE(digest(std::string(1000000, 'a'), 999) ==
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        for (size_t n = 0; n < 200; ++n) REQUIRE(digest(std::string(n, 'x'), 1) == digest(std::string(n, 'x'), 150));
    }
}
