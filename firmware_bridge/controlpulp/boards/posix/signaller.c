/* Signals that never wait: see signaller.h. */
#include "signaller.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ENDED_AT_ONCE 8

bool signaller_open(struct signaller *s)
{
    s->empty_file = memfd_create("signaller", MFD_CLOEXEC);
    return s->empty_file >= 0 && syscall(SYS_io_setup, ENDED_AT_ONCE, &s->context) == 0;
}

void signaller_close(struct signaller *s)
{
    syscall(SYS_io_destroy, s->context);
    close(s->empty_file);
}

void signal_eventfd(const struct signaller *s, int eventfd)
{
    struct iocb nothing = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)s->empty_file,
                           .aio_flags = IOCB_FLAG_RESFD, .aio_resfd = (uint32_t)eventfd};
    struct iocb *submitted[] = {&nothing};
    struct io_event ended[ENDED_AT_ONCE];
    struct timespec at_once = {0};
    syscall(SYS_io_submit, s->context, 1L, submitted);
    syscall(SYS_io_getevents, s->context, 0L, (long)ENDED_AT_ONCE, ended, &at_once);
}
