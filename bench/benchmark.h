// Timing and the main program of the benchmarks.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <limits>
#include <vector>

#include "base/standard_streams.h"
#include "runtime/cuda/device.h"

namespace teon::bench {

struct Times {
    double median, best;
    double processor;  // of all threads together, the best: other work on the machine disturbs it least
};

// Milliseconds of processor time of all threads so far.
inline double processor_ms() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

// Returns the milliseconds of one run: the median and the best of 7 means over consecutive runs, and the least
// processor time. `run` queues work on `stream`. The runs of a mean take at least 10 ms together, so that the time to
// launch the first one is negligible. Two runs before them load the kernels and select algorithms. All runs use the
// same memory, so data that fits the caches stays there.
inline Times measure(const Stream& stream, const std::function<void()>& run) {
    constexpr int kMeans = 7;
    constexpr double kLeastMs = 10;
    Event from;
    Event to;
    double processor = std::numeric_limits<double>::infinity();
    const auto mean_of = [&](int runs) {
        const double begin = processor_ms();
        from.record(stream);
        for (int i = 0; i < runs; ++i) run();
        to.record(stream);
        to.synchronize();
        processor = std::min(processor, (processor_ms() - begin) / runs);
        return Event::milliseconds(from, to) / runs;
    };
    run();
    const double ms = mean_of(1);
    const int runs = ms > 0 ? static_cast<int>(std::clamp(kLeastMs / ms + 1, 1.0, 1000.0)) : 1;
    std::vector<double> means(kMeans);
    for (double& mean : means) mean = mean_of(runs);
    std::sort(means.begin(), means.end());
    return {means[kMeans / 2], means[0], processor};
}

// The body of a benchmark's main(). Runs `benchmark` on the first device and returns the exit status. If `benchmark`
// throws, prints the message and returns 2 for wrong usage, else 1.
inline int run_main(const std::function<void()>& benchmark) {
    try {
        require_device();
        set_device(0);
        benchmark();
        return 0;
    } catch (const UsageError& e) {
        print_error(fmt::format("{}\n", e.what()));
        return 2;
    } catch (const std::exception& e) {
        print_error(fmt::format("{}\n", e.what()));
        return 1;
    }
}

}  // namespace teon::bench
