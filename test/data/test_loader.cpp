#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;

namespace {

// A batch's arrays, copied to the host.
struct HostBatch {
    std::vector<int> tokens, targets, positions, doc_start, token_order, position_order;
    bool operator==(const HostBatch&) const = default;
};

HostBatch to_host(const Batch& batch, const Stream& stream) {
    auto get = [&](const int* array) {
        return array ? fetch(array, int64_t{batch.B} * batch.T, stream) : std::vector<int>();
    };
    return {get(batch.tokens),    get(batch.targets),     get(batch.positions),
            get(batch.doc_start), get(batch.token_order), get(batch.position_order)};
}

HostBatch take(Loader& loader, const Stream& stream) { return to_host(loader.next(stream), stream); }

// Shards of random tokens.
struct Corpus {
    TempDir folder;
    std::vector<std::vector<uint32_t>> shards;
    int vocab_size, bytes_per_token;

    Corpus(std::vector<int> sizes, int vocab_size, int bytes_per_token = 2)
        : vocab_size(vocab_size), bytes_per_token(bytes_per_token) {
        std::mt19937_64 random(sizes.size());
        for (int size : sizes) {
            std::vector<uint32_t> tokens(size);
            for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % vocab_size);
            shards.push_back(tokens);
            write_shard(path(shards.size() - 1), tokens, bytes_per_token);
        }
    }

    std::string path(size_t shard) const { return folder / fmt::format("c_train_{:06}.bin", shard); }
    std::vector<ShardInfo> open() const { return open_shards(folder.path(), "train"); }

    // Returns all windows of T + 1 tokens in the order of the files.
    std::vector<std::vector<int>> windows(int T) const {
        std::vector<std::vector<int>> all;
        for (const auto& tokens : shards)
            for (size_t first = 0; first + T + 1 <= tokens.size(); first += T)
                all.emplace_back(tokens.begin() + first, tokens.begin() + first + T + 1);
        return all;
    }
};

// Returns the batch's windows (T + 1 tokens), row by row. A window is empty if a target is not the next token.
std::vector<std::vector<int>> rows(const HostBatch& batch, int T) {
    std::vector<std::vector<int>> all;
    for (size_t b = 0; b < batch.tokens.size() / T; ++b) {
        all.emplace_back(batch.tokens.begin() + b * T, batch.tokens.begin() + (b + 1) * T);
        all.back().push_back(batch.targets[(b + 1) * T - 1]);
        // All other targets must be the next tokens.
        if (!std::equal(all.back().begin() + 1, all.back().end(), batch.targets.begin() + b * T)) all.back().clear();
    }
    return all;
}

// Returns the windows of the samples [0, n), read with B = 1, on one rank, without prefetching.
std::vector<std::vector<int>> sequence(const Corpus& corpus, LoaderOptions options, int64_t n) {
    options.B = 1;
    options.rank = 0;
    options.ranks = 1;
    options.prefetch = false;
    Loader loader(corpus.open(), options);
    Stream stream;
    std::vector<std::vector<int>> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(rows(take(loader, stream), options.T).at(0));
    return all;
}

}  // namespace

TEST_CASE("data/loader: without shuffling, windows come in the order of the files, over and over") {
    for (int T : {1, 3, 16, 31}) {
        Corpus corpus({100, 33, 17, 250, 5}, 50);
        std::vector<std::vector<int>> expected = corpus.windows(T);
        auto windows = static_cast<int64_t>(expected.size());
        Loader loader(corpus.open(), {.T = T, .vocab_size = 50, .shuffle = false});
        REQUIRE(loader.windows() == windows);
        REQUIRE(loader.tokens() == 405);
        auto got = sequence(corpus, {.T = T, .vocab_size = 50, .shuffle = false}, 3 * windows);
        for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == expected[i % expected.size()]);
    }
}

