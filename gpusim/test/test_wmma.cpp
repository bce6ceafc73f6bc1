#include <cmath>

#include "base/check.h"
#include "gpusim/half.h"
#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

using namespace teon::test;

namespace {

struct Case {
    int M, N;
    bool bf16, columns_a, columns_b, half_sums, columns_c;
};
constexpr int kK = 16;
constexpr int kStrideHalf = 40;  // elements between lines: more than the longest
constexpr int kStrideFloat = 36;

uint16_t narrow(bool bf16, float x) { return bf16 ? HalfBf16::narrow(x) : HalfF16::narrow(x); }

std::string registers(const std::string& prefix, int first, int count) {
    std::string text = "{";
    for (int r = 0; r < count; ++r) text += fmt::format("{}{}{}", r ? ", " : "", prefix, first + r);
    return text + "}";
}

// The kernel of a case: A and B are at bytes 0 and 4096 of `in`, C at 8192 and D at 8192 of `out`.
std::string kernel_of(const Case& c) {
    const std::string shape = fmt::format("m{}n{}k16", c.M, c.N);
    const char* const type = c.bf16 ? "bf16" : "f16";
    const char* const sums = c.half_sums ? "f16" : "f32";
    const auto layout = [](bool columns) { return columns ? "col" : "row"; };
    const std::string a = registers("%r", 1, c.bf16 ? c.M * kK / 64 : 8);
    const std::string b = registers("%r", 9, c.bf16 ? c.N * kK / 64 : 8);
    const std::string d = c.half_sums ? registers("%r", 17, 4) : registers("%f", 0, 8);
    const std::string types = c.bf16 ? "f32.bf16.bf16.f32" : fmt::format("{}.{}", sums, sums);
    const int stride = c.half_sums ? kStrideHalf : kStrideFloat;
    return fmt::format(R"(
        add.s64 %d2, %d19, 4096; add.s64 %d3, %d19, 8192; add.s64 %d4, %d18, 8192; mov.u32 %r30, {};
        wmma.load.a.sync.aligned.{}.{}.global.{} {}, [%d19], {};
        wmma.load.b.sync.aligned.{}.{}.global.{} {}, [%d2], {};
        wmma.load.c.sync.aligned.{}.{}.{} {}, [%d3], %r30;
        wmma.mma.sync.aligned.{}.{}.{}.{} {}, {}, {}, {};
        wmma.store.d.sync.aligned.{}.{}.{} [%d4], {}, %r30;)",
                       stride, layout(c.columns_a), shape, type, a, kStrideHalf, layout(c.columns_b), shape, type, b,
                       kStrideHalf, layout(c.columns_c), shape, sums, d, layout(c.columns_a), layout(c.columns_b),
                       shape, types, d, a, b, d, layout(c.columns_c), shape, sums, d);
}

// Memory of the kernel, and its elements.
class Data {
public:
    explicit Data(const Case& c) : c_(c) {}
    size_t place(int row, int column, bool columns, int stride) const {
        return static_cast<size_t>(columns ? column * stride + row : row * stride + column);
    }
    uint16_t* halves(size_t byte) { return reinterpret_cast<uint16_t*>(words.data()) + byte / 2; }
    float* floats(size_t byte) { return reinterpret_cast<float*>(words.data()) + byte / 4; }
    void set_sum(int m, int n, float x) {
        if (c_.half_sums)
            halves(8192)[place(m, n, c_.columns_c, kStrideHalf)] = HalfF16::narrow(x);
        else
            floats(8192)[place(m, n, c_.columns_c, kStrideFloat)] = x;
    }
    float sum(int m, int n) {
        if (c_.half_sums) return HalfF16::widen(halves(8192)[place(m, n, c_.columns_c, kStrideHalf)]);
        return floats(8192)[place(m, n, c_.columns_c, kStrideFloat)];
    }

    std::vector<uint32_t> words = std::vector<uint32_t>(4096);

private:
    const Case& c_;
};

// Small integers, so that sums are exact in every order.
int value(int row, int column) { return (row * 7 + column * 3) % 5 - 2; }

Launch one_warp() {
    Launch launch;
    launch.block.x = 32;
    return launch;
}

}  // namespace

TEST_CASE("gpusim/wmma: products of every shape, layout and type are exact") {
    std::vector<Case> cases;
    for (const auto& [M, N] : {std::pair{16, 16}, {32, 8}, {8, 32}})
        for (int k = 0; k < 16; ++k)
            for (const bool columns_c : {false, true})
                if (!(k & 1 && k & 8)) cases.push_back({M, N, !!(k & 1), !!(k & 2), !!(k & 4), !!(k & 8), columns_c});
    for (const Case& c : cases) {
        INFO(kernel_of(c));
        Data data(c);
        for (int k = 0; k < kK; ++k) {
            for (int m = 0; m < c.M; ++m)
                data.halves(0)[data.place(m, k, c.columns_a, kStrideHalf)] =
                    narrow(c.bf16, static_cast<float>(value(m, k)));
            for (int n = 0; n < c.N; ++n)
                data.halves(4096)[data.place(k, n, c.columns_b, kStrideHalf)] =
                    narrow(c.bf16, static_cast<float>(value(n, k + 1)));
        }
        for (int m = 0; m < c.M; ++m)
            for (int n = 0; n < c.N; ++n) data.set_sum(m, n, static_cast<float>(m - n));
        data.words = PtxKernel(kernel_of(c)).run(data.words, one_warp());
        for (int m = 0; m < c.M; ++m) {
            for (int n = 0; n < c.N; ++n) {
                int expected = m - n;
                for (int k = 0; k < kK; ++k) expected += value(m, k) * value(n, k + 1);
                INFO(m << ", " << n);
                REQUIRE(data.sum(m, n) == static_cast<float>(expected));
            }
        }
    }
}

TEST_CASE("gpusim/wmma: addresses, strides and variants that the manual forbids are errors") {
    const auto error = [](const std::string& body) {
        try {
            PtxKernel(body).run(std::vector<uint32_t>(1024), one_warp());
        } catch (const std::exception& e) { return std::string(e.what()); }
        return std::string();
    };
    const std::string load = "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 " + registers("%r", 1, 8);
    REQUIRE(error(load + ", [%d19], 16;").empty());
    REQUIRE(contains(error(load + ", [%d19+16], 16;"), "not a multiple of 32 bytes"));
    REQUIRE(contains(error(load + ", [%d19], 17;"), "not a multiple of 16 bytes"));
    REQUIRE(contains(error(load + ", [%d1], 16;"), "another address or stride than lane 0"));
    REQUIRE(contains(error(load + ", [%d19], 1024;"), "byte"));
    REQUIRE(contains(error("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%r1, %r2}, [%d19];"), "the type"));
    REQUIRE(contains(error("wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {%r1, %r2, %r3, %r4}, [%d19];"),
                     "the variant"));
}
