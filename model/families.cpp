#include "model/families.h"

#include <algorithm>

#include "files/json.h"
#include "model/gpt2.h"
#include "model/llama.h"
#include "model/olmo2.h"
#include "model/qwen2.h"
#include "model/qwen3.h"
#include "model/smollm3.h"

namespace teon {

const std::vector<ModelFamily>& families() {
    static const std::vector<ModelFamily> all = {gpt2_family(),  llama_family(), qwen2_family(),
                                                 qwen3_family(), olmo2_family(), smollm3_family()};
    return all;
}

void check_program(const Json& config, const std::vector<ModelFamily>& among, const std::string& path) {
    for (const ModelFamily& family : families()) {
        const bool is_here = std::ranges::find(among, family.name, &ModelFamily::name) != among.end();
        const std::string type = JsonObject(config, path).get<std::string>("model_type", "");
        CHECK_USAGE(is_here || !family.reads(type), "{}: model_type is '{}'; its program is ./train_{}", path, type,
                    family.name);
    }
}

}  // namespace teon
