// One row per parameter. Buffer sizes, initialization, optimizer assignment, weight decay, checkpoint layout, sharding
// and test names all derive from this table; optim/ and train/ see of a model only this header and model/model.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/context.h"

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
    int64_t offset = 0;  // elements from the beginning of each flat buffer; set by ParamTable
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
    int64_t logical_size() const { return static_cast<int64_t>(logical_rows) * logical_cols; }
};

class ParamTable {
public:
    // Assigns offsets: every row starts at a multiple of 64 elements unless it is joined to the one before.
    int add(ParamRow row);  // returns its index; throws Error on a duplicate name
    const std::vector<ParamRow>& rows() const { return rows_; }
    const ParamRow& operator[](int i) const { return rows_[i]; }
    int count() const { return static_cast<int>(rows_.size()); }
    int find(std::string_view name) const;  // throws Error naming it when absent
    int64_t size() const { return size_; }  // elements of a flat buffer, gaps and padding included
    int64_t logical_size() const;           // the number of parameters people quote
private:
    std::vector<ParamRow> rows_;
    int64_t size_ = 0;
};

// The flat buffers that the table lays out. In float the working weights are the master weights themselves.
class ParamStore {
public:
    // Gradients and gaps are zero. Without gradients there is no memory for them: for what only runs forward.
    ParamStore(const ParamTable& table, DType dtype, const Stream& stream, bool gradients = true);
    const ParamTable& table() const { return table_; }
    DType dtype() const { return dtype_; }
    float* master(int row) const { return master_.data() + table_[row].offset; }
    float* grad(int row) const { return grad_.data() + table_[row].offset; }
    template <typename T>
    T* work(int row) const {
        return static_cast<T*>(work_all()) + table_[row].offset;
    }
    float* master_all() const { return master_.data(); }
    float* grad_all() const { return grad_.data(); }
    void* work_all() const { return dtype_ == DType::f32 ? static_cast<void*>(master_.data()) : work_.data(); }
    // The working weights where they are a copy; nullptr in float, where the master weights are the working weights.
    bf16* work_copy() const { return dtype_ == DType::f32 ? nullptr : static_cast<bf16*>(work_all()); }
    void initialize(uint64_t seed, const Stream& stream);  // master from the table's Init; then sync_work
    void sync_work(const Stream& stream);                  // work = master, rounded

private:
    const ParamTable table_;
    DType dtype_;
    Buffer<float> master_, grad_;
    Buffer<bf16> work_;
};

}  // namespace teon
