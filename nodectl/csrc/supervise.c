/*
 * The parent of the program that writes: it has the node's lock, outlives the program, and puts the knobs back when the
 * program dies, is stopped for longer than its lease, or lets a lease run out that it claimed
 * (nodectl/write/generation.py). `nodectl run` starts its writer process below it; a writer that hangs when that run is
 * gone is killed.
 */
#include "restorer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 100000000, IDLE_S = 1, NO_PROGRAM = 127, NOT_EXECUTABLE = 126, BY_SIGNAL = 128 };

/* Ours: a write that was in flight when the node was taken, or the program stopped, ends within the last of these. */
static const uint64_t FIRST_SETTLE_NS = 200000000u, LAST_SETTLE_NS = 6400000000u;

/* Ours: a writer whose agent is gone has so many leases for putting the knobs back itself. */
enum { LEASES_ALONE = 10 };

typedef struct {
    const options_t *options;
    turn_t turn;
    pid_t parent, child;
    uint64_t stopped_ns, again_ns; /* since when it is stopped; when to look again for late writes. 0: no */
    uint64_t settle_ns;            /* from the look before that one: twice as long each time */
    uint64_t alone_ns;             /* since when the parent is gone; 0: it is there */
    int stop_signal;
    bool is_taken;
} watch_t;

static uint64_t boottime_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void complain(const char *line)
{
    fprintf(stderr, "nodectl-restorer: %s\n", line);
}

static void put_back(const options_t *options)
{
    char line[TEXT];
    restoration_t result = restore_all(options);

    if (result.n_restored) {
        snprintf(line, sizeof line, "%d knob%s restored", result.n_restored, result.n_restored > 1 ? "s" : "");
        complain(line);
    }
    if (!result.is_complete)
        complain("a knob could not be put back yet; its captured value is kept: run `nodectl restore`");
}

/* A write that was in flight may come yet. */
static void look_again_later(watch_t *watch)
{
    watch->settle_ns = FIRST_SETTLE_NS;
    watch->again_ns = boottime_ns() + watch->settle_ns;
}

static void take_node(watch_t *watch, const char *why)
{
    complain(why);
    watch->is_taken = true;
    turn_next(&watch->turn);
    restore_remember(watch->options);
    put_back(watch->options);
    look_again_later(watch);
}

/* The program is not started: ``error`` for whoever waits for it. */
static int refuse(const options_t *options, const char *error)
{
    if (options->refusal_fd <= 0 || write(options->refusal_fd, error, strlen(error)) < 0)
        complain(error);
    return 1;
}

/* What the program was given is the program's alone: whoever waits for the end of a socket or pipe sees it end. */
static void close_others(int kept)
{
    DIR *open_files = opendir("/proc/self/fd");
    struct dirent *entry;

    while (open_files && (entry = readdir(open_files))) {
        int fd = atoi(entry->d_name);
        if (fd > STDERR_FILENO && fd != kept && fd != dirfd(open_files))
            close(fd);
    }
    if (open_files)
        closedir(open_files);
}

