// Matrix product in three nested loops. R is double or Tracked.
#pragma once

#include <cstdint>
#include <vector>

namespace teon::test {

// Returns op(A) (M x K) * op(B) (K x N), row-major and packed. A is stored as M x K, or K x M if trans_a; B as K x N,
// or N x K if trans_b.
template <typename R>
std::vector<R> matmul_oracle(const std::vector<R>& A, const std::vector<R>& B, int M, int N, int K,
                             bool trans_a = false, bool trans_b = false) {
    std::vector<R> C(static_cast<size_t>(M) * N);
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
            R sum = 0.0;
            for (int64_t k = 0; k < K; ++k)
                sum += A[trans_a ? k * M + i : i * K + k] * B[trans_b ? j * K + k : k * N + j];
            C[i * N + j] = sum;
        }
    return C;
}

}  // namespace teon::test
