/* The channel of one agent: see channel.h. */
#include "channel.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDSHAKE_VERSION 1u
#define PAGE 4096u
#define SMT_FREE 1u

/* ---- geometry ---- */

static uint32_t extent(const struct geometry *g)
{
    return (g->doorbell > g->completion ? g->doorbell : g->completion) + 4;
}

static uint32_t areas_end(const struct geometry *g) { return (g->a2p > g->p2a ? g->a2p : g->p2a) + extent(g); }

const char *geometry_problem(const struct geometry *g)
{
    uint32_t low = g->a2p < g->p2a ? g->a2p : g->p2a, high = g->a2p < g->p2a ? g->p2a : g->a2p;
    if ((g->a2p | g->p2a | g->doorbell | g->completion) % 4)
        return "an offset is not a multiple of 4";
    if (high >= 1u << 20 || g->doorbell >= 1u << 20 || g->completion >= 1u << 20)
        return "an offset is above 1 MiB";
    if (g->doorbell < sizeof(struct smt_area) || g->completion < sizeof(struct smt_area) || g->doorbell == g->completion)
        return "doorbell, completion and the area of 160 bytes overlap";
    if (low + extent(g) > high)
        return "the two areas overlap";
    return NULL;
}

uint32_t channel_fast_offset(const struct channel *c) { return (areas_end(c->geometry) + 63) / 64 * 64; }

static volatile uint32_t *word_at(const struct channel *c, uint32_t offset)
{
    return (volatile uint32_t *)(void *)(c->memory + offset);
}

/* ---- listening ---- */

static bool watch(struct channel *c, int operation, int fd, enum source source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u32 = (c->agent - 1) * SOURCES + source};
    return epoll_ctl(c->epoll, operation, fd, &event) == 0;
}

/* The caller has locked the folder, so an existing socket has no owner. The mode is 0600 from the start. */
static int listen_at(const struct sockaddr_un *address)
{
    struct stat found;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (lstat(address->sun_path, &found) == 0 && S_ISSOCK(found.st_mode))
        unlink(address->sun_path);
    mode_t mask = umask(0177);
    int failed = bind(fd, (const struct sockaddr *)address, sizeof *address) || listen(fd, 4);
    umask(mask);
    if (failed) {
        int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    return fd;
}

bool channel_open(struct channel *c, uint32_t index, const char *path, const struct geometry *geometry, int epoll,
                  const struct signaller *signaller)
{
    *c = (struct channel){.agent = index + 1, .epoll = epoll, .listener = -1, .connection = -1,
                          .geometry = geometry, .signaller = signaller};
    for (int b = 0; b < BELLS; b++)
        c->bells[b] = -1;
    c->absent[SMT_COMMANDS].status = SMT_FREE; /* no command; the events area is never free */
    c->memory_bytes = (channel_fast_offset(c) + 4 * FAST_WORDS + PAGE - 1) / PAGE * PAGE;
    c->address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof c->address.sun_path) {
        errno = ENAMETOOLONG;
        return false;
    }
    strcpy(c->address.sun_path, path);
    c->listener = listen_at(&c->address);
    return c->listener >= 0 && watch(c, EPOLL_CTL_ADD, c->listener, FROM_LISTENER, EPOLLIN | EPOLLONESHOT);
}

void channel_listen_again(struct channel *c)
{
    if (c->is_deaf)
        c->is_deaf = !watch(c, EPOLL_CTL_MOD, c->listener, FROM_LISTENER, EPOLLIN | EPOLLONESHOT);
}

/* ---- an agent comes ---- */

static bool is_allowed(int connection)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static int make_memory(struct channel *c)
{
    int fd = memfd_create("scmi-mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, c->memory_bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        void *memory = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (memory != MAP_FAILED) {
            c->memory = memory;
            return fd;
        }
    }
    close(fd);
    return -1;
}