static void become(const watch_t *watch, char *const program[], const sigset_t *before)
{
    char number[16];

    snprintf(number, sizeof number, "%d", watch->turn.lock);
    setenv("NODECTL_LOCK_FD", number, 1);
    fcntl(watch->turn.lock, F_SETFD, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a restorer that was killed restores nothing: let the program do it */
    sigprocmask(SIG_SETMASK, before, NULL);
    execvp(program[0], program);
    fprintf(stderr, "nodectl-restorer: %s: %s\n", program[0], strerror(errno));
    _exit(errno == ENOENT ? NO_PROGRAM : NOT_EXECUTABLE);
}

/* What has happened to the child; true once it has ended. */
static bool look_at_child(watch_t *watch, int *status)
{
    pid_t got;

    while ((got = waitpid(watch->child, status, WNOHANG | WUNTRACED | WCONTINUED)) == watch->child) {
        if (WIFEXITED(*status) || WIFSIGNALED(*status))
            return true;
        if (WIFSTOPPED(*status)) {
            watch->stopped_ns = boottime_ns();
            watch->stop_signal = WSTOPSIG(*status);
        } else {
            watch->stopped_ns = 0;
            if (watch->is_taken)
                look_again_later(watch);
        }
    }
    return false;
}

static void end_child(watch_t *watch, const char *why)
{
    complain(why);
    watch->stopped_ns = 0;
    kill(watch->child, SIGKILL);
}

/* Is the run gone that this was started by, and for long? A run waits for a refusal; a shell does not, and may go. */
static bool is_left_alone(watch_t *watch, uint64_t now_ns, uint64_t lease_ns)
{
    if (!watch->alone_ns && watch->options->refusal_fd > 0 && getppid() != watch->parent)
        watch->alone_ns = now_ns;
    return watch->alone_ns && now_ns - watch->alone_ns >= LEASES_ALONE * lease_ns;
}

static void look_at_lease(watch_t *watch)
{
    uint64_t now_ns = boottime_ns(), lease_ns = (uint64_t)(watch->options->lease_s * 1e9);
    uint64_t number = turn_number(&watch->turn);
    bool is_stopped = watch->stopped_ns && now_ns - watch->stopped_ns >= lease_ns;

    if (watch->again_ns && now_ns >= watch->again_ns) {
        restore_again(watch->options);
        watch->settle_ns *= 2;
        watch->again_ns = watch->settle_ns <= LAST_SETTLE_NS ? now_ns + watch->settle_ns : 0;
    }
    if (watch->is_taken)
        return;
    if (is_left_alone(watch, now_ns, lease_ns)) {
        watch->alone_ns = now_ns; /* it ends when the kernel lets it */
        end_child(watch, "the run is gone, and the program has not ended: it is killed, then its knobs are put back");
    } else if (is_stopped && watch->options->kills_stopped) {
        end_child(watch, "the program was stopped for longer than its lease: it is killed, then its knobs are put back");
    } else if (is_stopped) {
        take_node(watch, "the program was stopped for longer than its lease: its knobs are put back");
        if (watch->stop_signal == SIGTSTP) /* by Ctrl-Z: a shell waits for this process to stop too */
            raise(SIGSTOP);
    } else if (turn_is_over(&watch->turn, number) && watch->options->kills_stopped) {
        turn_next(&watch->turn); /* it ends when the kernel lets it, and writes nothing until then */
        end_child(watch, "the program has not renewed its lease: it is killed, then its knobs are put back");
    } else if (turn_is_over(&watch->turn, number)) {
        take_node(watch, "the program has not renewed its lease: its knobs are put back");
    }
}

/* Signals of a terminal go to the whole group, so the program has them already. */
static void pass_on(const watch_t *watch, const siginfo_t *info)
{
    if (info->si_signo != SIGCHLD && info->si_code != SI_KERNEL)
        kill(watch->child, info->si_signo);
}

static int watch_child(watch_t *watch, const sigset_t *signals)
{
    siginfo_t info;
    int status = 0;

    while (!look_at_child(watch, &status)) {
        bool is_timed = watch->stopped_ns || watch->again_ns || watch->alone_ns || turn_has_claim(&watch->turn);
        struct timespec look = is_timed ? (struct timespec){0, LOOK_NS} : (struct timespec){IDLE_S, 0};
        if (sigtimedwait(signals, &info, &look) > 0)
            pass_on(watch, &info);
        look_at_lease(watch);
    }
    return status;
}

int supervise(const options_t *options, char *const program[])
{
    static const int passed[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCHLD};
    watch_t watch = {.options = options, .parent = getppid()};
    sigset_t signals, before;
    char error[LINE];
    bool is_taken;
    int status;

    if (options->refusal_fd > 0)
        fcntl(options->refusal_fd, F_SETFD, FD_CLOEXEC);
    if (!turn_take(&watch.turn, options->lock, options->lease_s + RESTORE_S, error, &is_taken))
        return refuse(options, error);
    is_with_a_program = true;
    sigemptyset(&signals);
    for (size_t at = 0; at < sizeof passed / sizeof passed[0]; at++)
        sigaddset(&signals, passed[at]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    watch.child = fork();
    if (watch.child == 0)
        become(&watch, program, &before);
    if (watch.child < 0) {
        turn_release(&watch.turn);
        return refuse(options, strerror(errno));
    }
    close_others(watch.turn.lock);
    status = watch_child(&watch, &signals);
    turn_next(&watch.turn);
    put_back(options);
    if (watch.is_taken)
        restore_again(options);
    turn_release(&watch.turn);
    return WIFSIGNALED(status) ? BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}
