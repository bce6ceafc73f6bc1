#include "model/activation_plan.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

// 6 rows of floats.
ActivationPlan two_blocks(RecomputePlan recompute) {
    DecoderRun run;
    run.B = 2;
    run.T = 3;
    run.recompute = recompute;
    run.attention = AttentionKind::gemm;
    return {run, Purpose::train, 2};
}

}  // namespace

TEST_CASE("model/activation_plan: blocks keep copies of their own; those that drop a tensor share one") {
    for (const bool drops : {false, true}) {
        ActivationPlan plan = two_blocks(drops ? Recompute::cheap : Recompute::none);
        plan.begin_block(0);
        const Tensor first = plan.saved("x", 100, Drop::under_cheap);
        plan.begin_block(1);
        const Tensor second = plan.saved("x", 100, Drop::under_cheap);
        plan.set_offsets();
        REQUIRE(first.row == second.row);
        REQUIRE(second.copy == (drops ? 0 : 1));
        REQUIRE(plan.total_bytes() == aligned(2 * 3 * 100 * 4) * (drops ? 1 : 2));
        REQUIRE(plan.saved_bytes() == (drops ? 0 : plan.total_bytes()));
    }
}

TEST_CASE("model/activation_plan: a shared buffer is as large as its largest tensor") {
    ActivationPlan plan = two_blocks(Recompute::none);
    REQUIRE(plan.shared_bytes(Shared::logits) == 0);
    for (const int64_t width : {10, 100, 50}) plan.shared(Shared::logits, width);
    plan.gradient(Shared::qkv_gradient, 7);
    REQUIRE(plan.shared_bytes(Shared::logits) == aligned(2 * 3 * 100 * 4));
    REQUIRE(plan.total_bytes() == aligned(2 * 3 * 100 * 4) + aligned(2 * 3 * 7 * 4));
}

TEST_CASE("model/activation_plan: a block that declares a name twice is an error, whether or not it drops it") {
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        ActivationPlan plan = two_blocks(recompute);
        plan.begin_block(0);
        plan.saved("x", 1, Drop::under_block);
        REQUIRE_THROWS_WITH(plan.edge("x", 2, Drop::under_block, Shared::norm_output_gradient),
                            ContainsSubstring("block 0 declares 'x' twice"));
        plan.begin_block(1);
        REQUIRE_NOTHROW(plan.saved("x", 1, Drop::under_block));
    }
}
