/* controlpulp-posix: the controller as a process. */
#include "posix.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define FIFO_PRIORITY 10

static const char usage[] =
    "usage: controlpulp-posix [options] FOLDER\n"
    "The ControlPULP firmware as a process. Agents connect to FOLDER/ospm.sock, runtime.sock and bmc.sock.\n"
    "  --plant LIBRARY --state FILE   the chip: a plant's shared library and state (default: none, all sensors fail)\n"
    "  --fifo try|require             run as SCHED_FIFO; without permission: go on without it, or end\n"
    "  --areas A2P,P2A                offsets of the two areas in a mailbox (default 0,0x100)\n"
    "  --registers DOORBELL,COMPLETION  offsets of these in an area (default 0xA0,0xA4)\n"
    "  --message-only AGENT           no FastChannels: this agent cannot reach the mailbox's memory (repeatable)\n"
    "  --published                    the published law, messages polled\n"
    "  --bypass                       a lower level takes effect at once, not with the next control slot\n"
    "  --own-steps SECONDS            so long after the last step of power the guard makes its own, 64 ms at the\n"
    "                                 lowest clocks, to check the sensors (default 65.5; 0: never)\n"
    "  --with-parent                  end when the process that started this one ends\n"
    "SIGTERM and SIGINT end it. Exit status 0: ended by a signal; 1: cannot run; 2: wrong use.\n";

static const char *const agent_names[AGENTS] = {"ospm", "runtime", "bmc"};

struct choice {
    const char *folder, *plant, *state, *fifo;
    struct geometry geometry;
    bool is_message_only[AGENTS];
    bool is_published, has_bypass, ends_with_parent;
    int32_t step_after;
};

/* ---- options ---- */

static int wrong_use(const char *what, const char *about)
{
    fprintf(stderr, "controlpulp-posix: %s%s; --help lists the options\n", what, about);
    return 2;
}

static bool pair(const char *text, uint32_t *first, uint32_t *second)
{
    char *end;
    errno = 0;
    unsigned long a = strtoul(text, &end, 0), b = 0;
    bool is_whole = end != text && *end == ',';
    if (is_whole) {
        const char *rest = end + 1;
        b = strtoul(rest, &end, 0);
        is_whole = end != rest && *end == 0;
    }
    *first = (uint32_t)a;
    *second = (uint32_t)b;
    return is_whole && errno == 0 && a <= UINT32_MAX && b <= UINT32_MAX;
}

static bool mark(const char *name, bool *marks)
{
    for (int c = 0; c < AGENTS; c++)
        if (!strcmp(name, agent_names[c]))
            return marks[c] = true;
    return false;
}

static bool slots_of(const char *seconds, int32_t *slots)
{
    char *end;
    double value = strtod(seconds, &end);
    if (end == seconds || *end || !(value == 0 || (value >= 0.1 && value <= 86400)))
        return false;
    *slots = (int32_t)(value * 2000);
    return true;
}

/* What belongs together in the options, as far as each by itself was right: 0, or the exit status. */
static int check_choice(const struct choice *choice, int folders)
{
    const char *problem = geometry_problem(&choice->geometry);
    if (problem)
        return wrong_use("--areas, --registers: ", problem);
    if (!choice->plant != !choice->state)
        return wrong_use("--plant and --state belong together", "");
    if (choice->fifo && strcmp(choice->fifo, "try") && strcmp(choice->fifo, "require"))
        return wrong_use("--fifo takes try or require, not ", choice->fifo);
    return folders == 1 ? 0 : wrong_use("give exactly one FOLDER for the agents' sockets", "");
}

/* 0: go on; -1: nothing more to do; else the exit status. */
static int read_choice(int argc, char **argv, struct choice *out)
{
    static const struct option options[] = {
        {"plant", required_argument, NULL, 'p'}, {"state", required_argument, NULL, 's'},
        {"fifo", required_argument, NULL, 'f'}, {"areas", required_argument, NULL, 'a'},
        {"registers", required_argument, NULL, 'r'}, {"message-only", required_argument, NULL, 'm'},
        {"published", no_argument, NULL, 'u'}, {"bypass", no_argument, NULL, 'b'},
        {"own-steps", required_argument, NULL, 'o'}, {"with-parent", no_argument, NULL, 'w'},
        {"help", no_argument, NULL, 'h'}, {0}};
    *out = (struct choice){.geometry = {0x000, 0x100, 0xA0, 0xA4}, .step_after = STEP_AFTER};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'p')
            out->plant = optarg;
        else if (option == 's')
            out->state = optarg;
        else if (option == 'f')
            out->fifo = optarg;
        else if (option == 'u')
            out->is_published = true;
        else if (option == 'b')
            out->has_bypass = true;
        else if (option == 'w')
            out->ends_with_parent = true;
        else if (option == 'a' && !pair(optarg, &out->geometry.a2p, &out->geometry.p2a))
            return wrong_use("--areas takes two offsets like 0,0x100, not ", optarg);
        else if (option == 'r' && !pair(optarg, &out->geometry.doorbell, &out->geometry.completion))
            return wrong_use("--registers takes two offsets like 0xA0,0xA4, not ", optarg);
        else if (option == 'o' && !slots_of(optarg, &out->step_after))
            return wrong_use("--own-steps takes 0 or 0.1 to 86400 seconds, not ", optarg);
        else if (option == 'm' && !mark(optarg, out->is_message_only))
            return wrong_use("--message-only takes ospm, runtime or bmc, not ", optarg);
        else if (option == 'h')
            return fputs(usage, stdout), -1;
        else if (option == '?')
            return wrong_use("no such option, or its value is missing: ", argv[optind - 1]);
    }
    int status = check_choice(out, argc - optind);
    out->folder = status ? NULL : argv[optind];
    return status;
}

