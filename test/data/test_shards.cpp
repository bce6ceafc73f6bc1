#include "data/shards.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "data/loader.h"
#include "test/support/catch.h"
#include "test/support/skip.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;

namespace {

std::vector<uint32_t> counting(size_t n, uint32_t first = 0) {
    std::vector<uint32_t> tokens(n);
    for (size_t i = 0; i < n; ++i) tokens[i] = first + static_cast<uint32_t>(i);
    return tokens;
}

std::vector<std::string> paths_of(const std::vector<ShardInfo>& shards) {
    std::vector<std::string> paths;
    for (const ShardInfo& shard : shards) paths.push_back(shard.path);
    return paths;
}

std::string usage_error_of_opening(const std::string& pattern) {
    return error_of<UsageError>([&] { open_shards(pattern, "train"); });
}

// The faults of the next reads by pread_from_disk().
struct Disk {
    int failures = 0;  // number of next reads that fail
    int error = EIO;
    size_t at_most = ~size_t{0};
    int calls = 0;
};
Disk disk;

ssize_t pread_from_disk(int file, void* out, size_t bytes, off_t offset) {
    ++disk.calls;
    if (disk.failures > 0) {
        --disk.failures;
        errno = disk.error;
        return -1;
    }
    return ::pread(file, out, std::min(bytes, disk.at_most), offset);
}

ReadPolicy policy() { return {.pread = pread_from_disk, .attempts = 5, .first_pause_ms = 0}; }

}  // namespace

TEST_CASE("data/shards: both formats are opened and read") {
    TempDir folder;
    for (int width : {2, 4}) {
        std::vector<uint32_t> tokens = counting(5000, width == 2 ? 60000 : 100000);
        write_shard(folder / "a.bin", tokens, width);
        std::vector<ShardInfo> shards = open_shards(folder / "a.bin", "train");
        REQUIRE(shards.size() == 1);
        REQUIRE(shards[0].path == folder / "a.bin");
        REQUIRE(shards[0].tokens == 5000);
        REQUIRE(shards[0].bytes_per_token == width);
        ShardReader reader(shards, 200000);
        for (int64_t first : {0, 1, 4990}) {
            std::vector<int> out(10, -1);
            reader.read(out.data(), 0, first, 10);
            for (int i = 0; i < 10; ++i) REQUIRE(out[i] == static_cast<int>(tokens[first + i]));
        }
        REQUIRE_THROWS_AS(reader.read(nullptr, 0, 4991, 10), Error);
        REQUIRE_THROWS_AS(reader.read(nullptr, 0, -1, 10), Error);
    }
}

TEST_CASE("data/shards: folder, file, glob and list name shards, each once, sorted") {
    TempDir folder;
    for (const char* name :
         {"x_train_000002.bin", "x_train_000001.bin", "x_val_000000.bin", "other.bin", "x_train_000003.txt"}) {
        write_shard(folder / name, counting(10));
    }
    auto open = [&](const std::string& pattern, const char* split) { return paths_of(open_shards(pattern, split)); };
    using Paths = std::vector<std::string>;
    const std::string one = folder / "x_train_000001.bin";
    const std::string two = folder / "x_train_000002.bin";
    const std::string val = folder / "x_val_000000.bin";
    REQUIRE(open(folder.path(), "train") == Paths{one, two});
    REQUIRE(open(folder.path() + "/", "train").size() == 2);
    REQUIRE(open(folder.path(), "val") == Paths{val});
    REQUIRE(open(val, "train") == Paths{val});
    REQUIRE(open(folder / "x_*_00000[01].bin", "train") == Paths{one, val});
    REQUIRE(open(two + "," + one, "train") == Paths{one, two});
    REQUIRE(open(folder / "*1.bin" + "," + one + "," + val, "train") == Paths{one, val});
    REQUIRE(open(folder.path() + "," + val, "train") == Paths{one, two, val});
    std::filesystem::create_directory_symlink(folder.path(), folder / "same");
    for (const std::string& spelling : {folder / "./x_train_000001.bin", folder / "same/x_train_000001.bin"})
        REQUIRE(open(folder.path() + "," + spelling, "train").size() == 2);
}

