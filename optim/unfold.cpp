#include "optim/unfold.h"

#include "base/integer.h"

#include <limits>

namespace teon {

Unfolding::Unfolding(int mode, int m, int n, int K, int align) : mode(mode), m(m), n(n), K(K), ld(0) {
    CHECK(mode >= 1 && mode <= 3, "unfolding mode {} does not exist: 1, 2 or 3", mode);
    CHECK(m > 0 && n > 0 && K > 0 && align > 0, "unfolding of {} matrices of {} x {}, aligned to {}", K, m, n, align);
    const int sides[] = {m, n, K};  // of mode 1, 2 and 3
    const int64_t longest = int64_t{m} * n * K / sides[mode - 1];
    CHECK(longest <= std::numeric_limits<int>::max(), "mode {} of {} matrices of {} x {} has {} rows or columns", mode,
          K, m, n, longest);
    ld = round_up(int64_t{cols()}, align);
}

int Unfolding::rows() const {
    if (mode == 1) return m;
    return mode == 2 ? m * K : K;
}

int Unfolding::cols() const {
    if (mode == 1) return n * K;
    return mode == 2 ? n : m * n;
}

SliceLayout Unfolding::layout() const {
    if (mode == 1) return {K, ld, n, size()};
    if (mode == 2) return {K, ld, m * ld, size()};
    return {K, n, ld, size()};
}

}  // namespace teon
