// Measures how many tokens per second one core converts from shards in the page cache to batches. Also measures the
// share of its time for which a consumer of 8 x 1024 tokens per millisecond waits for the loader. `make bench` runs it.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "bench/benchmark.h"
#include "data/loader.h"
#include "test/support/temp_dir.h"
#include "test/support/write_shard.h"

using namespace teon;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int V = 50257;
constexpr int kDelimiter = V - 1;
constexpr int T = 1024;
constexpr int kShards = 4;
constexpr int64_t kTokensPerShard = 8 << 20;

// Random tokens with frequencies as in text, about 1 / rank, and a delimiter every 500 tokens on average.
std::vector<uint32_t> text_like(int64_t n, std::mt19937_64& random) {
    std::vector<uint32_t> tokens(n);
    for (uint32_t& token : tokens) {
        double u = static_cast<double>(random() >> 11) * 0x1p-53;
        token = random() % 500 == 0 ? kDelimiter : static_cast<uint32_t>(std::pow(V, u)) - 1;
    }
    return tokens;
}

// Processor time of this thread; other work on the machine does not add to it.
double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Tokens per second of one core: the best of three epochs.
double throughput(const std::vector<ShardInfo>& shards, LoaderOptions options) {
    options.prefetch = false;
    Loader loader(shards, options);
    Stream stream;
    const int64_t batches = loader.windows() / options.B;
    double best = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
        const double start = cpu_seconds();
        for (int64_t i = 0; i < batches; ++i) loader.next(stream);
        best = std::max(best, static_cast<double>(batches) * options.B * T / (cpu_seconds() - start));
    }
    return best;
}

// The share of its time for which a consumer of one batch per millisecond waits for the loader.
double waiting(const std::vector<ShardInfo>& shards, const LoaderOptions& options) {
    Loader loader(shards, options);
    Stream stream;
    loader.next(stream);
    const int steps = 500;
    double waited = 0;
    auto start = Clock::now();
    for (int i = 0; i < steps; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        loader.next(stream);
        waited += loader.wait_ms();
    }
    return waited / 1000 / seconds_since(start);
}

void run() {
    std::mt19937_64 random(1);
    fmt::print("{:<10} {:<6} {:>10} {:>16} {:>9}\n", "tokens", "mask", "B", "Mtokens/s/core", "waiting");
    for (int width : {2, 4}) {
        test::TempDir folder;
        for (int s = 0; s < kShards; ++s) {
            test::write_shard(folder / fmt::format("bench_train_{:06}.bin", s), text_like(kTokensPerShard, random),
                              width);
        }
        std::vector<ShardInfo> shards = open_shards(folder.path(), "train");
        for (bool mask : {false, true}) {
            for (int B : {8, 64}) {
                const LoaderOptions o{.B = B, .T = T, .vocab_size = V, .document_mask = mask, .delimiter = kDelimiter};
                const double rate = throughput(shards, o);
                const std::string waits = B == 8 ? fmt::format("{:.2f}%", 100 * waiting(shards, o)) : "-";
                fmt::print("{:<10} {:<6} {:>10} {:>16.0f} {:>9}\n", width == 2 ? "uint16" : "uint32",
                           mask ? "on" : "off", fmt::format("{} x {}", B, T), rate / 1e6, waits);
            }
        }
    }
}

}  // namespace

int main() { return bench::run_main(run); }
