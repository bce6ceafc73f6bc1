// One micro-batch on the device, the only input of a model.
#pragma once

#include <cstdint>

namespace teon {

// Views of int32 arrays of B * T elements on the device, row b * T + t.
struct Batch {
    int B = 0, T = 0;
    const int* tokens = nullptr;          // in [0, V)
    const int* targets = nullptr;         // the next token; -1 = not counted in the loss
    const int* positions = nullptr;       // t, or t - doc_start[t] with a document mask
    const int* doc_start = nullptr;       // the t at which t's document begins; nullptr = one document per row
    const int* token_order = nullptr;     // row numbers sorted by token, ties by row (data/row_sorter.h)
    const int* position_order = nullptr;  // row numbers sorted by position, ties by row
    // The number within the run of the first sequence's sample, the others' follow: one number on the device, which
    // keys dropout. nullptr: not known.
    const int64_t* first_sample = nullptr;

    bool operator==(const Batch&) const = default;
};

}  // namespace teon
