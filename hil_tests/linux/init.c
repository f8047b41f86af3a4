/*
 * The only program of the guest: reads commands of the rig from a terminal line, whose device number is in LINE
 * (MAJOR:MINOR), and answers each by one line, until "off".
 *
 *   list DIRECTORY          names, sorted
 *   read FILE               its text without the last newline; other newlines become '|'
 *   write FILE TEXT
 *   send FILE HEX           an SCMI message (header and payload) through a file of the kernel's raw mode: message, or
 *                           message_async, which waits for a delayed response, too
 *   receive MILLISECONDS    "response HEX" (immediate or delayed), "event HEX" (notification) or "nothing"
 *   load CPU MILLISECONDS BUSY  meanwhile a child is busy on this CPU for so many of every 10 ms, and sleeps in between
 *   off
 *
 * Answers: "ok TEXT", or "error NUMBER TEXT" with errno. Kernel messages go elsewhere.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define RAW "/sys/kernel/debug/scmi/0/raw/"
enum { LINE = 4096, MESSAGE = 256 };

static FILE *out;
static int response_fd = -1, event_fd = -1;

static void ok(const char *text)
{
    fprintf(out, "ok %s\n", text);
}

static void fail(void)
{
    fprintf(out, "error %d %s\n", errno, strerror(errno));
}

/* ---- files ---- */

static void list(const char *directory)
{
    struct dirent **names;
    int count = scandir(directory, &names, NULL, alphasort);
    if (count < 0) {
        fail();
        return;
    }
    fputs("ok", out);
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.')
            fprintf(out, " %s", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    fputc('\n', out);
}

static void read_file(const char *path)
{
    char text[LINE];
    int fd = open(path, O_RDONLY);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (size < 0) {
        fail();
    } else {
        text[size] = 0;
        if (size && text[size - 1] == '\n')
            text[size - 1] = 0;
        for (char *c = text; *c; c++)
            if (*c == '\n')
                *c = '|';
        ok(text);
    }
    if (fd >= 0)
        close(fd);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail();
    else
        ok("");
    if (fd >= 0)
        close(fd);
}

/* ---- SCMI ---- */

static void send_message(const char *file, const char *hex)
{
    char path[LINE];
    uint8_t message[MESSAGE];
    size_t size = 0;
    unsigned byte;
    for (; size < sizeof message && sscanf(hex + 2 * size, "%2x", &byte) == 1; size++)
        message[size] = (uint8_t)byte;
    /* Opened again for each message: the kernel takes it at the file's position, which reading a response has moved. */
    snprintf(path, sizeof path, "%s%s", RAW, file);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, message, size) < 0)
        fail();
    else
        ok("");
    if (fd >= 0)
        close(fd);
}

/* One message; the kernel marks its end with an empty read. */
static void take(const char *kind, int fd)
{
    uint8_t message[MESSAGE], end[4];
    ssize_t size = read(fd, message, sizeof message);
    if (size < 0) {
        fail();
        return;
    }
    fprintf(out, "ok %s ", kind);
    for (ssize_t i = 0; i < size; i++)
        fprintf(out, "%02x", message[i]);
    fputc('\n', out);
    if (read(fd, end, sizeof end) > 0)
        fprintf(stderr, "init: the kernel did not mark the end of a message\n");
}

static void receive(int milliseconds)
{
    struct pollfd waits[2] = {{.fd = response_fd, .events = POLLIN}, {.fd = event_fd, .events = POLLIN}};
    if (poll(waits, 2, milliseconds) < 0)
        fail();
    else if (waits[0].revents & POLLIN)
        take("response", response_fd);
    else if (waits[1].revents & POLLIN)
        take("event", event_fd);
    else
        ok("nothing");
}

/* ---- load ---- */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void load(int cpu, int milliseconds, int busy_ms)
{
    pid_t child = fork();
    if (child < 0) {
        fail();
        return;
    }
    if (child) {
        ok("");
        return;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) < 0)
        perror("load");
    for (int64_t until = now_ms() + milliseconds; now_ms() < until;) {
        for (int64_t pause = now_ms() + busy_ms; now_ms() < pause;)
            ;
        if (busy_ms < 10)
            usleep((useconds_t)(10 - busy_ms) * 1000);
    }
    _exit(0);
}

/* ---- start ---- */

static void must(int result, const char *what)
{
    if (result >= 0)
        return;
    perror(what);
    reboot(RB_POWER_OFF);
}

static FILE *open_line(void)
{
    struct termios raw;
    const char *line = getenv("LINE");
    unsigned major_number, minor_number;
    if (!line || sscanf(line, "%u:%u", &major_number, &minor_number) != 2) {
        errno = EINVAL;
        must(-1, "LINE");
    }
    mkdir("/dev", 0755);
    mknod("/dev/line", S_IFCHR | 0600, makedev(major_number, minor_number));
    int fd = open("/dev/line", O_RDWR | O_NOCTTY);
    must(fd, "/dev/line");
    must(tcgetattr(fd, &raw), "/dev/line");
    cfmakeraw(&raw);
    must(tcsetattr(fd, TCSANOW, &raw), "/dev/line");
    out = fdopen(dup(fd), "w");
    setvbuf(out, NULL, _IOLBF, LINE);
    return fdopen(fd, "r");
}

int main(void)
{
    char line[LINE];
    FILE *in = open_line();
    signal(SIGCHLD, SIG_IGN); /* children that have ended leave nothing */
    mkdir("/sys", 0755);
    must(mount("sysfs", "/sys", "sysfs", 0, NULL), "/sys");
    must(mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL), "/sys/kernel/debug");
    response_fd = open(RAW "message", O_RDONLY | O_NONBLOCK);
    event_fd = open(RAW "notification", O_RDONLY | O_NONBLOCK);
    if (response_fd < 0 || event_fd < 0)
        fail(); /* no SCMI platform: files can still be read */
    else
        ok("ready");
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line, *command = strsep(&rest, " "), *first = strsep(&rest, " ");
        if (!first)
            first = "";
        if (!strcmp(command, "list"))
            list(first);
        else if (!strcmp(command, "read"))
            read_file(first);
        else if (!strcmp(command, "write"))
            write_file(first, rest ? rest : "");
        else if (!strcmp(command, "send"))
            send_message(first, rest ? rest : "");
        else if (!strcmp(command, "receive"))
            receive(atoi(first));
        else if (!strcmp(command, "load") && rest) {
            int milliseconds = 0, busy_ms = 0;
            sscanf(rest, "%d %d", &milliseconds, &busy_ms);
            load(atoi(first), milliseconds, busy_ms);
        } else if (!strcmp(command, "off"))
            break;
        else
            fprintf(out, "error %d no such command: %s\n", EINVAL, command);
    }
    reboot(RB_POWER_OFF);
    return 0;
}
