// Which parameters a rank keeps, and where. ParamTable numbers all elements; a layout says where in one buffer of one
// rank an element lies. Memory (plan/memory.h), kernels' pointers and communication all follow from layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/param_table.h"
#include "runtime/comm.h"

namespace teon {

// What ranks divide among themselves (docs/distributed.md). Each includes the ones before it.
enum class Sharding { none, optimizer, gradients, all };
template <>
inline constexpr auto kEnumNames<Sharding> = enum_names<Sharding>({{Sharding::none, "none"},
                                                                   {Sharding::optimizer, "optimizer"},
                                                                   {Sharding::gradients, "gradients"},
                                                                   {Sharding::all, "all"}});

class ParamLayout {
public:
    struct Piece {
        int64_t element, at, size;  // elements of the table from `element` on lie in the buffer from `at` on
    };

    ParamLayout() = default;  // holds nothing
    static ParamLayout whole(const ParamTable& table);
    // These parts of the table, each with its offset's remainder by 64, so that kernels vectorize and sum alike in all
    // layouts.
    static ParamLayout of_parts(const std::vector<Part>& parts);
    // The matrices of layers l, l + 2, l + 4, ... have the same place; everything else has a place of its own.
    static ParamLayout windows(const ParamTable& table);

    int64_t size() const { return size_; }       // elements of the buffer, gaps included
    int64_t at(int64_t element) const;           // throws Error if the layout does not hold it
    std::vector<Piece> pieces(Part part) const;  // what the layout holds of a part, ascending
    // The same pieces of several parts as they lie in the buffer, with their roots.
    std::vector<Part> in_buffer(const std::vector<Part>& parts) const;

private:
    void append(const Piece& piece);
    std::vector<Piece> pieces_;  // ascending by element
    int64_t size_ = 0;
};

// The layer with whose window a parameter is exchanged; -1: it has a place of its own. So have vectors, because the
// layer above may write the gradient of a bias.
inline int window_layer(const ParamRow& row) { return is_hidden_matrix(row.role) ? row.layer : -1; }
// The parameters of each window_layer: those of l at l + 1.
std::vector<std::vector<int>> rows_by_window(const ParamTable& table);

// A rank's share. own: the parts that it updates; nullopt: it is alone, or keeps everything.
struct ParamShard {
    Sharding sharding = Sharding::optimizer;
    std::optional<std::vector<Part>> own = std::nullopt;
    bool offload = false;  // optimizer state, and in bf16 the masters, lie in the host's memory
};

// A rank's buffers of parameters and gradients. A layout that holds nothing: there is no such buffer.
struct ParamLayouts {
    ParamLayout masters;         // float
    ParamLayout copy;            // bf16 working weights; in float the masters are the working weights
    ParamLayout weight_windows;  // working weights that passes read, if the rank does not keep all
    ParamLayout gradients;       // float, as the backward pass writes them
    ParamLayout sums;            // float, of the rank's own parts over all ranks, if not where they are written
    ParamLayouts(const ParamTable& table, DType dtype, const ParamShard& shard);
};

}  // namespace teon
