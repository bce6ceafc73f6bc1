/* Preloaded into a program (LD_PRELOAD), makes its matrix products send signals while the stack pointer does not point
 * to a stack, as in oneDNN's generated code. Also starts a thread before main(), as OpenBLAS does, and installs a
 * handler of SIGPROF without an alternate stack, as a profiler does. For test/programs/test_signals.py.
 *
 *   OUTSIDE_SIGNAL=S    the signal that product OUTSIDE_AT sends to the process
 *   OUTSIDE_AT=N        the index of that product, from 0
 *   OUTSIDE_WAIT=1      that product ends after the program has written to standard error that it received the signal
 *   OUTSIDE_PROFILE=1   each product sends SIGPROF to its thread
 *   OUTSIDE_REPORT=FILE write the number of products and of handled SIGPROFs to this file at exit
 *
 * The program aborts (SIGABRT) if a signal is handled on the memory at the stack pointer.
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
static _Atomic int reported;

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

ssize_t write(int file, const void* bytes, size_t n) {
    static __typeof__(&write) next;
    if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "write");
    if (file == STDERR_FILENO) reported = 1;
    return next(file, bytes, n);
}

int dnnl_primitive_execute(const void* primitive, void* stream, int n, const void* arguments) {
    static __typeof__(&dnnl_primitive_execute) next;
    if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    const long product = products++;
    if (number("OUTSIDE_PROFILE", 0)) send_outside(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGPROF);
    if (product == number("OUTSIDE_AT", -1)) {
        reported = 0;
        send_outside(SYS_kill, getpid(), number("OUTSIDE_SIGNAL", 0), 0);
        while (number("OUTSIDE_WAIT", 0) && !reported) usleep(100);
    }
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
