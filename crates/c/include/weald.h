/* weald.h: reads images of Weald, without a mount.
 *
 * docs/c.md explains the calls. All of them may be called from any thread; an image or a file is
 * closed once, when no other thread uses it. Calls that return int or int64_t return a negative
 * number for an error: an errno with a minus sign. weald_error() then has the text.
 */
#ifndef WEALD_H
#define WEALD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A program refuses to run with a smaller one than it was made for. */
#define WEALD_C_VERSION 1

/* An open image, and an open regular file of one. A file keeps its image open. */
typedef struct weald_image weald_image;
typedef struct weald_file weald_file;

/* Attributes of an entry. Times are seconds and nanoseconds since 1970. */
typedef struct weald_stat {
    uint64_t ino;   /* shared by all names of a hard-linked file */
    uint64_t nlink;
    uint64_t size;  /* bytes of a file or of a link's target; entries of a directory */
    int64_t mtime;
    uint32_t mtime_nsec;
    uint32_t mode;  /* type and permissions, as st_mode */
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev_major;
    uint32_t rdev_minor;
} weald_stat;

/* Called for each entry of a directory, in the order of the bytes of the names. NAME has NAME_LEN
 * bytes and a zero byte behind them. Another result than 0 ends the listing. It must return. */
typedef int (*weald_visit)(void *context, const char *name, size_t name_len,
                           const weald_stat *stat);

/* Flags: a symlink at the end of the path itself, not what it leads to. */
#define WEALD_NOFOLLOW 1

/* Version of the library. */
uint32_t weald_c_version(void);

/* Opens an image file, STORE:NAME or a URL; IMAGE@2 is a generation. */
int weald_open(const char *path, weald_image **image);
/* Closes an image; NULL is nothing. */
void weald_close(weald_image *image);

/* Paths begin at the root of the image, with or without a slash in front. */
int weald_lookup(const weald_image *image, const char *path, int flags, weald_stat *stat);
/* Visits a directory. Returns the result of the call of VISIT that ended it, or 0. */
int weald_readdir(const weald_image *image, const char *path, weald_visit visit, void *context);
/* Writes the target of a symlink to BUF, without a zero byte. Returns its length; -ERANGE if LEN is
 * smaller, and only the length if LEN is 0. The same for the two calls below. */
int64_t weald_readlink(const weald_image *image, const char *path, char *buf, size_t len);
/* The names of the extended attributes, each with a zero byte behind it. */
int64_t weald_listxattr(const weald_image *image, const char *path, int flags, char *buf,
                        size_t len);
/* The value of an extended attribute; -ENODATA if there is none. */
int64_t weald_getxattr(const weald_image *image, const char *path, const char *name, int flags,
                       char *buf, size_t len);

/* Opens a regular file. */
int weald_file_open(const weald_image *image, const char *path, weald_file **file);
/* Reads up to LEN bytes from OFFSET; fewer only at the end of the file. */
int64_t weald_pread(const weald_file *file, void *buf, size_t len, uint64_t offset);
/* Closes a file; NULL is nothing. */
void weald_file_close(weald_file *file);

/* The text of the last error of this thread, until its next call; never NULL. */
const char *weald_error(void);

#ifdef __cplusplus
}
#endif

#endif
