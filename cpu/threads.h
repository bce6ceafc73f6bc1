// The program's worker threads, over which the CPU runs a kernel's blocks and a product's tiles. They spin for a moment
// and then sleep, so that other programs on the machine get their share of the processors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace teon::cpu {

// A reference to a callable, for the time of a call.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
public:
    template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
          call_([](void* object, Args... args) -> R {
              return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
          }) {}
    R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

private:
    void* object_;
    R (*call_)(void*, Args...);
};

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
void parallel_for(int64_t n, int64_t chunk, FunctionRef<void(int64_t)> body);

namespace detail {

// The processors that the calling thread may run on and its container's limit allow.
int usable_processors();

// The number of threads for that many processors, under the bounds that the two variables' values (null: not set) give.
// Of OMP_NUM_THREADS, which other programs read too, only what is a number counts ("4,2": 4).
int bounded_threads(int processors, const char* teon_threads, const char* omp_num_threads);

}  // namespace detail

}  // namespace teon::cpu
