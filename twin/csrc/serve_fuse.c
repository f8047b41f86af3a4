/*
 * A FUSE file system in which each file is one served counter. It talks to /dev/fuse directly, without libfuse.
 *
 * fsopen(2) and fsmount(2) leave the mount unattached: no path leads to it, and it ends with its last descriptor. Event
 * ids are the names of files. Files are direct_io (each read reaches us, with the caller's buffer size) and streams (no
 * file position), as perf descriptors are; a shared mmap of such a file fails with ENODEV, as we want. ioctl(2) arrives
 * "restricted": the kernel copies only the bytes that the command's size bits announce.
 * Source: Linux Documentation/filesystems/fuse, include/uapi/linux/fuse.h.
 */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROOT_NODE    1
#define REQUEST_SIZE (64 * 1024) /* more than FUSE_MIN_READ_BUFFER plus the largest write */
#define MAX_WRITE    4096
#define REPLY_WORDS  (3 + 3 * LARGEST_GROUP)
#define LONG_VALID_S 3600 /* an event's attributes never change */

#ifndef FOPEN_NOFLUSH
#define FOPEN_NOFLUSH (1 << 5) /* Linux 5.16; older kernels ignore it */
#endif

#ifndef FUSE_TMPFILE
#define FUSE_TMPFILE 51 /* Linux 6.2 */
#endif

#define OPEN_FLAGS (FOPEN_DIRECT_IO | FOPEN_NONSEEKABLE | FOPEN_STREAM | FOPEN_NOFLUSH)

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

/* linux/mount.h collides with sys/mount.h in glibc before 2.37. */
enum { SET_FLAG = 0, SET_STRING = 1, CMD_CREATE = 6, CLOSE_ON_EXEC = 1 };

int fuse_mount(const char *name, int *device_fd, int *mount_fd)
{
    char number[16];
    int context = -1, error;
    *device_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (*device_fd < 0)
        return -errno;
    snprintf(number, sizeof number, "%d", *device_fd);
    context = (int)syscall(SYS_fsopen, "fuse", CLOSE_ON_EXEC);
    if (context < 0 || syscall(SYS_fsconfig, context, SET_STRING, "source", name, 0) ||
        syscall(SYS_fsconfig, context, SET_STRING, "fd", number, 0) ||
        syscall(SYS_fsconfig, context, SET_STRING, "rootmode", "40755", 0) ||
        syscall(SYS_fsconfig, context, SET_STRING, "user_id", "0", 0) ||
        syscall(SYS_fsconfig, context, SET_STRING, "group_id", "0", 0) ||
        syscall(SYS_fsconfig, context, SET_FLAG, "allow_other", NULL, 0) ||
        syscall(SYS_fsconfig, context, CMD_CREATE, NULL, NULL, 0))
        goto failed;
    *mount_fd = (int)syscall(SYS_fsmount, context, CLOSE_ON_EXEC, 0);
    if (*mount_fd < 0)
        goto failed;
    close(context);
    return 0;

failed:
    error = errno;
    if (context >= 0)
        close(context);
    close(*device_fd);
    return -error;
}

int fuse_attach(int mount_fd, const char *target)
{
    struct {
        uint64_t set, clear, propagation, user_ns;
    } attributes = {.set = 2 | 4 | 8}; /* MOUNT_ATTR_NOSUID, _NODEV, _NOEXEC */
    if (syscall(SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        return -errno;
    return syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, target, 4 /* MOVE_MOUNT_F_EMPTY_PATH */) ? -errno : 0;
}

/****************************************************************
 * Answers
 ****************************************************************/

/* An error has no body. The write fails if the caller was killed meanwhile: then no one waits for the answer. */
static void answer(int device, uint64_t unique, int error, const void *body, size_t size)
{
    size_t sent = error ? 0 : size;
    struct fuse_out_header header = {.len = (uint32_t)(sizeof header + sent), .error = -error, .unique = unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)body, sent}};
    ssize_t ignored = writev(device, parts, sent ? 2 : 1);
    (void)ignored;
}

static struct fuse_attr attributes(uint64_t node)
{
    return (struct fuse_attr){
        .ino = node, .mode = node == ROOT_NODE ? S_IFDIR | 0700 : S_IFREG | 0600, .nlink = 1, .blksize = 4096};
}

static void answer_init(int device, const struct fuse_in_header *request)
{
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION,
                                .minor = FUSE_KERNEL_MINOR_VERSION,
                                .max_write = MAX_WRITE,
                                .max_background = 16,
                                .time_gran = 1};
    answer(device, request->unique, 0, &out, sizeof out);
}

static void answer_lookup(event_table_t *table, int device, const struct fuse_in_header *request, const char *name)
{
    uint64_t id = strtoull(name, NULL, 10);
    if (!events_exist(table, id)) {
        answer(device, request->unique, ENOENT, NULL, 0);
        return;
    }
    struct fuse_entry_out out = {.nodeid = id, .attr = attributes(id), .attr_valid = LONG_VALID_S};
    answer(device, request->unique, 0, &out, sizeof out);
}

/*
 * Opening by name takes two requests (LOOKUP, OPEN). A file without a name is created and opened by one request,
 * TMPFILE (Linux 6.2), which does not name the event. So only one is opened at a time, for the event `opening`.
 */
