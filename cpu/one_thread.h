// Libraries that would use threads of their own stay on the calling one.
#pragma once

#include <omp.h>

namespace teon::cpu {

// While it lives, OpenMP gives the calling thread no others. Other threads' settings do not change.
class OneThread {
public:
    OneThread() { omp_set_num_threads(1); }
    ~OneThread() { omp_set_num_threads(before_); }
    OneThread(const OneThread&) = delete;

private:
    int before_ = omp_get_max_threads();
};

}  // namespace teon::cpu
