// One row per parameter. Buffer sizes, initialization, optimizer assignment, weight decay, checkpoint layout, sharding
// and test names all derive from this table; optim/ and train/ see of a model only this header, param_layout.h,
// param_store.h and model.h.
#pragma once

#include <cstdint>
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
bool is_hidden_matrix(Role role);  // q, k, v, o and the mlp matrices: what Muon and Teon may take

// Where a parameter is found in a Hugging Face checkpoint: rows of `tensor`, or columns where it is stored transposed.
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
    int logical_rows = 1, logical_cols = 1;  // without padding; what is counted, initialized and exported
    Init init = Init::normal;
    float init_std = 0;
    bool decay = false;   // weight decay applies (matrices and embeddings; never vectors)
    int heads = 1;        // attention heads whose outputs the rows are, as many rows each (q, k, v)
    bool joined = false;  // begins where the row before it ends, so that one GEMM may use both (q, k, v; gate, up)
    CheckpointSlot slot;
    int64_t offset = 0;  // its first element in the table's numbering; set by ParamTable
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
    int64_t logical_size() const { return static_cast<int64_t>(logical_rows) * logical_cols; }
};

class ParamTable {
public:
    // Assigns offsets: every row starts at a multiple of kParamAlignment unless it is joined to the one before.
    int add(ParamRow row);  // returns its index; throws Error on a duplicate name
    const std::vector<ParamRow>& rows() const { return rows_; }
    const ParamRow& operator[](int i) const { return rows_[i]; }
    int count() const { return static_cast<int>(rows_.size()); }
    int find(std::string_view name) const;  // throws Error naming it when absent
    int64_t size() const { return size_; }  // elements of a buffer of all rows, gaps and padding included
    int64_t logical_size() const;           // the number of parameters people quote
private:
    std::vector<ParamRow> rows_;
    int64_t size_ = 0;
};

}  // namespace teon
