#include "data/shards.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "base/check.h"
#include "base/text.h"
#include "files/json.h"

namespace teon {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they are");

namespace {

struct Format {
    int32_t magic, version;
    int bytes_per_token;
};
constexpr Format kFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

constexpr const char* kBareTokens =
    "is not a token shard; nanoGPT's files of this name are uint16 tokens without a header: make shards of them with "
    "scripts/prepare.py tokens --raw uint16";

ShardInfo open_shard(const std::string& path) {
    const InputFile file(path);
    std::byte header[kShardHeaderBytes];
    const int64_t n = std::min<int64_t>(file.bytes(), kShardHeaderBytes);
    file.read(header, n, 0);
    return parse_shard_header(path, {header, static_cast<size_t>(n)}, file.bytes());
}

std::vector<std::string> list_folder(const std::string& folder, const std::string& split,
                                     const std::function<std::string(const std::string&)>& split_of) {
    std::error_code error;
    std::vector<std::string> paths;
    for (const std::string& name : names_in(folder, error)) {
        const std::string path = (fs::path(folder) / name).string();
        if (path.ends_with(".bin") && (split.empty() || split_of(path) == split)) paths.push_back(path);
    }
    CHECK_USAGE(!error, "{}: the folder cannot be read: {}; check its permissions", folder, error.message());
    CHECK_USAGE(!paths.empty() || !fs::exists(fs::path(folder) / "train.bin", error), "{}/train.bin: {}", folder,
                kBareTokens);
    const std::string named = split.empty() ? "val" : split;
    CHECK_USAGE(
        !paths.empty(),
        "{}: no shard *_{}_*.bin or *_{}.bin in this folder; name the files, or make them with scripts/prepare.py",
        folder, named, named);
    return paths;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
    glob_t matches = {};
    int status = ::glob(pattern.c_str(), 0, nullptr, &matches);
    std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    ::globfree(&matches);
    if (status != 0 || paths.empty())
        throw MissingData(fmt::format("{}: no such file or folder, and no file matches it as a pattern", pattern));
    return paths;
}

bool transient(int error) { return error == EIO || error == ESTALE || error == EAGAIN || error == ETIMEDOUT; }

// out (n) = in (n). Returns the largest token.
template <typename Token>
uint32_t widen(int* out, const std::byte* in, int64_t n) {
    const Token* tokens = reinterpret_cast<const Token*>(in);
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
        uint32_t token = tokens[i];
        out[i] = static_cast<int>(token);
        largest = token > largest ? token : largest;
    }
    return largest;
}

// Whether the file is named as nanoGPT names its tokens.
bool is_bare_name(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    return name == "train.bin" || name == "val.bin";
}

}  // namespace

ShardInfo parse_shard_header(const std::string& path, std::span<const std::byte> header, int64_t file_bytes) {
    CHECK_USAGE(file_bytes > 0, "{}: is empty, expected a token shard; prepare or download it again", path);
    CHECK_USAGE(header.size() >= kShardHeaderBytes && file_bytes >= kShardHeaderBytes,
                "{}: {} bytes are too few for a token shard (its header takes {}); prepare or download it again", path,
                file_bytes, kShardHeaderBytes);
    int32_t magic;
    int32_t version;
    int32_t tokens;
    std::memcpy(&magic, header.data(), 4);
    std::memcpy(&version, header.data() + 4, 4);
    std::memcpy(&tokens, header.data() + 8, 4);
    const Format* format =
        std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.magic == magic; });
    CHECK_USAGE(format != std::end(kFormats) || !is_bare_name(path), "{}: {}", path, kBareTokens);
    CHECK_USAGE(format != std::end(kFormats),
                "{}: is not a token shard: its magic number is {}, expected {} (uint16) or {} (uint32); make shards of "
                "it with scripts/prepare.py, or with its command tokens if it has tokens",
                path, magic, kFormats[0].magic, kFormats[1].magic);
    CHECK_USAGE(version == format->version,
                "{}: format version {} of magic {}, expected {}; make it again with scripts/prepare.py", path, version,
                magic, format->version);
    CHECK_USAGE(tokens > 0, "{}: its header says {} tokens, expected at least 1; prepare or download it again", path,
                tokens);
    int64_t expected = kShardHeaderBytes + int64_t{tokens} * format->bytes_per_token;
    CHECK_USAGE(file_bytes == expected,
                "{}: {} bytes, but the {} tokens in its header take {}: it is {}; prepare or download it again", path,
                file_bytes, tokens, expected, file_bytes < expected ? "cut short" : "too long");
    return {path, tokens, format->bytes_per_token, 0};
}

