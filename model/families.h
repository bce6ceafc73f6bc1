#pragma once

#include "model/family.h"

namespace teon {

const std::vector<ModelFamily>& families();  // all families

// Throws UsageError naming the right program if the model_type in `config`, the contents of the file `path`, is that of
// a family that `among` lacks.
void check_program(const Json& config, const std::vector<ModelFamily>& among, const std::string& path);

}  // namespace teon
