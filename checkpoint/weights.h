// Conversion between the parameter table and Hugging Face's tensors: names, joined blocks, orientation and padding.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/param_store.h"

namespace teon {

// One tensor of a checkpoint and the parameters that it holds.
struct CheckpointTensor {
    std::string name;
    std::vector<int64_t> shape;  // without padding, as the checkpoint stores it
    std::vector<int> params;     // rows of the table, in order of their part
    int64_t elements() const;
};
std::vector<CheckpointTensor> checkpoint_tensors(const ParamTable& table);

// Copies a parameter from its storage (rows x cols with padding) to its place in the checkpoint tensor's elements.
void gather_param(const ParamRow& row, const float* storage, float* tensor);

// Returns whether all padding in a parameter's storage has the bits of zero.
bool padding_is_zero(const ParamRow& row, const float* storage);

// Checks that these are the weights of this model, before any memory is allocated for them. Throws UsageError naming
// file and tensor if a tensor is absent, has another shape, belongs to a layer that the model lacks, or is a head that
// differs from the embedding to which the model ties it. Returns the names of the tensors that are not used.
std::vector<std::string> check_weights(const ParamTable& table, const SafetensorsModel& model);

// Sets all master and working weights from the model. Names may lack the prefix "transformer." or "model.", as some
// published ones do. Throws Error naming file and tensor if a tensor is absent, has another shape or is not finite.
void load_weights(ParamStore& params, const SafetensorsModel& model, const Stream& stream);

}  // namespace teon