TEST_CASE("data/loader: shuffled, each window comes once an epoch, in an order that depends on epoch and seed") {
    Corpus corpus({3001, 70, 1500, 8, 900}, 60000);
    for (int T : {7, 64}) {
        std::vector<std::vector<int>> all = corpus.windows(T);
        auto windows = static_cast<int64_t>(all.size());
        auto run = sequence(corpus, {.T = T, .vocab_size = 60000, .seed = 3}, 4 * windows);
        REQUIRE(run == sequence(corpus, {.T = T, .vocab_size = 60000, .seed = 3}, 4 * windows));
        REQUIRE(run != sequence(corpus, {.T = T, .vocab_size = 60000, .seed = 4}, 4 * windows));
        std::vector<std::vector<std::vector<int>>> epochs;
        for (int epoch = 0; epoch < 4; ++epoch) {
            epochs.emplace_back(run.begin() + epoch * windows, run.begin() + (epoch + 1) * windows);
            for (int before = 0; before < epoch; ++before) REQUIRE(epochs[before] != epochs[epoch]);
        }
        std::sort(all.begin(), all.end());
        for (auto& epoch : epochs) {
            REQUIRE(epoch != all);
            std::sort(epoch.begin(), epoch.end());
            REQUIRE(epoch == all);
        }
    }
}

// Over 100,000 indices of 4 layouts. The test checks the batch at each index and, for every tenth, the next batch.
TEST_CASE("data/loader: resumed at any index, the run continues as if it had not stopped") {
    struct Layout {
        std::vector<int> shards;
        int T, B, bytes_per_token;
        bool shuffle;
    };
    const Layout layouts[] = {{{60001}, 2, 3, 2, true},
                              {{20011, 9, 30000, 4, 2222}, 2, 1, 4, true},
                              {std::vector<int>(101, 1000), 4, 2, 2, true},
                              {{1, 50000, 1, 2, 3, 5000}, 3, 2, 2, false}};
    Stream stream;
    int64_t checks = 0;
    for (const Layout& layout : layouts) {
        Corpus corpus(layout.shards, 65536, layout.bytes_per_token);
        const int T = layout.T;
        const int B = layout.B;
        LoaderOptions options{.B = B, .T = T, .vocab_size = 65536, .shuffle = layout.shuffle, .seed = 9};
        auto loader = std::make_unique<Loader>(corpus.open(), options);
        const int64_t places = std::max<int64_t>(26000, loader->windows() + 50);  // beyond the first epoch
        const auto expected = sequence(corpus, options, places + 2 * B);
        int64_t wrong = 0;
        auto check = [&](int64_t index) {
            if (loader->next_sample() != index) ++wrong;
            std::vector<std::vector<int>> got = rows(take(*loader, stream), T);
            for (int b = 0; b < B; ++b) wrong += got[b] != expected[index + b];
        };
        // Not in order, so that no batch can be right because it was read ahead.
        const int64_t stride = 7919;
        for (int64_t i = 0; i < places; ++i, ++checks) {
            const int64_t index = i * stride % places;
            if (i % 500 == 0) loader = std::make_unique<Loader>(corpus.open(), options);
            loader->seek(index);
            check(index);
            if (i % 10 == 0) check(index + B);
        }
        REQUIRE(wrong == 0);
    }
    REQUIRE(checks >= 100000);
}

TEST_CASE("data/loader: seeking far ahead takes the sample of that epoch") {
    Corpus corpus({500, 700}, 60000);
    LoaderOptions options{.T = 10, .vocab_size = 60000, .shuffle = false};
    Loader loader(corpus.open(), options);
    Stream stream;
    const std::vector<std::vector<int>> all = corpus.windows(10);
    const auto windows = static_cast<int64_t>(all.size());
    const int64_t far = (int64_t{1} << 40) * windows + 57;
    loader.seek(far);
    REQUIRE(rows(take(loader, stream), 10)[0] == all[57]);
    REQUIRE(loader.next_sample() == far + 1);
    REQUIRE_THROWS_AS(loader.seek(-1), Error);
}

TEST_CASE(
    "data/loader: ranks share out the samples in one order, whatever their number, and with another micro-batch") {
    Corpus corpus({3000, 401, 77}, 60000);
    const int T = 5;
    const auto expected = sequence(corpus, {.T = T, .vocab_size = 60000, .seed = 1}, 2000);
    Stream stream;
    int64_t sample = 0;  // goes on from one number of ranks to the next, across the end of an epoch
    for (auto [ranks, B] : {std::pair{4, 2}, {2, 3}, {1, 5}, {3, 1}, {12, 1}, {1, 12}, {3, 4}, {6, 2}}) {
        INFO(ranks << " ranks from sample " << sample);
        std::vector<std::unique_ptr<Loader>> loaders;
        for (int rank = 0; rank < ranks; ++rank) {
            LoaderOptions o{.B = B, .T = T, .vocab_size = 60000, .seed = 1, .rank = rank, .ranks = ranks};
            loaders.push_back(std::make_unique<Loader>(corpus.open(), o));
            loaders.back()->seek(sample);
        }
        for (int step = 0; step < 20; ++step) {
            for (auto& loader : loaders)
                for (auto& row : rows(take(*loader, stream), T)) REQUIRE(row == expected[sample++]);
            REQUIRE(loaders[0]->next_sample() == sample);
        }
    }
    REQUIRE(sample > static_cast<int64_t>(corpus.windows(T).size()));
}

