// Makes the CPU's cuBLASLt (cpu/) propose `count` algorithms during the object's lifetime.
#pragma once

#include <cstdlib>

namespace teon::test {

struct Proposals {
    explicit Proposals(const char* count) { ::setenv("CUBLASLT_ALGORITHMS", count, 1); }
    ~Proposals() { ::unsetenv("CUBLASLT_ALGORITHMS"); }
};

}  // namespace teon::test
