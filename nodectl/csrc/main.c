/* The command line. */
#include "restorer.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE "/var/lib/nodectl/captured.jsonl"                  /* of nodectl before saves were node-wide */
#define LASTING "/var/lib/nodectl/captured-controllers.jsonl"    /* nodectl/write/places.py */
#define LASTING_BOOT "every boot"

enum { WRONG_USE = 2, DRY_RUN = 1, LEAVE, IF_IDLE, LOCK, SAVE, BOOT, ROOT, REST_BY, LEASE, KILL, REFUSAL };

static const struct option OPTIONS[] = {
    {"dry-run", no_argument, NULL, DRY_RUN},       {"leave-cluster", no_argument, NULL, LEAVE},
    {"if-idle", no_argument, NULL, IF_IDLE},       {"lock", required_argument, NULL, LOCK},
    {"save", required_argument, NULL, SAVE},       {"boot", required_argument, NULL, BOOT},
    {"root", required_argument, NULL, ROOT},       {"rest-by", required_argument, NULL, REST_BY},
    {"lease", required_argument, NULL, LEASE},     {"kill-stopped", no_argument, NULL, KILL},
    {"refusal-fd", required_argument, NULL, REFUSAL}, {NULL, 0, NULL, 0},
};

static const char USAGE[] =
    "Usage: nodectl-restorer restore [OPTIONS]\n"
    "       nodectl-restorer run [OPTIONS] -- PROGRAM [ARGUMENTS]\n"
    "\n"
    "restore puts every knob back to the value captured before an agent first moved it, as `nodectl restore` does, but\n"
    "needs neither Python nor nodectl's virtual environment. run starts a program that writes knobs (nodectl run) and\n"
    "does the same when it dies, or when it is stopped for longer than its lease.\n"
    "\n"
    "  --dry-run          say what would be done; write nothing\n"
    "  --leave-cluster    restore knobs under a cluster's grant too\n"
    "  --if-idle          exit 0 where an agent runs this node: it restores by itself\n"
    "  --rest-by PROGRAM  the nodectl that is run for what needs it (saves of version 1, unusual SCMI links)\n"
    "  --lease SECONDS    run: how long the program may be stopped (1); whoever has the node's lock is waited for so long,\n"
    "                     and a second\n"
    "  --kill-stopped     run: kill a program that was stopped for longer, or that claimed the node and let the claim run\n"
    "                     out, before its knobs are put back\n"
    "  --refusal-fd FD    run: for a process that reads there, in place of standard error, why the program was not\n"
    "                     started; when that process is gone, a program that does not end is killed after ten leases\n"
    "  --save FILE, --lock FILE, --boot ID, --root DIR   in place of this node's\n"
    "\n"
    "Exit status: 0 done, or nothing to do; 1 a knob could not be put back yet, or the save was damaged; 2 wrong use.\n"
    "run: the program's.\n";

static int misused(const char *what)
{
    fprintf(stderr, "nodectl-restorer: %s; see nodectl-restorer --help\n", what);
    return WRONG_USE;
}

static bool take_option(options_t *options, int option, const char **save, const char **boot)
{
    switch (option) {
    case DRY_RUN: options->dry_run = true; break;
    case LEAVE: options->leaves_cluster = true; break;
    case IF_IDLE: options->if_idle = true; break;
    case LOCK: snprintf(options->lock, PATH, "%s", optarg); break;
    case SAVE: *save = optarg; break;
    case BOOT: *boot = optarg; break;
    case ROOT: options->world.root = optarg; break;
    case REST_BY: options->rest_by = optarg; break;
    case LEASE: options->lease_s = atof(optarg); break;
    case KILL: options->kills_stopped = true; break;
    case REFUSAL: options->refusal_fd = atoi(optarg); break;
    default: return false;
    }
    return true;
}

static void add_save(options_t *options, const char *path, const char *boot)
{
    snprintf(options->saves[options->n_saves], PATH, "%s", path);
    options->boots[options->n_saves++] = boot;
}

/* Where this node's saves are, unless options name them. */
static bool find_saves(options_t *options, const char *save, const char *boot)
{
    char path[PATH];

    if (options->lock[0] == 0)
        turn_paths(options->lock);
    if (boot)
        snprintf(options->boot, TEXT, "%s", boot);
    else if (!turn_boot(options->lock, options->boot))
        return false;
    turn_save_path(options->lock, path);
    add_save(options, save ? save : path, options->boot);
    if (!save && strcmp(options->lock, "/run/nodectl/lock") == 0) {
        add_save(options, LASTING, LASTING_BOOT);
        add_save(options, STATE, options->boot);
    }
    return true;
}

int main(int argc, char *argv[])
{
    static options_t options = {.world = {""}, .lease_s = 1.0};
    const char *save = NULL, *boot = NULL, *command = argc > 1 ? argv[1] : "";
    bool is_run = strcmp(command, "run") == 0;
    int option;

    if (strcmp(command, "--help") == 0) {
        fputs(USAGE, stdout);
        return 0;
    }
    if (!is_run && strcmp(command, "restore") != 0)
        return misused("the command is restore or run");
    opterr = 0;
    optind = 2;
    while ((option = getopt_long(argc, argv, "+", OPTIONS, NULL)) != -1) {
        if (!take_option(&options, option, &save, &boot))
            return misused("an option that there is not, or without its value");
    }
    if (is_run != (optind < argc))
        return misused(is_run ? "run needs a program" : "restore takes no arguments");
    if (!(options.lease_s > 0 && options.lease_s < 3600))
        return misused("a lease is more than 0 and less than 3600 seconds");
    if (!find_saves(&options, save, boot))
        return misused("/proc/sys/kernel/random/boot_id cannot be read; is /proc mounted?");
    return is_run ? supervise(&options, argv + optind) : restore_command(&options);
}
