/* Attribute files of the kernel, with its refusals in words (nodectl/knobs/attribute_file.py). */
#include "restorer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COOLING "/sys/class/thermal"

static access_t refusal(const char *path, const char *verb, const char *text, char why[LINE])
{
    const char *words = strerror(errno);
    bool is_gone = errno == ENOENT || errno == ENODEV || errno == ENXIO || errno == ENOTDIR || errno == ESTALE;

    if (is_gone) {
        snprintf(why, LINE, "%s is gone (%s)", path, words);
        return VANISHED;
    }
    switch (errno) {
    case EINVAL: words = "the kernel finds the value out of range"; break;
    case EBUSY: words = "the driver is busy; it is tried again later"; break;
    case EACCES: words = "permission denied; the agent needs root, or the limit is locked by the firmware"; break;
    case EPERM: words = "not permitted; the agent needs root"; break;
    case EROFS: words = "mounted read-only; the unit file must allow this path (ReadWritePaths=)"; break;
    case ENODATA: words = "the driver refuses (ENODATA): locked by the firmware until the next boot, or out of range"; break;
    default: break;
    }
    snprintf(why, LINE, "cannot %s%s%s %s: %s", verb, text ? text : "", text ? " to" : "", path, words);
    return REFUSED;
}

static int open_file(const world_t *world, const char *path, int flags)
{
    char full[2 * PATH];

    snprintf(full, sizeof full, "%s%s", world->root, path);
    return open(full, flags | O_CLOEXEC | O_NONBLOCK);
}

access_t file_read(const world_t *world, const char *path, char out[TEXT], char why[LINE])
{
    int fd = open_file(world, path, O_RDONLY);
    ssize_t size = fd < 0 ? -1 : pread(fd, out, TEXT - 1, 0);
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    if (size < 0)
        return refusal(path, "read", NULL, why);
    while (size > 0 && strchr(" \t\r\n", out[size - 1]))
        size--;
    out[size] = 0;
    return FINE;
}

access_t file_write(const world_t *world, const char *path, const char *text, char why[LINE])
{
    int fd = open_file(world, path, O_WRONLY | O_TRUNC), error;
    ssize_t taken = fd < 0 ? -1 : write(fd, text, strlen(text));

    error = taken >= 0 && (size_t)taken != strlen(text) ? EIO : errno;
    if (fd >= 0)
        close(fd);
    if (taken >= 0 && (size_t)taken == strlen(text))
        return FINE;
    errno = error;
    return refusal(path, "write ", text, why);
}

bool file_whole(const world_t *world, const char *path, int64_t *out)
{
    char text[TEXT], why[LINE];

    return file_read(world, path, text, why) == FINE && json_whole((span_t){text, strlen(text)}, out) && *out >= 0;
}

static bool in_use(const world_t *world, const char *name, char out[LINE])
{
    char path[PATH], type[TEXT], state[TEXT], why[LINE];

    snprintf(path, sizeof path, COOLING "/%.200s/type", name);
    if (file_read(world, path, type, why) != FINE)
        return false;
    snprintf(path, sizeof path, COOLING "/%.200s/cur_state", name);
    if (file_read(world, path, state, why) != FINE || state[0] == 0 || strcmp(state, "0") == 0)
        return false;
    if (!strstr(type, "cpufreq") && strcmp(type, "Processor") != 0)
        return false;
    snprintf(out, LINE, "cooling device %.200s (%s, state %s)", name, type, state);
    return true;
}

bool file_cooling(const world_t *world, char out[LINE])
{
    char path[2 * PATH];
    struct dirent **names;
    bool is_found = false;
    int n;

    snprintf(path, sizeof path, "%s" COOLING, world->root);
    n = scandir(path, &names, NULL, alphasort);
    for (int at = 0; at < n; at++) {
        is_found = is_found || (strncmp(names[at]->d_name, "cooling_device", 14) == 0 && in_use(world, names[at]->d_name, out));
        free(names[at]);
    }
    if (n >= 0)
        free(names);
    return is_found;
}