TEST_CASE("data/shards: a path with commas is an item if it exists") {
    using Items = std::vector<std::string>;
    TempDir folder;
    for (const char* name : {"a,b", "a", "c"}) std::filesystem::create_directory(folder / name);
    const std::string both = folder / "a,b";
    const std::string c = folder / "c";
    REQUIRE(data_items(both) == Items{both});
    REQUIRE(data_items(both + "," + c) == Items{both, c});
    REQUIRE(data_items(c + ":0.5," + both + ":0.5") == Items{c + ":0.5", both + ":0.5"});
    REQUIRE(data_items("none,never,") == Items{"none", "never", ""});
    write_shard(folder / "a,b/x_train_000001.bin", counting(10));
    REQUIRE(paths_of(open_shards(both, "train")) == Items{both + "/x_train_000001.bin"});
}

TEST_CASE("data/shards: the last split in a shard's name decides") {
    for (auto [name, split] : {std::pair{"d/x_train_000001.bin", "train"},
                               {"x_val_000000.bin", "val"},
                               {"x_train_val_000000.bin", "val"},
                               {"x_train_train_000001.bin", "train"},
                               {"x_val_train_000001.bin", "train"},
                               {"x_val_val_000000.bin", "val"},
                               {"d_train_1/x_val_000000.bin", "val"},
                               {"tiny_shakespeare_val.bin", "val"},
                               {"x_val_train.bin", "train"},
                               {"x_trained.bin", ""},
                               {"d_train_1/x_000000.bin", ""},
                               {"train_000000.bin", ""}})
        REQUIRE(split_in_name(name) == split);
    TempDir folder;
    for (const char* name : {"x_train_val_000000.bin", "x_train_train_000001.bin", "._x_train_000001.bin"})
        write_shard(folder / name, counting(10));
    REQUIRE(paths_of(open_shards(folder.path(), "train")) ==
            std::vector<std::string>{folder / "x_train_train_000001.bin"});
    REQUIRE(paths_of(open_shards(folder.path(), "val")) == std::vector<std::string>{folder / "x_train_val_000000.bin"});
}

TEST_CASE("data/shards: a shard that cannot be opened is named with its fault") {
    TempDir folder;
    REQUIRE(contains(usage_error_of_opening(folder.path()), folder.path() + ": no shard *_train_*.bin"));
    REQUIRE(contains(usage_error_of_opening(folder / "none.bin"), folder / "none.bin: no such file"));
    REQUIRE(contains(usage_error_of_opening(folder / "*.bin"), folder / "*.bin: no such file"));
    REQUIRE(contains(usage_error_of_opening(""), "empty name"));
    write_shard(folder / "a.bin", counting(10));
    REQUIRE(contains(usage_error_of_opening(folder / "a.bin" + ",,"), "empty name"));
    write_shard(folder / "b.bin", counting(10), 4);
    REQUIRE(contains(usage_error_of_opening(folder / "*.bin"), folder / "b.bin: 4 bytes per token"));
    std::filesystem::create_directory(folder / "x_train_1.bin");
    REQUIRE(contains(usage_error_of_opening(folder.path()), "x_train_1.bin: is a directory"));
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    REQUIRE(contains(usage_error_of_opening(folder / "pipe"), "pipe: is not a regular file"));
    std::filesystem::create_symlink(folder / "nowhere", folder / "link");
    REQUIRE(contains(usage_error_of_opening(folder / "link"), folder / "link: "));
    write_shard(folder / "\xff_train_2.bin", counting(10));  // JSON that describes a run names its shards
    REQUIRE(contains(usage_error_of_opening(folder / "*_train_2.bin"), "/\xff_train_2.bin: the name is not UTF-8"));
}

TEST_CASE("data/shards: a shard without permission is named") {
    TempDir folder;
    write_shard(folder / "a.bin", counting(10));
    std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
    REQUIRE(error_of_unreadable(folder / "a.bin", [&] { open_shards(folder / "a.bin", "train"); }) ==
            folder / "a.bin: cannot be opened: Permission denied");
}

