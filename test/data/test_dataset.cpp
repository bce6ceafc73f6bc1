#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "data/loader.h"
#include "data/permutation.h"
#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;
using json = nlohmann::json;

namespace {

// A folder as prepare.py writes it: shards with sizes[i] tokens, manifest and tokenizer.
struct Prepared {
    std::string path;
    json manifest;

    Prepared(const std::string& folder, const std::string& tokenizer, int vocab_size, std::vector<size_t> sizes,
             uint32_t token = 1)
        : path(folder) {
        std::filesystem::create_directories(folder + "/tokenizer");
        const json description = {{"kind", "bytes"}, {"files", {{"tokens.bin", tokenizer}}}};
        write_file(folder + "/tokenizer/description.json", description.dump());
        manifest = {
            {"vocab_size", vocab_size}, {"delimiter", 0}, {"tokenizer", description}, {"shards", json::array()}};
        for (size_t i = 0; i < sizes.size(); ++i) {
            const char* split = i == 0 ? "val" : "train";
            const std::string file = fmt::format("d_{}_{:06}.bin", split, i);
            write_shard(folder + "/" + file, std::vector<uint32_t>(sizes[i], token));
            manifest["shards"].push_back(
                {{"file", file}, {"split", split}, {"tokens", sizes[i]}, {"bytes", 1024 + 2 * sizes[i]}});
        }
        write_manifest();
    }
    void write_manifest() const { write_file(path + "/manifest.json", manifest.dump()); }
    std::string shard(int i) const {
        return path + "/" + manifest["shards"][static_cast<size_t>(i)]["file"].get<std::string>();
    }
};

}  // namespace

TEST_CASE("data/dataset: shards that differ from their folder's manifest are named") {
    TempDir folder;
    const Prepared a(folder / "a", "one", 1000, {50, 100, 200});
    const Prepared b(folder / "b", "one", 1000, {50, 70});
    const DataSet both = open_dataset(a.path + "," + b.path, "train");
    REQUIRE(both.shards.size() == 3);
    REQUIRE(both.vocab_size == 1000);
    REQUIRE(both.delimiter == 0);
    REQUIRE(both.tokenizer == "one");
    REQUIRE(both.mixture.empty());
    REQUIRE(open_dataset(a.shard(1), "train").vocab_size == 1000);  // a single shard of the folder

    for (auto [tokenizer, vocab_size] : {std::pair{"two", 1000}, {"one", 999}}) {
        const Prepared other(folder / "other", tokenizer, vocab_size, {50, 70});
        const std::string said = error_of([&] { open_dataset(a.path + "," + other.path, "train"); });
        REQUIRE(contains(said, a.path));
        REQUIRE(contains(said, other.path));
        REQUIRE(contains(said, "different tokenizers"));
        REQUIRE(error_of([&] { check_same_tokenizer(both, open_dataset(other.path, "val")); }) != "");
        REQUIRE(error_of([&] { open_dataset(a.path + ":1," + other.path + ":1", "train"); }) != "");
    }

    const std::string shard = a.shard(2);
    write_shard(shard, std::vector<uint32_t>(199, 1));
    REQUIRE(error_of([&] { open_dataset(a.path, "train"); }).find(shard + ": 199 tokens") == 0);
    std::filesystem::remove(shard);
    for (const std::string& name : {a.path, a.path + "/", b.path + "," + a.path})
        REQUIRE(error_of([&] { open_dataset(name, "train"); }).find(shard) == 0);
    REQUIRE(open_dataset(a.path + "/*train*.bin", "train").shards.size() ==
            1);  // a pattern stands for the shards that exist
    REQUIRE(open_dataset(a.path, "val").shards.size() == 1);
    const std::string extra = b.path + "/e_train_000009.bin";
    write_shard(extra, {1, 2, 3});
    REQUIRE(error_of([&] { open_dataset(b.path, "train"); }).find(extra) == 0);
}

TEST_CASE("data/dataset: the manifest's split decides over the name, and no shard is in both splits") {
    TempDir folder;
    Prepared a(folder / "a", "one", 9, {50, 100, 200});
    auto names = [&](const char* split) {
        std::string out;
        for (const ShardInfo& shard : open_dataset(a.path, split).shards)
            out += std::filesystem::path(shard.path).filename().string() + " ";
        return out;
    };
    REQUIRE(names("train") == "d_train_000001.bin d_train_000002.bin ");
    a.manifest["shards"][0]["split"] = "train";
    a.manifest["shards"][1]["split"] = "val";
    a.write_manifest();
    REQUIRE(names("train") == "d_train_000002.bin d_val_000000.bin ");
    REQUIRE(names("val") == "d_train_000001.bin ");

    const DataSet train = open_dataset(a.path, "train");
    const DataSet val = open_dataset(a.path, "val");
    REQUIRE_NOTHROW(check_disjoint(train, val));
    std::filesystem::create_directory_symlink(a.path, folder / "link");
    for (const std::string& same : {a.path + "/*.bin", folder / "link/d_val_000000.bin"})
        REQUIRE(error_of([&] {
                    check_disjoint(train, open_dataset(same, "val"));
                }).find("both the training and the validation data") != std::string::npos);

    a.manifest["shards"].push_back(a.manifest["shards"][0]);
    a.write_manifest();
    REQUIRE(error_of([&] { open_dataset(a.path, "val"); }).find("has d_val_000000.bin twice") != std::string::npos);
}

