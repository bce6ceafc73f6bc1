// Running the same kernels again under every order of threads and several numbers of OS threads: results must not
// depend on either. (On a GPU, where neither can be chosen, this is plain repetition.)
#pragma once

#include <string>
#include <vector>

#include "runtime/simt.h"

namespace teon::test {

// The bytes of some results, to be compared as a whole.
template <typename... T>
std::string bytes_of(const std::vector<T>&... values) {
    std::string bytes;
    (bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)), ...);
    return bytes;
}

// The order of threads, and the number of OS threads, for the time of a scope.
struct ScopedOrder {
    explicit ScopedOrder(std::string_view order) : before(set_simt_order(order)) {}
    ~ScopedOrder() { set_simt_order(before); }
    ScopedOrder(ScopedOrder&&) = delete;
    std::string before;
};
struct ScopedThreads {
    explicit ScopedThreads(int n) : before(set_simt_threads(n)) {}
    ~ScopedThreads() { set_simt_threads(before); }
    ScopedThreads(ScopedThreads&&) = delete;
    int before;
};

// Whether run(), which returns bytes, returns the same ones every time.
template <typename F>
bool same_under_all_schedules(F run, const std::vector<int>& thread_counts = {1, 2}) {
    const std::string expected = run();
    bool same = true;
    for (const char* order : {"forward", "reverse", "random:1", "random:2"})
        for (int threads : thread_counts) {
            const ScopedOrder scoped_order(order);
            const ScopedThreads scoped_threads(threads);
            same = run() == expected && same;
        }
    return same;
}

}  // namespace teon::test
