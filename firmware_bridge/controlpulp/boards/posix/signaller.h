/*
 * Adds 1 to eventfds that an agent has, too, and never waits.
 *
 * A write to an eventfd waits while its counter is full, unless the file is O_NONBLOCK; both the counter and that flag
 * belong to whoever has the file, at any time, so neither a check before the write nor the flag protects the writer.
 * The kernel's own signal does not wait: it is sent for an asynchronous read that has ended (io_submit(2), aio_resfd).
 * Ours reads nothing of an empty file and ends at once.
 */
#ifndef SIGNALLER_H
#define SIGNALLER_H

#include <linux/aio_abi.h>
#include <stdbool.h>

struct signaller {
    aio_context_t context;
    int empty_file;
};

bool signaller_open(struct signaller *s); /* false with errno set; without CONFIG_AIO ENOSYS */
void signaller_close(struct signaller *s);
void signal_eventfd(const struct signaller *s, int eventfd); /* at a full counter without effect */

#endif