TEST_CASE("data/dataset: without a manifest there is nothing to compare, and a damaged one is named") {
    TempDir folder;
    write_shard(folder / "x_train_000000.bin", {1, 2, 3});
    const DataSet data = open_dataset(folder.path(), "train");
    REQUIRE(data.vocab_size == 0);
    REQUIRE(data.delimiter == -1);
    for (const char* text :
         {"{", "[]", "{\"shards\": 1}", "{\"shards\": [1]}", "{\"vocab_size\": \"x\"}",
          "{\"tokenizer\": {\"files\": 3}}", "{\"vocab_size\": -5}", "{\"vocab_size\": 1e9}",
          "{\"vocab_size\": 2000000000}", "{\"delimiter\": -2}", "{\"vocab_size\": 64, \"delimiter\": 64}"}) {
        write_file(folder / "manifest.json", text);
        REQUIRE(error_of([&] { open_dataset(folder.path(), "train"); }).find(folder / "manifest.json") == 0);
    }
}

TEST_CASE("data/dataset: the sources of a mixture and their shares") {
    TempDir folder;
    const Prepared a(folder / "a", "one", 9, {50, 100, 200});
    const Prepared b(folder / "b", "one", 9, {50, 70});
    const DataSet data = open_dataset(a.path + ":3," + b.path + ":1", "train");
    REQUIRE(data.mixture == std::vector<double>{0.75, 0.25});
    REQUIRE(data.shards.size() == 3);
    REQUIRE(data.shards[1].source == 0);
    REQUIRE(data.shards[2].source == 1);
    REQUIRE(data.vocab_size == 9);
    for (const char* bad : {":0", ":-1", ":inf", ":nan"})
        REQUIRE(error_of([&] { open_dataset(a.path + bad + "," + b.path + ":1", "train"); }).find("weight") !=
                std::string::npos);
    for (const char* large : {":1e300", ":1e400", ":1000001"})
        REQUIRE(error_of([&] {
                    open_dataset(a.path + large + "," + b.path + ":1", "train");
                }).find(": the weight of a source must be above 0 and at most 1e6") != std::string::npos);
    REQUIRE(error_of([&] { open_dataset(a.path + "," + b.path + ":1", "train"); }).find("has a weight or none") !=
            std::string::npos);
    std::filesystem::rename(b.path, folder / "b:2");
    REQUIRE(open_dataset(folder / "b:2", "train").mixture.empty());  // the name of a folder, without a weight
}

namespace {

constexpr int kTokens = 4;  // of a window

// Sources of a mixture. The first token of a window is its index within its source, and the second is the source.
struct Mixture {
    TempDir folder;
    std::vector<int> windows;
    DataSet data;

    Mixture(const std::vector<int>& windows, const std::vector<double>& weights) : windows(windows) {
        std::string pattern;
        for (uint32_t s = 0; s < windows.size(); ++s) {
            const std::string source = folder / std::to_string(s);
            std::filesystem::create_directories(source);
            std::vector<uint32_t> tokens;
            for (int w = 0; w < windows[s]; ++w) tokens.insert(tokens.end(), {static_cast<uint32_t>(w), s, 0, 0});
            tokens.push_back(0);
            write_shard(source + "/x_train_000000.bin", tokens);
            pattern += fmt::format("{}{}:{:.6f}", s ? "," : "", source, weights[s]);
        }
        data = open_dataset(pattern, "train");
    }
    LoaderOptions options(uint64_t seed) const {
        LoaderOptions o{.B = 1, .T = kTokens, .vocab_size = 60000, .seed = seed};
        o.mixture = data.mixture;
        return o;
    }
};

// A window of a source, by its index.
struct Drawn {
    int source, window;
    bool operator==(const Drawn&) const = default;
};

std::vector<Drawn> take_batch(Loader& loader, const Stream& stream) {
    const Batch batch = loader.next(stream);
    const std::vector<int> tokens = fetch(batch.tokens, int64_t{batch.B} * kTokens, stream);
    std::vector<Drawn> drawn;
    for (size_t b = 0; b < tokens.size(); b += kTokens) drawn.push_back({tokens[b + 1], tokens[b]});
    return drawn;
}

std::vector<Drawn> take_samples(const Mixture& mixture, const LoaderOptions& o, int count) {
    Loader loader(mixture.data.shards, o);
    Stream stream;
    std::vector<Drawn> drawn;
    for (int i = 0; i < count; ++i) drawn.push_back(take_batch(loader, stream).at(0));
    return drawn;
}

}  // namespace

