/* A wall clock that jumps: preloaded, it adds the seconds in the file $CHAOS_WALL_CLOCK to CLOCK_REALTIME. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *jump_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_WALL_CLOCK");
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return;
    void *found = mmap(NULL, sizeof *jump_s, PROT_READ, MAP_SHARED, descriptor, 0);
    if (found != MAP_FAILED)
        jump_s = found;
    close(descriptor);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && clock == CLOCK_REALTIME && jump_s)
        now->tv_sec += *jump_s;
    return status;
}
