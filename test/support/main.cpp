// The main function of the test programs. In addition to Catch2's report, it writes the start and the result of each
// test case to the file TEON_TEST_LOG, for dev/run_tests.py. Each line is flushed, so that a crash is attributed to
// the right test. If an error of the GPU stays after a test case, the process ends, because all others would fail too.
#define CATCH_CONFIG_RUNNER
#include "test/support/catch.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "test/support/lasting_error.h"
#include "test/support/skip.h"

#if CATCH_VERSION_MAJOR >= 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

namespace {

struct Log : Listener {
    using Listener::Listener;

    void testCaseStarting(const Catch::TestCaseInfo& info) override {
        teon::test::skip_reason.clear();
        start_ = std::chrono::steady_clock::now();
        name_ = info.name;
        write("started", "");
    }

    void testCaseEnded(const Catch::TestCaseStats& stats) override {
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
        const std::string& reason = teon::test::skip_reason;
        if (stats.totals.testCases.failed > 0) return fail(std::to_string(seconds));
        if (reason.empty()) return write("passed", std::to_string(seconds));
        write("skipped", reason);
        if (!file_) std::printf("SKIPPED: %s: %s\n", name_.c_str(), reason.c_str());
    }

private:
    void fail(const std::string& seconds) {
        const std::string error = teon::test::lasting_error();
        if (error.empty()) return write("failed", seconds);
        write("failed", "the GPU's error stays: " + error);
        if (!file_) return;
        std::fflush(nullptr);
        std::_Exit(1);
    }

    void write(const char* what, const std::string& detail) {
        if (!file_) return;
        std::fprintf(file_, "%s\t%s\t%s\n", what, name_.c_str(), detail.c_str());
        std::fflush(file_);
    }

    std::FILE* file_ = std::getenv("TEON_TEST_LOG") ? std::fopen(std::getenv("TEON_TEST_LOG"), "w") : nullptr;
    std::string name_;
    std::chrono::steady_clock::time_point start_;
};

CATCH_REGISTER_LISTENER(Log)

}  // namespace

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
