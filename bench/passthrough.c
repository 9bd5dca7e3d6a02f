/* What FUSE passthrough (Linux 6.9) gains and costs: passthrough DIR HOW COUNT BYTES THREADS
 * mounts on DIR a directory of COUNT files of BYTES bytes each, all the same memory, until it is
 * unmounted. HOW is
 *   plain   the kernel opens files by itself, reads are answered from memory
 *   opened  each open is asked for, reads are answered from memory
 *   through each open is asked for and tied to a file in memory, which the kernel reads by itself
 * Needs root. The part `through` of the suite `mount` compares the three. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* What headers older than 6.9 lack. */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
struct open_answer {
    uint64_t handle;
    uint32_t open_flags;
    int32_t backing_id;
};
struct init_answer {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth, unused[6];
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)
#define OPEN_PASSTHROUGH (1 << 7)
#define INIT_EXTENDED (1u << 30)
/* Bit 37, of which the second word has the upper half. */
#define INIT_PASSTHROUGH2 (1u << 5)
#define KEPT_SECONDS 3600

enum how { PLAIN, OPENED, THROUGH };
static enum how how;
static int device, memory_file;
static char *memory;
static uint64_t file_count, file_len;

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static void answer(uint64_t unique, int error, const void *body, size_t len) {
    struct fuse_out_header header = {.len = sizeof header + len, .error = -error, .unique = unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)body, len}};
    if (writev(device, parts, 2) < 0 && errno != ENOENT)
        fail("writev");
}

/* Files have the numbers 2 and up; the root is 1. */
static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096, .mode = S_IFDIR | 0755};
    if (node > 1) {
        attr.mode = S_IFREG | 0644;
        attr.size = file_len;
        attr.blocks = (file_len + 511) / 512;
    }
    return attr;
}

static void open_file(uint64_t unique) {
    struct open_answer out = {.open_flags = FOPEN_KEEP_CACHE};
    if (how == PLAIN) {
        answer(unique, ENOSYS, NULL, 0);
        return;
    }
    if (how == THROUGH) {
        struct backing_map map = {.fd = memory_file};
        out.backing_id = ioctl(device, BACKING_OPEN, &map);
        if (out.backing_id < 0)
            fail("passthrough");
        out.open_flags = OPEN_PASSTHROUGH;
        out.handle = out.backing_id;
    }
    answer(unique, 0, &out, sizeof out);
}

static void serve_one(const struct fuse_in_header *in, const void *body) {
    switch (in->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *offer = body;
        struct init_answer out = {.major = 7,
                                  .minor = offer->minor < 40 ? offer->minor : 40,
                                  .max_readahead = offer->max_readahead,
                                  .flags = offer->flags & (FUSE_ASYNC_READ | FUSE_MAX_PAGES |
                                                           INIT_EXTENDED),
                                  .flags2 = how == THROUGH ? INIT_PASSTHROUGH2 : 0,
                                  .max_background = 64,
                                  .congestion_threshold = 48,
                                  .max_write = 4096,
                                  .time_gran = 1,
                                  .max_pages = 256,
                                  .max_stack_depth = how == THROUGH};
        answer(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.entry_valid = KEPT_SECONDS, .attr_valid = KEPT_SECONDS};
        uint64_t no = strtoull(body, NULL, 10);
        if (no >= file_count) {
            answer(in->unique, ENOENT, NULL, 0);
            return;
        }
        out.nodeid = no + 2;
        out.attr = attributes(out.nodeid);
        answer(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = KEPT_SECONDS, .attr = attributes(in->nodeid)};
        answer(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_OPEN:
        open_file(in->unique);
        return;
    case FUSE_READ: {
        const struct fuse_read_in *read = body;
        uint64_t left = read->offset < file_len ? file_len - read->offset : 0;
        answer(in->unique, 0, memory + read->offset, left < read->size ? left : read->size);
        return;
    }
    case FUSE_RELEASE: {
        const struct fuse_release_in *release = body;
        uint32_t id = release->fh;
        if (how == THROUGH && ioctl(device, BACKING_CLOSE, &id) < 0)
            perror("backing close");
        answer(in->unique, 0, NULL, 0);
        return;
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        return;
    default:
        answer(in->unique, ENOSYS, NULL, 0);
    }
}

static void *serve(void *unused) {
    static const size_t room = 1 << 17;
    char *request = malloc(room);
    (void)unused;
    for (;;) {
        ssize_t len = read(device, request, room);
        if (len < 0 && errno == ENODEV)
            return NULL;
        if (len < 0 && errno != EINTR && errno != ENOENT)
            fail("read");
        if (len >= (ssize_t)sizeof(struct fuse_in_header))
            serve_one((void *)request, request + sizeof(struct fuse_in_header));
    }
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fputs("usage: passthrough DIR plain|opened|through COUNT BYTES THREADS\n", stderr);
        return 2;
    }
    if (strcmp(argv[2], "through") == 0)
        how = THROUGH;
    else
        how = strcmp(argv[2], "opened") == 0 ? OPENED : PLAIN;
    file_count = strtoull(argv[3], NULL, 10);
    file_len = strtoull(argv[4], NULL, 10);
    long thread_count = atol(argv[5]);
    memory_file = memfd_create("content", 0);
    if (memory_file < 0 || ftruncate(memory_file, file_len) != 0)
        fail("memory");
    memory = mmap(NULL, file_len, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0);
    if (memory == MAP_FAILED)
        fail("memory");
    memset(memory, 7, file_len);
    device = open("/dev/fuse", O_RDWR);
    if (device < 0)
        fail("/dev/fuse");
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
             device);
    if (mount("passthrough", argv[1], "fuse.passthrough", MS_RDONLY, options) != 0)
        fail(argv[1]);
    pthread_t threads[64];
    if (thread_count < 1 || thread_count > 64)
        return 2;
    for (long i = 0; i < thread_count; i++)
        if (pthread_create(&threads[i], NULL, serve, NULL) != 0)
            fail("pthread_create");
    for (long i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
