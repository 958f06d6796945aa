/* A disk that is full from a chosen write on: preloaded into a process, it counts and refuses with ENOSPC what would
   take space below some folders. Which write is chosen, and how many there were, is in a page shared with the caller. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct page {
    long seen;        /* writes so far */
    long first, last; /* those that are refused, counted from 1; none where first is 0 */
    char refused[4072];
};
static struct page *page;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FULL_DISK_PAGE");
    folder = getenv("FULL_DISK_FOLDER");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0 || !folder) return;
    void *mapped = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    page = mapped == MAP_FAILED ? NULL : mapped;
}

/* Count a write to this path; return whether it is refused. */
static int refused(const char *path) {
    if (!page || !path || strncmp(path, folder, strlen(folder))) return 0;
    long number = __atomic_add_fetch(&page->seen, 1, __ATOMIC_SEQ_CST);
    if (!page->first || number < page->first || number > page->last) return 0;
    if (number == page->first) snprintf(page->refused, sizeof page->refused, "%s", path + strlen(folder));
    errno = ENOSPC;
    return 1;
}

static int refused_file(int file) {
    char link[64], path[4096];
    if (!page) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return refused(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

/* A new file takes an inode; one that is there takes nothing when it is opened. */
static int takes(const char *path, int flags) { return (flags & O_CREAT) && access(path, F_OK) && refused(path); }

int open(const char *path, int flags, ...) { MODE(flags) return takes(path, flags) ? -1 : REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return takes(path, flags) ? -1 : REAL(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return takes(path, flags) ? -1 : REAL(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return takes(path, flags) ? -1 : REAL(openat64)(at, path, flags, mode); }
int mkdir(const char *path, mode_t mode) { return access(path, F_OK) && refused(path) ? -1 : REAL(mkdir)(path, mode); }
ssize_t write(int file, const void *data, size_t size) { return refused_file(file) ? -1 : REAL(write)(file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return refused_file(file) ? -1 : REAL(pwrite)(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return refused_file(file) ? -1 : REAL(pwrite64)(file, data, size, at); }
ssize_t writev(int file, const struct iovec *parts, int count) { return refused_file(file) ? -1 : REAL(writev)(file, parts, count); }
int ftruncate(int file, off_t size) { return size && refused_file(file) ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return size && refused_file(file) ? -1 : REAL(ftruncate64)(file, size); }
