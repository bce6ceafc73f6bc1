// For kernel tests: inputs that T represents exactly, device buffers between canaries, and comparisons that cannot pass
// by accident. A comparison fails on NaN, infinity or a wrong length, whatever its tolerance.
//
//     auto x = random_values<T>(n, seed);                      // rounded to T; the oracle sees the same numbers
//     Guarded<T> dx(x, stream), dout(n, stream);               // copies of values, or NaN until written
//     op(dout.data(), dx.data(), n, stream);
//     REQUIRE(compare(dout.get(), oracle(x), c));              // get() throws if a canary was touched
//     REQUIRE(same_bits(dout.get(), again.get()));
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "runtime/cuda/device.h"
#include "test/oracle/tracked.h"

namespace teon::test {

// The largest relative error of rounding a real number to T: half a unit in the last place of 1.
template <typename T>
inline constexpr double kUnitRoundoff = 0x1p-24;
template <>
inline constexpr double kUnitRoundoff<bf16> = 0x1p-8;
template <>
inline constexpr double kUnitRoundoff<f16> = 0x1p-11;
template <>
inline constexpr double kUnitRoundoff<double> = 0x1p-53;

// The largest absolute error of a result that is too small for T's full precision. In float, and in bf16 with the same
// range, the result may be flushed to zero; f16 underflows gradually, with an error of half a step.
template <typename T>
inline constexpr double kUnderflow = std::numeric_limits<float>::min();
template <>
inline constexpr double kUnderflow<f16> = 0x1p-25;

// Returns n normal values with the given standard deviation and mean, rounded to T.
template <typename T>
std::vector<T> random_values(int64_t n, uint64_t seed, double std = 1.0, double mean = 0.0) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(mean, std);
    std::vector<T> values(static_cast<size_t>(n));
    for (T& v : values) v = static_cast<T>(static_cast<float>(normal(engine)));
    return values;
}

// Returns n integers in [0, bound).
inline std::vector<int> random_ints(int64_t n, uint64_t seed, int bound) {
    std::mt19937_64 engine(seed);
    std::vector<int> values(static_cast<size_t>(n));
    for (int& v : values) v = static_cast<int>(engine() % static_cast<uint64_t>(bound));
    return values;
}

// Converts the values to the oracle's type R (double or Tracked).
template <typename R, typename T>
std::vector<R> widen(const std::vector<T>& values) {
    std::vector<R> wide;
    wide.reserve(values.size());
    for (const T& v : values) wide.push_back(R(static_cast<double>(static_cast<float>(v))));
    return wide;
}

// The result of a comparison, with the reason if it failed. REQUIRE(compare(...)) prints it.
struct Comparison {
    std::string failure;
    explicit operator bool() const { return failure.empty(); }
    friend std::ostream& operator<<(std::ostream& out, const Comparison& c) {
        return out << (c ? std::string("equal") : c.failure);
    }
};

// Checks that |actual[i] - expected[i]| <= tolerance[i] for every i.
template <typename T>
Comparison compare(const std::vector<T>& actual, const std::vector<double>& expected,
                   const std::vector<double>& tolerance) {
    if (actual.size() != expected.size() || expected.size() != tolerance.size())
        return {fmt::format("{} values, {} expected, {} tolerances", actual.size(), expected.size(), tolerance.size())};
    int64_t wrong = 0;
    int64_t worst = -1;
    double worst_ratio = -1.0;
    for (size_t i = 0; i < actual.size(); ++i) {
        double a = static_cast<double>(actual[i]);
        double e = expected[i];
        double tol = tolerance[i];
        if (!std::isfinite(e) || !std::isfinite(tol))
            return {fmt::format("the oracle is not finite: [{}] is {}, tolerance {}", i, e, tol)};
        double diff = std::abs(a - e);
        if (std::isfinite(a) && diff <= tol) continue;
        ++wrong;
        double ratio = !std::isfinite(a) || tol == 0.0 ? std::numeric_limits<double>::infinity() : diff / tol;
        if (ratio > worst_ratio) {
            worst_ratio = ratio;
            worst = static_cast<int64_t>(i);
        }
    }
    if (wrong == 0) return {};
    size_t w = static_cast<size_t>(worst);
    return {fmt::format("{} of {} values are wrong; worst [{}]: {} instead of {}, tolerance {}", wrong, actual.size(),
                        w, static_cast<double>(actual[w]), expected[w], tolerance[w])};
}

