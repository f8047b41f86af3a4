/* ``scmi+serial:///dev/ttyUSB0?baud=921600``: frames on a serial line (firmware_bridge/scmi/transports/frames.py). */
#include "restorer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, WELCOME = 2, COMMAND = 3, RESPONSE = 4, MOST_PAYLOAD = 256, HEAD = 6, CRC = 2, GREETINGS = 5 };
enum { WAIT_MS = 500, DEFAULT_BAUD = 115200, FRAME = HEAD + MOST_PAYLOAD + CRC };

typedef struct {
    uint8_t bytes[2 * FRAME];
    size_t n;
} heard_t;

static uint16_t crc16(const uint8_t *data, size_t size)
{
    uint16_t crc = 0xffff;

    for (size_t at = 0; at < size; at++) {
        crc = (uint16_t)(crc ^ data[at] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

static bool send_frame(int fd, uint8_t kind, uint8_t sequence, const void *payload, size_t size)
{
    uint8_t frame[FRAME] = {0xa5, 0x5a, kind, sequence, (uint8_t)size, (uint8_t)(size >> 8)};
    uint16_t crc;
    size_t sent = 0, length = HEAD + size + CRC;

    memcpy(frame + HEAD, payload, size);
    crc = crc16(frame + 2, HEAD - 2 + size);
    frame[HEAD + size] = (uint8_t)crc;
    frame[HEAD + size + 1] = (uint8_t)(crc >> 8);
    while (sent < length) {
        struct pollfd ready = {fd, POLLOUT, 0};
        ssize_t more = poll(&ready, 1, WAIT_MS) == 1 ? write(fd, frame + sent, length - sent) : -1;
        if (more <= 0)
            return false;
        sent += (size_t)more;
    }
    return true;
}

static void drop(heard_t *heard, size_t count)
{
    memmove(heard->bytes, heard->bytes + count, heard->n - count);
    heard->n -= count;
}

/* The whole frame at the front of what was heard: its payload's size, else -1. Garbage before it is dropped. */
static int front_frame(heard_t *heard)
{
    while (heard->n >= HEAD) {
        size_t size = heard->bytes[4] | (size_t)heard->bytes[5] << 8;
        if (heard->bytes[0] != 0xa5 || heard->bytes[1] != 0x5a || size > MOST_PAYLOAD) {
            drop(heard, 1);
            continue;
        }
        if (heard->n < HEAD + size + CRC)
            return -1;
        if (crc16(heard->bytes + 2, HEAD - 2 + size) ==
            (heard->bytes[HEAD + size] | heard->bytes[HEAD + size + 1] << 8))
            return (int)size;
        drop(heard, 1);
    }
    return -1;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The payload of the next frame of this kind and sequence: its size; 0: none in time. */
static int hear(int fd, uint8_t kind, uint8_t sequence, uint8_t payload[MOST_PAYLOAD])
{
    heard_t heard = {.n = 0};
    int64_t end_ms = now_ms() + WAIT_MS;
    int size;

    while (now_ms() < end_ms) {
        struct pollfd ready = {fd, POLLIN, 0};
        ssize_t more = 0;
        if (poll(&ready, 1, (int)(end_ms - now_ms()) + 1) == 1)
            more = read(fd, heard.bytes + heard.n, sizeof heard.bytes - heard.n);
        if (more <= 0)
            return 0;
        heard.n += (size_t)more;
        while ((size = front_frame(&heard)) >= 0) {
            if (heard.bytes[2] == kind && heard.bytes[3] == sequence) {
                memcpy(payload, heard.bytes + HEAD, (size_t)size);
                return size;
            }
            drop(&heard, HEAD + (size_t)size + CRC);
        }
    }
    return 0;
}

static int exchange(link_t *link, const uint32_t *words, int n_words, uint32_t *reply, int room, char why[LINE])
{
    uint8_t payload[MOST_PAYLOAD];
    int size;

    link->sequence++;
    if (!send_frame(link->fds[0], COMMAND, link->sequence, words, 4 * (size_t)n_words)) {
        snprintf(why, LINE, "the line is lost: %s", strerror(errno));
        return -1;
    }
    size = hear(link->fds[0], RESPONSE, link->sequence, payload) / 4;
    size = size < room ? size : room;
    memcpy(reply, payload, 4 * (size_t)size);
    return size;
}

static speed_t speed_of(long baud)
{
    static const struct {
        long baud;
        speed_t speed;
    } known[] = {{9600, B9600},     {19200, B19200},   {38400, B38400},   {57600, B57600},     {115200, B115200},
                 {230400, B230400}, {460800, B460800}, {921600, B921600}, {1000000, B1000000}, {2000000, B2000000}};

    for (size_t at = 0; at < sizeof known / sizeof known[0]; at++) {
        if (known[at].baud == baud)
            return known[at].speed;
    }
    return B0;
}

static bool set_line(int fd, long baud)
{
    struct termios line;
    speed_t speed = speed_of(baud);

    if (speed == B0 || tcgetattr(fd, &line) != 0)
        return false;
    cfmakeraw(&line);
    line.c_cflag |= CLOCAL | CREAD;
    line.c_cc[VMIN] = 0;
    line.c_cc[VTIME] = 0;
    cfsetspeed(&line, speed);
    return tcsetattr(fd, TCSANOW, &line) == 0 && ioctl(fd, TIOCEXCL) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
           tcflush(fd, TCIOFLUSH) == 0;
}

static bool greet(int fd)
{
    static const uint8_t greeting[] = {'S', 'C', 'M', 'I', 1, 0, 1};
    uint8_t answer[MOST_PAYLOAD];

    for (int again = 0; again < GREETINGS; again++) {
        if (!send_frame(fd, HELLO, 0, greeting, sizeof greeting))
            return false;
        if (hear(fd, WELCOME, 0, answer) == sizeof greeting && memcmp(answer, greeting, 5) == 0)
            return true;
    }
    return false;
}

bool link_open_serial(link_t *link, const char *place, char why[LINE])
{
    char device[PATH];
    const char *query = strchr(place, '?'), *baud = query ? strstr(query, "baud=") : NULL;

    *link = (link_t){.exchange = exchange, .fds = {-1, -1, -1, -1, -1, -1}};
    place += strncmp(place, "//", 2) == 0 ? 2 : 0;
    snprintf(device, sizeof device, "%.*s", query ? (int)(query - place) : (int)strlen(place), place);
    if (device[0] != '/') {
        snprintf(why, LINE, "scmi+serial:%s: only `nodectl restore` opens what is no device", place);
        return false;
    }
    link->fds[0] = open(device, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (link->fds[0] < 0 || !set_line(link->fds[0], baud ? atol(baud + 5) : DEFAULT_BAUD)) {
        snprintf(why, LINE, "%s cannot be opened: %s", device, strerror(errno));
    } else if (greet(link->fds[0])) {
        return true;
    } else {
        snprintf(why, LINE, "%s: no SCMI controller answers", device);
    }
    if (link->fds[0] >= 0)
        close(link->fds[0]);
    return false;
}
