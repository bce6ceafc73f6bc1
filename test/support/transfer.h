// Copies between host and device that are complete when the function returns.
#pragma once

#include <vector>

#include "runtime/cuda/device.h"

namespace teon::test {

template <typename T>
std::vector<T> fetch(const T* from, int64_t n, const Stream& stream) {
    std::vector<T> values(static_cast<size_t>(n));
    download(values.data(), from, n, stream);
    stream.synchronize();
    return values;
}

template <typename T>
std::vector<T> fetch(const Buffer<T>& from, const Stream& stream) {
    return fetch(from.data(), from.size(), stream);
}

template <typename T>
void put(T* to, const std::vector<T>& values, const Stream& stream) {
    upload(to, values.data(), std::ssize(values), stream);
    stream.synchronize();
}

}  // namespace teon::test
