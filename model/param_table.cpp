#include "model/param_table.h"

#include "base/check.h"
#include "base/integer.h"

namespace teon {

bool is_hidden_matrix(Role role) {
    switch (role) {
        case Role::q:
        case Role::k:
        case Role::v:
        case Role::o:
        case Role::mlp_up:
        case Role::mlp_gate:
        case Role::mlp_down:
            return true;
        case Role::token_embedding:
        case Role::position_embedding:
        case Role::norm:
        case Role::bias:
        case Role::head:
            return false;
    }
    __builtin_unreachable();
}

int ParamTable::add(ParamRow row) {
    CHECK(!index_of_name_.count(row.name), "parameter '{}' is in the table twice", row.name);
    CHECK(row.rows > 0 && row.cols > 0, "parameter '{}' has shape {} x {}", row.name, row.rows, row.cols);
    if (!row.joined) size_ = round_up(size_, kParamAlignment);
    row.offset = size_;
    size_ += row.size();
    index_of_name_.emplace(row.name, count());
    rows_.push_back(std::move(row));
    return count() - 1;
}

int ParamTable::find(std::string_view name) const {
    const auto entry = index_of_name_.find(name);
    CHECK(entry != index_of_name_.end(), "no parameter is called '{}'", name);
    return entry->second;
}

int64_t ParamTable::logical_size() const {
    int64_t sum = 0;
    for (const ParamRow& row : rows_) sum += row.logical_size();
    return sum;
}

}  // namespace teon
