// Compares the storage types' conversions, on the host and in a kernel, with independent references.
#include "base/dtype.h"
#include "base/integer.h"

#include <cmath>
#include <limits>
#include <random>

#include "runtime/simt.h"
#include "test/oracle/fp8.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

namespace {

// A binary floating-point format, computed from its definition in double.
struct Format {
    int exponent_bits, mantissa_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    int smallest() const { return 1 - bias() - mantissa_bits; }  // exponent of the smallest subnormal

    // Returns the value that the bits encode.
    double decode(uint32_t bits) const {
        const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
        const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
        const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
        if (exponent == (1 << exponent_bits) - 1)
            return sign *
                   (mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity());
        if (exponent == 0) return sign * std::ldexp(mantissa, smallest());
        return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias());
    }

    // Returns x, which is not NaN, rounded to the nearest value of the format, ties to even.
    double round(double x) const {
        if (x == 0 || std::isinf(x)) return x;
        const int exponent = std::max(std::ilogb(x) - mantissa_bits, smallest());
        const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
        const double limit = std::ldexp(1.0, bias() + 1);
        return std::abs(rounded) >= limit ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
    }
};

template <typename T>
Format format_of;
template <>
inline const Format format_of<bf16> = {8, 7};
template <>
inline const Format format_of<f16> = {5, 10};

// Floats around every value of T and around every midpoint between two values, NaN, and random bits.
template <typename T>
std::vector<float> inputs() {
    std::vector<float> x;
    const auto add_around = [&](double v) {
        const float f = static_cast<float>(v);
        for (float y : {f, std::nextafter(f, -INFINITY), std::nextafter(f, INFINITY)}) x.push_back(y);
    };
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const double v = format_of<T>.decode(bits);
        const double next = format_of<T>.decode((bits + 1) & 0xffffu);
        if (std::isnan(v)) continue;
        add_around(v);
        if (std::isfinite(v) && std::isfinite(next) && std::signbit(v) == std::signbit(next))
            add_around((v + next) / 2);
    }
    for (const float v : {65504.0f, 65519.996f, 65520.0f, 3.4e38f, 3.3961776e38f, 1e-45f, 5.9604645e-8f, 2.9802322e-8f})
        for (const float sign : {1.0f, -1.0f}) add_around(sign * v);
    for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f80ffffu})
        x.push_back(bits_float(bits));
    std::mt19937 engine(7);
    for (int i = 0; i < 1000000; ++i) x.push_back(bits_float(static_cast<uint32_t>(engine())));
    std::uniform_real_distribution<float> exponent(-26.0f, 17.0f);  // the range of f16
    for (int i = 0; i < 200000; ++i) x.push_back(std::exp2(exponent(engine)) * (engine() % 2 ? 1.0f : -1.0f));
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
void check_to_float() {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        T x;
        x.bits = static_cast<uint16_t>(bits);
        const double expected = format_of<T>.decode(bits);
        const float y = x;
        if (std::isnan(expected) ? !std::isnan(y) : !(y == expected && std::signbit(y) == std::signbit(expected)))
            FAIL("0x" << std::hex << bits << " is " << y << " instead of " << expected);
        const T back(y);
        if (std::isnan(y) ? !std::isnan(static_cast<float>(back)) : back.bits != bits)
            FAIL("0x" << std::hex << bits << " comes back as 0x" << back.bits);
    }
}

template <typename T>
void check_from_float() {
    const std::vector<float> x = inputs<T>();
    for (const float v : x) {
        const T narrow(v);
        const float y = narrow;
        if (std::isnan(v) && narrow.bits != 0x7fff) FAIL("NaN becomes 0x" << std::hex << narrow.bits);
        if (std::isnan(v)) continue;
        const double expected = format_of<T>.round(v);
        if (!(y == expected && std::signbit(y) == std::signbit(v)))
            FAIL(v << " (0x" << std::hex << float_bits(v) << ") is rounded to " << y << " instead of " << expected);
    }
}

// Floats around every FP8 number, between each two, and above the largest; NaN, and random numbers.
template <typename F>
std::vector<float> fp8_inputs() {
    const Fp8Format format = kFp8Format<F>;
    std::vector<float> x = {bits_float(0x7fc00000u), bits_float(0xffc00000u), bits_float(0x7f800001u), INFINITY, 3e38f};
    for (int code = 0; code <= format.largest; ++code) {
        const double v = format.decode(code);
        const double next = code < format.largest ? format.decode(code + 1) : 2 * v;
        for (const double y : {v, v + (next - v) / 2, v + (next - v) / 4}) {
            const float f = static_cast<float>(y);
            for (const float z : {f, std::nextafter(f, 0.0f), std::nextafter(f, INFINITY)}) x.push_back(z);
        }
    }
    std::mt19937 engine(7);
    std::uniform_real_distribution<float> exponent(-20.0f, 18.0f);
    for (int i = 0; i < 200000; ++i) x.push_back(std::exp2(exponent(engine)));
    const size_t n = x.size();
    for (size_t i = 0; i < n; ++i) x.push_back(-x[i]);
    return x;
}

template <typename F>
void check_fp8() {
    const Fp8Format format = kFp8Format<F>;
    for (int code = 0; code < 256; ++code) {
        F x;
        x.bits = static_cast<uint8_t>(code);
        const double expected = format.decode(code);
        const float y = x;
        CAPTURE(code, y, expected);
        REQUIRE((std::isnan(expected) ? std::isnan(y) : y == expected && std::signbit(y) == std::signbit(expected)));
        if (std::isfinite(y)) REQUIRE(F(y).bits == code);
    }
    for (const float v : fp8_inputs<F>()) {
        const int expected = format.round(v);
        if (F(v).bits != expected)
            FAIL(v << " becomes code " << static_cast<int>(F(v).bits) << " instead of " << expected);
    }
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

TEST_CASE("base/dtype: all 65536 bf16 and f16 values convert to the floats they encode, and back") {
    check_to_float<bf16>();
    check_to_float<f16>();
}

TEST_CASE("base/dtype: floats round to the nearest bf16 or f16, ties to even, and NaN stays NaN") {
    check_from_float<bf16>();
    check_from_float<f16>();
}

TEST_CASE("base/dtype: a kernel rounds like the host") {
    check_in_kernel<bf16>(inputs<bf16>());
    check_in_kernel<f16>(inputs<f16>());
    check_in_kernel<e4m3>(fp8_inputs<e4m3>());
    check_in_kernel<e5m2>(fp8_inputs<e5m2>());
}

TEST_CASE("base/dtype: all 256 FP8 codes convert to float and back; floats round to nearest even and saturate") {
    check_fp8<e4m3>();
    check_fp8<e5m2>();
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
