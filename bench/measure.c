/* measure FD COMMAND...: runs the command, waits for it, and writes one line to the file
 * descriptor: wall, user and system seconds, peak memory in KiB, bytes read from and written to
 * storage, and the exit status (128 + N for signal N).
 *
 * The peak is the largest resident set of any one process of the command (wait4). The harness does
 * not measure from Python: the kernel counts the memory of a process before exec too, so that a
 * child of Python never seems smaller than Python itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

int main(int argc, char **argv) {
    if (argc < 3) {
        fputs("usage: measure FD COMMAND...\n", stderr);
        return 2;
    }
    int out = atoi(argv[1]);
    if (fcntl(out, F_SETFD, FD_CLOEXEC) != 0) {
        perror("measure: the file descriptor");
        return 2;
    }
    double start = now();
    pid_t child = fork();
    if (child < 0) {
        perror("measure: fork");
        return 2;
    }
    if (child == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    struct rusage used;
    int status;
    while (wait4(child, &status, 0, &used) < 0)
        if (errno != EINTR) {
            perror("measure: wait4");
            return 2;
        }
    double wall = now() - start;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    dprintf(out, "%.6f %.6f %.6f %ld %lld %lld %d\n", wall, seconds(used.ru_utime),
            seconds(used.ru_stime), used.ru_maxrss, used.ru_inblock * 512LL,
            used.ru_oublock * 512LL, code);
    return 0;
}
