// Which parameters a rank keeps, and where. ParamTable numbers all elements; a layout maps these numbers to positions
// in one buffer of one rank. Memory (plan/memory.h), kernels' pointers and communication all follow from layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/param_table.h"
#include "runtime/cuda/comm.h"

namespace teon {

// The tensors that are sharded across ranks (docs/distributed.md). Each value includes the values before it.
enum class Sharding { none, optimizer, gradients, all };
template <>
inline constexpr auto kEnumNames<Sharding> = enum_names<Sharding>({{Sharding::none, "none"},
                                                                   {Sharding::optimizer, "optimizer"},
                                                                   {Sharding::gradients, "gradients"},
                                                                   {Sharding::all, "all"}});

class ParamLayout {
public:
    struct Piece {
        int64_t element, at, size;  // `size` elements: from `element` on in the table, from `at` on in the buffer
    };

    ParamLayout() = default;  // empty
    static ParamLayout whole(const ParamTable& table);
    // The given parts of the table. Each keeps its offset modulo kParamAlignment, so that kernels vectorize and sum
    // equally in all layouts.
    static ParamLayout of_parts(const std::vector<Part>& parts);
    // The matrices of layers l, l + 2, l + 4, ... share memory; everything else has its own.
    static ParamLayout windows(const ParamTable& table);

    int64_t size() const { return size_; }       // elements of the buffer, gaps included
    int64_t at(int64_t element) const;           // throws Error if the layout does not hold it
    std::vector<Piece> pieces(Part part) const;  // the layout's pieces of a part, ascending
    // The pieces of several parts as parts of the buffer, with their roots.
    std::vector<Part> in_buffer(const std::vector<Part>& parts) const;

private:
    void append(const Piece& piece);
    std::vector<Piece> pieces_;  // ascending by element
    int64_t size_ = 0;
};

// The layer whose window contains a parameter; -1: it has memory of its own, as every vector does. The backward pass of
// layer l + 1 writes the gradient of a bias of layer l, whose window may still hold gradients of layer l + 2.
inline int window_layer(const ParamRow& row) { return is_hidden_matrix(row.role) ? row.layer : -1; }
// Returns the rows of each window_layer; layer l is at index l + 1.
std::vector<std::vector<int>> rows_by_window(const ParamTable& table);

// A rank's share of the parameters.
struct ParamShard {
    Sharding sharding = Sharding::optimizer;
    // The parts that it updates; nullopt: it keeps everything.
    std::optional<std::vector<Part>> own_parts = std::nullopt;
    bool offload = false;  // optimizer state and, in bf16, the master weights are in host memory
};

// The layouts of a rank's parameters and gradients. An empty layout means that the buffer does not exist.
struct ParamLayouts {
    ParamLayout masters;         // master weights, float
    ParamLayout copy;            // working weights in bf16; in float, the masters are the working weights
    ParamLayout weight_windows;  // the working weights that passes read, if the rank does not keep all
    ParamLayout gradients;       // float, as the backward pass writes them
    ParamLayout sums;            // float, the rank's own parts summed over all ranks, unless they are summed in place
    ParamLayouts(const ParamTable& table, DType dtype, const ParamShard& shard);
    int64_t bytes(DType dtype) const {  // dtype: of the working weights
        return size_of(DType::f32) * (masters.size() + gradients.size() + sums.size()) +
               size_of(dtype) * (copy.size() + weight_windows.size());
    }
};

}  // namespace teon
