// One row per parameter. Buffer sizes, initialization, optimizer assignment, weight decay, checkpoint layout, sharding
// and test names all derive from this table. Of model/, optim/ and train/ see only this header, param_layout.h,
// param_store.h and model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"

namespace teon {

enum class Role { token_embedding, position_embedding, norm, bias, q, k, v, o, mlp_up, mlp_gate, mlp_down, head };
template <>
inline constexpr auto kEnumNames<Role> = enum_names<Role>({{Role::token_embedding, "token-embedding"},
                                                           {Role::position_embedding, "position-embedding"},
                                                           {Role::norm, "norm"},
                                                           {Role::bias, "bias"},
                                                           {Role::q, "q"},
                                                           {Role::k, "k"},
                                                           {Role::v, "v"},
                                                           {Role::o, "o"},
                                                           {Role::mlp_up, "mlp-up"},
                                                           {Role::mlp_gate, "mlp-gate"},
                                                           {Role::mlp_down, "mlp-down"},
                                                           {Role::head, "head"}});
bool is_hidden_matrix(Role role);  // q, k, v, o and the MLP's matrices, which Muon and Teon may update

// The location of a parameter in a Hugging Face checkpoint: rows of `tensor`, or columns if it is stored transposed.
struct CheckpointSlot {
    std::string tensor;       // "transformer.h.0.attn.c_attn.weight"
    int part = 0, parts = 1;  // this parameter is block `part` of `parts` equal blocks along the output dimension
    bool transposed = false;  // stored (in, out), as GPT-2's Conv1D does
};

enum class Init { normal, ones, zeros };

constexpr int64_t kParamAlignment = 64;  // elements: 256 bytes in float, 128 in bf16

struct ParamRow {
    std::string name;  // unique: "h.0.attn.q.weight"
    Role role;
    int layer = -1;          // -1: not in a layer
    int rows = 1, cols = 1;  // as stored, in y = x W^T: rows = outputs m, cols = inputs n; a vector is 1 x n
    int logical_rows = 1, logical_cols = 1;  // without padding; counted, initialized and exported
    Init init = Init::normal;
    float init_std = 0;
    bool decay = false;   // weight decay applies (matrices and embeddings; never vectors)
    int heads = 1;        // attention heads among which the rows are divided equally (q, k, v)
    bool joined = false;  // starts where the previous row ends, so that one GEMM can use both (q, k, v; gate, up)
    CheckpointSlot slot;
    int64_t offset = 0;  // index of its first element in the table; set by ParamTable
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
    int64_t logical_size() const { return static_cast<int64_t>(logical_rows) * logical_cols; }
};

class ParamTable {
public:
    // Adds a row, assigns its offset and returns its index. Rows start at multiples of kParamAlignment unless they are
    // joined to the previous row. Throws Error on a duplicate name.
    int add(ParamRow row);
    const std::vector<ParamRow>& rows() const { return rows_; }
    const ParamRow& operator[](int i) const { return rows_[i]; }
    int count() const { return static_cast<int>(rows_.size()); }
    int find(std::string_view name) const;  // throws Error naming it if there is none
    int64_t size() const { return size_; }  // elements of a buffer of all rows, including gaps and padding
    int64_t logical_size() const;           // the number of parameters, without padding
private:
    std::vector<ParamRow> rows_;
    std::map<std::string, int, std::less<>> index_of_name_;
    int64_t size_ = 0;
};

}  // namespace teon
