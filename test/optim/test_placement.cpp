#include "optim/placement.h"

#include <cmath>
#include <numeric>
#include <string>

#include "test/optim/param_tables.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

OptimizerOptions options_of(Method method, int K = 2) {
    OptimizerOptions o;
    o.method = method;
    o.teon_k = K;
    return o;
}

double largest_over_mean(const std::vector<double>& cost, const std::vector<int>& owner, int ranks) {
    std::vector<double> load(ranks, 0.0);
    for (size_t i = 0; i < cost.size(); ++i) load[owner[i]] += cost[i];
    return *std::max_element(load.begin(), load.end()) * ranks / std::accumulate(load.begin(), load.end(), 0.0);
}

// The rank of each element of the flat buffers; -1: in no part; -2: in several parts.
std::vector<int> ranks_of_elements(const std::vector<Part>& parts, int64_t size) {
    std::vector<int> rank(static_cast<size_t>(size), -1);
    for (const Part& part : parts)
        for (int64_t i = part.offset; i < part.offset + part.size; ++i) rank[i] = rank[i] == -1 ? part.root : -2;
    return rank;
}

}  // namespace

TEST_CASE("optim/placement: the loads of GPT-2 124M match the design's figures") {
    const ParamTable table = make_table(preset_shapes()[0]);
    const OptimizerPlan plan = plan_optimizer(table, options_of(Method::teon));
    std::vector<double> cost;  // five standard Newton-Schulz steps on an m x nK matrix, m the short side
    for (const Stack& stack : plan.stacks) {
        const double rows = stack.m;
        const double cols = double(stack.n) * stack.K();
        const double m = std::min(rows, cols);
        const double n = std::max(rows, cols);
        cost.push_back(5 * (2 * m * m * n + m * m * m));
    }
    for (auto [ranks, expected] : {std::pair{8, 1.01}, {16, 1.08}, {32, 1.31}, {64, 1.68}}) {
        INFO(ranks << " ranks");
        const double load = largest_over_mean(cost, longest_processing_time(cost, ranks), ranks);
        REQUIRE(std::abs(load - expected) <= 0.005);  // the figures have two decimals
    }
}

TEST_CASE("optim/placement: the longest remaining piece goes to the least loaded rank") {
    REQUIRE(longest_processing_time({3, 3, 2, 2, 2}, 2) == std::vector<int>{0, 1, 0, 1, 0});
    REQUIRE(longest_processing_time({1, 5, 1, 1}, 3) == std::vector<int>{1, 0, 2, 1});
    REQUIRE(longest_processing_time({1, 2}, 5) == std::vector<int>{1, 0});
    REQUIRE(longest_processing_time({}, 3).empty());
}

TEST_CASE("optim/placement: every element belongs to one rank, and all elements of a stack to the same rank") {
    const TableShape shapes[] = {{1, 8, 12, 17}, {3, 8, 13, 11, true, 4, 16}, {5, 10, 45, 77, false, 0, 48}};
    for (const TableShape& shape : shapes)
        for (Method method : {Method::adamw, Method::lion, Method::normuon, Method::teon})
            for (int ranks : {1, 2, 3, 4, 7, 64}) {
                INFO(name_of(method) << ", " << shape.L << " layers, " << ranks << " ranks");
                const ParamTable table = make_table(shape);
                const OptimizerOptions options = options_of(method);
                const OptimizerPlan plan = plan_optimizer(table, options);
                const Placement placement = place(table, plan, options, ranks);
                const std::vector<int> owner = ranks_of_elements(placement.all_parts(), table.size());
                for (const ParamRow& row : table.rows())
                    for (int64_t i = row.offset; i < row.offset + row.size(); ++i)
                        REQUIRE((owner[i] >= 0 && owner[i] < ranks));
                for (size_t s = 0; s < plan.stacks.size(); ++s)
                    for (int r : plan.stacks[s].params)
                        for (int64_t i = table[r].offset; i < table[r].offset + table[r].size(); ++i)
                            REQUIRE(owner[i] == placement.owner[s]);
                // A rank's part of a run starts at an element of a parameter, never in a gap, which has no owner.
                for (const ElementRun& run : element_runs(table, plan, options))
                    for (const Part& part : placement.elements) {
                        const int64_t from = std::max(part.offset, run.begin);
                        if (from < std::min(part.offset + part.size, run.begin + run.size))
                            REQUIRE(owner[run.offset + from - run.begin] == part.root);
                    }
                // The parts of one layer's rows have the same owners and contain only this layer.
                for (int layer = -1; layer < shape.L; ++layer) {
                    std::vector<int> rows;
                    for (int i = 0; i < table.count(); ++i)
                        if (table[i].layer == layer) rows.push_back(i);
                    const std::vector<int> part = ranks_of_elements(placement.parts_of(rows), table.size());
                    for (int i = 0; i < table.count(); ++i)
                        for (int64_t e = table[i].offset; e < table[i].offset + table[i].size(); ++e)
                            REQUIRE(part[e] == (table[i].layer == layer ? owner[e] : -1));
                }
            }
}

TEST_CASE("optim/placement: AdamW's elements are divided evenly and state is counted once") {
    for (int ranks : {1, 2, 5, 8}) {
        const ParamTable table = make_table(preset_shapes()[0]);
        const OptimizerOptions options = options_of(Method::teon);
        const OptimizerPlan plan = plan_optimizer(table, options);
        const Placement p = place(table, plan, options, ranks);
        REQUIRE(std::accumulate(p.state_bytes.begin(), p.state_bytes.end(), int64_t{0}) == plan.state_bytes);
        for (const Part& part : p.elements) REQUIRE(std::abs(part.size - p.elements[0].size) <= 64 * ranks);
        double flops = 0;
        for (const Stack& stack : plan.stacks) flops += stack.flops;
        REQUIRE(std::abs(std::accumulate(p.load.begin(), p.load.end(), 0.0) - flops) <= 1e-9 * flops);
        REQUIRE(p.imbalance() >= 1);
    }
    REQUIRE_THROWS_AS(place(ParamTable(), OptimizerPlan(), OptimizerOptions(), 0), Error);
}

TEST_CASE("optim/placement: the table shows each rank's memory and the traffic of a step") {
    const ParamTable table = make_table(preset_shapes()[0]);
    const OptimizerOptions options = options_of(Method::teon);
    const OptimizerPlan plan = plan_optimizer(table, options);
    const Placement placement = place(table, plan, options, 64);
    const std::string text = placement_table(table, placement, {Sharding::optimizer, DType::bf16}, 50);
    // 63/64 of all elements, 4 bytes each for gradients and 2 for weights.
    const double gradients = 63.0 / 64 * 4 * static_cast<double>(table.size());
    REQUIRE(contains(
        text, fmt::format("{:.1f} MiB of gradients + {:.1f} MiB of weights", gradients / 0x1p20, gradients / 0x1p21)));
    REQUIRE(contains(text, fmt::format("{:.2f} ms + {:.2f} ms at 50 GB/s", gradients / 50e6, gradients / 100e6)));
    REQUIRE(contains(text, "load max/mean 1."));
}