static pthread_mutex_t one_opens = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t opening;
static atomic_bool has_no_tmpfile;

int fuse_open_counter(int mount_fd, uint64_t id)
{
    char name[24];
    int fd = -1;
    if (!atomic_load(&has_no_tmpfile)) {
        pthread_mutex_lock(&one_opens);
        atomic_store(&opening, id);
        fd = openat(mount_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        int error = errno;
        pthread_mutex_unlock(&one_opens);
        if (fd < 0 && (error == EOPNOTSUPP || error == EISDIR || error == EINVAL))
            atomic_store(&has_no_tmpfile, 1);
        else
            return fd < 0 ? -error : fd;
    }
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    fd = openat(mount_fd, name, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static void answer_tmpfile(event_table_t *table, int device, const struct fuse_in_header *request)
{
    uint64_t id = atomic_load(&opening);
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out open;
    } out = {{.nodeid = id, .attr = attributes(id), .attr_valid = LONG_VALID_S}, {.fh = id, .open_flags = OPEN_FLAGS}};
    answer(device, request->unique, events_exist(table, id) ? 0 : ENOENT, &out, sizeof out);
}

static void answer_getattr(int device, const struct fuse_in_header *request)
{
    struct fuse_attr_out out = {.attr = attributes(request->nodeid), .attr_valid = LONG_VALID_S};
    answer(device, request->unique, 0, &out, sizeof out);
}

static void answer_open(int device, const struct fuse_in_header *request)
{
    struct fuse_open_out out = {.fh = request->nodeid, .open_flags = OPEN_FLAGS};
    answer(device, request->unique, 0, &out, sizeof out);
}

typedef struct {
    event_table_t *table;
    int device;
    int32_t delay_us;
    uint64_t unique, node;
    uint32_t size;
} late_read_t;

static void answer_read(const late_read_t *read)
{
    uint64_t words[REPLY_WORDS];
    int64_t size = events_read(read->table, read->node, words, read->size);
    answer(read->device, read->unique, size < 0 ? (int)-size : 0, words, size < 0 ? 0 : (size_t)size);
}

/* A slow counter (a fault) must not delay the others, so it waits in a thread of its own. */
static void *answer_read_late(void *argument)
{
    late_read_t read = *(late_read_t *)argument;
    free(argument);
    usleep((useconds_t)read.delay_us);
    answer_read(&read);
    return NULL;
}

static void take_read(event_table_t *table, int device, const struct fuse_in_header *request,
                      const struct fuse_read_in *in)
{
    late_read_t read = {table, device, events_delay_us(table, request->nodeid), request->unique, request->nodeid, in->size};
    late_read_t *late = read.delay_us ? malloc(sizeof *late) : NULL;
    pthread_t thread;
    if (late) {
        *late = read;
        if (pthread_create(&thread, NULL, answer_read_late, late) == 0) {
            pthread_detach(thread);
            return;
        }
        free(late);
    }
    answer_read(&read);
}

static void answer_ioctl(event_table_t *table, int device, const struct fuse_in_header *request,
                         const struct fuse_ioctl_in *in)
{
    struct {
        struct fuse_ioctl_out head;
        uint64_t value;
    } out = {{0}, 0};
    int error = -events_ioctl(table, request->nodeid, in->cmd, in->arg, &out.value);
    size_t size = in->out_size < sizeof out.value ? in->out_size : sizeof out.value;
    answer(device, request->unique, error, &out, sizeof out.head + size);
}

/****************************************************************
 * The loop
 ****************************************************************/

static void dispatch(event_table_t *table, int device, const struct fuse_in_header *request)
{
    const void *body = request + 1;
    switch (request->opcode) {
    case FUSE_INIT:
        answer_init(device, request);
        break;
    case FUSE_LOOKUP:
        answer_lookup(table, device, request, body);
        break;
    case FUSE_TMPFILE:
        answer_tmpfile(table, device, request);
        break;
    case FUSE_GETATTR:
        answer_getattr(device, request);
        break;
    case FUSE_OPEN:
        answer_open(device, request);
        break;
    case FUSE_READ:
        take_read(table, device, request, body);
        break;
    case FUSE_IOCTL:
        answer_ioctl(table, device, request, body);
        break;
    case FUSE_POLL: {
        struct fuse_poll_out out = {.revents = POLLHUP}; /* as for a perf descriptor without a ring buffer */
        answer(device, request->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_RELEASE:
        events_release(table, request->nodeid);
        answer(device, request->unique, 0, NULL, 0);
        break;
    case FUSE_STATFS: {
        struct fuse_statfs_out out = {.st = {.bsize = 4096, .namelen = 255, .frsize = 4096}};
        answer(device, request->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break; /* need no answer: no request here ever waits */
    default:
        answer(device, request->unique, ENOSYS, NULL, 0);
    }
}

void fuse_serve(event_table_t *table, int device_fd)
{
    _Alignas(16) char buffer[REQUEST_SIZE];
    for (;;) {
        ssize_t size = read(device_fd, buffer, sizeof buffer);
        if (size >= (ssize_t)sizeof(struct fuse_in_header))
            dispatch(table, device_fd, (const struct fuse_in_header *)buffer);
        else if (size < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT)
            return; /* ENODEV: the file system has ended */
    }
}
