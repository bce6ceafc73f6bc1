#include "data/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "data/tokenizer.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

struct ListedShard {
    std::string split;
    int64_t tokens = 0, bytes = 0;
    bool counts_text = false, has_corrections = false;
};

struct Manifest : TokenInfo {
    bool lists = false;  // whether it has a list of shards
    std::map<std::string, ListedShard> shards;
    std::string val_text;  // hash of the source's text in the split val
};

// Returns TokenInfo::tokenizer from the description of a tokenizer, in its folder or in a manifest.
std::string identity(const Json& description, const std::string& name) {
    const JsonObject tokenizer(description, name);
    if (tokenizer.has("identity")) return tokenizer.at<std::string>("identity");
    const auto files = tokenizer.get<Json>("files", Json::object());  // of an older prepare.py
    return JsonObject(files, name + ": files").get<std::string>("tokens.bin", "");
}

Manifest read_manifest(const std::string& path) {
    Manifest m;
    m.described_by = path;
    const Json parsed = read_json(path);
    const JsonObject j(parsed, path);
    m.vocab_size = j.get("vocab_size", 0);
    m.delimiter = j.get("delimiter", -1);
    constexpr int kMaxVocab = 1 << 24;  // as for --vocab-size
    CHECK_USAGE(m.vocab_size >= 0 && m.vocab_size <= kMaxVocab, "{}: vocab_size is {}, expected 0 to {}", path,
                m.vocab_size, kMaxVocab);
    CHECK_USAGE(m.delimiter >= -1 && (m.vocab_size == 0 || m.delimiter < m.vocab_size),
                "{}: delimiter is {}, expected a token below vocab_size, {}, or -1", path, m.delimiter, m.vocab_size);
    const auto tokenizer = j.get<Json>("tokenizer", Json());
    if (tokenizer.is_object()) m.tokenizer = identity(tokenizer, path + ": tokenizer");
    m.val_text = j.get<std::string>("val_text", "");
    m.lists = j.has("shards");
    const auto shards = j.get<Json>("shards", Json::array());
    CHECK_USAGE(shards.is_array(), "{}: shards is {}, expected a list", path, shown(shards));
    for (const Json& item : shards.items()) {
        const JsonObject shard(item, path + ": shards");
        const std::string file = shard.at<std::string>("file");
        const ListedShard listed = {shard.get<std::string>("split", ""), shard.at<int64_t>("tokens"),
                                    shard.get<int64_t>("bytes", -1), shard.has("text_bytes"), shard.has("corrections")};
        CHECK_USAGE(m.shards.insert({file, listed}).second, "{}: shards has {} twice; prepare or copy it again", path,
                    file);
    }
    return m;
}

std::string folder_of(const std::string& path) {
    const fs::path parent = fs::path(path).parent_path();
    return parent.empty() ? "." : parent.lexically_normal().string();
}

// Compares shards with the manifest beside them.
void compare(const Manifest& m, const std::vector<ShardInfo>& shards, DataSet& out) {
    if (!m.lists) return;
    for (const ShardInfo& shard : shards) {
        const auto listed = m.shards.find(fs::path(shard.path).filename().string());
        CHECK_USAGE(listed != m.shards.end(), "{}: {} does not list it; keep shards of one preparation in a folder",
                    shard.path, m.described_by);
        const ListedShard& l = listed->second;
        const int64_t bytes = kShardHeaderBytes + shard.tokens * shard.bytes_per_token;
        CHECK_USAGE(l.tokens == shard.tokens && (l.bytes < 0 || l.bytes == bytes),
                    "{}: {} tokens in {} bytes, but {} says {} tokens in {} bytes; prepare or copy it again",
                    shard.path, shard.tokens, bytes, m.described_by, l.tokens, l.bytes);
        if (l.has_corrections) out.corrected.insert(shard.path);
        out.counted += l.counts_text;
    }
}

// Throws UsageError if a shard of the split is in the manifest but not among `shards`, all those of the folder.
void check_none_missing(const Manifest& m, const std::string& folder, const std::vector<ShardInfo>& shards,
                        const std::string& split) {
    std::set<std::string> names;
    for (const ShardInfo& shard : shards) names.insert(fs::path(shard.path).filename().string());
    for (const auto& [file, shard] : m.shards)
        CHECK_USAGE((!split.empty() && shard.split != split) || names.count(file),
                    "{}: {} lists it, but it is missing; prepare or copy it again, or name the files to use",
                    (fs::path(folder) / file).string(), m.described_by);
}

void add_description(DataSet& data, const TokenInfo& info) {
    check_same_tokenizer(data, info);
    if (data.described_by.empty()) static_cast<TokenInfo&>(data) = info;
}

