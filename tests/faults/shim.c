/* A library to preload: counts the calls that change the file system below a folder, in order, and at one of
 * them sends the process a signal before the call, lets the call fail with an error number, or writes half.
 *
 * A program that has it preloaded calls fault_arm() and then works as usual. Calls are those of the C library:
 * a program that makes system calls of its own is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* A negative action is a signal to send before the call, any other positive one the error number to fail with. */
enum { COUNT = 0, SHORT = 1000, TORN = 1001 }; /* write half of the data and go on, or be killed */
enum { PASS_ON = 0, FAIL, CUT };
enum { CAPACITY = 1 << 14, LENGTH = 160 };

static char folder[PATH_MAX];
static long number, count;
static int action;
static char operations[CAPACITY][LENGTH];

/* Count from now on; act on the call of that number, counted from 1. The folder is absolute, without links. */
void fault_arm(const char *path, long at, int what) {
    snprintf(folder, sizeof folder, "%s", path);
    number = at;
    action = what;
    count = 0;
}

long fault_count(void) { return count; }

/* Name an operation that was counted, as "rename seed-1/w0.safetensors". */
const char *fault_operation(long at) { return at >= 1 && at <= count && at < CAPACITY ? operations[at] : ""; }

/* Tell what becomes of a call on an absolute path; it does not return if the process is to be killed. */
static int strikes_at(const char *name, const char *path) {
    size_t length = strlen(folder);
    if (!length || strncmp(path, folder, length) || (path[length] && path[length] != '/')) return 0;
    long now = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (now < CAPACITY) snprintf(operations[now], LENGTH, "%s %s", name, path + length + (path[length] != 0));
    int takes_space = !strcmp(name, "write") || !strcmp(name, "mkdir");
    int stays_full = action == ENOSPC && now > number && takes_space;
    if (!number || action == COUNT || (now != number && !stays_full)) return PASS_ON;
    if (action == SHORT || action == TORN) return CUT;
    if (action < 0) {
        kill(getpid(), -action);
        return PASS_ON;
    }
    errno = action;
    return FAIL;
}

static int strikes_fd(const char *name, int fd) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (size < 0) return 0;
    path[size] = 0;
    return strikes_at(name, path);
}

static int strikes(const char *name, int directory, const char *path) {
    char whole[2 * PATH_MAX], link[64], start[PATH_MAX];
    if (!folder[0] || !path) return 0;
    if (path[0] == '/') return strikes_at(name, path);
    int saved = errno;
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    ssize_t size = readlink(link, start, sizeof start - 1);
    errno = saved;
    if (size < 0) return 0;
    start[size] = 0;
    snprintf(whole, sizeof whole, "%s/%s", start, path);
    return strikes_at(name, whole);
}

/* The call of that name in the C library. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* Define a call that is passed on unless it strikes. */
#define PASS(type, name, parameters, arguments, condition) \
    type name parameters { return (condition) ? -1 : REAL(name) arguments; }
#define CHANGES(flags) ((flags) & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))

#define OPEN(name, parameters, arguments, directory, path)                   \
    int name parameters {                                                    \
        mode_t mode = 0;                                                     \
        if (__OPEN_NEEDS_MODE(flags)) {                                      \
            va_list rest;                                                    \
            va_start(rest, flags);                                           \
            mode = va_arg(rest, mode_t);                                     \
            va_end(rest);                                                    \
        }                                                                    \
        if (CHANGES(flags) && strikes("open", directory, path)) return -1;   \
        return REAL(name) arguments;                                         \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD, path)
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD, path)
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), at, path)
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), at, path)
PASS(int, creat, (const char *path, mode_t mode), (path, mode), strikes("open", AT_FDCWD, path))
PASS(int, creat64, (const char *path, mode_t mode), (path, mode), strikes("open", AT_FDCWD, path))

/* Define a call that writes, of which half may be done. */
#define WRITE(name, parameters, arguments)                                \
    ssize_t name parameters {                                             \
        int what = strikes_fd("write", fd);                               \
        if (what == FAIL) return -1;                                      \
        if (what == CUT) size = action == TORN ? size / 2 : (size + 1) / 2; \
        ssize_t written = REAL(name) arguments;                           \
        if (what == CUT && action == TORN) kill(getpid(), SIGKILL);       \
        return written;                                                   \
    }

WRITE(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITE(writev, (int fd, const struct iovec *parts, int size), (fd, parts, size)) /* half of the parts */
PASS(int, ftruncate, (int fd, off_t size), (fd, size), strikes_fd("truncate", fd))
PASS(int, ftruncate64, (int fd, off64_t size), (fd, size), strikes_fd("truncate", fd))
PASS(int, truncate, (const char *path, off_t size), (path, size), strikes("truncate", AT_FDCWD, path))
PASS(int, truncate64, (const char *path, off64_t size), (path, size), strikes("truncate", AT_FDCWD, path))
/* What is synced differs after a power cut only, which is not tried, and waiting for the disk takes most time. */
int fsync(int fd) { return strikes_fd("fsync", fd) ? -1 : folder[0] ? 0 : REAL(fsync)(fd); }
int fdatasync(int fd) { return strikes_fd("fsync", fd) ? -1 : folder[0] ? 0 : REAL(fdatasync)(fd); }
PASS(int, fchmod, (int fd, mode_t mode), (fd, mode), strikes_fd("chmod", fd))
PASS(int, chmod, (const char *path, mode_t mode), (path, mode), strikes("chmod", AT_FDCWD, path))
PASS(int, fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags),
     strikes("chmod", at, path))
PASS(int, rename, (const char *from, const char *to), (from, to), strikes("rename", AT_FDCWD, to))
PASS(int, renameat, (int at, const char *from, int to_at, const char *to), (at, from, to_at, to),
     strikes("rename", to_at, to))
PASS(int, renameat2, (int at, const char *from, int to_at, const char *to, unsigned flags),
     (at, from, to_at, to, flags), strikes("rename", to_at, to))
PASS(int, unlink, (const char *path), (path), strikes("unlink", AT_FDCWD, path))
PASS(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), strikes("unlink", at, path))
PASS(int, rmdir, (const char *path), (path), strikes("rmdir", AT_FDCWD, path))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode), strikes("mkdir", AT_FDCWD, path))
PASS(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), strikes("mkdir", at, path))
PASS(int, link, (const char *from, const char *to), (from, to), strikes("link", AT_FDCWD, to))
PASS(int, linkat, (int at, const char *from, int to_at, const char *to, int flags),
     (at, from, to_at, to, flags), strikes("link", to_at, to))
PASS(int, symlink, (const char *target, const char *path), (target, path), strikes("symlink", AT_FDCWD, path))
PASS(int, symlinkat, (const char *target, int at, const char *path), (target, at, path),
     strikes("symlink", at, path))
