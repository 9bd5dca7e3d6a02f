/* walk.c: prints a tree of an image as crates/c/tests/walk.py prints a directory, and tries the
 * errors of each call. Usage: walk IMAGE */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "weald.h"

static weald_image *image;

struct names {
    char **all;
    size_t count;
};

static int take(void *context, const char *name, size_t name_len, const weald_stat *stat) {
    struct names *names = context;
    assert(strlen(name) == name_len && stat->ino > 0);
    names->all = realloc(names->all, (names->count + 1) * sizeof *names->all);
    names->all[names->count++] = strdup(name);
    return 0;
}

static int stop(void *context, const char *name, size_t name_len, const weald_stat *stat) {
    (void)name, (void)name_len, (void)stat;
    ++*(int *)context;
    return 7;
}

/* Damage ends the program with its text. */
static int64_t done(int64_t result, const char *path) {
    if (result >= 0)
        return result;
    fprintf(stderr, "%s: errno %lld: %s\n", path, (long long)-result, weald_error());
    exit(3);
}

/* FNV-1a of a file that is read in pieces of an odd length. */
static uint64_t sum_of(const char *path, uint64_t size) {
    weald_file *file;
    assert(weald_file_open(image, path, &file) == 0);
    uint64_t sum = 0xcbf29ce484222325u, at = 0;
    unsigned char buf[30011];
    int64_t len;
    while ((len = done(weald_pread(file, buf, sizeof buf, at), path)) > 0) {
        for (int64_t i = 0; i < len; i++)
            sum = (sum ^ buf[i]) * 0x100000001b3u;
        at += (uint64_t)len;
    }
    assert(len == 0 && at == size);
    assert(weald_pread(file, buf, 1, size + 5) == 0);
    weald_file_close(file);
    return sum;
}

static void print_xattrs(const char *path) {
    int64_t len = weald_listxattr(image, path, WEALD_NOFOLLOW, NULL, 0);
    assert(len >= 0);
    char *names = malloc((size_t)len + 1), value[65536];
    assert(weald_listxattr(image, path, WEALD_NOFOLLOW, names, (size_t)len + 1) == len);
    for (char *name = names; name < names + len; name += strlen(name) + 1) {
        int64_t got = weald_getxattr(image, path, name, WEALD_NOFOLLOW, value, sizeof value);
        assert(got >= 0);
        printf(" %s=", name);
        for (int64_t i = 0; i < got; i++)
            printf("%02x", (unsigned char)value[i]);
    }
    free(names);
}

static void walk(const char *path) {
    weald_stat stat;
    done(weald_lookup(image, path, WEALD_NOFOLLOW, &stat), path);
    printf("%s %o %u:%u %lld.%09u", path, stat.mode, stat.uid, stat.gid, (long long)stat.mtime,
           stat.mtime_nsec);
    if (!S_ISDIR(stat.mode))
        printf(" %llu", (unsigned long long)stat.nlink);
    if (S_ISCHR(stat.mode) || S_ISBLK(stat.mode))
        printf(" %u,%u", stat.rdev_major, stat.rdev_minor);
    if (S_ISLNK(stat.mode)) {
        char target[4096];
        int64_t len = weald_readlink(image, path, target, sizeof target);
        assert(len > 0 && (uint64_t)len == stat.size);
        printf(" -> %.*s", (int)len, target);
    }
    if (S_ISREG(stat.mode))
        printf(" %llu %016llx", (unsigned long long)stat.size,
               (unsigned long long)sum_of(path, stat.size));
    print_xattrs(path);
    printf("\n");
    if (!S_ISDIR(stat.mode))
        return;
    struct names names = {NULL, 0};
    assert(done(weald_readdir(image, path, take, &names), path) == 0);
    for (size_t i = 0; i < names.count; i++) {
        char below[8192];
        snprintf(below, sizeof below, "%s/%s", path, names.all[i]);
        walk(below);
        free(names.all[i]);
    }
    free(names.all);
}

static void fails(int64_t result, int wanted, const char *text) {
    if (result != -wanted || !strstr(weald_error(), text)) {
        fprintf(stderr, "expected -%d (%s), found %lld (%s)\n", wanted, text, (long long)result,
                weald_error());
        exit(1);
    }
}

static void try_errors(void) {
    weald_image *none = NULL;
    weald_file *file = NULL;
    weald_stat stat;
    char byte;
    int count = 0;
    fails(weald_open("gone", &none), ENOENT, "gone");
    fails(weald_open(NULL, &none), EFAULT, "NULL");
    fails(weald_open("gone", NULL), ENOENT, "");
    fails(weald_open(__FILE__, &none), EIO, "");
    assert(none == NULL);
    fails(weald_lookup(NULL, "x", 0, &stat), EFAULT, "NULL");
    fails(weald_lookup(image, "x", 0, NULL), ENOENT, "x");
    fails(weald_lookup(image, "file/x", 0, &stat), ENOTDIR, "");
    fails(weald_lookup(image, "loop", 0, &stat), ELOOP, "");
    assert(weald_lookup(image, "loop", WEALD_NOFOLLOW, &stat) == 0 && S_ISLNK(stat.mode));
    assert(weald_lookup(image, "/link", 0, &stat) == 0 && S_ISREG(stat.mode));
    fails(weald_readdir(image, "file", stop, &count), ENOTDIR, "file");
    fails(weald_readdir(image, "", NULL, &count), EFAULT, "NULL");
    assert(weald_readdir(image, "", stop, &count) == 7 && count == 1);
    fails(weald_readlink(image, "file", &byte, 1), EINVAL, "symlink");
    fails(weald_readlink(image, "link", &byte, 1), ERANGE, "4 bytes");
    assert(weald_readlink(image, "link", NULL, 0) == 4);
    fails(weald_getxattr(image, "file", "user.none", 0, &byte, 1), ENODATA, "user.none");
    fails(weald_file_open(image, "sub", &file), EISDIR, "sub");
    fails(weald_file_open(image, "fifo", &file), EINVAL, "regular");
    assert(file == NULL);
    assert(weald_file_open(image, "link", &file) == 0);
    fails(weald_pread(file, NULL, 5, 0), EFAULT, "NULL");
    assert(weald_pread(file, NULL, 0, 0) == 0);
    weald_file_close(file);
    weald_file_close(NULL);
    weald_close(NULL);
}

/* A file outlives its image; errors are of a thread. */
static void *read_apart(void *path) {
    weald_stat stat;
    for (int i = 0; i < 20; i++) {
        assert(weald_lookup(image, path, 0, &stat) == 0);
        sum_of(path, stat.size);
    }
    assert(strcmp(weald_error(), "") == 0);
    return NULL;
}

int main(int argc, char **argv) {
    assert(argc == 2 && weald_c_version() >= WEALD_C_VERSION);
    if (weald_open(argv[1], &image) != 0) {
        fprintf(stderr, "%s\n", weald_error());
        return 2;
    }
    walk(".");
    try_errors();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, read_apart, i % 2 ? "large" : "file") == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    weald_file *file;
    char start[4];
    assert(weald_file_open(image, "file", &file) == 0);
    weald_close(image);
    assert(weald_pread(file, start, sizeof start, 0) == 4);
    weald_file_close(file);
    return 0;
}
