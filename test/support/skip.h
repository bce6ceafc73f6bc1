// SKIP_TEST("reason") returns from the test case, which is then reported by name as skipped instead of passed.
#pragma once

#include <string>

namespace teon::test {

inline std::string skip_reason;  // of the running test case, empty if not skipped (test/support/main.cpp resets it)

}  // namespace teon::test

#define SKIP_TEST(reason)                     \
    do {                                      \
        ::teon::test::skip_reason = (reason); \
        return;                               \
    } while (0)
