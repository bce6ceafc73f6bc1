/* Loaded before a program (LD_PRELOAD): its matrix products send signals while the stack pointer is no stack, which
 * oneDNN does in its generated code. Also begins as OpenBLAS does, with a thread before main(). For test/programs/test_signals.py.
 *
 *   OUTSIDE_SIGNAL=S    the product sends S to the process
 *   OUTSIDE_AT=N        at the N-th product, from 0
 *   OUTSIDE_PROFILE=1   a profiler's handler of SIGPROF, without a stack of its own, is there, and each product sends that
 *                       to its thread
 *   OUTSIDE_REPORT=FILE where it writes at the end: products, and signals that the profiler has handled
 *
 * A signal that writes to where the stack pointer points ends the program by SIGABRT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "outside_the_stack.h"

static _Atomic long products, handled;

static long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void on_profile(int signal) {
    (void)signal;
    ++handled;
}

static void send_outside(long call, long a, long b, long c) {
    static __thread unsigned char* buffer;
    if (!buffer) buffer = malloc(kOutsideBytes);
    if (!call_outside(buffer, call, a, b, c)) abort();
}

int dnnl_primitive_execute(const void* primitive, void* stream, int n, const void* arguments) {
    static __typeof__(&dnnl_primitive_execute) next;
    if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    const long product = products++;
    if (number("OUTSIDE_PROFILE", 0)) send_outside(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGPROF);
    if (product == number("OUTSIDE_AT", -1)) send_outside(SYS_kill, getpid(), number("OUTSIDE_SIGNAL", 0), 0);
    return next(primitive, stream, n, arguments);
}

static void* sleep_on(void* nothing) {
    for (;;) pause();
    return nothing;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_on, NULL);
    struct sigaction action = {.sa_handler = on_profile, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
}

__attribute__((destructor)) static void report(void) {
    const char* path = getenv("OUTSIDE_REPORT");
    FILE* file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld %ld\n", (long)products, (long)handled);
    fclose(file);
}