static bool invite(const struct channel *c, int memory)
{
    uint32_t packet[9] = {0, htole32(HANDSHAKE_VERSION), htole32(c->agent), htole32(c->memory_bytes),
                          htole32(c->geometry->a2p), htole32(c->geometry->p2a), htole32(4 * SMT_PAYLOAD_WORDS),
                          htole32(c->geometry->doorbell), htole32(c->geometry->completion)};
    int passed[1 + BELLS] = {memory, c->bells[0], c->bells[1], c->bells[2], c->bells[3]};
    union {
        char bytes[CMSG_SPACE(sizeof passed)];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {packet, sizeof packet};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    memcpy(packet, "SCMI", 4);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof passed);
    memcpy(CMSG_DATA(rights), passed, sizeof passed);
    return sendmsg(c->connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof packet;
}

/* Removes descriptors from epoll before closing them: the agent may still have the same files open, and its rings would
 * go on waking us. */
static void drop(struct channel *c, int *fd)
{
    if (*fd < 0)
        return;
    epoll_ctl(c->epoll, EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

static void leave(struct channel *c)
{
    if (c->memory) {
        for (uint32_t i = 0; i < FAST_WORDS; i++)
            c->fast[i] = channel_fast_window(c)[i];
        munmap(c->memory, c->memory_bytes);
        c->memory = NULL;
    }
    for (int b = 0; b < BELLS; b++)
        drop(c, &c->bells[b]);
    drop(c, &c->connection);
    c->is_rung = c->is_event_unread = false;
}

static bool admit(struct channel *c)
{
    int memory = make_memory(c);
    bool has_bells = true;
    if (memory < 0)
        return false;
    for (int b = 0; b < BELLS; b++) {
        c->bells[b] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        has_bells = has_bells && c->bells[b] >= 0;
    }
    *word_at(c, c->geometry->a2p + 4) = SMT_FREE;
    *word_at(c, c->geometry->p2a + 4) = SMT_FREE;
    for (uint32_t i = 0; i < FAST_WORDS; i++)
        channel_fast_window(c)[i] = c->fast[i];
    bool is_admitted = has_bells && watch(c, EPOLL_CTL_ADD, c->bells[A2P_DOORBELL], FROM_DOORBELL, EPOLLIN | EPOLLET) &&
                       watch(c, EPOLL_CTL_ADD, c->bells[P2A_COMPLETION], FROM_COMPLETION, EPOLLIN | EPOLLET) &&
                       watch(c, EPOLL_CTL_ADD, c->connection, FROM_CONNECTION, EPOLLIN | EPOLLRDHUP) && invite(c, memory);
    close(memory);
    return is_admitted;
}

/* Accepts at most one connection per control slot (channel_listen_again), so that a flood of connections cannot delay
 * control. */
static void greet(struct channel *c)
{
    c->is_deaf = true;
    int connection = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0)
        return;
    if (c->connection >= 0 || !is_allowed(connection)) {
        close(connection);
        return;
    }
    c->connection = connection;
    if (!admit(c))
        leave(c);
}

/* ---- events ---- */

void channel_event(struct channel *c, enum source source)
{
    if (source == FROM_LISTENER)
        greet(c);
    else if (source == FROM_CONNECTION)
        leave(c); /* the agent has gone, or sent data on a socket that carries none */
    else if (source == FROM_DOORBELL)
        c->is_rung = true;
    else
        c->is_event_unread = false;
}

void channel_close(struct channel *c)
{
    leave(c);
    if (c->listener >= 0)
        unlink(c->address.sun_path);
    drop(c, &c->listener);
}

/* ---- the controller's side of the mailbox ---- */

struct smt_area *channel_area(struct channel *c, enum smt_direction direction)
{
    if (!c->memory || (direction == SMT_EVENTS && c->is_event_unread))
        return &c->absent[direction];
    return (struct smt_area *)(void *)(c->memory + (direction == SMT_COMMANDS ? c->geometry->a2p : c->geometry->p2a));
}

volatile uint32_t *channel_fast_window(struct channel *c)
{
    return c->memory ? word_at(c, channel_fast_offset(c)) : c->fast;
}

bool channel_take_doorbell(struct channel *c)
{
    bool is_rung = c->is_rung;
    c->is_rung = false;
    if (is_rung && c->memory)
        *word_at(c, c->geometry->a2p + c->geometry->doorbell) = 0;
    return is_rung;
}

void channel_complete(struct channel *c)
{
    if (!c->memory)
        return;
    *word_at(c, c->geometry->a2p + c->geometry->completion) = c->agent;
    signal_eventfd(c->signaller, c->bells[A2P_COMPLETION]);
}

void channel_signal_event(struct channel *c)
{
    if (!c->memory)
        return;
    *word_at(c, c->geometry->p2a + c->geometry->doorbell) = c->agent;
    c->is_event_unread = true;
    signal_eventfd(c->signaller, c->bells[P2A_DOORBELL]);
}
