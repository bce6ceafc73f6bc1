// The program's worker threads, which run the blocks of kernels and the tiles of products on the CPU. Idle workers spin
// for a moment and then sleep, so that other programs on the machine get their share of the processors.
#pragma once

#include <cstdint>
#include <functional>

namespace teon::cpu {

namespace detail {

void parallel_for(int64_t n, int64_t chunk, const std::function<void(int64_t)>& body);

// Returns the number of processors that the calling thread's affinity and its container's limit allow.
int usable_processors();

// Returns the number of threads for that many processors, bounded by the values of TEON_THREADS and OMP_NUM_THREADS
// (null: not set). Other programs read OMP_NUM_THREADS too: a list counts by its first number ("4,2": 4), and other
// text is ignored. Without OMP_NUM_THREADS, a Slurm task has at most SLURM_CPUS_PER_TASK.
int bounded_threads(int processors, const char* teon_threads, const char* omp_num_threads,
                    const char* slurm_cpus_per_task = nullptr);

}  // namespace detail

// Returns the number of threads that parallel_for uses, including the caller: the processors that the process's
// affinity and its container's limit allow, but at most TEON_THREADS and OMP_NUM_THREADS if they are set. Without
// OMP_NUM_THREADS, a Slurm task has at most SLURM_CPUS_PER_TASK. Throws Error if TEON_THREADS is not a positive
// integer.
int thread_count();

// Sets that number, from 1 to 1024, which may exceed the number of processors. Returns the previous one. For tests:
// results do not depend on it.
int set_thread_count(int threads);

// Runs body(i) once for each i in [0, n) on several threads, including the caller, and returns when all are done.
// Threads take `chunk` consecutive i at a time, lowest first. If bodies throw, rethrows the exception of the lowest
// such i; bodies of higher i may then not have run. Inside of a body, and while another thread's parallel_for runs, all
// bodies run on the caller.
template <typename F>
void parallel_for(int64_t n, int64_t chunk, F&& body) {
    detail::parallel_for(n, chunk, std::ref(body));  // std::function allocates no memory for a reference
}

}  // namespace teon::cpu
