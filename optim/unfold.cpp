#include "optim/unfold.h"

#include "base/integer.h"

#include <limits>

namespace teon {

Unfolding::Unfolding(int mode, int m, int n, int K, int align) : mode(mode), m(m), n(n), K(K), ld(0) {
    CHECK(mode >= 1 && mode <= 3, "unfolding mode {} does not exist: 1, 2 or 3", mode);
    CHECK(m > 0 && n > 0 && K > 0 && align > 0, "unfolding of {} matrices of {} x {}, aligned to {}", K, m, n, align);
    const int64_t longest = int64_t{m} * n * K / (mode == 1 ? m : mode == 2 ? n : K);
    CHECK(longest <= std::numeric_limits<int>::max(), "mode {} of {} matrices of {} x {} has {} rows or columns", mode,
          K, m, n, longest);
    ld = round_up(int64_t{cols()}, align);
}

SliceLayout Unfolding::layout() const {
    if (mode == 1) return {K, ld, n, size()};
    if (mode == 2) return {K, ld, m * ld, size()};
    return {K, n, ld, size()};
}

}  // namespace teon
