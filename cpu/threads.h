// The program's worker threads, over which the CPU runs a kernel's blocks and a product's tiles. They spin for a moment
// and then sleep, so that other programs on the machine get their share of the processors.
#pragma once

#include <cstdint>
#include <functional>

namespace teon::cpu {

namespace detail {

void parallel_for(int64_t n, int64_t chunk, const std::function<void(int64_t)>& body);

// The processors that the calling thread may run on and its container's limit allow.
int usable_processors();

// The number of threads for that many processors, under the bounds that the two variables' values (null: not set) give.
// Of OMP_NUM_THREADS, which other programs read too, only what is a number counts ("4,2": 4).
int bounded_threads(int processors, const char* teon_threads, const char* omp_num_threads);

}  // namespace detail

// How many threads parallel_for uses, the caller among them: the processors that this process may run on (its affinity)
// and its container's limit allow, at most TEON_THREADS and OMP_NUM_THREADS where they are set. Throws Error if
// TEON_THREADS is not a positive integer.
int thread_count();

// Sets that number, which may then be larger than what the machine has; returns the previous one. For tests: results do
// not depend on it.
int set_thread_count(int threads);

// Runs body(i) once for each i in [0, n), on several threads of which the caller is one; returns when all are done.
// Threads take `chunk` consecutive i at a time, lowest first. If bodies throw, the exception of the lowest i among them
// is thrown here; bodies of higher i may then not have run. Inside of a body, and while another thread's parallel_for
// is under way, it runs on the caller alone.
template <typename F>
void parallel_for(int64_t n, int64_t chunk, F&& body) {
    detail::parallel_for(n, chunk, std::ref(body));  // a function by reference takes no memory
}

}  // namespace teon::cpu
