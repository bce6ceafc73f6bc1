#include "kernels/attention/first_key.h"

#include "kernels/common.h"

namespace teon {

namespace {

__global__ void __launch_bounds__(kFlatBlock)
    window_first_keys_kernel(int* first_key, const int* doc_start, int64_t n, int T, int window) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const int of_window = static_cast<int>(i % T) - window + 1;
        const int of_document = doc_start ? doc_start[i] : 0;
        first_key[i] = of_window > of_document ? of_window : of_document;
    });
}

}  // namespace

void window_first_keys(int* first_key, const int* doc_start, int B, int T, int window, const Stream& stream) {
    CHECK(window >= 1, "attention: a window of {} keys, expected at least the row's own", window);
    const int64_t n = static_cast<int64_t>(B) * T;
    launch<window_first_keys_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, first_key, doc_start, n, T, window);
}

}  // namespace teon
