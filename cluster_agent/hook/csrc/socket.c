/* The Unix socket of the cluster agent's machine: four bytes of length, then the frame, either way. */
#include "hook.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static bool is_ready(int descriptor, short what, int64_t deadline_ms)
{
    struct pollfd one = {descriptor, what, 0};
    int64_t left_ms = deadline_ms - now_ms();
    errno = ETIMEDOUT;
    return left_ms > 0 && poll(&one, 1, (int)left_ms) > 0;
}

/* A queue of connections that is full (EAGAIN) may have room in a moment: a head that is stopped, or very busy. */
static bool connect_to(int descriptor, const struct sockaddr_un *address, int64_t deadline_ms)
{
    while (connect(descriptor, (const struct sockaddr *)address, sizeof *address)) {
        if (errno != EAGAIN && errno != EINTR)
            return false;
        if (now_ms() >= deadline_ms) {
            errno = ETIMEDOUT;
            return false;
        }
        usleep(10000);
    }
    return true;
}

static bool move(int descriptor, uint8_t *bytes, size_t size, bool is_reading, int64_t deadline_ms)
{
    while (size) {
        if (!is_ready(descriptor, is_reading ? POLLIN : POLLOUT, deadline_ms))
            return false;
        ssize_t moved = is_reading ? recv(descriptor, bytes, size, 0) : send(descriptor, bytes, size, MSG_NOSIGNAL);
        if (moved == 0) {
            errno = ECONNRESET;
            return false;
        }
        if (moved < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (moved > 0) {
            bytes += moved;
            size -= (size_t)moved;
        }
    }
    return true;
}

static size_t exchange(int descriptor, const frame_t *frame, frame_t *answer, int64_t deadline_ms)
{
    uint8_t head[4] = {(uint8_t)(frame->size >> 24), (uint8_t)(frame->size >> 16), (uint8_t)(frame->size >> 8),
                       (uint8_t)frame->size};
    if (!move(descriptor, head, sizeof head, false, deadline_ms) ||
        !move(descriptor, (uint8_t *)frame->bytes, frame->size, false, deadline_ms) ||
        !move(descriptor, head, sizeof head, true, deadline_ms))
        return 0;
    size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (!size || size > sizeof answer->bytes) {
        errno = EMSGSIZE;
        return 0;
    }
    return move(descriptor, answer->bytes, size, true, deadline_ms) ? size : 0;
}

size_t ask_socket(const char *path, const frame_t *frame, frame_t *answer, int64_t deadline_ms, char reason[REASON])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = 0;
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(reason, REASON, "the path of the socket has more than %zu bytes", sizeof address.sun_path - 1);
        return 0;
    }
    strcpy(address.sun_path, path);
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor >= 0 && connect_to(descriptor, &address, deadline_ms))
        size = exchange(descriptor, frame, answer, deadline_ms);
    if (!size)
        snprintf(reason, REASON, "%.200s: %s", path, errno == ETIMEDOUT ? "no answer in time" : strerror(errno));
    if (descriptor >= 0)
        close(descriptor);
    return size;
}
