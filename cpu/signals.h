// Code that signals must not interrupt.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace teon::cpu {

// While it lives, the calling thread takes no signal, and threads made meanwhile begin so; signals that report a
// thread's own fault are never held back. For oneDNN, whose generated code uses the stack pointer as an ordinary
// register: a signal's frame, and the handler of a profiler, would overwrite whatever it points at.
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
