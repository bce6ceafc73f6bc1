/* A system call while the stack pointer is no stack, as in oneDNN's generated code. For C and C++. */
#pragma once

#include <string.h>

#if defined(__x86_64__)
#define HAS_OUTSIDE_CALLS 1
#else
#define HAS_OUTSIDE_CALLS 0
#endif

enum { kOutsideBytes = 1 << 16, kOutsideByte = 0xa5 };

/* Makes a system call with the stack pointer in the middle of the buffer, whose kOutsideBytes bytes it fills. A signal
 * that arrives with its return finds it there. Returns whether nothing was written to the buffer. */
static inline int call_outside(unsigned char* buffer, long number, long a, long b, long c) {
    memset(buffer, kOutsideByte, kOutsideBytes);
#if HAS_OUTSIDE_CALLS
    asm volatile(
        "mov %%rsp, %%r12\n\t"
        "mov %[outside], %%rsp\n\t"
        "syscall\n\t"
        "mov %%r12, %%rsp"
        : "+a"(number)
        : "D"(a), "S"(b), "d"(c), [outside] "r"(buffer + kOutsideBytes / 4 * 3)
        : "rcx", "r11", "r12", "memory");
#endif
    for (long i = 0; i < kOutsideBytes; ++i)
        if (buffer[i] != kOutsideByte) return 0;
    return 1;
}