// Opens one source, without its weight.
DataSet open_source(const std::string& pattern, const std::string& split) {
    DataSet data;
    std::map<std::string, std::optional<Manifest>> manifests;  // by folder
    auto manifest_of = [&](const std::string& folder) -> const std::optional<Manifest>& {
        const auto [place, first] = manifests.try_emplace(folder);
        const std::string path = (fs::path(folder) / "manifest.json").string();
        if (first && path_exists(path)) place->second = read_manifest(path);
        return place->second;
    };
    data.shards = open_shards(pattern, split, [&](const std::string& path) {
        if (const std::optional<Manifest>& m = manifest_of(folder_of(path))) {
            const auto listed = m->shards.find(fs::path(path).filename().string());
            if (listed != m->shards.end() && !listed->second.split.empty()) return listed->second.split;
        }
        return split_in_name(path);
    });
    std::map<std::string, std::vector<ShardInfo>> by_folder;
    for (const ShardInfo& shard : data.shards) by_folder[folder_of(shard.path)].push_back(shard);
    for (const auto& [folder, shards] : by_folder) {
        if (!manifest_of(folder)) continue;
        const Manifest& m = *manifest_of(folder);
        compare(m, shards, data);
        for (std::string item : data_items(pattern)) {
            while (item.size() > 1 && item.back() == '/') item.pop_back();
            if (!is_folder(item) || fs::path(item).lexically_normal().string() != folder) continue;
            check_none_missing(m, folder, shards, split);
            if (split == "val" && by_folder.size() == 1) data.text = m.val_text;
            for (const auto& [file, shard] : m.shards)
                if (!split.empty() && shard.split != split) data.unopened += std::max<int64_t>(0, shard.tokens);
        }
        add_description(data, m);
    }
    return data;
}

// Splits "A:0.7" into item and weight, 0 if there is none. The name of an existing path has no weight.
std::pair<std::string, double> weighted(const std::string& item) {
    const size_t colon = item.rfind(':');
    if (colon == std::string::npos || path_exists(item)) return {item, 0};
    double weight = 0;
    const char* begin = item.data() + colon + 1;
    const char* end = item.data() + item.size();
    const auto parsed = std::from_chars(begin, end, weight);
    if (parsed.ec == std::errc::invalid_argument || parsed.ptr != end) return {item, 0};
    CHECK_USAGE(weight > 0 && weight <= 1e6,
                "{}: the weight of a source must be above 0 and at most 1e6, e.g. A:0.7,B:0.3", item);
    return {item.substr(0, colon), weight};
}

}  // namespace

DataSet open_dataset(const std::string& pattern, const std::string& split) {
    std::vector<std::pair<std::string, double>> items;
    for (const std::string& item : data_items(pattern)) items.push_back(weighted(item));
    const auto weights = std::count_if(items.begin(), items.end(), [](const auto& item) { return item.second > 0; });
    if (weights == 0) return open_source(pattern, split);
    CHECK_USAGE(weights == std::ssize(items),
                "'{}': either every source of a mixture has a weight or none, e.g. A:0.7,B:0.3", pattern);
    double sum = 0;
    for (const auto& [item, weight] : items) sum += weight;
    DataSet data;
    for (const auto& [item, weight] : items) {
        DataSet source = open_source(item, split);
        add_description(data, source);
        for (ShardInfo& shard : source.shards) {
            shard.source = static_cast<int>(data.mixture.size());
            CHECK_USAGE(data.shards.empty() || shard.bytes_per_token == data.shards[0].bytes_per_token,
                        "{}: {} bytes per token, but {} has {}; name shards of one tokenizer only", shard.path,
                        shard.bytes_per_token, data.shards[0].path, data.shards[0].bytes_per_token);
            data.shards.push_back(std::move(shard));
        }
        data.corrected.merge(source.corrected);
        data.counted += source.counted;
        data.mixture.push_back(weight / sum);
        data.sources.push_back(item);
    }
    return data;
}

void check_same_tokenizer(const TokenInfo& a, const TokenInfo& b) {
    if (a.described_by.empty() || b.described_by.empty()) return;
    const bool same = (a.tokenizer.empty() || b.tokenizer.empty() || a.tokenizer == b.tokenizer) &&
                      a.vocab_size == b.vocab_size && a.delimiter == b.delimiter;
    CHECK_USAGE(
        same,
        "{} and {}: their tokens are of different tokenizers (vocabularies of {} and {}, delimiters {} and {}); "
        "prepare both with the same one",
        a.described_by, b.described_by, a.vocab_size, b.vocab_size, a.delimiter, b.delimiter);
}

void check_model_tokenizer(const DataSet& data, const std::string& model, int V) {
    const fs::path folder = is_folder(model) ? fs::path(model) : fs::path(model).parent_path();
    const std::string model_tokenizer = tokenizer_identity((folder / "tokenizer").string());
    CHECK_USAGE(
        (model_tokenizer.empty() || data.tokenizer.empty() || model_tokenizer == data.tokenizer) &&
            data.vocab_size <= V,
        "{}: its tokens (a vocabulary of {}) are not of the tokenizer of {} ({}); prepare the data with that tokenizer",
        data.described_by, data.vocab_size, model, V);
}

void identify(DataSet& data) {
    for (ShardInfo& shard : data.shards) shard.content = sampled_hash(shard.path);
}