TEST_CASE("data/shards: 300 damaged shards are refused before any step, in one line with file and fault") {
    TempDir folder;
    std::mt19937_64 random(5);
    const int T = 16;
    const int vocabulary = 1000;
    int damaged = 0;
    // Checks that opening the shard, as a run does, fails with this fault. `when` describes the damage.
    auto refused = [&](const std::string& bytes, const std::string& fault, const std::string& when) {
        const std::string path = folder / fmt::format("bad_train_{:06}.bin", damaged++);
        write_file(path, bytes);
        std::string error = error_of([&] { Loader(open_shards(path, "train"), {.T = T, .vocab_size = vocabulary}); });
        INFO(when << ": " << error);
        REQUIRE(error.starts_with(path + ": "));
        REQUIRE(contains(error, fault));
        std::filesystem::remove(path);
    };
    for (int width : {2, 4}) {
        const std::string good = shard_bytes(counting(200), width);
        for (int bit = 0; bit < 96; ++bit) {
            std::string bytes = good;
            bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
            const char* faults[] = {"magic", "version", "tokens in its header"};
            const char* fault = bit == 95 ? "tokens, expected" : faults[bit / 32];  // its sign makes the count negative
            refused(bytes, fault, fmt::format("bit {} of {} bytes per token", bit, width));
        }
        for (size_t size : {0, 1, 4, 12, 1023})
            refused(good.substr(0, size), size ? "too few" : "empty", "no whole header");
        refused(good.substr(0, 1024), "cut short", "header only");
        for (int i = 0; i < 15; ++i) {
            size_t size = 1025 + random() % (good.size() - 1025);
            refused(good.substr(0, size), "cut short", fmt::format("truncated to {}", size));
        }
        for (size_t more : {1, 2, 3, 4, 1024}) refused(good + std::string(more, '\0'), "too long", "bytes added");
        for (int count : {0, -1, -200, 1, 199, 201, 400, INT32_MAX, INT32_MIN}) {
            std::string bytes = good;
            std::memcpy(bytes.data() + 8, &count, 4);
            refused(bytes, "tokens", fmt::format("count {}", count));
        }
        std::string other_width = good;
        ShardHeader header(6 - width, 200);
        std::memcpy(other_width.data(), &header, sizeof header);
        refused(other_width, width == 2 ? "cut short" : "too long", "dtype of the other format");
        for (int i = 0; i < 20; ++i) {
            std::vector<uint32_t> tokens = counting(200);
            size_t at = random() % (T + 1);
            tokens[at] = vocabulary + static_cast<uint32_t>(width == 2 ? random() % 60000 : random() >> 33 << (i % 2));
            refused(shard_bytes(tokens, width), fmt::format("token {} at position {} is outside", tokens[at], at),
                    "vocabulary");
        }
        refused(std::string(good.rbegin(), good.rend()), "magic", "reversed");
    }
    refused("The quick brown fox jumps over the lazy dog.\n", "too few", "a text");
    refused(std::string(5000, 'a'), "magic", "a longer text");
    REQUIRE(damaged >= 300);
}

TEST_CASE("data/shards: a token outside the vocabulary is found wherever it is read") {
    TempDir folder;
    for (int width : {2, 4}) {
        std::vector<uint32_t> tokens(100, 7);
        tokens[63] = 50;
        tokens[80] = width == 4 ? 0xffffffff : 0xffff;
        write_shard(folder / "a.bin", tokens, width);
        ShardReader reader(open_shards(folder / "a.bin", ""), 50);
        std::vector<int> out(100);
        REQUIRE_NOTHROW(reader.read(out.data(), 0, 0, 63));
        REQUIRE(contains(error_of([&] { reader.read(out.data(), 0, 0, 64); }), "token 50 at position 63"));
        REQUIRE(contains(error_of([&] { reader.read(out.data(), 0, 64, 30); }),
                         width == 4 ? "token 4294967295 at" : "token 65535 at"));
        REQUIRE_NOTHROW(reader.read(out.data(), 0, 81, 19));
    }
}

TEST_CASE("data/shards: tokens beyond 2 GiB and 4 GiB are read from sparse shards") {
    TempDir folder;
    for (int width : {2, 4}) {
        const std::string path = folder / fmt::format("sparse{}.bin", width);
        const int64_t tokens = width == 2 ? (int64_t{1} << 31) - 1 : (int64_t{3} << 30) / 4;  // 4 GiB and 3 GiB
        ShardHeader header(width, static_cast<int32_t>(tokens));
        write_file(path, bytes_of(&header, 1));
        if (::truncate(path.c_str(), 1024 + tokens * width) != 0) SKIP_TEST("no sparse files in the temporary folder");
        // The last 40 tokens are 1 .. 40, all others 0.
        std::vector<uint16_t> narrow(40);
        std::vector<uint32_t> wide(40);
        for (int i = 0; i < 40; ++i) narrow[i] = static_cast<uint16_t>(wide[i] = i + 1);
        int file = ::open(path.c_str(), O_WRONLY);
        const void* last = width == 2 ? static_cast<const void*>(narrow.data()) : wide.data();
        REQUIRE(::pwrite(file, last, 40 * width, 1024 + (tokens - 40) * width) == 40 * width);
        ::close(file);

        std::vector<ShardInfo> shards = open_shards(path, "");
        REQUIRE(shards[0].tokens == tokens);
        ShardReader reader(shards, 100);
        std::vector<int> out(50, -1);
        reader.read(out.data(), 0, tokens - 50, 50);
        for (int i = 0; i < 50; ++i) REQUIRE(out[i] == std::max(0, i - 9));

        Loader loader(shards, {.T = 1000, .vocab_size = 100, .shuffle = false});
        REQUIRE(loader.windows() == (tokens - 1) / 1000);
        loader.seek(loader.windows() - 1);
        Stream stream;
        const std::vector<int> row = fetch(loader.next(stream).targets, 1000, stream);
        const int64_t first = (loader.windows() - 1) * 1000 + 1;  // index of the first target
        for (int t = 0; t < 1000; ++t) REQUIRE(row[t] == std::max<int64_t>(0, first + t - (tokens - 40) + 1));
    }
}

