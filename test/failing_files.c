/* Loaded before a program (LD_PRELOAD), makes one of its file operations fail: for test/test_resume.py.
 *
 *   FAIL_UNDER=FOLDER   operations on files there are counted
 *   FAIL_AT=N           the N-th of them fails, from 0; -1: none
 *   FAIL_FOREVER=1      and all that write or create after it, as on a full disk
 *   FAIL_ERRNO=E        with this error
 *   FAIL_COUNT=FILE     where the number of operations is written at the end
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic long calls;

static long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int counted(const char* path) {
    const char* folder = getenv("FAIL_UNDER");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int counted_file(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return counted(path);
}

/* Whether this operation is to fail; it sets errno. */
static int fails(int of_interest) {
    if (!of_interest) return 0;
    const long call = calls++, at = number("FAIL_AT", -1);
    if (at < 0 || (call != at && !(number("FAIL_FOREVER", 0) && call > at))) return 0;
    errno = (int)number("FAIL_ERRNO", EIO);
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_by(const char* name, const char* path, int flags, mode_t mode) {
    if (fails(counted(path))) return -1;
    return ((int (*)(const char*, int, mode_t))dlsym(RTLD_NEXT, name))(path, flags, mode);
}
static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }
int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_by("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_by("open64", path, flags, mode);
}
ssize_t write(int file, const void* data, size_t bytes) {
    return fails(counted_file(file)) ? -1 : NEXT(write)(file, data, bytes);
}
int fsync(int file) { return fails(counted_file(file)) ? -1 : NEXT(fsync)(file); }
int ftruncate(int file, off_t size) { return fails(counted_file(file)) ? -1 : NEXT(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return fails(counted_file(file)) ? -1 : NEXT(ftruncate64)(file, size); }
int rename(const char* from, const char* to) { return fails(counted(from)) ? -1 : NEXT(rename)(from, to); }
int mkdir(const char* path, mode_t mode) { return fails(counted(path)) ? -1 : NEXT(mkdir)(path, mode); }
int unlink(const char* path) { return fails(counted(path)) ? -1 : NEXT(unlink)(path); }

__attribute__((destructor)) static void report(void) {
    const char* path = getenv("FAIL_COUNT");
    if (!path) return;
    FILE* file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%ld\n", (long)calls);
    fclose(file);
}
