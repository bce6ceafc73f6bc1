#include "cpu/threads.h"

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/check.h"
#include "test/support/catch.h"
#include "test/support/cpu_time.h"
#include "test/support/os_threads.h"
#include "test/support/skip.h"

using namespace teon;
using cpu::parallel_for;
using test::cpu_seconds_of;
using test::ScopedThreads;

namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Returns whether parallel_for(n, chunk) runs each index once.
bool each_once(int64_t n, int64_t chunk) {
    const auto times = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(n));
    parallel_for(n, chunk, [&](int64_t i) { ++times[i]; });
    for (int64_t i = 0; i < n; ++i)
        if (times[i] != 1) return false;
    return true;
}

}  // namespace

TEST_CASE("cpu/threads: each index runs once, for any number of threads, indices and chunks") {
    for (const int threads : {1, 2, 3, 8, 40}) {
        const ScopedThreads scope(threads);
        for (const int64_t n : {0, 1, 2, 7, 64, 1000})
            for (const int64_t chunk : {1, 3, 64, 5000}) REQUIRE(each_once(n, chunk));
    }
}

TEST_CASE("cpu/threads: many short loops, one after the other") {
    const ScopedThreads scope(4);
    std::atomic<int64_t> sum = 0;
    for (int loop = 0; loop < 20000; ++loop) parallel_for(5, 1, [&](int64_t i) { sum += i + loop; });
    REQUIRE(sum == 20000 * 10 + 5 * (int64_t{20000} * 19999 / 2));
}

TEST_CASE("cpu/threads: a loop's writes are visible after it, and earlier writes are visible in it") {
    const ScopedThreads scope(4);
    std::vector<int> x(1000, 0);
    for (int loop = 0; loop < 500; ++loop) parallel_for(std::ssize(x), 10, [&](int64_t i) { x[999 - i] += 1; });
    for (const int v : x) REQUIRE(v == 500);
}

TEST_CASE("cpu/threads: the exception of the lowest index is thrown, and lower indices have run") {
    for (const int threads : {1, 4}) {
        const ScopedThreads scope(threads);
        for (int repeat = 0; repeat < 200; ++repeat) {
            std::vector<std::atomic<bool>> ran(500);
            auto loop = [&] {
                parallel_for(500, 2, [&](int64_t i) {
                    ran[i] = true;
                    if (i == 123 || i == 124 || i > 300) throw std::runtime_error(std::to_string(i));
                });
            };
            REQUIRE(test::error_of<std::runtime_error>(loop) == "123");
            for (int i = 0; i < 123; ++i) REQUIRE(ran[i]);
        }
    }
    REQUIRE(each_once(100, 1));
}

TEST_CASE("cpu/threads: a nested loop runs on the thread of the outer body") {
    const ScopedThreads scope(4);
    std::atomic<int> elsewhere = 0;
    std::atomic<int> runs = 0;
    parallel_for(16, 1, [&](int64_t) {
        const std::thread::id outer = std::this_thread::get_id();
        parallel_for(16, 1, [&](int64_t) {
            ++runs;
            if (std::this_thread::get_id() != outer) ++elsewhere;
        });
    });
    REQUIRE(runs == 256);
    REQUIRE(elsewhere == 0);
}

TEST_CASE("cpu/threads: concurrent loops of several threads all finish") {
    const ScopedThreads scope(3);
    std::atomic<int64_t> sum = 0;
    const auto loops = [&] {
        for (int loop = 0; loop < 2000; ++loop) parallel_for(20, 1, [&](int64_t i) { sum += i; });
    };
    std::thread a(loops);
    std::thread b(loops);
    loops();
    a.join();
    b.join();
    REQUIRE(sum == 3 * 2000 * 190);
}

TEST_CASE("cpu/threads: if the system refuses a thread, the error names the remedy and later loops run") {
#if defined(__SANITIZE_ADDRESS__)
    SKIP_TEST("the address sanitizer does not survive a limit of memory");
#endif
    {
        const ScopedThreads scope(100);
        rlimit before{};
        getrlimit(RLIMIT_AS, &before);
        const rlimit none{1, before.rlim_max};  // no memory for another stack
        setrlimit(RLIMIT_AS, &none);
        const std::string message = test::error_of([] { each_once(100, 1); });
        setrlimit(RLIMIT_AS, &before);
        REQUIRE(test::contains(message, "lower TEON_THREADS"));
    }
    const ScopedThreads scope(4);
    REQUIRE(each_once(100, 1));
}

TEST_CASE("cpu/threads: idle threads sleep") {
    const ScopedThreads scope(8);
    REQUIRE(each_once(100, 1));
    REQUIRE(cpu_seconds_of([] { sleep_ms(300); }) < 0.1);  // spinning, they would take 0.3 s per processor

    const double waiting = cpu_seconds_of([] {
        parallel_for(8, 1, [](int64_t i) {
            if (i == 0) sleep_ms(300);
        });
    });
    REQUIRE(waiting < 0.1);  // seven of eight wait for the first
}

TEST_CASE("cpu/threads: processors, affinity and the environment limit the number of threads") {
    int usable = 0;
    int here = cpu::detail::usable_processors();
    std::thread([&] {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(sched_getcpu(), &set);
        if (sched_setaffinity(0, sizeof set, &set) == 0) usable = cpu::detail::usable_processors();
    }).join();
    REQUIRE(usable == 1);
    REQUIRE(here >= 1);

    using cpu::detail::bounded_threads;
    REQUIRE(bounded_threads(8, nullptr, nullptr) == 8);
    REQUIRE(bounded_threads(8, "3", nullptr) == 3);
    REQUIRE(bounded_threads(8, nullptr, "4") == 4);
    REQUIRE(bounded_threads(8, nullptr, "4,2") == 4);
    REQUIRE(bounded_threads(8, "3", "2") == 2);
    REQUIRE(bounded_threads(8, nullptr, nullptr, "2") == 2);
    REQUIRE(bounded_threads(8, nullptr, "4", "2") == 4);
    REQUIRE(bounded_threads(8, "16", "99999999999999") == 8);
    REQUIRE(bounded_threads(8, nullptr, "many") == 8);
    for (const char* bad : {"", "0", "-1", "2x", "99999999999999", "all"}) {
        INFO(bad);
        REQUIRE_THROWS_AS(bounded_threads(8, bad, nullptr), Error);
    }
    REQUIRE_THROWS_AS(cpu::set_thread_count(0), Error);
    REQUIRE_THROWS_AS(parallel_for(1, 0, [](int64_t) {}), Error);
}
