// Repeats kernels with several numbers of OS threads, on which no result may depend. On a GPU, which does not use OS
// threads, this is plain repetition.
#pragma once

#include <string>
#include <vector>

#include "runtime/simt.h"

namespace teon::test {

// Returns the bytes of all values, for comparing several results at once.
template <typename... T>
std::string bytes_of(const std::vector<T>&... values) {
    std::string bytes;
    (bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)), ...);
    return bytes;
}

// Sets the number of OS threads for the duration of a scope.
struct ScopedThreads {
    explicit ScopedThreads(int n) : before(set_simt_threads(n)) {}
    ~ScopedThreads() { set_simt_threads(before); }
    ScopedThreads(ScopedThreads&&) = delete;
    int before;
};

// Returns whether run(), which returns bytes, returns the same bytes with the default number of threads and with every
// number in `counts`.
template <typename F>
bool same_with_any_threads(F run, const std::vector<int>& counts = {1, 2}) {
    const std::string expected = run();
    bool same = true;
    for (int threads : counts) {
        const ScopedThreads scope(threads);
        same = run() == expected && same;
    }
    return same;
}

}  // namespace teon::test