std::string content_of(const DataSet& data, int source) {
    std::string all;
    for (const ShardInfo& shard : data.shards)
        if (source < 0 || shard.source == source) all += shard.content;
    return all.empty() ? "" : fmt::format("{:016x}", hash_of(all));
}

namespace {

// Returns the difference between the source's bytes and those of the tokens [begin, end) of a shard.
int64_t correction(const std::string& shard, int64_t begin, int64_t end) {
    struct Correction {
        int64_t first, tokens, difference;
    };
    const std::string path = shard.substr(0, shard.rfind(".bin")) + ".bytes";
    const InputFile file(path);
    constexpr int64_t kHeader = 16;
    char magic[8] = {};
    int64_t count = -1;
    if (file.bytes() >= kHeader) {
        file.read(magic, sizeof magic, 0);
        file.read(&count, sizeof count, sizeof magic);
    }
    const int64_t room = (file.bytes() - kHeader) / int64_t{sizeof(Correction)};
    CHECK_USAGE(std::string_view(magic, sizeof magic) == "teonbyt1" && count == room &&
                    file.bytes() == kHeader + room * int64_t{sizeof(Correction)},
                "{}: not a list of corrections; prepare or copy it again", path);
    std::vector<Correction> corrections(static_cast<size_t>(count));
    file.read(corrections.data(), count * int64_t{sizeof(Correction)}, kHeader);
    const auto floor_of = [](int64_t a, int64_t b) { return a / b - (a % b < 0); };
    int64_t sum = 0;
    for (const Correction& c : corrections) {
        CHECK_USAGE(c.first >= 0 && c.tokens > 0, "{}: damaged; prepare or copy it again", path);
        const int64_t low = std::max(c.first, begin);
        const int64_t high = std::min(c.first + c.tokens, end);
        if (low >= high) continue;
        sum += floor_of(c.difference * (high - c.first), c.tokens) - floor_of(c.difference * (low - c.first), c.tokens);
    }
    return sum;
}

}  // namespace

namespace {

class TextCounter {
public:
    explicit TextCounter(const Tokenizer& tokens) : tokens_(tokens) {}
    void begin_shard(int token) {  // which is no target
        const TextSize before = size_;
        add(token);
        size_ = before;
    }
    void add(int token) {
        const bool begins_text = previous_ == tokens_.delimiter();
        previous_ = token;
        if (token == tokens_.delimiter()) {
            in_word_ = false;
            return;
        }
        const std::string_view text = tokens_.bytes(token, begins_text);
        size_.bytes += std::ssize(text);
        for (const char c : text) {
            const bool white = c == ' ' || (c >= '\t' && c <= '\r');
            size_.words += !white && !in_word_;
            in_word_ = !white;
        }
    }
    TextSize size() const { return size_; }

private:
    const Tokenizer& tokens_;
    TextSize size_;
    int previous_ = -1;
    bool in_word_ = false;
};

}  // namespace

std::optional<TextSize> text_size(const DataSet& data, const std::string& tokenizer, int T, int64_t windows) {
    if (data.shards.empty() || !path_exists(tokenizer + "/tokens.bin")) return std::nullopt;
    const Tokenizer tokens(tokenizer);
    ShardReader reader(data.shards, tokens.vocab_size());
    constexpr int64_t kBlock = 1 << 16;
    std::vector<int> block(kBlock);
    TextCounter counter(tokens);
    int64_t corrections = 0;
    for (int s = 0; s < static_cast<int>(data.shards.size()) && windows > 0; ++s) {
        const ShardInfo& shard = data.shards[static_cast<size_t>(s)];
        const int64_t here = std::min(windows, (shard.tokens - 1) / T);
        const int64_t end = here * T + 1;
        windows -= here;
        for (int64_t first = 0; first < end && here > 0; first += kBlock) {
            const int64_t n = std::min(kBlock, end - first);
            reader.read(block.data(), s, first, n);
            for (int64_t i = 0; i < n; ++i) {
                if (first + i == 0)
                    counter.begin_shard(block[0]);
                else
                    counter.add(block[static_cast<size_t>(i)]);
            }
        }
        if (data.corrected.count(shard.path)) corrections += correction(shard.path, 1, end);
    }
    return TextSize{counter.size().bytes + corrections, counter.size().words};
}

void check_disjoint(const DataSet& train, const DataSet& val) {
    std::error_code error;
    auto identity_of = [&](const ShardInfo& shard) { return fs::weakly_canonical(shard.path, error); };
    std::set<fs::path> trained_on;
    for (const ShardInfo& shard : train.shards) trained_on.insert(identity_of(shard));
    for (const ShardInfo& shard : val.shards)
        CHECK_USAGE(!trained_on.count(identity_of(shard)),
                    "{}: this shard is in both the training and the validation data; name other files in --data or "
                    "--val-data",
                    shard.path);
}

std::string tokenizer_identity(const std::string& folder) {
    const std::string path = folder + "/description.json";
    return path_exists(path) ? identity(read_json(path), path) : "";
}

}  // namespace teon