/* ---- memory, priority, lock ---- */

static int fail(const char *where, const char *what)
{
    fprintf(stderr, "controlpulp-posix: %s: %s\n", where, what);
    return 1;
}

static bool run_as_fifo(const char *how)
{
    struct sched_param parameter = {.sched_priority = FIFO_PRIORITY};
    if (sched_setscheduler(0, SCHED_FIFO, &parameter) == 0) {
        mlockall(MCL_CURRENT); /* a page fault delays a slot; mailboxes are populated when they are made */
        return true;
    }
    bool goes_on = !strcmp(how, "try");
    fprintf(stderr, "controlpulp-posix: SCHED_FIFO: %s (it needs CAP_SYS_NICE or RLIMIT_RTPRIO)%s\n",
            strerror(errno), goes_on ? "; running without it: slots will be late under load" : "");
    return goes_on;
}

/* The lock ends with the process. Its owner may replace the sockets in the folder. */
static bool lock_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return true;
    fail(folder, errno == EWOULDBLOCK ? "another controller serves here" : strerror(errno));
    return false;
}

static bool open_descriptors(struct board *b)
{
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (b->epoll >= 0 && signaller_open(&b->signaller))
        return true;
    fail("epoll or asynchronous I/O", strerror(errno));
    return false;
}

static bool open_channels(struct board *b, const struct choice *choice)
{
    if (!open_descriptors(b))
        return false;
    for (uint32_t c = 0; c < AGENTS; c++) {
        char path[sizeof b->channels[c].address.sun_path + 1];
        snprintf(path, sizeof path, "%s/%s.sock", choice->folder, agent_names[c]);
        if (!channel_open(&b->channels[c], c, path, &choice->geometry, b->epoll, &b->signaller)) {
            fprintf(stderr, "controlpulp-posix: cannot listen at %s/%s.sock: %s\n", choice->folder, agent_names[c],
                    strerror(errno));
            while (c-- > 0)
                channel_close(&b->channels[c]);
            return false;
        }
        b->channels[c].is_message_only = choice->is_message_only[c];
    }
    return true;
}

static void say_farewell(const struct board *b)
{
    const struct firmware *fw = &b->firmware;
    fprintf(stderr, "controlpulp-posix: %u slots; merged releases: %u fast, %u control\n", fw->slots,
            fw->executive.overruns[JOB_FAST], fw->executive.overruns[JOB_CONTROL]);
}

int main(int argc, char **argv)
{
    static struct board board;
    struct choice choice;
    int status = read_choice(argc, argv, &choice);
    if (status)
        return status < 0 ? 0 : status;
    struct options options = {.law = choice.is_published ? LAW_PUBLISHED : LAW_OURS,
                              .polled_messages = choice.is_published, .bypass = choice.has_bypass,
                              .step_after = choice.step_after};
    if (choice.ends_with_parent)
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (choice.plant) {
        const char *problem = plant_load(&board.plant, choice.plant, choice.state, board.wires);
        if (problem)
            return fail("plant", problem);
    }
    if (!lock_folder(choice.folder) || !open_channels(&board, &choice))
        return 1;
    if ((choice.fifo && !run_as_fifo(choice.fifo)) ||
        (!board_start(&board, &options) && fail("start", strerror(errno)))) {
        for (int c = 0; c < AGENTS; c++)
            channel_close(&board.channels[c]);
        return 1;
    }
    printf("serving %s\n", choice.folder);
    fflush(stdout);
    board_serve(&board);
    for (int c = 0; c < AGENTS; c++)
        channel_close(&board.channels[c]);
    signaller_close(&board.signaller);
    say_farewell(&board);
    return 0;
}
