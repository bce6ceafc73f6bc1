#include "checkpoint/hub.h"

#include "base/check.h"
#include "base/standard_streams.h"
#include "files/json.h"
#include "files/line_server.h"
#include "files/script.h"

namespace teon {

std::string local_model(const std::string& name) {
    if (!name.starts_with("hf:")) return name;
    print_error(name + ": from the Hugging Face Hub or its cache\n");
    constexpr double kPatienceSeconds = 7 * 24 * 3600.0;  // the hub's client itself gives up sooner if nothing arrives
    const std::string script = "the answer of scripts/fetch_model.py";
    LineServer server(script_commands("fetch_model.py", {name}), kPatienceSeconds);
    const Json answer = parse_json(server.ask("{}"), script);
    CHECK_USAGE(!answer.contains("error"), "{}", JsonObject(answer, script).get<std::string>("error", ""));
    return JsonObject(answer, script).at<std::string>("folder");
}

}  // namespace teon
