#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/check.h"

namespace teon {

namespace {

struct OutOfHostMemory : std::bad_alloc {
    const char* what() const noexcept override {
        return "out of host memory: the machine, its container or a limit (ulimit -v, -d) gives this process no more";
    }
};

}  // namespace

void prepare_process() {
    std::signal(SIGXFSZ, SIG_IGN);
    std::set_new_handler([] { throw OutOfHostMemory(); });
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
        if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)  // open() takes the smallest number that is free
            CHECK(::open("/dev/null", O_RDONLY) == descriptor, "/dev/null cannot be opened: {}", std::strerror(errno));
}

void print_output(std::string_view text) {
    CHECK(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0,
          "standard output cannot be written: {}", std::strerror(errno));
}

void print_error(std::string_view text) noexcept {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

}  // namespace teon
