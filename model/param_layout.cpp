#include "model/param_layout.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/integer.h"

namespace teon {

void ParamLayout::append(const Piece& piece) {
    size_ = std::max(size_, piece.at + piece.size);
    if (!pieces_.empty()) {
        Piece& last = pieces_.back();
        if (last.element + last.size == piece.element && last.at + last.size == piece.at) {
            last.size += piece.size;
            return;
        }
    }
    pieces_.push_back(piece);
}

ParamLayout ParamLayout::whole(const ParamTable& table) {
    ParamLayout layout;
    layout.append({0, 0, table.size()});
    return layout;
}

ParamLayout ParamLayout::of_parts(const std::vector<Part>& parts) {
    ParamLayout layout;
    for (const Part& part : parts)
        layout.append(
            {part.offset, round_up(layout.size_, kParamAlignment) + part.offset % kParamAlignment, part.size});
    layout.size_ = std::max(layout.size_, kParamAlignment);  // a rank may own nothing
    return layout;
}

ParamLayout ParamLayout::windows(const ParamTable& table) {
    struct Region {
        int layer = -1;
        int64_t size = 0, most = 0;
    };
    std::array<Region, 3> regions;  // even layers, odd layers, everything else
    std::vector<Piece> pieces;
    const auto region_of = [](const ParamRow& row) {
        const int layer = window_layer(row);
        return static_cast<size_t>(layer < 0 ? 2 : layer % 2);
    };
    for (const ParamRow& row : table.rows()) {
        Region& region = regions[region_of(row)];
        if (region.layer != window_layer(row)) region = {window_layer(row), 0, region.most};
        const int64_t at = row.joined ? region.size : round_up(region.size, kParamAlignment);
        pieces.push_back({row.offset, at, row.size()});
        region.size = at + row.size();
        region.most = std::max(region.most, region.size);
    }
    const std::array<int64_t, 3> begin = {
        0, round_up(regions[0].most, kParamAlignment),
        round_up(regions[0].most, kParamAlignment) + round_up(regions[1].most, kParamAlignment)};
    ParamLayout layout;
    for (int i = 0; i < table.count(); ++i) {
        Piece& piece = pieces[static_cast<size_t>(i)];
        piece.at += begin[region_of(table[i])];
        layout.append(piece);
    }
    return layout;
}

int64_t ParamLayout::at(int64_t element) const {
    const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), element,
                                       [](int64_t e, const Piece& piece) { return e < piece.element; });
    CHECK(next != pieces_.begin() && element < next[-1].element + next[-1].size,
          "element {} of the parameters is not on this rank", element);
    return next[-1].at + element - next[-1].element;
}

std::vector<ParamLayout::Piece> ParamLayout::pieces(Part part) const {
    std::vector<Piece> overlaps;
    const auto ends_before = [](const Piece& piece, int64_t e) { return piece.element + piece.size <= e; };
    for (auto p = std::lower_bound(pieces_.begin(), pieces_.end(), part.offset, ends_before);
         p != pieces_.end() && p->element < part.offset + part.size; ++p) {
        const int64_t from = std::max(p->element, part.offset);
        const int64_t to = std::min(p->element + p->size, part.offset + part.size);
        overlaps.push_back({from, p->at + from - p->element, to - from});
    }
    return overlaps;
}

std::vector<Part> ParamLayout::in_buffer(const std::vector<Part>& parts) const {
    std::vector<Part> buffer_parts;
    for (const Part& part : parts)
        for (const Piece& piece : pieces(part)) buffer_parts.push_back({piece.at, piece.size, part.root});
    return buffer_parts;
}

std::vector<std::vector<int>> rows_by_window(const ParamTable& table) {
    std::vector<std::vector<int>> rows(1);
    for (int i = 0; i < table.count(); ++i) {
        const auto at = static_cast<size_t>(window_layer(table[i]) + 1);
        if (rows.size() <= at) rows.resize(at + 1);
        rows[at].push_back(i);
    }
    return rows;
}

ParamLayouts::ParamLayouts(const ParamTable& table, DType dtype, const ParamShard& shard) {
    CHECK(dtype == DType::f32 || dtype == DType::bf16, "parameters are stored as float or bf16, not {}",
          name_of(dtype));
    const ParamLayout whole = ParamLayout::whole(table);
    const auto own_from = [&](Sharding least) {
        return shard.own_parts && shard.sharding >= least ? ParamLayout::of_parts(*shard.own_parts) : whole;
    };
    masters = own_from(dtype == DType::bf16 ? Sharding::optimizer : Sharding::all);
    if (dtype == DType::bf16) copy = own_from(Sharding::all);
    gradients = whole;
    if (shard.own_parts && shard.sharding >= Sharding::gradients) {
        gradients = ParamLayout::windows(table);
        sums = own_from(Sharding::gradients);
    }
    if (shard.own_parts && shard.sharding == Sharding::all) weight_windows = ParamLayout::windows(table);
}

}  // namespace teon
