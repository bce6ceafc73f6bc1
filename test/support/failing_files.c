/* Preloaded into a program (LD_PRELOAD), makes one of its file operations fail. For test/programs/test_interrupted.py.
 *
 *   FAIL_UNDER=FOLDER   count operations on files in this folder
 *   FAIL_AT=N           the N-th counted operation fails, from 0; -1 (default): none
 *   FAIL_HOW=HOW        error: it fails; forever: it and all later ones fail, as on a full disk; short: it succeeds but
 *                       reads or writes only half; kill: it writes half, then the process is killed; slow: it takes
 *                       FAIL_S (3) seconds longer, and none fails
 *   FAIL_ERRNO=E        the error number of a failure (default: EIO)
 *   FAIL_CALL=NAME      instead, every call of this function fails; fsync_folder: fsync of a folder
 *   FAIL_READS=1        count reads, too
 *   FAIL_COUNT=FILE     write the number of operations to this file at exit
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

static int how(const char* name) {
    const char* text = getenv("FAIL_HOW");
    return text && strcmp(text, name) == 0;
}

/* Counts an operation, and returns whether it is to fail. */
static int chosen(const char* name) {
    if (getenv("FAIL_CALL")) return strcmp(getenv("FAIL_CALL"), name) == 0;
    const long call = calls++, at = number("FAIL_AT", -1);
    if (call == at && how("slow")) sleep(number("FAIL_S", 3));
    if (how("slow")) return 0;
    return at >= 0 && (call == at || (call > at && how("forever")));
}

/* Returns whether an operation without a length is to fail, and sets errno if so. */
static int fails(const char* name, int of_interest) {
    if (!of_interest || !chosen(name) || how("short")) return 0;
    if (how("kill")) kill(getpid(), SIGKILL);
    errno = (int)number("FAIL_ERRNO", EIO);
    return 1;
}

/* Returns how many bytes an operation is to read or write; -1, with errno set, if it is to fail. */
static ssize_t bytes_of(const char* name, int of_interest, size_t bytes) {
    if (!of_interest || !chosen(name)) return (ssize_t)bytes;
    if (how("short") || how("kill")) return (ssize_t)(bytes - bytes / 2);
    errno = (int)number("FAIL_ERRNO", EIO);
    return -1;
}

/* Returns the result of a write of bytes_of() bytes, unless the process is to be killed after half a write. */
static ssize_t done(ssize_t result, size_t bytes) {
    if (result >= 0 && (size_t)result < bytes && how("kill")) kill(getpid(), SIGKILL);
    return result;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_by(const char* name, const char* path, int flags, mode_t mode) {
    const int reads = (flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT);
    if (fails("open", counted(path) && (!reads || number("FAIL_READS", 0)))) return -1;
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
    const int of_interest = counted_file(file);
    const ssize_t some = bytes_of("write", of_interest, bytes);
    if (some < 0) return -1;
    const ssize_t result = NEXT(write)(file, data, (size_t)some);
    return of_interest ? done(result, bytes) : result;
}
ssize_t pread(int file, void* data, size_t bytes, off_t at) {
    const ssize_t some = bytes_of("pread", number("FAIL_READS", 0) && counted_file(file), bytes);
    return some < 0 ? -1 : NEXT(pread)(file, data, (size_t)some, at);
}
ssize_t pread64(int file, void* data, size_t bytes, off64_t at) {
    const ssize_t some = bytes_of("pread", number("FAIL_READS", 0) && counted_file(file), bytes);
    return some < 0 ? -1 : NEXT(pread64)(file, data, (size_t)some, at);
}
int fsync(int file) {
    struct stat status;
    const int folder = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
    return fails(folder ? "fsync_folder" : "fsync", counted_file(file)) ? -1 : NEXT(fsync)(file);
}
int flock(int file, int how) { return fails("flock", counted_file(file)) ? -1 : NEXT(flock)(file, how); }
int symlink(const char* to, const char* path) { return fails("symlink", counted(path)) ? -1 : NEXT(symlink)(to, path); }
static int truncation_fails(int file) { return fails("ftruncate", counted_file(file)); }
int ftruncate(int file, off_t size) { return truncation_fails(file) ? -1 : NEXT(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return truncation_fails(file) ? -1 : NEXT(ftruncate64)(file, size); }
int rename(const char* from, const char* to) { return fails("rename", counted(from)) ? -1 : NEXT(rename)(from, to); }
int mkdir(const char* path, mode_t mode) { return fails("mkdir", counted(path)) ? -1 : NEXT(mkdir)(path, mode); }
int unlink(const char* path) { return fails("unlink", counted(path)) ? -1 : NEXT(unlink)(path); }

__attribute__((destructor)) static void report(void) {
    const char* path = getenv("FAIL_COUNT");
    if (!path) return;
    FILE* file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%ld\n", (long)calls);
    fclose(file);
}