std::string split_in_name(const std::string& path) {
    const std::string name = fs::path(path).stem().string() + "_";  // llm.c's tiny_shakespeare_train.bin, too
    const size_t train = name.rfind("_train_");
    const size_t val = name.rfind("_val_");
    if (train == val) return "";  // neither
    return val == std::string::npos || (train != std::string::npos && train > val) ? "train" : "val";
}

std::vector<std::string> data_items(const std::string& pattern) {
    const std::vector<std::string> parts = teon::split(pattern);
    std::vector<std::string> items;
    for (size_t begin = 0; begin < parts.size();) {
        std::string joined = parts[begin];
        std::string item = joined;
        size_t end = begin + 1;
        for (size_t next = end; next < parts.size(); ++next) {
            const std::string without_weight = joined + "," + parts[next].substr(0, parts[next].rfind(':'));
            joined += "," + parts[next];
            if (!path_exists(joined) && !path_exists(without_weight)) continue;
            item = joined;
            end = next + 1;
        }
        items.push_back(item);
        begin = end;
    }
    return items;
}

std::vector<ShardInfo> open_shards(const std::string& pattern, const std::string& split,
                                   const std::function<std::string(const std::string&)>& split_of) {
    std::set<std::string> paths;
    for (const std::string& item : data_items(pattern)) {
        CHECK_USAGE(!item.empty(),
                    "'{}': an empty name; expected a folder, file or glob of token shards, or several with commas",
                    pattern);
        std::error_code unreadable;  // reported when the file is opened
        std::vector<std::string> named = {item};
        if (fs::is_directory(item, unreadable)) {
            named = list_folder(item, split, split_of);
        } else if (!fs::exists(item, unreadable) && !unreadable) {
            named = expand_glob(item);
        }
        paths.insert(named.begin(), named.end());
    }

    std::vector<ShardInfo> shards;
    std::set<fs::path> seen;
    for (const std::string& path : paths) {
        CHECK_USAGE(is_utf8(path), "{}: the name is not UTF-8, in which a run's files describe its data; rename it",
                    path);
        std::error_code unreadable;  // reported when the file is opened
        if (!seen.insert(fs::weakly_canonical(path, unreadable)).second && !unreadable) continue;
        shards.push_back(open_shard(path));
        CHECK_USAGE(shards.back().bytes_per_token == shards[0].bytes_per_token,
                    "{}: {} bytes per token, but {} has {}; name shards of one tokenizer only", path,
                    shards.back().bytes_per_token, shards[0].path, shards[0].bytes_per_token);
    }
    return shards;
}

int largest_token(const ShardInfo& shard) {
    constexpr int64_t kBlock = 1 << 20;
    ShardReader reader({shard}, INT_MAX);
    std::vector<int> tokens(static_cast<size_t>(std::min(shard.tokens, kBlock)));
    int largest = 0;
    for (int64_t first = 0; first < shard.tokens; first += kBlock) {
        const int64_t n = std::min(kBlock, shard.tokens - first);
        reader.read(tokens.data(), 0, first, n);
        largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + n));
    }
    return largest;
}

