// Compares f16 with the compiler's _Float16, in a file of its own for g++, because nvcc has no such type.
#include <bit>
#include <cmath>

#include "base/dtype.h"
#include "test/support/catch.h"
#include "test/support/skip.h"

using namespace teon;

TEST_CASE("base/dtype: f16 rounds like the compiler's _Float16") {
#if defined(__FLT16_MANT_DIG__)
    for (uint64_t u = 0; u < uint64_t{1} << 32; u += 101) {
        const float x = bits_float(static_cast<uint32_t>(u));
        const auto expected = std::bit_cast<uint16_t>(static_cast<_Float16>(x));
        if (std::isnan(x) ? !std::isnan(static_cast<float>(f16(x))) : f16(x).bits != expected)
            FAIL(x << " becomes 0x" << std::hex << f16(x).bits << " instead of 0x" << expected);
    }
#else
    SKIP_TEST("this compiler has no _Float16 for this machine");
#endif
}
