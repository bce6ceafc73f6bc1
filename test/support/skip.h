// SKIP_TEST("reason"): leaves the test case, which is then reported as skipped, by name, and not as passed.
#pragma once

#include <string>

namespace teon::test {

inline std::string skip_reason;  // of the test case that runs now; empty: not skipped (test/support/main.cpp resets it)

}  // namespace teon::test

#define SKIP_TEST(reason)                     \
    do {                                      \
        ::teon::test::skip_reason = (reason); \
        return;                               \
    } while (0)
