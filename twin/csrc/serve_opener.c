/*
 * A thread that opens counters' files, with a descriptor table of its own in which /dev/fuse is not.
 *
 * An open of a file that this process serves waits in the kernel for this process. If it is killed then, the thread that
 * waits cannot end before it has its answer, and the connection, whose end would be the answer, is closed only with the
 * last descriptor table that has /dev/fuse: with that thread's, if it shares its table with the others.
 */
#include "serve.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct opener {
    pthread_mutex_t one_asks;
    int mount_fd, asking, answering; /* two ends of one socket */
};

typedef union {
    struct cmsghdr header; /* aligns the bytes */
    char bytes[CMSG_SPACE(sizeof(int))];
} ancillary_t;

/* Closes all descriptors but two, in this thread alone. */
static int keep_only(int first, int second)
{
    unsigned low = (unsigned)(first < second ? first : second), high = (unsigned)(first < second ? second : first);
    if (unshare(CLONE_FILES))
        return -1;
    return (low && close_range(0, low - 1, 0)) || (high > low + 1 && close_range(low + 1, high - 1, 0)) ||
           close_range(high + 1, ~0U, 0);
}

static void answer(int socket, int fd)
{
    int error = fd < 0 ? -fd : 0;
    ancillary_t ancillary = {.bytes = {0}};
    struct iovec body = {&error, sizeof error};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1};
    if (!error) {
        message.msg_control = ancillary.bytes;
        message.msg_controllen = sizeof ancillary.bytes;
        ancillary.header.cmsg_level = SOL_SOCKET;
        ancillary.header.cmsg_type = SCM_RIGHTS;
        ancillary.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&ancillary.header), &fd, sizeof fd);
    }
    ssize_t ignored = sendmsg(socket, &message, MSG_NOSIGNAL);
    (void)ignored; /* it fails if nobody asks any more: then the next recv(2) says so */
}

static void *open_for_others(void *argument)
{
    opener_t *opener = argument;
    int socket = opener->answering;
    int is_alone = keep_only(opener->mount_fd, socket) == 0;
    int error = is_alone ? 0 : errno;
    uint64_t id;
    while (recv(socket, &id, sizeof id, 0) == (ssize_t)sizeof id) {
        int fd = is_alone ? fuse_open_counter(opener->mount_fd, id) : -error;
        answer(socket, fd);
        if (fd >= 0)
            close(fd);
    }
    return NULL;
}

opener_t *opener_start(int mount_fd)
{
    int ends[2];
    pthread_t thread;
    opener_t *opener = malloc(sizeof *opener);
    if (!opener)
        return NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        free(opener);
        return NULL;
    }
    *opener = (opener_t){PTHREAD_MUTEX_INITIALIZER, mount_fd, ends[0], ends[1]};
    if ((errno = pthread_create(&thread, NULL, open_for_others, opener))) {
        close(ends[0]);
        close(ends[1]);
        free(opener);
        return NULL;
    }
    pthread_detach(thread);
    return opener;
}

static int receive(int socket)
{
    int error = EIO, fd = -1;
    ancillary_t ancillary;
    struct iovec body = {&error, sizeof error};
    struct msghdr message = {.msg_iov = &body,
                             .msg_iovlen = 1,
                             .msg_control = ancillary.bytes,
                             .msg_controllen = sizeof ancillary.bytes};
    ssize_t size;
    do
        size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size != (ssize_t)sizeof error)
        return -EIO;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    else if (!error)
        return -EMFILE; /* this table had no room for it */
    return error ? -error : fd;
}

int opener_open(opener_t *opener, uint64_t id)
{
    int fd = -EIO;
    pthread_mutex_lock(&opener->one_asks);
    if (send(opener->asking, &id, sizeof id, MSG_NOSIGNAL) == (ssize_t)sizeof id)
        fd = receive(opener->asking);
    pthread_mutex_unlock(&opener->one_asks);
    return fd;
}
