#include "model/param_layout.h"

#include <set>

#include "optim/placement.h"
#include "test/optim/param_tables.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

// The position of a row in the buffer, which must hold the row in one piece.
int64_t position_of(const ParamLayout& layout, const ParamRow& row) {
    const std::vector<ParamLayout::Piece> pieces = layout.pieces({row.offset, row.size()});
    REQUIRE(pieces.size() == 1);
    REQUIRE(pieces[0].element == row.offset);
    REQUIRE(pieces[0].size == row.size());
    REQUIRE(pieces[0].at == layout.at(row.offset));
    REQUIRE(pieces[0].at + pieces[0].size <= layout.size());
    return pieces[0].at;
}

}  // namespace

TEST_CASE("model/param_layout: layers alternate between two windows, and everything else has its own memory") {
    for (int L : {1, 2, 3, 5}) {
        const ParamTable table = make_table({L, 8, 13, 11, true, 4, 16});
        const ParamLayout windows = ParamLayout::windows(table);
        std::vector<std::vector<bool>> taken(3, std::vector<bool>(static_cast<size_t>(windows.size())));
        int64_t before = 0;
        for (int i = 0; i < table.count(); ++i) {
            const ParamRow& row = table[i];
            const int64_t at = position_of(windows, row);
            if (row.joined) REQUIRE(at == before);
            if (!row.joined) REQUIRE(at % 64 == 0);
            before = at + row.size();
            const int layer = window_layer(row);
            REQUIRE(layer == (is_hidden_matrix(row.role) ? row.layer : -1));
            for (int j = 0; j < i; ++j)
                if (table[j].role == row.role && layer >= 0 && table[j].layer == row.layer - 2)
                    REQUIRE(position_of(windows, table[j]) == at);
            if (layer > 1) continue;  // shares memory with layer - 2
            auto& mine = taken[static_cast<size_t>(layer < 0 ? 2 : layer)];
            for (int64_t e = at; e < at + row.size(); ++e) {
                for (const auto& region : taken) REQUIRE(!region[static_cast<size_t>(e)]);
                mine[static_cast<size_t>(e)] = true;
            }
        }
        REQUIRE(windows.pieces({0, table.size()}).size() <= static_cast<size_t>(table.count()));
        if (L > 2) REQUIRE(windows.size() < table.size());
    }
}

TEST_CASE("model/param_layout: the ranks' own parts hold each element once, with the alignment of the whole") {
    const ParamTable table = make_table({3, 8, 13, 11, true, 4, 16});
    OptimizerOptions options;
    for (Method method : {Method::adamw, Method::teon})
        for (int ranks : {1, 2, 3, 7, 64}) {
            options.method = method;
            const OptimizerPlan plan = plan_optimizer(table, options);
            const Placement placement = place(table, plan, options, ranks);
            int64_t held = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const ParamLayout rank_part = ParamLayout::of_parts(placement.own_parts(rank));
                REQUIRE(rank_part.size() > 0);  // even if the rank owns nothing
                int64_t end = 0;
                for (const ParamLayout::Piece& p : rank_part.pieces({0, table.size()})) {
                    REQUIRE(p.at >= end);
                    REQUIRE(p.at % 64 == p.element % 64);
                    REQUIRE(rank_part.at(p.element + p.size - 1) == p.at + p.size - 1);
                    end = p.at + p.size;
                    held += p.size;
                }
                REQUIRE(end <= rank_part.size());
            }
            int64_t all = 0;
            for (const Part& part : placement.all_parts()) all += part.size;
            REQUIRE(held == all);
        }
}

TEST_CASE("model/param_layout: pieces() returns the pieces of a part that the layout holds") {
    const ParamLayout layout = ParamLayout::of_parts({{10, 5, 0}, {100, 20, 0}});
    REQUIRE(layout.at(14) == layout.at(10) + 4);
    const std::vector<ParamLayout::Piece> pieces = layout.pieces({12, 90});
    REQUIRE(pieces.size() == 2);
    REQUIRE(pieces[0].element == 12);
    REQUIRE(pieces[0].size == 3);
    REQUIRE(pieces[1].element == 100);
    REQUIRE(pieces[1].size == 2);
    REQUIRE(layout.pieces({15, 85}).empty());
    for (int64_t absent : {int64_t{-1}, int64_t{0}, int64_t{9}, int64_t{15}, int64_t{120}})
        REQUIRE_THROWS_AS(layout.at(absent), Error);
    const std::vector<Part> parts = layout.in_buffer({{0, 200, 3}});
    REQUIRE(parts.size() == 2);
    REQUIRE(parts[1].offset == layout.at(100));
    REQUIRE(parts[1].root == 3);
}

TEST_CASE("model/param_layout: each sharding includes the previous ones") {
    const ParamTable table = make_table({6, 8, 13, 11, true, 4, 16});
    const std::vector<Part> parts = {{64, 100, 0}};
    for (DType dtype : {DType::bf16, DType::f32}) {
        for (const auto& [sharding, name] : kEnumNames<Sharding>) {
            INFO(name);
            const ParamLayouts held(table, dtype, {sharding, parts});
            const ParamLayouts alone(table, dtype, {sharding});
            const bool divides_masters =
                sharding == Sharding::all || (dtype == DType::bf16 && sharding != Sharding::none);
            REQUIRE((held.masters.size() < table.size()) == divides_masters);
            REQUIRE((held.gradients.size() < table.size()) == (sharding >= Sharding::gradients));
            REQUIRE((held.sums.size() > 0) == (sharding >= Sharding::gradients));
            REQUIRE((held.weight_windows.size() > 0) == (sharding == Sharding::all));
            REQUIRE((held.copy.size() > 0) == (dtype == DType::bf16));
            REQUIRE(alone.masters.size() == table.size());
            REQUIRE(alone.gradients.size() == table.size());
            REQUIRE(alone.sums.size() + alone.weight_windows.size() == 0);
        }
    }
    REQUIRE_THROWS_AS(ParamLayouts(table, DType::f16, {}), Error);
}
