#include "train/best.h"

#include <cmath>

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("train/best: the lowest loss counts, and evaluations without a lower one exhaust patience") {
    BestLoss best;
    REQUIRE(best.out_of_patience(1) == "");
    REQUIRE(best.count({10, 4.0}));
    REQUIRE(best.count({20, 3.5}));
    REQUIRE(best.out_of_patience(1) == "");
    REQUIRE_FALSE(best.count({30, 3.5}));  // no lower loss
    REQUIRE(best.out_of_patience(1) ==
            "--patience 1: 1 evaluation without a lower validation loss than 3.5000 of step 20");
    REQUIRE(best.out_of_patience(2) == "");
    REQUIRE_FALSE(best.count({40, std::nan("")}));
    REQUIRE(best.out_of_patience(2) ==
            "--patience 2: 2 evaluations without a lower validation loss than 3.5000 of step 20");
    REQUIRE(best.out_of_patience(0) == "");
    REQUIRE(best.count({50, 3.4}));
    REQUIRE(best.step == 50);
    REQUIRE(best.since == 0);
}

TEST_CASE("train/best: losses that are not finite are never the best") {
    BestLoss best;
    REQUIRE_FALSE(best.count({1, std::nan("")}));
    REQUIRE_FALSE(best.count({2, INFINITY}));
    REQUIRE(best.step == 0);
    REQUIRE(best.out_of_patience(2) == "--patience 2: 2 evaluations without a finite loss");
    REQUIRE(best.count({3, 7.0}));
}

TEST_CASE("train/best: an evaluation that a checkpoint has counted does not count again") {
    BestLoss best;
    REQUIRE(best.count({10, 4.0}));
    REQUIRE_FALSE(best.count({20, 5.0}));
    best = {best_evaluation(to_json(best), "test")};
    for (const LoggedEvaluation& e : {LoggedEvaluation{10, 4.0}, {20, 5.0}, {20, 3.0}}) REQUIRE_FALSE(best.count(e));
    REQUIRE(best.since == 1);
    REQUIRE_FALSE(best.count({30, 4.5}));
    REQUIRE(best.since == 2);
}

TEST_CASE("train/best: other ranks and resumed runs read the same state") {
    BestLoss best;
    const auto check = [&] {
        const BestLoss read{best_evaluation(parse_json(json_text(to_json(best)), "test"), "test")};
        REQUIRE(read.loss == best.loss);
        REQUIRE(read.step == best.step);
        REQUIRE(read.since == best.since);
        REQUIRE(read.last == best.last);
    };
    check();
    best.count({1, std::nan("")});
    check();
    best.count({2, 1.0 / 3});
    best.count({3, 1.0});
    check();
}