ShardReader::ShardReader(std::vector<ShardInfo> shards, int vocab_size, ReadPolicy policy)
    : shards_(std::move(shards)),
      vocab_size_(vocab_size),
      policy_(policy),
      open_(std::min<size_t>(shards_.size(), kMaxOpen)) {
    CHECK(vocab_size >= 1, "vocabulary of {} tokens, expected at least 1", vocab_size);
}

void ShardReader::read(int* out, int shard, int64_t first, int64_t n) {
    const ShardInfo& info = shards_[shard];
    CHECK(first >= 0 && n >= 0 && first + n <= info.tokens, "{}: tokens {} to {} wanted, it has {}", info.path, first,
          first + n, info.tokens);
    raw_.resize(n * info.bytes_per_token);
    read_with_retries(shard, kShardHeaderBytes + first * info.bytes_per_token);
    uint32_t largest =
        info.bytes_per_token == 2 ? widen<uint16_t>(out, raw_.data(), n) : widen<uint32_t>(out, raw_.data(), n);
    if (n == 0 || largest < static_cast<uint32_t>(vocab_size_)) return;
    int64_t at = std::find_if(out, out + n, [&](int token) { return token < 0 || token >= vocab_size_; }) - out;
    throw Error(
        fmt::format("{}: token {} at position {} is outside the vocabulary of {}; the shards were made by another "
                    "tokenizer, or the file is damaged: check --vocab-size and the shards' manifest",
                    info.path, static_cast<uint32_t>(out[at]), first + at, vocab_size_));
}

void ShardReader::will_need(int shard, int64_t first, int64_t n) {
    const OpenShard& slot = open_[shard % open_.size()];
    if (slot.shard != shard) return;  // read() opens it and reports a failure
    int width = shards_[shard].bytes_per_token;
    ::posix_fadvise(slot.file, kShardHeaderBytes + first * width, n * width, POSIX_FADV_WILLNEED);
}

void ShardReader::read_with_retries(int shard, int64_t offset) {
    std::chrono::milliseconds pause(policy_.first_pause_ms);
    for (int attempt = 1;; ++attempt, pause *= 2) {
        int error = try_read(shard, offset);
        if (error == 0) return;
        CHECK(transient(error) && attempt < policy_.attempts,
              "{}: cannot be read: {} ({} attempts); check the disk and the file, then resume from the last checkpoint",
              shards_[shard].path, std::strerror(error), attempt);
        open_[shard % open_.size()] = OpenShard();  // a stale handle stays stale until the file is opened again
        std::this_thread::sleep_for(pause);
    }
}

int ShardReader::try_read(int shard, int64_t offset) {
    OpenShard& slot = open_[shard % open_.size()];
    if (slot.shard != shard) {
        if (int error = reopen(slot, shard)) return error;
    }
    for (size_t done = 0; done < raw_.size();) {
        off_t at = static_cast<off_t>(offset + static_cast<int64_t>(done));
        ssize_t n = policy_.pread(slot.file, raw_.data() + done, raw_.size() - done, at);
        if (n < 0 && errno != EINTR) return errno;
        CHECK(
            n != 0,
            "{}: ends at byte {}, expected {}: it was cut short while it was in use; restore it, then resume from the "
            "last checkpoint",
            shards_[shard].path, at, file_bytes(shard));
        if (n > 0) done += static_cast<size_t>(n);
    }
    return 0;
}

int ShardReader::reopen(OpenShard& slot, int shard) {
    const std::string& path = shards_[shard].path;
    slot = OpenShard();
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status;
    if (file < 0 || ::fstat(file, &status) != 0) return errno;
    CHECK(status.st_size == file_bytes(shard),
          "{}: {} bytes, but it had {} when the run began; restore it, then resume from the last checkpoint", path,
          status.st_size, file_bytes(shard));
    slot = {shard, std::move(file)};
    return 0;
}

int64_t ShardReader::file_bytes(int shard) const {
    return kShardHeaderBytes + shards_[shard].tokens * shards_[shard].bytes_per_token;
}

}  // namespace teon
