/* Calls of the C library that fail once: the nth call of a process and its forked children.
 *
 * Loaded with LD_PRELOAD by server.py, which arms it in a fork. The counter is shared by all forks of one server. An
 * allocation counts only if its caller lies in one of the given ranges of addresses: numpy, the kernel of npucmp.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, NAME = 4, MAP = 8, FORK = 16, ALLOCATE = 32 };
enum { FAIL, KILL, SHORT };

struct plan {
    volatile long count;
    long nth, kinds, action;
    volatile long counts[6]; /* of each kind */
    char name[32];
};

static struct plan *plan;
static int armed;
static unsigned long ranges[32];

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

struct plan *failing_plan(void) {
    if (!plan) plan = mmap(0, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return plan;
}

void failing_arm(const unsigned long *given, int count) {
    memset(ranges, 0, sizeof ranges);
    memcpy(ranges, given, sizeof *given * (count < 30 ? count : 30));
    armed = 1;
}

static int due(int kind, const char *name) {
    if (!armed || !(plan->kinds & kind)) return 0;
    if (plan->action == SHORT && !strstr("read pread preadv write", name)) return 0;
    for (int at = 0; at < 6; at++)
        if (kind == 1 << at) __sync_add_and_fetch(&plan->counts[at], 1);
    if (__sync_add_and_fetch(&plan->count, 1) != plan->nth) return 0;
    strncpy(plan->name, name, sizeof plan->name - 1);
    raise(SIGUSR2); /* faulthandler writes the stack of Python */
    if (plan->action == KILL) kill(getpid(), SIGKILL);
    return 1;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define FAILS(kind, name, code, value) \
    if (due(kind, name)) { errno = code; return value; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        FAILS(flags & (O_WRONLY | O_RDWR | O_CREAT) ? WRITE : READ, "open", flags & O_CREAT ? ENOSPC : EIO, -1) \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define READS(name, shown, ...) \
    if (due(READ, shown)) { \
        if (plan->action != SHORT) { errno = EIO; return -1; } \
        size = size > 1 ? size / 2 : size; \
    }

ssize_t read(int fd, void *to, size_t size) {
    REAL(ssize_t, read, int, void *, size_t);
    READS(read, "read")
    return real(fd, to, size);
}
#define PREAD(name) \
    ssize_t name(int fd, void *to, size_t size, off_t at) { \
        REAL(ssize_t, name, int, void *, size_t, off_t); \
        READS(name, "pread") \
        return real(fd, to, size, at); \
    }
PREAD(pread)
PREAD(pread64)
#define PREADV(name) \
    ssize_t name(int fd, const struct iovec *to, int count, off_t at) { \
        REAL(ssize_t, name, int, const struct iovec *, int, off_t); \
        size_t size = to->iov_len; \
        READS(name, "preadv") \
        struct iovec one = {to->iov_base, size}; \
        return count == 1 ? real(fd, &one, 1, at) : real(fd, to, count, at); \
    }
PREADV(preadv)
PREADV(preadv64)

ssize_t write(int fd, const void *from, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (due(WRITE, "write")) {
        if (plan->action != SHORT) { errno = ENOSPC; return -1; }
        size = size > 1 ? size / 2 : size;
    }
    return real(fd, from, size);
}
int close(int fd) {
    REAL(int, close, int);
    int result = real(fd);
    FAILS(WRITE, "close", EIO, -1)
    return result;
}
#define ONE(kind, name, code, type, argument) \
    int name(type argument) { \
        REAL(int, name, type); \
        FAILS(kind, #name, code, -1) \
        return real(argument); \
    }
#define TWO(kind, name, shown, code, type, first, other, second) \
    int name(type first, other second) { \
        REAL(int, name, type, other); \
        FAILS(kind, shown, code, -1) \
        return real(first, second); \
    }
ONE(WRITE, fsync, EIO, int, fd)
ONE(NAME, unlink, EACCES, const char *, path)
ONE(NAME, rmdir, EACCES, const char *, path)
TWO(NAME, rename, "rename", EIO, const char *, from, const char *, to)
TWO(NAME, mkdir, "mkdir", ENOSPC, const char *, path, mode_t, mode)
TWO(NAME, chmod, "chmod", EPERM, const char *, path, mode_t, mode)
TWO(WRITE, ftruncate, "ftruncate", ENOSPC, int, fd, off_t, size)
TWO(WRITE, ftruncate64, "ftruncate", ENOSPC, int, fd, off_t, size)
TWO(READ, fstat, "fstat", EIO, int, fd, struct stat *, to)
TWO(READ, fstat64, "fstat", EIO, int, fd, struct stat64 *, to)
TWO(READ, stat, "stat", EIO, const char *, path, struct stat *, to)
TWO(READ, stat64, "stat", EIO, const char *, path, struct stat64 *, to)
TWO(READ, lstat, "lstat", EIO, const char *, path, struct stat *, to)
TWO(READ, lstat64, "lstat", EIO, const char *, path, struct stat64 *, to)

int pipe2(int ends[2], int flags) {
    REAL(int, pipe2, int *, int);
    FAILS(FORK, "pipe", EMFILE, -1)
    return real(ends, flags);
}
int pipe(int ends[2]) {
    REAL(int, pipe, int *);
    FAILS(FORK, "pipe", EMFILE, -1)
    return real(ends);
}

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    FAILS(READ, "opendir", EIO, NULL)
    return real(path);
}
pid_t fork(void) {
    static pid_t (*real)(void);
    if (!real) real = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    FAILS(FORK, "fork", EAGAIN, -1)
    return real();
}
#define MMAP(name) \
    void *name(void *at, size_t size, int protection, int flags, int fd, off_t from) { \
        REAL(void *, name, void *, size_t, int, int, int, off_t); \
        FAILS(MAP, "mmap", ENOMEM, MAP_FAILED) \
        return real(at, size, protection, flags, fd, from); \
    }
MMAP(mmap)
MMAP(mmap64)

static int due_allocation(const void *caller, const char *name) {
    unsigned long at = (unsigned long)caller;
    if (!(plan->kinds & ALLOCATE)) return 0;
    for (int i = 0; ranges[i + 1]; i += 2)
        if (ranges[i] <= at && at < ranges[i + 1]) return due(ALLOCATE, name);
    return 0;
}
#define ALLOCATES(shown) \
    if (armed && due_allocation(__builtin_return_address(0), shown)) { errno = ENOMEM; return NULL; }

void *malloc(size_t size) {
    ALLOCATES("malloc")
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    ALLOCATES("calloc")
    return __libc_calloc(count, size);
}
void *realloc(void *from, size_t size) {
    ALLOCATES("realloc")
    return __libc_realloc(from, size);
}
