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

// Whether run(), which returns bytes, returns the same ones every time.
template <typename F>
bool same_under_all_schedules(F run) {
    const int threads_before = set_simt_threads(1);
    const std::string order_before = set_simt_order("forward");
    const std::string expected = run();
    bool same = true;
    for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
        for (int threads : {1, 2}) {
            set_simt_order(order);
            set_simt_threads(threads);
            same = run() == expected && same;
        }
    }
    set_simt_threads(threads_before);
    set_simt_order(order_before);
    return same;
}

}  // namespace teon::test