TEST_CASE("data/loader: each source of a mixture gives every window once in each of its epochs") {
    std::mt19937_64 random(5);
    auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
    Stream stream;
    for (int sources = 2; sources <= 5; ++sources) {
        std::vector<int> windows;
        std::vector<double> weights;
        for (int s = 0; s < sources; ++s) {
            windows.push_back(between(1, 400));
            weights.push_back(0.05 + between(0, 1000) / 1000.0);
        }
        const Mixture mixture(windows, weights);
        const LoaderOptions o = mixture.options(static_cast<uint64_t>(sources));
        const std::vector<Drawn> all = take_samples(mixture, o, 21000);
        for (int s = 0; s < sources; ++s) {
            std::set<int> epoch;  // the windows so far
            for (const Drawn& drawn : all) {
                if (drawn.source != s) continue;
                INFO("source " << s << " of " << sources << " with " << windows[s] << " windows: " << drawn.window);
                REQUIRE(epoch.insert(drawn.window).second);
                if (std::ssize(epoch) == windows[s]) epoch.clear();
            }
        }
        for (int trial = 0; trial < 20; ++trial) {  // resumed anywhere, with other ranks and micro-batches
            const int ranks = between(1, 4);
            const int B = between(1, 5);
            const int from = trial % 4 == 0 ? 10000 - between(0, ranks * B) : between(0, 20000);
            for (int rank = 0; rank < ranks; ++rank) {
                LoaderOptions part = o;
                part.B = B;
                part.rank = rank;
                part.ranks = ranks;
                Loader loader(mixture.data.shards, part);
                loader.seek(from);
                for (int step = 0; step < 5; ++step) {
                    const auto first = all.begin() + from + (step * ranks + rank) * B;
                    REQUIRE(take_batch(loader, stream) == std::vector<Drawn>(first, first + B));
                }
            }
        }
    }
}

TEST_CASE("data/loader: two equal sources of 200 windows give 400 sequences nearly without repetition") {
    const Mixture mixture({200, 200}, {1, 1});
    std::map<std::pair<int, int>, int> times;
    for (const Drawn& d : take_samples(mixture, mixture.options(0), 400)) ++times[{d.source, d.window}];
    int64_t most_repetitions = 0;
    for (const auto& [window, count] : times) most_repetitions = std::max<int64_t>(most_repetitions, count);
    // A source has 200 of 400 sequences with a standard deviation of 10: six of them come from the second epoch.
    REQUIRE((most_repetitions <= 2 && times.size() >= 400 - 60));
}

TEST_CASE("data/loader: a run of version 0.2 continues with its own order of a mixture") {
    const Mixture mixture({150, 60, 9}, {0.5, 0.3, 0.2});
    LoaderOptions o = mixture.options(7);
    o.mixture_in_turn = false;
    const std::vector<Drawn> drawn = take_samples(mixture, o, 10500);
    // Version 0.2: sample i has place p(i) in its block of 10,000, whose sources are parts of 5000, 3000 and 2000
    // places; the place in a part, after those of earlier blocks, is the number of the source's sample.
    const int64_t begins[] = {0, 5000, 8000, 10000};
    for (int64_t i = 0; i < std::ssize(drawn); ++i) {
        const int64_t block = i / 10000;
        const int64_t at = Permutation(10000, ~uint64_t{7}, block)(i % 10000);
        const int s = (at >= begins[1]) + (at >= begins[2]);
        const int windows = mixture.windows[s];
        const int64_t number = block * (begins[s + 1] - begins[s]) + at - begins[s];
        const Permutation epoch(windows, 7 + s * uint64_t{0x9e3779b97f4a7c15}, number / windows);
        REQUIRE(drawn[i] == Drawn{s, static_cast<int>(epoch(number % windows))});
    }
}

// Epochs, resumed runs and ranks are tested above.
TEST_CASE("data/loader: a mixture keeps its shares in blocks of 10,000 and at every length, in an order of its seed") {
    const Mixture mixture({300, 41, 7}, {0.7, 0.2, 0.1});
    const std::vector<Drawn> seen = take_samples(mixture, mixture.options(3), 20000);
    for (int block : {0, 1}) {
        std::map<int, int> count;
        for (int i = 0; i < 10000; ++i) ++count[seen[static_cast<size_t>(block * 10000 + i)].source];
        REQUIRE(count == std::map<int, int>{{0, 7000}, {1, 2000}, {2, 1000}});
    }
    // At every length the shares are as exact as in a random order: within six standard deviations of 500 draws.
    for (size_t begin = 0; begin < seen.size(); begin += 500) {
        int64_t first = 0;
        for (size_t i = begin; i < begin + 500; ++i) first += seen[i].source == 0;
        REQUIRE(std::abs(static_cast<double>(first) - 350) < 6 * std::sqrt(500 * 0.7 * 0.3));
    }
    const std::vector<Drawn> reseeded = take_samples(mixture, mixture.options(4), 1000);
    int same = 0;
    for (size_t i = 0; i < reseeded.size(); ++i) same += reseeded[i] == seen[i];
    REQUIRE(same < 100);
    LoaderOptions in_order = mixture.options(4);
    in_order.shuffle = false;
    REQUIRE(error_of([&] { Loader(mixture.data.shards, in_order); }).starts_with("--shuffle off"));
}
