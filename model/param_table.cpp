#include "model/param_table.h"

#include "base/integer.h"
#include "kernels/fill.h"

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
    for (const ParamRow& other : rows_) CHECK(other.name != row.name, "parameter '{}' is in the table twice", row.name);
    CHECK(row.rows > 0 && row.cols > 0, "parameter '{}' has shape {} x {}", row.name, row.rows, row.cols);
    constexpr int64_t kAlignment = 64;  // elements: 256 bytes in float, 128 in bf16
    if (!row.joined) size_ = round_up(size_, kAlignment);
    row.offset = size_;
    size_ += row.size();
    rows_.push_back(std::move(row));
    return count() - 1;
}

int ParamTable::find(std::string_view name) const {
    for (int i = 0; i < count(); ++i)
        if (rows_[i].name == name) return i;
    throw Error(fmt::format("no parameter is called '{}'", name));
}

int64_t ParamTable::logical_size() const {
    int64_t sum = 0;
    for (const ParamRow& row : rows_) sum += row.logical_size();
    return sum;
}

ParamStore::ParamStore(const ParamTable& table, DType dtype, const Stream& stream, bool gradients)
    : table_(table), dtype_(dtype), master_(table.size()), grad_(gradients ? table.size() : 0) {
    CHECK(dtype == DType::f32 || dtype == DType::bf16, "parameters are stored as float or bf16, not {}",
          name_of(dtype));
    if (dtype == DType::bf16) work_ = Buffer<bf16>(table.size());
    zero(master_.data(), master_.size(), stream);  // the gaps between rows must hold zeros, not whatever memory held
    sync_work(stream);
    zero(grad_.data(), grad_.size(), stream);
}

void ParamStore::initialize(uint64_t seed, const Stream& stream) {
    for (int i = 0; i < table_.count(); ++i) {
        const ParamRow& row = table_[i];
        if (row.init == Init::normal) {
            fill_normal(master(i), row.rows, row.cols, row.logical_rows, row.logical_cols, row.init_std, seed, i,
                        stream);
        } else {
            float value = row.init == Init::ones ? 1.0f : 0.0f;
            fill_constant(master(i), row.rows, row.cols, row.logical_rows, row.logical_cols, value, stream);
        }
    }
    sync_work(stream);
}

void ParamStore::sync_work(const Stream& stream) {
    if (dtype_ == DType::bf16) cast(work_.data(), master_.data(), table_.size(), stream);
}

}  // namespace teon
