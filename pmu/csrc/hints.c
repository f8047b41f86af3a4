#include "hints.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAKE_AT 4 /* bytes into the page, as in nodectl_hints.h */
#define NEWS_AT 8
#define LONGEST_S 1 /* ours: a job that cuts its page short takes away the means to end the sleep earlier */

static int is_stopped(int32_t stop)
{
    struct pollfd look = {.fd = stop, .events = POLLIN};

    return poll(&look, 1, 0) != 0;
}

int hints_sleep(const void *page, int32_t file, uint32_t seen, int32_t stop)
{
    static const uint32_t asleep = 1;
    const struct timespec longest = {.tv_sec = LONGEST_S};

    while (!is_stopped(stop)) {
        if (pwrite(file, &asleep, sizeof asleep, WAKE_AT) != sizeof asleep)
            return errno ? errno : EIO;
        if (syscall(SYS_futex, (const char *)page + NEWS_AT, FUTEX_WAIT, seen, &longest, NULL, 0) == 0)
            return is_stopped(stop) ? ECANCELED : 0;
        if (errno == EAGAIN)
            return 0;
        if (errno != ETIMEDOUT && errno != EINTR)
            return errno;
    }
    return ECANCELED;
}

void hints_wake(const void *page)
{
    syscall(SYS_futex, (const char *)page + NEWS_AT, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