TEST_CASE("data/loader: batches are the same with and without the prefetch thread") {
    Corpus corpus({3000, 401, 77}, 300);
    Stream stream;
    for (bool mask : {false, true}) {
        LoaderOptions o{.B = 3, .T = 17, .vocab_size = 300, .seed = 8, .document_mask = mask, .delimiter = 5};
        Loader ahead(corpus.open(), o);
        o.prefetch = false;
        Loader plain(corpus.open(), o);
        for (int i = 0; i < 300; ++i) REQUIRE(take(ahead, stream) == take(plain, stream));
        ahead.seek(1234567);
        plain.seek(1234567);
        for (int i = 0; i < 10; ++i) REQUIRE(take(ahead, stream) == take(plain, stream));
    }
}

TEST_CASE("data/loader: orders of rows are stable sorts by token and by position") {
    // Vocabularies with one, two and three digits of the sort, and batches of 1 to 3000 tokens.
    for (int vocab_size : {1, 2, 256, 2048, 2049, 50257, 1 << 30}) {
        Corpus corpus({20000}, vocab_size, 4);
        for (auto [B, T] : {std::pair{1, 1}, {1, 31}, {33, 7}, {3, 1000}})
            for (bool mask : {false, true}) {
                LoaderOptions o{.B = B, .T = T, .vocab_size = vocab_size, .document_mask = mask, .delimiter = 0};
                Loader loader(corpus.open(), o);
                Stream stream;
                HostBatch batch = take(loader, stream);
                auto sorted_by = [&](const std::vector<int>& key) {
                    std::vector<int> row(key.size());
                    std::iota(row.begin(), row.end(), 0);
                    std::stable_sort(row.begin(), row.end(), [&](int a, int b) { return key[a] < key[b]; });
                    return row;
                };
                INFO("V " << vocab_size << " B " << B << " T " << T << " mask " << mask);
                REQUIRE(batch.tokens.size() == size_t(B) * T);
                REQUIRE(batch.token_order == sorted_by(batch.tokens));
                REQUIRE(batch.position_order == sorted_by(batch.positions));
                if (mask) continue;
                REQUIRE(batch.doc_start.empty());
                for (int i = 0; i < B * T; ++i) REQUIRE(batch.positions[i] == i % T);
            }
    }
}

TEST_CASE("data/loader: documents begin at delimiters and at rows, as found one position at a time") {
    std::mt19937_64 random(4);
    for (int one_in : {1, 2, 5, 50, 1000}) {
        TempDir folder;
        const int B = 3;
        const int T = 37;
        const int delimiter = 9;
        std::vector<uint32_t> tokens(5000);
        for (uint32_t& token : tokens) token = random() % one_in == 0 ? delimiter : static_cast<uint32_t>(random() % 9);
        write_shard(folder / "a.bin", tokens);
        LoaderOptions o{
            .B = B, .T = T, .vocab_size = 10, .shuffle = false, .document_mask = true, .delimiter = delimiter};
        Loader loader(open_shards(folder / "a.bin", ""), o);
        Stream stream;
        for (int64_t window = 0; window + B <= loader.windows(); window += B) {
            HostBatch batch = take(loader, stream);
            for (int b = 0; b < B; ++b)
                for (int t = 0; t < T; ++t) {
                    const int64_t at = (window + b) * T + t;
                    int start = t;
                    while (start > 0 && tokens[at - (t - start)] != delimiter) --start;
                    REQUIRE(batch.doc_start[b * T + t] == start);
                    REQUIRE(batch.positions[b * T + t] == t - start);
                    // Every target counts, also a delimiter, which is a target of the document before it.
                    REQUIRE(batch.targets[b * T + t] == static_cast<int>(tokens[at + 1]));
                }
        }
    }
}

