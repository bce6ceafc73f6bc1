// A cuBLASLt that proposes several algorithms, on a CPU too.
#pragma once

#include <cstdlib>

namespace teon::test {

struct Proposals {
    explicit Proposals(const char* count) { ::setenv("CUBLASLT_ALGORITHMS", count, 1); }
    ~Proposals() { ::unsetenv("CUBLASLT_ALGORITHMS"); }
};

}  // namespace teon::test
