// What decides the mask of dropout.
#pragma once

#include <cstdint>

namespace teon {

// Which elements are dropped. Element (row, column) of a sequence is dropped if word column % 4 of
//   Philox4x32-10(counter = {site 2^18 + column / 4, row, sample}, key = seed ^ kDropoutStream)
// is below floor(p 2^32). sample: the sequence's number in the run (data/loader.h), which also stands for the step. So
// a mask is never stored, and it depends neither on micro-batches, ranks and recomputation nor on when a run resumed.
// `sample` and the key are 64-bit numbers, low word first.
struct DropoutMask {
    float p = 0;  // in [0, 1); 0: nothing is dropped
    uint64_t seed = 0;
    uint32_t site = 0;                      // the place in the model, below 2^14
    const int64_t* first_sample = nullptr;  // on the device: sample of the batch's first sequence
    int first_sequence = 0;                 // sequence of the batch that the operation begins with
};
// Keeps masks apart from the initial weights of the same seed: "drop" in ASCII, in the high word.
inline constexpr uint64_t kDropoutStream = uint64_t{0x64726f70} << 32;

}  // namespace teon