TEST_CASE("data/loader: each batch has the number of its first sample on the device") {
    const Corpus corpus({400, 300}, 50);
    for (const bool mask : {false, true})
        for (const bool prefetch : {false, true}) {
            Loader loader(corpus.open(), {.B = 3,
                                          .T = 8,
                                          .vocab_size = 50,
                                          .rank = 1,
                                          .ranks = 2,
                                          .document_mask = mask,
                                          .delimiter = 7,
                                          .prefetch = prefetch});
            Stream stream;
            const auto number = [&] { return fetch(loader.next(stream).first_sample, 1, stream)[0]; };
            for (const int64_t expected : {3, 9, 15, 21, 27, 33}) REQUIRE(number() == expected);
            const int64_t far = int64_t{6} << 40;
            loader.seek(far);
            REQUIRE(number() == far + 3);
            REQUIRE(number() == far + 9);
        }
}

// On the modelled GPU nothing runs before the wait at the end, unless the loader itself waits for it.
TEST_CASE("data/loader: batches are right on a stream that runs far behind the host") {
    constexpr int kCalls = 20;
    Corpus corpus({30000}, 60000);
    for (bool prefetch : {false, true}) {
        LoaderOptions o{.B = 2, .T = 100, .vocab_size = 60000};
        o.prefetch = prefetch;
        const int64_t n = int64_t{o.B} * o.T;
        Stream stream;
        Loader loader(corpus.open(), o);
        Buffer<int> seen(kCalls * n);
        for (int call = 0; call < kCalls; ++call) copy(seen.data() + call * n, loader.next(stream).tokens, n, stream);
        const std::vector<int> tokens = fetch(seen, stream);
        Loader again(corpus.open(), o);
        for (int call = 0; call < kCalls; ++call) {
            const std::vector<int> expected = take(again, stream).tokens;
            REQUIRE(std::equal(expected.begin(), expected.end(), tokens.begin() + call * n));
        }
    }
}

TEST_CASE("data/loader: views stay valid until the call after the next") {
    Corpus corpus({30000}, 60000);
    for (bool mask : {false, true}) {
        LoaderOptions o{.B = 2, .T = 100, .vocab_size = 60000, .document_mask = mask, .delimiter = 1};
        Loader loader(corpus.open(), o);
        Stream stream;
        Batch before = loader.next(stream);
        HostBatch expected = to_host(before, stream);
        for (int i = 0; i < 50; ++i) {
            Batch now = loader.next(stream);
            REQUIRE(to_host(before, stream) == expected);
            before = now;
            expected = to_host(now, stream);
        }
    }
}

TEST_CASE("data/loader: a shard cut short during the run ends it with its name, after what was good, and never hangs") {
    for (bool prefetch : {false, true}) {
        Corpus corpus({1001, 1001, 1001}, 60000);
        LoaderOptions o{.B = 2, .T = 10, .vocab_size = 60000, .shuffle = false, .prefetch = prefetch};
        Loader loader(corpus.open(), o);
        Stream stream;
        std::filesystem::resize_file(corpus.path(1), 1024 + 2 * 200);
        const auto windows = corpus.windows(10);
        const int64_t good = 100 + 18;  // 19 whole windows are left in the second shard; a batch takes two
        for (int64_t i = 0; i < good; i += 2) {
            auto got = rows(take(loader, stream), 10);
            REQUIRE(got[0] == windows[i]);
            REQUIRE(got[1] == windows[i + 1]);
        }
        for (int again = 0; again < 3; ++again) {
            std::string error = error_of([&] { loader.next(stream); });
            INFO(error);
            REQUIRE(error.starts_with(corpus.path(1) + ": ends at byte 1424, expected 3026"));
            REQUIRE(loader.next_sample() == good);
        }
        loader.seek(200);
        REQUIRE(rows(take(loader, stream), 10)[0] == windows[200]);
        loader.seek(150);
        REQUIRE_THROWS_AS(loader.next(stream), Error);
        loader.seek(0);
        REQUIRE(rows(take(loader, stream), 10)[1] == windows[1]);
    }
}

