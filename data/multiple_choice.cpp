#include "data/multiple_choice.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "files/file.h"

namespace teon {

namespace {

constexpr size_t kHeaderBytes = 1024;
constexpr int kMagic = 20240522, kVersion = 1, kExampleBegins = 65535;

// The numbers of one example, read in order.
class Reader {
public:
    Reader(const std::string& path, const std::vector<uint16_t>& numbers, int vocab_size)
        : path_(path), numbers_(numbers), vocab_size_(vocab_size) {}

    bool done() const { return at_ == numbers_.size(); }
    size_t at() const { return at_; }
    int number() {
        CHECK_USAGE(at_ < numbers_.size(), "{}: ends within example {}", path_, example);
        return numbers_[at_++];
    }
    std::vector<int> tokens() {
        std::vector<int> list(static_cast<size_t>(number()));
        CHECK_USAGE(!list.empty(), "{}: example {} has a context or ending without tokens", path_, example);
        for (int& token : list) {
            token = number();
            CHECK_USAGE(token < vocab_size_, "{}: token {} in example {} is outside the model's vocabulary of {}",
                        path_, token, example, vocab_size_);
        }
        return list;
    }

    int example = 0;

private:
    const std::string& path_;
    const std::vector<uint16_t>& numbers_;
    int vocab_size_;
    size_t at_ = 0;
};

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
    Reader reader(path, numbers, vocab_size);
    for (; !reader.done(); ++reader.example) {
        const size_t begin = reader.at();
        CHECK_USAGE(reader.number() == kExampleBegins, "{}: example {} does not begin with {}", path, reader.example,
                    kExampleBegins);
        const auto bytes = static_cast<size_t>(reader.number());
        reader.number();  // its index, which equals its position
        MultipleChoice example;
        example.label = reader.number();
        const int count = reader.number();
        CHECK_USAGE(example.label < count, "{}: example {} has {} endings, but its right one is number {}", path,
                    reader.example, count, example.label);
        example.context = reader.tokens();
        for (int i = 0; i < count; ++i) example.endings.push_back(reader.tokens());
        CHECK_USAGE((reader.at() - begin) * 2 == bytes, "{}: example {} has {} bytes, but says {}", path,
                    reader.example, (reader.at() - begin) * 2, bytes);
        examples.push_back(std::move(example));
    }
    CHECK_USAGE(static_cast<int>(examples.size()) == header[2] && !examples.empty(),
                "{}: {} examples, its header says {}", path, examples.size(), header[2]);
    return examples;
}

}  // namespace teon
