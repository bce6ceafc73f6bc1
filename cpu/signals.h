// Holds back signals from code that they must not interrupt.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace teon::cpu {

// While an object lives, signals are blocked for the calling thread, and for threads created meanwhile, except signals
// that report a thread's own fault. oneDNN's generated code uses the stack pointer as an ordinary register: the frame
// of a signal or of a profiler's handler would overwrite the memory that it points at.
class HeldSignals {
public:
    HeldSignals() {
        sigset_t held;
        sigfillset(&held);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&held, fault);
        pthread_sigmask(SIG_SETMASK, &held, &before_);
    }
    ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    HeldSignals(const HeldSignals&) = delete;

private:
    sigset_t before_;
};

}  // namespace teon::cpu
