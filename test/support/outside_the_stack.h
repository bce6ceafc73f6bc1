/* A system call while the stack pointer does not point to a stack, as in oneDNN's generated code. For C and C++. */
#pragma once

#include <string.h>

#if defined(__x86_64__)
#define HAS_OUTSIDE_CALLS 1
#else
#define HAS_OUTSIDE_CALLS 0
#endif

enum { kOutsideBytes = 1 << 16, kOutsideByte = 0xa5 };

/* Fills the kOutsideBytes bytes of the buffer, then makes a system call with the stack pointer inside the buffer. A
 * signal that arrives when the call returns finds the stack pointer there. Returns 1 if the buffer is unchanged, else
 * 0. Makes the call only on x86-64 (HAS_OUTSIDE_CALLS). */
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
#else
    (void)number;
    (void)a;
    (void)b;
    (void)c;
#endif
    for (long i = 0; i < kOutsideBytes; ++i)
        if (buffer[i] != kOutsideByte) return 0;
    return 1;
}
