#include <algorithm>
#include <optional>

#include "kernels/activation.h"
#include "runtime/context.h"
#include "runtime/cuda/profiler.h"

#include "test/support/catch.h"

using namespace teon;

namespace {

const Profile::Row* find(const Profile& profile, const std::string& part) {
    auto row = std::find_if(profile.rows.begin(), profile.rows.end(),
                            [&](const Profile::Row& r) { return r.name.find(part) != std::string::npos; });
    return row == profile.rows.end() ? nullptr : &*row;
}

}  // namespace

TEST_CASE("runtime/cuda/profiler: kernels and products between start and stop are counted by name") {
    Context context;
    const int n = 64;
    Buffer<float> x(n * n);
    Buffer<float> y(n * n);
    zero(x.data(), n * n, context.stream);
    auto activate = [&] { activation_forward(ActivationKind::gelu, y.data(), x.data(), n, n, context.stream); };
    activate();
    std::optional<Profiler> profiler(std::in_place, context.stream);
    for (int i = 0; i < 3; ++i) activate();
    context.linalg.gemm(
        {.M = n, .N = n / 2, .K = n, .A = mat(x.data(), n), .B = mat(x.data(), n), .C = mat(y.data(), n)});
    const Profile profile = profiler->result();
    profiler.reset();
    activate();

    REQUIRE(profile.rows.size() == 2);
    const Profile::Row* gelu = find(profile, "activation_forward");
    const Profile::Row* gemm = find(profile, "gemm 64 x 32 x 64 NN");
    REQUIRE(gelu);
    REQUIRE(gelu->name.rfind("activation_forward_kernel<", 0) == 0);  // without namespaces
    REQUIRE(gelu->calls == 3);
    REQUIRE(gelu->flops == 0);
    REQUIRE(gemm);
    REQUIRE(gemm->calls == 1);
    REQUIRE(gemm->flops == 2.0 * 64 * 32 * 64);
    REQUIRE(gelu->ms >= 0);
    REQUIRE(gelu->ms + gemm->ms <= profile.ms);
    REQUIRE(profile.rows[0].ms >= profile.rows[1].ms);
}

TEST_CASE("runtime/cuda/profiler: of nested work only the outermost counts") {
    Context context;
    Buffer<float> x(64);
    zero(x.data(), 64, context.stream);
    Profiler profiler(context.stream);
    {
        const ProfileScope outer(context.stream, [] { return std::string("outer"); });
        activation_forward(ActivationKind::gelu, x.data(), x.data(), 1, 64, context.stream);
    }
    activation_forward(ActivationKind::gelu, x.data(), x.data(), 1, 64, context.stream);
    const Profile profile = profiler.result();
    REQUIRE(profile.rows.size() == 2);
    REQUIRE(find(profile, "outer")->calls == 1);
    REQUIRE(find(profile, "activation_forward")->calls == 1);
}

TEST_CASE("runtime/cuda/profiler: one profiler of a stream at a time, and its stream only") {
    Context context;
    Context other;
    Buffer<float> x(64);
    zero(x.data(), 64, other.stream);
    Profiler profiler(context.stream);
    REQUIRE_THROWS_AS(Profiler(context.stream), Error);
    activation_forward(ActivationKind::gelu, x.data(), x.data(), 1, 64, other.stream);
    REQUIRE(profiler.result().rows.empty());
}
