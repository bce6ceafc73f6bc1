// Keeps libraries that would use threads of their own on the calling thread.
#pragma once

#include <omp.h>

namespace teon::cpu {

// While an object lives, OpenMP gives the calling thread no other threads. The settings of other threads do not change.
class OneThread {
public:
    OneThread() { omp_set_num_threads(1); }
    ~OneThread() { omp_set_num_threads(before_); }
    OneThread(const OneThread&) = delete;

private:
    int before_ = omp_get_max_threads();
};

}  // namespace teon::cpu
