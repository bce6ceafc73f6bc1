// Adds a decoder's rows to the parameter table, in the order of the forward pass.
#pragma once

#include "model/decoder_config.h"
#include "model/param_table.h"

namespace teon {

struct ParamBuilder {
    ParamTable& table;
    bool transposed;  // checkpoints store linear weights (in, out)
    int layer = -1;   // the layer of the rows added next; -1: none

    // Both add a row and return its index. Logical sizes exclude padding.
    int matrix(const ParamName& name, Role role, int rows, int cols, int logical_rows, int logical_cols, float std,
               bool joined = false, int heads = 1) {
        ParamRow row = make(name, "weight", role, rows, cols, logical_rows, logical_cols);
        row.slot.transposed = transposed && is_hidden_matrix(role);
        row.init_std = std;
        row.decay = true;
        row.joined = joined;
        row.heads = heads;
        return table.add(std::move(row));
    }
    int vector(const ParamName& name, const char* suffix, Role role, int n, int logical_n, Init init,
               bool joined = false) {
        ParamRow row = make(name, suffix, role, 1, n, 1, logical_n);
        row.init = init;
        row.joined = joined;
        return table.add(std::move(row));
    }

private:
    ParamRow make(const ParamName& name, const char* suffix, Role role, int rows, int cols, int logical_rows,
                  int logical_cols) const {
        ParamRow row;
        row.name = fmt::format("{}.{}", fmt::format(fmt::runtime(name.name), layer), suffix);
        row.slot = {fmt::format("{}.{}", fmt::format(fmt::runtime(name.checkpoint), layer), suffix), name.part,
                    name.parts, false};
        row.role = role;
        row.layer = layer;
        row.rows = rows;
        row.cols = cols;
        row.logical_rows = logical_rows;
        row.logical_cols = logical_cols;
        return row;
    }
};

}  // namespace teon
