// Parts of the rows of packed tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace teon::test {

// Columns [begin, end) of every row of a (rows, width) tensor.
template <typename E>
std::vector<E> columns(const std::vector<E>& x, int64_t width, int64_t begin, int64_t end) {
    std::vector<E> part;
    for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width))
        part.insert(part.end(), x.begin() + static_cast<int64_t>(row) + begin,
                    x.begin() + static_cast<int64_t>(row) + end);
    return part;
}

}  // namespace teon::test