template <typename T>
Comparison compare(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance) {
    return compare(actual, expected, std::vector<double>(expected.size(), tolerance));
}

// Compares with the tolerance for a correct kernel of storage type T: one rounding of the result to T, plus c roundings
// to float of the sum of all magnitudes that went into it (Tracked's magnitude), plus the error of underflow.
template <typename T>
Comparison compare(const std::vector<T>& actual, const std::vector<Tracked>& expected, double c) {
    std::vector<double> values;
    std::vector<double> tolerance;
    for (const Tracked& e : expected) {
        values.push_back(e.value);
        tolerance.push_back(kUnitRoundoff<T> * std::abs(e.value) + c * kUnitRoundoff<float> * e.magnitude +
                            kUnderflow<T>);
    }
    return compare(actual, values, tolerance);
}

// Checks that all bits are equal: NaN equals the same NaN, and 0 differs from -0.
template <typename T>
Comparison same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (actual.size() != expected.size())
        return {fmt::format("{} values, {} expected", actual.size(), expected.size())};
    for (size_t i = 0; i < actual.size(); ++i)
        if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0)
            return {fmt::format("[{}] is {}, not the same bits as {}", i, static_cast<double>(actual[i]),
                                static_cast<double>(expected[i]))};
    return {};
}

// n elements of device memory between two canaries. The elements are aligned like those of a Buffer.
template <typename T>
class Guarded {
public:
    // The elements are NaN (0xff bytes) until they are written.
    Guarded(int64_t n, const Stream& stream)
        : stream_(stream), n_(n), memory_(2 * kGuard + n * static_cast<int64_t>(sizeof(T))) {
        std::vector<std::byte> bytes(static_cast<size_t>(memory_.size()), std::byte{0xff});
        for (size_t i = 0; i < kGuard; ++i) bytes[i] = bytes[bytes.size() - 1 - i] = kCanary;
        upload(memory_.data(), bytes.data(), memory_.size(), stream_);
        stream_.synchronize();
    }
    Guarded(const std::vector<T>& values, const Stream& stream) : Guarded(static_cast<int64_t>(values.size()), stream) {
        set(values);
    }
    T* data() const { return reinterpret_cast<T*>(memory_.data() + kGuard); }
    int64_t size() const { return n_; }
    void set(const std::vector<T>& values) {
        CHECK(static_cast<int64_t>(values.size()) == n_, "{} values for a buffer of {}", values.size(), n_);
        upload(data(), values.data(), n_, stream_);
        stream_.synchronize();
    }
    // Waits for the stream. Throws Error if anything outside the elements was written.
    std::vector<T> get() const {
        std::vector<std::byte> bytes(static_cast<size_t>(memory_.size()));
        download(bytes.data(), memory_.data(), memory_.size(), stream_);
        stream_.synchronize();
        for (size_t i = 0; i < kGuard; ++i) {
            CHECK(bytes[i] == kCanary, "written {} bytes before the first element", kGuard - i);
            CHECK(bytes[bytes.size() - kGuard + i] == kCanary, "written {} bytes after the last element", i);
        }
        std::vector<T> values(static_cast<size_t>(n_));
        if (n_ > 0) std::memcpy(values.data(), bytes.data() + kGuard, values.size() * sizeof(T));
        return values;
    }

private:
    static constexpr int64_t kGuard = 256;
    static constexpr std::byte kCanary{0xc5};
    const Stream& stream_;
    int64_t n_;
    Buffer<std::byte> memory_;
};

}  // namespace teon::test
