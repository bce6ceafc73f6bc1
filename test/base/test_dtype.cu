// Compares the storage types' conversions, on the host and in a kernel, with independent references.
#include "base/dtype.h"
#include "base/integer.h"

#include <cmath>
#include <limits>
#include <random>

#include "runtime/simt.h"
#include "test/oracle/format.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

namespace {

// Floats around every number of T, around midpoints and quarters between two of them, and beyond the largest; NaN, and
// random floats.
template <typename T>
std::vector<float> inputs() {
    const Format format = kFormat<T>;
    std::vector<float> x = {INFINITY, 3e38f, std::numeric_limits<float>::max()};
    for (int code = 0; code <= format.largest; ++code) {
        const double v = format.decode(code);
        const double to_next = code < format.largest ? format.decode(code + 1) - v : v - format.decode(code - 1);
        for (const double y : {v, v + to_next / 2, v + to_next / 4}) {
            const float f = static_cast<float>(y);
            for (const float z : {f, std::nextafter(f, 0.0f), std::nextafter(f, INFINITY)}) x.push_back(z);
        }
    }
    std::mt19937 engine(7);
    std::uniform_real_distribution<float> exponent(-26.0f, 18.0f);  // the range of f16
    for (int i = 0; i < 200000; ++i) x.push_back(std::exp2(exponent(engine)));
    const size_t n = x.size();
    for (size_t i = 0; i < n; ++i) x.push_back(-x[i]);
    for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f80ffffu})
        x.push_back(bits_float(bits));
    for (int i = 0; i < 1000000; ++i) x.push_back(bits_float(static_cast<uint32_t>(engine())));
    return x;
}

template <typename T>
__global__ void convert_kernel(decltype(T::bits)* narrow, float* wide, const float* in, int64_t n) {
    wait_for_earlier_kernels();
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const T y(in[i]);
    narrow[i] = y.bits;
    wide[i] = y;
}

template <typename T>
void check_in_kernel(const std::vector<float>& x) {
    const int64_t n = static_cast<int64_t>(x.size());
    Stream stream;
    Guarded<float> in(x, stream);
    Guarded<float> wide(n, stream);
    Guarded<decltype(T::bits)> narrow(n, stream);
    launch<convert_kernel<T>>({ceil_div(n, 256), 256}, stream, narrow.data(), wide.data(), in.data(), n);
    std::vector<decltype(T::bits)> expected(x.size());
    std::vector<float> expected_wide(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        const T y(x[i]);
        expected[i] = y.bits;
        expected_wide[i] = y;
    }
    std::vector<decltype(T::bits)> narrow_results = narrow.get();
    std::vector<float> wide_results = wide.get();
    for (size_t i = 0; i < x.size(); ++i) {
        if (!std::isnan(x[i])) continue;  // the sign and the payload of NaN differ between processors
        REQUIRE(std::isnan(wide_results[i]));
        narrow_results[i] = expected[i];
        wide_results[i] = expected_wide[i];
    }
    REQUIRE(same_bits(narrow_results, expected));
    REQUIRE(same_bits(wide_results, expected_wide));
}

}  // namespace

TEMPLATE_TEST_CASE("base/dtype: every code converts to the float that it encodes, and back", "", bf16, f16, e4m3,
                   e5m2) {
    const Format format = kFormat<TestType>;
    for (int code = 0; code < 2 * format.sign(); ++code) {
        TestType x;
        x.bits = static_cast<decltype(x.bits)>(code);
        const double expected = format.decode(code);
        const float y = x;
        if (std::isnan(expected) ? !std::isnan(y) : !(y == expected && std::signbit(y) == std::signbit(expected)))
            FAIL("0x" << std::hex << code << " is " << y << " instead of " << expected);
        const TestType back(y);
        if (std::isnan(y) ? !std::isnan(static_cast<float>(back)) : back.bits != format.round(y))
            FAIL("0x" << std::hex << code << " comes back as 0x" << int{back.bits});
        if (std::isfinite(y)) REQUIRE(format.round(y) == code);
    }
}

TEMPLATE_TEST_CASE("base/dtype: floats round to the nearest number, ties to even; only FP8 saturates; NaN stays NaN",
                   "", bf16, f16, e4m3, e5m2) {
    for (const float v : inputs<TestType>())
        if (TestType(v).bits != kFormat<TestType>.round(v))
            FAIL(v << " (0x" << std::hex << float_bits(v) << ") becomes 0x" << int{TestType(v).bits} << " instead of 0x"
                   << kFormat<TestType>.round(v));
}

TEMPLATE_TEST_CASE("base/dtype: a kernel rounds like the host", "", bf16, f16, e4m3, e5m2) {
    check_in_kernel<TestType>(inputs<TestType>());
}

TEST_CASE("base/dtype: every type has the size of its C++ type, and kernels cannot store FP8") {
    for (const auto& [dtype, name] : kEnumNames<DType>) {
        CAPTURE(name);
        if (is_fp8(dtype)) {
            REQUIRE(size_of(dtype) == 1);
            REQUIRE_THROWS_AS(visit_dtype(dtype, [](auto) {}), Error);
        } else {
            REQUIRE(visit_dtype(dtype, [](auto x) { return static_cast<int>(sizeof x); }) == size_of(dtype));
        }
    }
}

TEST_CASE("base/dtype: vectors are loaded and stored whole, and their alignment is checked") {
    alignas(64) float data[32];
    for (int i = 0; i < 32; ++i) data[i] = static_cast<float>(i);
    const auto v = load_vec<4>(data + 4);
    for (int i = 0; i < 4; ++i) REQUIRE(v[i] == static_cast<float>(4 + i));
    store_vec(data + 12, v);
    REQUIRE(data[15] == 7.0f);
    REQUIRE(data[16] == 16.0f);
    REQUIRE(vec_aligned<float, 4>(32, data, data + 4));
    REQUIRE_FALSE(vec_aligned<float, 4>(32, data, data + 1));
    REQUIRE_FALSE(vec_aligned<float, 4>(33, data));
    REQUIRE_FALSE(vec_aligned<float, 8>(32, data + 4));
}
