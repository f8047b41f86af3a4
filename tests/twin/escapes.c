/*
 * System calls that Python does not offer, for test_served_escapes.py. Prints "ok" or the errno's number.
 *
 *   escapes fsmount TYPE TARGET       fsopen, fsconfig, fsmount, move_mount
 *   escapes bind SOURCE TARGET        open_tree, move_mount, as mount(8) does since util-linux 2.39
 *   escapes writable TARGET [all]     mount_setattr: clear read-only, of the whole tree
 *   escapes mount-i386 TYPE TARGET    mount(2) by the i386 entry
 *   escapes mount-x32 TYPE TARGET     mount(2) by the x32 entry
 *   escapes mknod-i386 PATH           a node for /dev/cpu/0/msr by the i386 entry
 *   escapes move FROM TO              open_tree without a clone, move_mount
 *   escapes uring PATH                the file's first line, opened and read by io_uring
 *   escapes listener                  a second seccomp listener
 *   escapes module, escapes ports       finit_module, iopl
 *   escapes set-time, escapes adjust    clock_settime and adjtimex, to what they are
 *   escapes log ACTION                syslog
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static int say(long result)
{
    if (result < 0)
        printf("%d\n", errno);
    else
        printf("ok\n");
    return 0;
}

static long new_mount(const char *type, const char *target)
{
    long context = syscall(SYS_fsopen, type, 0), mount;
    if (context < 0 || syscall(SYS_fsconfig, context, 6, NULL, NULL, 0) || (mount = syscall(SYS_fsmount, context, 0, 0)) < 0)
        return -1;
    return syscall(SYS_move_mount, mount, "", AT_FDCWD, target, 4);
}

#ifdef __x86_64__
/* int $0x80 takes 32-bit addresses. */
static char *low(const char *text)
{
    char *copy = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    return copy == MAP_FAILED ? NULL : strcpy(copy, text);
}

static long i386(long number, long a, long b, long c, long d, long e)
{
    long result = number;
    register long five __asm__("rdi") = e;
    __asm__ volatile("int $0x80" : "+a"(result) : "b"(a), "c"(b), "d"(c), "S"(d), "r"(five) : "memory", "r8", "r9", "r10", "r11");
    int32_t answer = (int32_t)result;
    if (answer < 0 && answer > -4096) {
        errno = -answer;
        return -1;
    }
    return answer;
}
#endif

static int uring_read(const char *path)
{
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params), file;
    if (ring < 0)
        return say(-1);
    char *sq = mmap(NULL, params.sq_off.array + 4 * params.sq_entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
                    MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, 4 * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    char text[64] = "";
    for (int step = 0; step < 2; step++) {
        memset(entries, 0, sizeof *entries);
        if (step == 0) {
            entries->opcode = IORING_OP_OPENAT;
            entries->fd     = AT_FDCWD;
            entries->addr   = (uint64_t)(uintptr_t)path;
        } else {
            entries->opcode = IORING_OP_READ;
            entries->fd     = file;
            entries->addr   = (uint64_t)(uintptr_t)text;
            entries->len    = sizeof text - 1;
        }
        *(uint32_t *)(sq + params.sq_off.array + 4 * (step & (params.sq_entries - 1))) = 0;
        __atomic_store_n((uint32_t *)(sq + params.sq_off.tail), (uint32_t)step + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
            return say(-1);
        uint32_t head = *(uint32_t *)(cq + params.cq_off.head);
        struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + (head & (params.cq_entries - 1));
        if (done->res < 0) {
            errno = -done->res;
            return say(-1);
        }
        file = done->res;
        __atomic_store_n((uint32_t *)(cq + params.cq_off.head), head + 1, __ATOMIC_RELEASE);
    }
    text[strcspn(text, "\n")] = 0;
    printf("%s\n", text);
    return 0;
}

int main(int count, char **words)
{
    const char *do_ = count > 1 ? words[1] : "", *first = count > 2 ? words[2] : "", *second = count > 3 ? words[3] : "";
    if (!strcmp(do_, "fsmount"))
        return say(new_mount(first, second));
    if (!strcmp(do_, "bind")) {
        long tree = syscall(SYS_open_tree, AT_FDCWD, first, 1);
        return say(tree < 0 ? -1 : syscall(SYS_move_mount, tree, "", AT_FDCWD, second, 4));
    }
    if (!strcmp(do_, "set-time")) {
        struct timespec now;
        return say(clock_gettime(CLOCK_REALTIME, &now) ? -1 : syscall(SYS_clock_settime, CLOCK_REALTIME, &now));
    }
    if (!strcmp(do_, "adjust")) {
        struct timex as_it_is = {.modes = 0};
        if (syscall(SYS_adjtimex, &as_it_is) < 0)
            return say(-1);
        as_it_is.modes = ADJ_FREQUENCY;
        return say(syscall(SYS_adjtimex, &as_it_is));
    }
    if (!strcmp(do_, "log"))
        return say(syscall(SYS_syslog, atoi(first), NULL, 0));
    if (!strcmp(do_, "writable")) {
        uint64_t attributes[4] = {0, 1, 0, 0};
        return say(syscall(SYS_mount_setattr, AT_FDCWD, first, *second ? 0x8000 : 0, attributes, sizeof attributes));
    }
#ifdef __x86_64__
    if (!strcmp(do_, "mount-i386"))
        return say(i386(21, (long)low("x"), (long)low(second), (long)low(first), 0, 0));
    if (!strcmp(do_, "mknod-i386"))
        return say(i386(14, (long)low(first), 0020600, 202 << 8, 0, 0));
    if (!strcmp(do_, "mount-x32"))
        return say(syscall(0x40000000 | SYS_mount, "x", second, first, 0, NULL));
    if (!strcmp(do_, "ports"))
        return say(syscall(SYS_iopl, 3));
#endif
    if (!strcmp(do_, "move")) {
        long tree = syscall(SYS_open_tree, AT_FDCWD, first, 0);
        return say(tree < 0 ? -1 : syscall(SYS_move_mount, tree, "", AT_FDCWD, second, 4));
    }
    if (!strcmp(do_, "uring"))
        return uring_read(first);
    if (!strcmp(do_, "module"))
        return say(syscall(SYS_finit_module, -1, "", 0));
    if (!strcmp(do_, "listener")) {
        struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
        struct sock_fprog filter = {1, &allow};
        return say(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
    }
    fprintf(stderr, "escapes: %s?\n", do_);
    return 2;
}
