#include "data/multiple_choice.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "files/file.h"

namespace teon {

namespace {

constexpr size_t kHeaderBytes = 1024;
constexpr int kMagic = 20240522;
constexpr int kVersion = 1;
constexpr int kExampleBegins = 65535;

}  // namespace

std::vector<MultipleChoice> read_multiple_choice(const std::string& path, int vocab_size) {
    const std::string file = read_text(path, int64_t{1} << 30);
    int32_t header[4];
    CHECK_USAGE(file.size() >= kHeaderBytes && file.size() % 2 == 0,
                "{}: {} bytes are not a header and numbers of two bytes", path, file.size());
    std::memcpy(header, file.data(), sizeof header);
    CHECK_USAGE(header[0] == kMagic && header[1] == kVersion, "{}: magic {} version {}, expected {} version {}", path,
                header[0], header[1], kMagic, kVersion);
    std::vector<uint16_t> numbers((file.size() - kHeaderBytes) / 2);
    std::memcpy(numbers.data(), file.data() + kHeaderBytes, numbers.size() * 2);

    std::vector<MultipleChoice> examples;
    size_t at = 0;
    auto number = [&] {
        CHECK_USAGE(at < numbers.size(), "{}: ends within example {}", path, examples.size());
        return int{numbers[at++]};
    };
    auto tokens = [&] {
        std::vector<int> list(static_cast<size_t>(number()));
        CHECK_USAGE(!list.empty(), "{}: example {} has a context or ending without tokens", path, examples.size());
        for (int& token : list) {
            token = number();
            CHECK_USAGE(token < vocab_size, "{}: token {} in example {} is outside the model's vocabulary of {}", path,
                        token, examples.size(), vocab_size);
        }
        return list;
    };
    while (at < numbers.size()) {
        const size_t begin = at;
        CHECK_USAGE(number() == kExampleBegins, "{}: example {} does not begin with {}", path, examples.size(),
                    kExampleBegins);
        const auto bytes = static_cast<size_t>(number());
        number();  // its index, which equals its position
        MultipleChoice example;
        example.label = number();
        const int count = number();
        CHECK_USAGE(example.label < count, "{}: example {} has {} endings, but its right one is number {}", path,
                    examples.size(), count, example.label);
        example.context = tokens();
        for (int i = 0; i < count; ++i) example.endings.push_back(tokens());
        CHECK_USAGE((at - begin) * 2 == bytes, "{}: example {} has {} bytes, but says {}", path, examples.size(),
                    (at - begin) * 2, bytes);
        examples.push_back(std::move(example));
    }
    CHECK_USAGE(static_cast<int>(examples.size()) == header[2] && !examples.empty(),
                "{}: {} examples, its header says {}", path, examples.size(), header[2]);
    return examples;
}

}  // namespace teon