TEST_CASE("data/shards: short reads and interrupted reads are continued") {
    TempDir folder;
    write_shard(folder / "a.bin", counting(300));
    ShardReader reader(open_shards(folder / "a.bin", ""), 300, policy());
    std::vector<int> out(300, -1);
    disk = {.at_most = 7};
    reader.read(out.data(), 0, 0, 300);
    for (int i = 0; i < 300; ++i) REQUIRE(out[i] == i);
    disk = {.failures = 50, .error = EINTR};
    reader.read(out.data(), 0, 100, 10);
    REQUIRE(out[0] == 100);
}

TEST_CASE("data/shards: a transient read failure is retried, a lasting one is reported by name") {
    TempDir folder;
    write_shard(folder / "a.bin", counting(300));
    ShardReader reader(open_shards(folder / "a.bin", ""), 300, policy());
    std::vector<int> out(10);
    for (int error : {EIO, ESTALE, EAGAIN, ETIMEDOUT}) {
        disk = {.failures = 4, .error = error};
        reader.read(out.data(), 0, 200, 10);
        REQUIRE(out[9] == 209);
        REQUIRE(disk.calls == 5);
        disk = {.failures = 5, .error = error};
        std::string message = error_of([&] { reader.read(out.data(), 0, 200, 10); });
        REQUIRE(contains(message, folder / "a.bin: cannot be read: " + std::strerror(error) + " (5 attempts)"));
        REQUIRE(disk.failures == 0);
    }
    disk = {.failures = 1, .error = EBADF};
    REQUIRE(contains(error_of([&] { reader.read(out.data(), 0, 0, 10); }), "(1 attempts)"));
    disk = {};
    REQUIRE_NOTHROW(reader.read(out.data(), 0, 0, 10));
}

TEST_CASE("data/shards: a stale handle is opened again, and must be the file that it was") {
    TempDir folder;
    write_shard(folder / "a.bin", counting(300));
    ShardReader reader(open_shards(folder / "a.bin", ""), 1000, policy());
    std::vector<int> out(10);
    disk = {};
    reader.read(out.data(), 0, 0, 10);
    std::filesystem::remove(folder / "a.bin");
    reader.read(out.data(), 0, 20, 10);  // the open file remains readable
    REQUIRE(out[0] == 20);
    disk = {.failures = 1, .error = ESTALE};
    REQUIRE(contains(error_of([&] { reader.read(out.data(), 0, 0, 10); }), "a.bin: cannot be read: No such file"));
    write_shard(folder / "a.bin", counting(301));
    REQUIRE(contains(error_of([&] { reader.read(out.data(), 0, 0, 10); }), "a.bin: 1626 bytes, but it had 1624"));
    write_shard(folder / "a.bin", counting(300, 500));
    reader.read(out.data(), 0, 0, 10);
    REQUIRE(out[0] == 500);
}

TEST_CASE("data/shards: more shards than may be open at once are read in any order") {
    TempDir folder;
    const int count = 600;
    for (int s = 0; s < count; ++s) write_shard(folder / fmt::format("x_train_{:06}.bin", s), counting(3, 10 * s));
    ShardReader reader(open_shards(folder.path(), "train"), 10000);
    std::mt19937_64 random(2);
    for (int i = 0; i < 3000; ++i) {
        int shard = static_cast<int>(random() % count);
        int out = -1;
        reader.read(&out, shard, 2, 1);
        REQUIRE(out == 10 * shard + 2);
    }
}
