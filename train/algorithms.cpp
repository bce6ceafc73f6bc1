#include "train/algorithms.h"

#include <algorithm>

#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

constexpr int64_t kMaxBytes = int64_t{16} << 20;

std::string key(const std::string& device, const std::string& library, const std::string& product) {
    return device + "\n" + library + "\n" + product;
}

}  // namespace

AlgorithmFile::AlgorithmFile(std::string path, std::string device, std::string library)
    : path_(std::move(path)), device_(std::move(device)), library_(std::move(library)) {
    if (!path_exists(path_)) return;
    const std::string text = read_text(path_, kMaxBytes);
    int number = 0;
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        const std::string name = fmt::format("{}: line {}", path_, ++number);
        const std::string line = text.substr(begin, end - begin);
        const Json choice = parse_json(line, name);
        auto field = [&](const char* what) {
            CHECK_USAGE(choice.contains(what), "{} has no \"{}\"; remove the line, and its product is searched again",
                        name, what);
            return choice[what].get<std::string>(fmt::format("{}: \"{}\"", name, what));
        };
        const std::string of_device = field("device");
        const std::string of_library = field("library");
        const std::string product = field("product");
        const std::string algorithm = field("algorithm");
        lines_[key(of_device, of_library, product)] = line;
        if (of_device == device_ && of_library == library_) choices_[product] = algorithm;
    }
}

void AlgorithmFile::add(const AlgorithmChoice& c) {
    choices_[c.product] = c.algorithm;
    lines_[key(device_, library_, c.product)] = json_text({{"device", device_},
                                                           {"library", library_},
                                                           {"product", c.product},
                                                           {"algorithm", c.algorithm},
                                                           {"ms", c.ms},
                                                           {"first_ms", c.first_ms}},
                                                          {.in_order = true});
    std::string text;
    for (const auto& [_, line] : lines_) text += line + "\n";
    write_file_atomically(path_, text);
}

}  // namespace teon
