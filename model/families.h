#pragma once

#include "model/family.h"

namespace teon {

const std::vector<ModelFamily>& families();  // all families

}  // namespace teon
