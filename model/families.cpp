#include "model/families.h"

#include "model/gpt2.h"
#include "model/llama.h"
#include "model/olmo2.h"
#include "model/qwen3.h"

namespace teon {

const std::vector<ModelFamily>& families() {
    static const std::vector<ModelFamily> all = {gpt2_family(), llama_family(), qwen3_family(), olmo2_family()};
    return all;
}

}  // namespace teon
