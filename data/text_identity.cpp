#include "data/text_identity.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/hash.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "files/file.h"

namespace teon {

namespace {

constexpr int kReadTokens = 1 << 16;

bool is_white_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Hashes a text piece by piece and records its beginnings.
class TextHash {
public:
    void update(std::string_view text) {
        for (const char c : text) {
            if (is_white_space(c)) continue;
            pending_ += c;
            if (++identity_.bytes == next_) record();
        }
    }

    const TextIdentity& identity() const { return identity_; }

private:
    void record() {
        hash_.update(pending_.data(), pending_.size());
        pending_.clear();
        identity_.beginnings.emplace_back(next_, fmt::format("{:016x}", hash_.digest()));
        if (next_ == 32 * unit_) {
            unit_ *= 2;  // this beginning is the 16th of the new unit; the earlier ones keep every second one from 8
            std::erase_if(identity_.beginnings,
                          [&](const auto& b) { return b.first % unit_ != 0 || b.first < 8 * unit_; });
        }
        next_ += unit_;
    }

    TextIdentity identity_;
    Hash hash_;
    std::string pending_;
    int64_t unit_ = 1;
    int64_t next_ = 1;  // bytes of the next beginning to record
};

}  // namespace

std::optional<TextIdentity> text_identity(const DataSet& data, const std::string& tokenizer, int T, int64_t windows) {
    if (data.shards.empty() || !path_exists(tokenizer + "/tokens.bin")) return std::nullopt;
    const Tokenizer tokens(tokenizer);
    ShardReader reader(data.shards, tokens.vocab_size());
    TextHash hash;
    std::vector<int> buffer(kReadTokens);
    for (int s = 0; s < static_cast<int>(data.shards.size()) && windows > 0; ++s) {
        const int64_t size = data.shards[static_cast<size_t>(s)].tokens;
        const int64_t windows_here = std::max<int64_t>(0, (size - 1) / T);
        const int64_t end =
            windows > windows_here ? size : windows * T + 1;  // a window's last target is one token later
        windows -= windows_here;
        for (int64_t at = 0; at < end; at += kReadTokens) {
            const int count = static_cast<int>(std::min<int64_t>(kReadTokens, end - at));
            reader.read(buffer.data(), s, at, count);
            for (int i = 0; i < count; ++i) {
                const int token = buffer[static_cast<size_t>(i)];
                if (token != tokens.delimiter()) hash.update(tokens.bytes(token));
            }
        }
    }
    return hash.identity();
}

}  // namespace teon
