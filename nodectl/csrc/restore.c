/* Every save of the node, knob by knob in the reverse order of their capture. */
#include "restorer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static save_t save; /* one at a time */
bool is_with_a_program;
static save_t kept; /* the node's as it was when the node was taken from a writer that was stopped */

void say(const char *line)
{
    FILE *file = is_with_a_program ? stderr : stdout;

    fprintf(file, "%s\n", line);
    fflush(file);
}

static void silent(const char *line)
{
    (void)line;
}

static void complain(const char *line)
{
    fflush(stdout);
    fprintf(stderr, "nodectl-restorer: %s\n", line);
}

static void put_back_one(const options_t *options, record_t *record, restoration_t *result)
{
    outcome_t outcome;
    char name[TEXT] = "?", line[TEXT + LINE + 48];

    json_text(record->name, name, sizeof name);
    rule_put_back(&options->world, record, options->dry_run, options->leaves_cluster, &outcome);
    record->is_settled = outcome.status == RESTORED || outcome.status == LEFT;
    if (outcome.needs_python && options->rest_by) {
        result->needs_python = true;
        return;
    }
    result->is_complete &= record->is_settled || outcome.status == AT_LIMIT;
    result->n_restored += outcome.status == RESTORED;
    if (is_with_a_program && outcome.status == RESTORED)
        return;
    snprintf(line, sizeof line, "%s  %s%s  %s", name, options->dry_run ? "would be " : "", STATUS_NAMES[outcome.status],
             outcome.detail);
    say(line);
}

static bool set_other_aside(const options_t *options, restoration_t *result)
{
    char aside[PATH], error[LINE], line[3 * PATH];
    const char *why = save.boot[0] ? "is of another boot or another (emulated) node" : "has no readable line";

    result->is_complete &= save.boot[0] != 0;
    if (options->dry_run) {
        snprintf(line, sizeof line, "%s %s: it would be set aside", save.path, why);
    } else if (save_set_aside(&save, aside, error)) {
        snprintf(line, sizeof line, "%s %s: set aside as %s", save.path, why, aside);
    } else {
        complain(error);
        return false;
    }
    say(line);
    return true;
}

static bool restore_one(const options_t *options, const char *path, const char *boot, restoration_t *result)
{
    char error[LINE];

    if (!save_read(&save, path, error, say)) {
        complain(error);
        return false;
    }
    if (!save.is_there)
        return true;
    result->has_any = true;
    if (strcmp(save.boot, boot) != 0)
        return set_other_aside(options, result);
    result->is_complete &= save.lost[0] == 0;
    for (size_t at = save.n; at-- > 0;)
        put_back_one(options, &save.records[at], result);
    if (options->dry_run && save.lost[0]) {
        snprintf(error, sizeof error, "%.900s is damaged (%.500s): it would be kept; other knobs may have been moved",
                 save.path, save.lost);
        say(error);
    }
    if (!options->dry_run && !save_settle(&save, error, say)) {
        complain(error);
        return false;
    }
    return true;
}

restoration_t restore_all(const options_t *options)
{
    restoration_t result = {.is_complete = true};

    for (int at = 0; at < options->n_saves; at++) {
        result.is_complete &= restore_one(options, options->saves[at], options->boots[at], &result);
        save_free(&save);
    }
    scmi_close();
    return result;
}

static void wait_with_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static int rest(const options_t *options, const char *program)
{
    const char *leave = options->leaves_cluster ? "--leave-cluster" : NULL;
    const char *first = options->dry_run ? "--dry-run" : leave, *second = options->dry_run ? leave : NULL;
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    fflush(stdout);
    execl(program, program, "restore", first, second, (char *)NULL);
    complain("cannot start the program of --rest-by");
    return 1;
}

int restore_command(options_t *options)
{
    turn_t turn;
    char error[LINE];
    bool is_taken;
    restoration_t result;

    if (!options->dry_run) {
        double patience_s = options->if_idle ? MOMENT_S : options->lease_s + RESTORE_S;
        if (!turn_take(&turn, options->lock, patience_s, error, &is_taken)) {
            if (is_taken && options->if_idle)
                return 0; /* who runs this node restores by itself */
            complain(error);
            return 1;
        }
        wait_with_signals(); /* a second Ctrl-C must not stop a restore half-way */
    }
    result = restore_all(options);
    if (!options->dry_run)
        turn_release(&turn);
    if (!result.has_any)
        say("nothing to restore");
    if (result.needs_python && options->rest_by) {
        int status = rest(options, options->rest_by);
        return result.is_complete ? status : 1;
    }
    return result.is_complete ? 0 : 1;
}

void restore_remember(const options_t *options)
{
    char error[LINE];

    save_free(&kept);
    if (!save_read(&kept, options->saves[0], error, silent) || strcmp(kept.boot, options->boots[0]) != 0)
        kept.n = 0;
}

void restore_again(const options_t *options)
{
    restoration_t ignored = {.is_complete = true};

    for (size_t at = kept.n; at-- > 0;)
        put_back_one(options, &kept.records[at], &ignored);
    scmi_close();
}
