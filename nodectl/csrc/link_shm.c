/* ``scmi+shm:/path``: a mailbox in shared memory (firmware_bridge/scmi/transports/shm.py, shm_handshake.py, smt.py). */
#include "restorer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { STATUS = 1, FLAGS = 4, LENGTH = 5, HEADER = 6, PAYLOAD_AT = 0x1c, FREE = 1, DAMAGED = 2, INTERRUPT = 1 };
enum { MEMORY, DOORBELL, COMPLETION, N_PASSED = 5, SOCKET = 5 };
enum { HANDSHAKE_VERSION = 1, WAIT_MS = 500, HANDSHAKE_S = 1 };

typedef struct {
    char magic[4];
    uint32_t version, agent, memory_bytes, a2p_offset, p2a_offset, payload_bytes, doorbell_offset, completion_offset;
} invitation_t;

void link_close_shm(link_t *link)
{
    if (link->memory)
        munmap(link->memory, link->memory_bytes);
    for (int at = 0; at <= SOCKET; at++) {
        if (link->fds[at] >= 0)
            close(link->fds[at]);
    }
}

static bool refuse(link_t *link, char why[LINE], const char *path, const char *what)
{
    snprintf(why, LINE, "scmi+shm:%s: %s", path, what);
    link_close_shm(link);
    return false;
}

static ssize_t receive(link_t *link, invitation_t *invitation)
{
    union {
        char room[CMSG_SPACE(N_PASSED * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {invitation, sizeof *invitation};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(link->fds[SOCKET], &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *passed = size < 0 ? NULL : CMSG_FIRSTHDR(&message);

    if (passed && passed->cmsg_type == SCM_RIGHTS && passed->cmsg_len == CMSG_LEN(N_PASSED * sizeof(int)))
        memcpy(link->fds, CMSG_DATA(passed), N_PASSED * sizeof(int));
    return message.msg_flags & MSG_TRUNC ? -1 : size;
}

static bool is_sound(const invitation_t *is, int memory)
{
    struct stat status;
    uint64_t extent = (is->doorbell_offset > is->completion_offset ? is->doorbell_offset : is->completion_offset) + 4ull;
    int seals = fcntl(memory, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(memory, &status) == 0 && status.st_size >= 0 &&
           (uint64_t)status.st_size >= is->memory_bytes && is->a2p_offset + extent <= is->memory_bytes &&
           (is->a2p_offset | is->doorbell_offset | is->completion_offset | is->payload_bytes) % 4 == 0 &&
           is->payload_bytes >= 16 && is->doorbell_offset >= PAYLOAD_AT + (uint64_t)is->payload_bytes &&
           is->completion_offset >= PAYLOAD_AT + (uint64_t)is->payload_bytes;
}

static bool wait_for_answer(link_t *link)
{
    struct pollfd ready[2] = {{link->fds[COMPLETION], POLLIN, 0}, {link->fds[SOCKET], POLLIN, 0}};
    uint64_t count;

    while (poll(ready, 2, WAIT_MS) > 0) {
        if (ready[0].revents && read(link->fds[COMPLETION], &count, sizeof count) == sizeof count &&
            link->area[STATUS] & FREE)
            return true;
        if (ready[1].revents) /* the controller's process has ended */
            return false;
    }
    return false;
}

static int exchange(link_t *link, const uint32_t *words, int n_words, uint32_t *reply, int room, char why[LINE])
{
    volatile uint32_t *area = link->area;
    uint64_t one = 1;
    uint32_t length;
    int n_reply;

    if (!(area[STATUS] & FREE) && !wait_for_answer(link)) {
        snprintf(why, LINE, "the controller has not handed the mailbox back: it hangs");
        return -1;
    }
    area[STATUS] = 0;
    area[FLAGS] = INTERRUPT;
    for (int at = 0; at < n_words; at++)
        area[HEADER + at] = words[at];
    area[LENGTH] = 4 * (uint32_t)n_words;
    area[link->doorbell] = link->agent;
    if (write(link->fds[DOORBELL], &one, sizeof one) != sizeof one || !wait_for_answer(link))
        return 0;
    length = area[LENGTH]; /* once: the other side may write at any time */
    n_reply = area[STATUS] & DAMAGED || length > 4 + link->payload_bytes ? 0 : (int)(length / 4);
    for (int at = 0; at < n_reply && at < room; at++)
        reply[at] = area[HEADER + at];
    area[link->completion] = 0;
    return n_reply < room ? n_reply : room;
}

bool link_open_shm(link_t *link, const char *path, char why[LINE])
{
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    struct timeval patience = {HANDSHAKE_S, 0};
    invitation_t is;
    void *memory;

    *link = (link_t){.exchange = exchange, .fds = {-1, -1, -1, -1, -1, -1}};
    if (snprintf(place.sun_path, sizeof place.sun_path, "%s", path) >= (int)sizeof place.sun_path)
        return refuse(link, why, path, "its path is too long");
    link->fds[SOCKET] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    setsockopt(link->fds[SOCKET], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(link->fds[SOCKET], (struct sockaddr *)&place, sizeof place) != 0)
        return refuse(link, why, path, strerror(errno));
    if (receive(link, &is) != sizeof is || link->fds[0] < 0 || memcmp(is.magic, "SCMI", 4) != 0)
        return refuse(link, why, path, "no mailbox was passed: another client has this channel, or it is no controller");
    if (is.version != HANDSHAKE_VERSION || !is_sound(&is, link->fds[MEMORY]))
        return refuse(link, why, path, "the mailbox that was passed cannot be used");
    fcntl(link->fds[COMPLETION], F_SETFL, O_NONBLOCK);
    memory = mmap(NULL, is.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, link->fds[MEMORY], 0);
    if (memory == MAP_FAILED)
        return refuse(link, why, path, strerror(errno));
    link->memory = memory;
    link->memory_bytes = is.memory_bytes;
    link->area = (volatile uint32_t *)((char *)memory + is.a2p_offset);
    link->agent = is.agent;
    link->payload_bytes = is.payload_bytes;
    link->doorbell = is.doorbell_offset / 4;
    link->completion = is.completion_offset / 4;
    return true;
}
