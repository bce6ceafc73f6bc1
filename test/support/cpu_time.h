// Processor time in seconds. Unlike elapsed time, it does not grow while other processes use the processors.
#pragma once

#include <time.h>

namespace teon::test {

// Returns the processor time of all threads of this process.
inline double cpu_seconds() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Returns the processor time that work() takes.
template <typename F>
double cpu_seconds_of(F work) {
    const double before = cpu_seconds();
    work();
    return cpu_seconds() - before;
}

}  // namespace teon::test