TEST_CASE("data/loader: a shard deleted during the run is still read if open, and else ends the run with its name") {
    for (bool prefetch : {false, true}) {
        // Each shard has two windows. At most 256 files are open: reading shard 256 closes shard 0, whereas shard 100
        // stays open.
        Corpus corpus(std::vector<int>(300, 21), 60000);
        const auto windows = corpus.windows(10);
        LoaderOptions o{.T = 10, .vocab_size = 60000, .shuffle = false, .prefetch = prefetch};
        Loader loader(corpus.open(), o);
        Stream stream;
        for (int shard : {256, 100}) {
            loader.seek(2 * shard);
            take(loader, stream);
        }
        std::filesystem::remove(corpus.path(100));
        std::filesystem::remove(corpus.path(0));
        loader.seek(201);
        REQUIRE(rows(take(loader, stream), 10)[0] == windows[201]);
        loader.seek(599);
        REQUIRE(rows(take(loader, stream), 10)[0] == windows[599]);
        std::string error = error_of([&] { loader.next(stream); });
        INFO(error);
        REQUIRE(error.starts_with(corpus.path(0) + ": cannot be read: No such file"));
    }
}

TEST_CASE(
    "data/loader: a token outside the vocabulary is found when its window is read, and in a first window at once") {
    TempDir folder;
    std::vector<uint32_t> tokens(1000, 3);
    tokens[500] = 77;
    write_shard(folder / "a.bin", tokens);
    Loader loader(open_shards(folder / "a.bin", ""), {.T = 10, .vocab_size = 50, .shuffle = false});
    Stream stream;
    for (int i = 0; i < 49; ++i) REQUIRE_NOTHROW(loader.next(stream));
    REQUIRE(contains(error_of([&] { loader.next(stream); }),
                     "a.bin: token 77 at position 500 is outside the vocabulary of 50"));
    tokens[10] = 50;
    write_shard(folder / "b.bin", tokens);
    auto construct = [&] { Loader(open_shards(folder / "*.bin", ""), {.T = 10, .vocab_size = 50}); };
    REQUIRE(contains(error_of(construct), "b.bin: token 50 at position 10 is outside the vocabulary of 50"));
}

TEST_CASE("data/loader: it can be destroyed at any time") {
    Corpus corpus({5000, 300}, 60000);
    Stream stream;
    for (int i = 0; i < 300; ++i) {
        Loader loader(corpus.open(), {.B = 1 + i % 5, .T = 20, .vocab_size = 60000});
        for (int step = 0; step < i % 7; ++step) loader.next(stream);
        if (i % 3 == 0) loader.seek(i);
    }
    Loader failed(corpus.open(), {.T = 20, .vocab_size = 60000, .shuffle = false});
    std::filesystem::resize_file(corpus.path(0), 2000);
    REQUIRE_THROWS_AS(
        [&] {
            while (true) failed.next(stream);
        }(),
        Error);
}

TEST_CASE("data/loader: the time waited for is that of the last call") {
    Corpus corpus({5000}, 60000);
    for (bool prefetch : {false, true}) {
        Loader loader(corpus.open(), {.T = 20, .vocab_size = 60000, .prefetch = prefetch});
        REQUIRE(loader.wait_ms() == 0);
        Stream stream;
        loader.next(stream);
        REQUIRE((std::isfinite(loader.wait_ms()) && loader.wait_ms() >= 0));
    }
}

TEST_CASE("data/loader: options that cannot be are usage errors that say what to change") {
    Corpus corpus({50}, 100);
    auto error = [&](LoaderOptions o) { return error_of<UsageError>([&] { Loader(corpus.open(), o); }); };
    REQUIRE(contains(error({.T = 50, .vocab_size = 100}), "no window of 51 tokens (sequence length + 1) in 1 shards"));
    REQUIRE(contains(error({.B = 0, .vocab_size = 100}), "batch of 0"));
    REQUIRE(contains(error({.T = 0, .vocab_size = 100}), "of 0 tokens"));
    REQUIRE(contains(error({.B = 1 << 16, .T = 1 << 15, .vocab_size = 100}), "below 2^31"));
    REQUIRE(contains(error({.vocab_size = 0}), "vocabulary of 0"));
    REQUIRE(contains(error({.vocab_size = 100, .rank = 2, .ranks = 2}), "rank 2 of 2"));
    REQUIRE(contains(error({.vocab_size = 100, .document_mask = true}), "--document-mask needs the token"));
    REQUIRE(contains(error({.vocab_size = 100, .document_mask = true, .delimiter = 100}), "it is 100"));
    REQUIRE_THROWS_AS(Loader({}, {.vocab_size = 100}), UsageError);
}
