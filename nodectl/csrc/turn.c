/* The node's lock (nodectl/write/lock.py) and whose turn it is to write (nodectl/write/generation.py). */
#include "restorer.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORY "/run/nodectl"
#define MAGIC "nodectlG"

enum { SIZE = 24, BETWEEN_TRIES_NS = 10000000, NUMBER = 1, UNTIL = 2 };

/* The type of the mounted file system of that device (proc_pid_mountinfo(5)); "" where it is not listed. */
static void file_system(const char *device, char kind[TEXT])
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, number[64];
    size_t room = 0;

    kind[0] = 0;
    while (mounts && !kind[0] && getline(&line, &room, mounts) > 0) {
        const char *end = strstr(line, " - ");
        if (end && sscanf(line, "%*s %*s %63s", number) == 1 && strcmp(number, device) == 0)
            sscanf(end, " - %255s", kind);
    }
    free(line);
    if (mounts)
        fclose(mounts);
}

bool turn_paths(char lock[PATH])
{
    struct stat status;
    char device[64], kind[TEXT];

    snprintf(lock, PATH, DIRECTORY "/lock");
    if (stat("/sys/devices/system/cpu", &status) != 0)
        return true;
    snprintf(device, sizeof device, "%u:%u", major(status.st_dev), minor(status.st_dev));
    file_system(device, kind);
    if (kind[0] && strcmp(kind, "sysfs") != 0)
        snprintf(lock, PATH, DIRECTORY "/lock-%s-%s", kind, device);
    return true;
}

static const char *suffix_of(const char *lock)
{
    const char *name = strrchr(lock, '/');

    name = name ? name + 1 : lock;
    return strncmp(name, "lock", 4) == 0 ? name + 4 : name;
}

void turn_save_path(const char *lock, char save[PATH])
{
    const char *slash = strrchr(lock, '/');

    snprintf(save, PATH, "%.*scaptured%s.jsonl", slash ? (int)(slash + 1 - lock) : 0, lock, suffix_of(lock));
}

bool turn_boot(const char *lock, char boot[TEXT])
{
    world_t here = {""};
    char id[TEXT], why[LINE];

    if (file_read(&here, "/proc/sys/kernel/random/boot_id", id, why) != FINE)
        return false;
    return snprintf(boot, TEXT, "%s%s", id, suffix_of(lock)) < TEXT;
}

static double boottime_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool take_lock(int fd, double patience_s)
{
    struct timespec pause = {0, BETWEEN_TRIES_NS};
    double until_s = boottime_s() + patience_s;

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return false;
        if (boottime_s() >= until_s) {
            errno = EWOULDBLOCK;
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

static bool map_shared(turn_t *turn, const char *lock, char error[LINE])
{
    char path[PATH + 16];
    struct stat status;
    uint64_t first = 0;
    int fd;

    snprintf(path, sizeof path, "%s.generation", lock);
    fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && fstat(fd, &status) == 0 &&
        (status.st_size != SIZE || pread(fd, &first, 8, 0) != 8 || memcmp(&first, MAGIC, 8) != 0)) {
        char fresh[SIZE] = MAGIC;
        if (ftruncate(fd, 0) != 0 || pwrite(fd, fresh, SIZE, 0) != SIZE) {
            close(fd);
            fd = -1;
        }
    }
    turn->shared = fd < 0 ? MAP_FAILED : mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (turn->shared == MAP_FAILED)
        snprintf(error, LINE, "cannot use %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return turn->shared != MAP_FAILED;
}

bool turn_take(turn_t *turn, const char *lock, double patience_s, char error[LINE], bool *is_taken)
{
    char copy[PATH], who[32] = "";
    ssize_t size;

    *is_taken = false;
    snprintf(copy, sizeof copy, "%s", lock);
    mkdir(dirname(copy), 0700);
    turn->lock = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (turn->lock < 0) {
        snprintf(error, LINE, "cannot use the lock %s: %s%s", lock, strerror(errno),
                 errno == EACCES || errno == EPERM ? "; moving clocks needs root" : "");
        return false;
    }
    if (!take_lock(turn->lock, patience_s)) {
        *is_taken = errno == EWOULDBLOCK;
        size = pread(turn->lock, who, sizeof who - 1, 0);
        who[size > 0 ? strcspn(who, "\n") : 0] = 0;
        snprintf(error, LINE, "pid %s already runs this node (it has locked %s); stop it first", who[0] ? who : "unknown",
                 lock);
        close(turn->lock);
        return false;
    }
    size = snprintf(who, sizeof who, "%d\n", (int)getpid());
    if (ftruncate(turn->lock, 0) != 0 || pwrite(turn->lock, who, (size_t)size, 0) < 0) {
        /* a full disk takes the number out of a message, and nothing else */
    }
    if (!map_shared(turn, lock, error)) {
        close(turn->lock);
        return false;
    }
    turn_next(turn);
    return true;
}

void turn_next(turn_t *turn)
{
    turn->shared[UNTIL] = 0;
    __atomic_add_fetch(&turn->shared[NUMBER], 1, __ATOMIC_SEQ_CST);
}

uint64_t turn_number(const turn_t *turn)
{
    return turn->shared[NUMBER];
}

bool turn_has_claim(const turn_t *turn)
{
    return turn->shared[UNTIL] != 0;
}

bool turn_is_over(const turn_t *turn, uint64_t number)
{
    struct timespec now;
    uint64_t until = turn->shared[UNTIL];

    clock_gettime(CLOCK_BOOTTIME, &now);
    return until && turn->shared[NUMBER] == number && (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec > until;
}

void turn_release(turn_t *turn)
{
    munmap((void *)(uintptr_t)turn->shared, SIZE);
    if (ftruncate(turn->lock, 0) != 0) {
        /* the lock goes with the descriptor, whatever the file system says */
    }
    close(turn->lock);
}
