// What the hosts of foreign kernels share: device memory, random values, and the row of the table that a host prints.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace foreign {

inline void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::printf("failed: %s: %s\n", what, cudaGetErrorString(status));
    std::exit(1);
}

inline cudaStream_t stream() {
    static const cudaStream_t one = [] {
        cudaStream_t s;
        check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        return s;
    }();
    return one;
}

inline void wait() {
    check(cudaGetLastError(), "launch");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

template <typename T>
class Device {
public:
    explicit Device(size_t count) : count_(count) {
        check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
        check(cudaMemsetAsync(data_, 0, count * sizeof(T), stream()), "cudaMemsetAsync");
        wait();
    }
    explicit Device(const std::vector<T>& values) : Device(values.size()) {
        check(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, stream()), "upload");
        wait();
    }
    ~Device() { cudaFree(data_); }
    Device(const Device&) = delete;

    T* data() const { return data_; }
    std::vector<T> values() const {
        wait();
        std::vector<T> host(count_);
        check(cudaMemcpyAsync(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream()), "download");
        wait();
        return host;
    }
    std::vector<double> doubles() const {
        const std::vector<T> host = values();
        std::vector<double> wide(count_);
        for (size_t k = 0; k < count_; ++k) wide[k] = static_cast<double>(static_cast<float>(host[k]));
        return wide;
    }

private:
    size_t count_;
    T* data_ = nullptr;
};

// Values in (-1, 1), rounded to T.
template <typename T>
std::vector<T> random_values(size_t count, uint64_t seed) {
    std::vector<T> values(count);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (T& value : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        value = static_cast<T>(static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0));
    }
    return values;
}

template <typename T>
std::vector<double> widened(const std::vector<T>& values) {
    std::vector<double> wide(values.size());
    for (size_t k = 0; k < values.size(); ++k) wide[k] = static_cast<double>(static_cast<float>(values[k]));
    return wide;
}

// The root of the mean squared difference, divided by that of the reference.
inline double relative_error(const std::vector<double>& result, const std::vector<double>& reference) {
    double difference = 0;
    double size = 0;
    for (size_t k = 0; k < reference.size(); ++k) {
        difference += (result[k] - reference[k]) * (result[k] - reference[k]);
        size += reference[k] * reference[k];
    }
    return std::sqrt(difference / (size > 0 ? size : 1));
}

// Prints a row; returns whether the result is right. `limit`: what rounding of results and of intermediate values to
// their types can cause.
inline bool row(const char* what, const std::vector<double>& result, const std::vector<double>& reference,
                double limit) {
    const double error = relative_error(result, reference);
    const bool right = error <= limit;  // false for NaN
    std::printf("%s: %s, error %.2g of %.2g\n", right ? "right" : "wrong", what, error, limit);
    std::fflush(stdout);
    return right;
}

// C = A B with A (m x k) and B (k x n), whose elements `a` and `b` return in float64.
template <typename A, typename B>
std::vector<double> matrix_product(int m, int n, int k, A&& a, B&& b) {
    std::vector<double> c(static_cast<size_t>(m) * n);
    for (int i = 0; i < m; ++i)
        for (int l = 0; l < k; ++l) {
            const double factor = a(i, l);
            for (int j = 0; j < n; ++j) c[static_cast<size_t>(i) * n + j] += factor * b(l, j);
        }
    return c;
}

}  // namespace foreign
