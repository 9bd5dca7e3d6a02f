/* The best simple parallel loop that makes a forest: loop DIR A B FILES THREADS makes
 * DIR/0../A-1/0../B-1 with FILES empty files each. Threads take leaves in turn; names are relative
 * to the descriptor of the leaf; a file is one mknodat. The generator has to be as fast. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static long a_count, b_count, file_count;
static int root;
static atomic_long next_leaf;

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static void *make_leaves(void *unused) {
    char name[64];
    (void)unused;
    for (;;) {
        long leaf = atomic_fetch_add(&next_leaf, 1);
        if (leaf >= a_count * b_count)
            return NULL;
        snprintf(name, sizeof name, "%ld", leaf / b_count);
        if (mkdirat(root, name, 0755) != 0 && errno != EEXIST)
            fail("mkdirat");
        snprintf(name, sizeof name, "%ld/%ld", leaf / b_count, leaf % b_count);
        if (mkdirat(root, name, 0755) != 0)
            fail("mkdirat");
        int dir = openat(root, name, O_RDONLY | O_DIRECTORY);
        if (dir < 0)
            fail("openat");
        for (long file = 0; file < file_count; file++) {
            snprintf(name, sizeof name, "%04ld", file);
            if (mknodat(dir, name, S_IFREG | 0644, 0) != 0)
                fail("mknodat");
        }
        close(dir);
    }
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fputs("usage: loop DIR A B FILES THREADS\n", stderr);
        return 2;
    }
    a_count = atol(argv[2]);
    b_count = atol(argv[3]);
    file_count = atol(argv[4]);
    long thread_count = atol(argv[5]);
    root = open(argv[1], O_RDONLY | O_DIRECTORY);
    if (root < 0)
        fail(argv[1]);
    pthread_t threads[64];
    if (thread_count < 1 || thread_count > 64)
        return 2;
    for (long i = 0; i < thread_count; i++)
        if (pthread_create(&threads[i], NULL, make_leaves, NULL) != 0)
            fail("pthread_create");
    for (long i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
