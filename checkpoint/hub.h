// Models on the Hugging Face Hub.
#pragma once

#include <string>

namespace teon {

// Returns the folder of the model hf:OWNER/NAME or hf:OWNER/NAME:REVISION, which scripts/fetch_model.py fetches or
// finds in the hub's cache; any other name as it is. Throws UsageError if there is no such model.
std::string local_model(const std::string& name);

}  // namespace teon
