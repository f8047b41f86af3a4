/* What Slurm's hooks call when a job starts and ends. A job waits for it for the stated time at most, whatever happens:
 * a timer ends the process where a system call does not return.
 *
 * The exit status is for Slurm: a PrologSlurmctld that fails has its job requeued. So it is 0 unless --if-late requeue
 * was chosen and the caps are not in force in time, or nobody answers. A refusal (a role, a version) would never end by
 * trying again: it starts the job in either case, and so do options that are wrong, below Slurm. */
#include "hook.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static const char USAGE[] =
    "nodectl-hook start|end [options]: say that a job of Slurm starts or ends, from its prolog and epilog\n"
    "\n"
    "  --wait SECONDS          the longest time that this takes (5); a start waits for its caps within it\n"
    "  --if-late start|requeue what becomes of a job whose caps are not in force in time, or if nobody answers:\n"
    "                          it starts at the caps that there are (default), or Slurm requeues it (exit status 1)\n"
    "  --socket PATH|URL       the cluster agent: its socket (/run/clusterctl/clusterctl.sock), or tcp://HOST:PORT\n"
    "  --key FILE              for a URL: one's own pair of keys, of role notifier (CLUSTERCTL_KEY)\n"
    "  --server FILE           for a URL: the cluster agent's public key (CLUSTERCTL_SERVER)\n"
    "  --tag WORD              memory, mixed or compute; otherwise by nodectl=WORD in the job's comment\n"
    "  --quiet                 print nothing where all is well\n"
    "\n"
    "Job, nodes and user are those of Slurm's environment: SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_CLUSTER_NAME, ...\n";

typedef struct {
    const char *place, *tag;
    double wait_s;
    bool is_start, is_requeued, is_quiet, is_wrong;
} options_t;

static int status_if_late; /* for the timer */

static void give_up(int number)
{
    static const char LINE[] = "nodectl-hook: the time is over\n";
    (void)number;
    if (write(STDERR_FILENO, LINE, sizeof LINE - 1) < 0) /* full pipes do not matter any more */
        _exit(status_if_late);
    _exit(status_if_late);
}

static void end_after(double seconds)
{
    struct itimerval timer = {.it_value = {(time_t)seconds, (suseconds_t)(1e6 * (seconds - (double)(time_t)seconds))}};
    signal(SIGALRM, give_up);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static const char *of_slurm(const char *name, const char *other)
{
    const char *value = getenv(name);
    if (!value && other)
        value = getenv(other);
    return value ? value : "";
}

static void take_option(options_t *options, int option, const char *value)
{
    char *end = NULL;
    switch (option) {
    case 'w':
        options->wait_s = strtod(value, &end);
        options->is_wrong |= end == value || *end || !(options->wait_s > 0 && options->wait_s <= 600);
        break;
    case 'l':
        options->is_requeued = !strcmp(value, "requeue");
        options->is_wrong |= !options->is_requeued && strcmp(value, "start");
        break;
    case 's':
        options->place = value;
        break;
    case 'k':
        setenv("CLUSTERCTL_KEY", value, 1);
        break;
    case 'v':
        setenv("CLUSTERCTL_SERVER", value, 1);
        break;
    case 't':
        options->tag = value;
        break;
    case 'q':
        options->is_quiet = true;
        break;
    default:
        options->is_wrong = true;
    }
}

static options_t read_options(int count, char **words)
{
    static const struct option NAMES[] = {
        {"wait", required_argument, NULL, 'w'},   {"if-late", required_argument, NULL, 'l'},
        {"socket", required_argument, NULL, 's'}, {"key", required_argument, NULL, 'k'},
        {"server", required_argument, NULL, 'v'}, {"tag", required_argument, NULL, 't'},
        {"quiet", no_argument, NULL, 'q'},        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    options_t options = {.place = "/run/clusterctl/clusterctl.sock", .wait_s = 5};
    for (int option; (option = getopt_long(count, words, "", NAMES, NULL)) != -1;)
        take_option(&options, option, optarg);
    const char *what = optind == count - 1 ? words[optind] : "";
    options.is_start = !strcmp(what, "start");
    options.is_wrong |= !options.is_start && strcmp(what, "end");
    return options;
}

static outcome_t tell(const options_t *options, const notice_t *notice, int64_t deadline_ms, char reason[REASON])
{
    static frame_t frame, answer;
    /* the cluster agent gives up a tenth earlier, so that its word is heard */
    write_request(&frame, notice, 0.9 * options->wait_s);
    if (frame.is_full) {
        snprintf(reason, REASON, "the job's list of nodes is too long: a notice has %d bytes at most", LARGEST);
        return REFUSED;
    }
    bool is_link = !strncmp(options->place, "tcp://", 6);
    size_t size = (is_link ? ask_link : ask_socket)(options->place, &frame, &answer, deadline_ms, reason);
    return size ? read_answer(notice, answer.bytes, size, reason) : NO_HEAD;
}

static const char *in_words(outcome_t outcome)
{
    static const char *const WORDS[] = {
        [IN_FORCE] = "caps are in force",
        [OBSERVING] = "mode observe",
        [NOT_OURS] = "no node of this cluster agent",
        [WAITING] = "caps are not in force in time",
        [DONE] = "said",
        [REFUSED] = "refused",
        [NO_HEAD] = "no cluster agent",
    };
    return WORDS[outcome];
}

int main(int count, char **words)
{
    int64_t began_ms = now_ms();
    options_t options = read_options(count, words);
    if (options.is_wrong) {
        fputs(USAGE, stderr);
        return getenv("SLURM_SCRIPT_CONTEXT") ? 0 : 2;
    }
    status_if_late = options.is_start && options.is_requeued;
    end_after(options.wait_s + 0.25); /* only where the way itself does not keep to its deadline */

    notice_t notice = {
        .is_start = options.is_start,
        .job = of_slurm("SLURM_JOB_ID", NULL),
        .nodes = of_slurm("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        .cluster = of_slurm("SLURM_CLUSTER_NAME", NULL),
        .user = of_slurm("SLURM_JOB_USER", NULL),
        .title = of_slurm("SLURM_JOB_NAME", NULL),
        .tag = options.tag ? options.tag : tag_in(of_slurm("SLURM_JOB_COMMENT", NULL)),
        .partition = of_slurm("SLURM_JOB_PARTITION", NULL),
        .restarts = (uint32_t)strtoul(of_slurm("SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"), NULL, 10),
    };
    char reason[REASON] = "", plain[4 * REASON + 1];
    int64_t deadline_ms = began_ms + (int64_t)(1000 * options.wait_s);
    outcome_t outcome = tell(&options, &notice, deadline_ms, reason);
    bool is_well = outcome < WAITING || outcome == DONE;
    if (!is_well || !options.is_quiet) {
        make_plain(plain, sizeof plain, reason, REASON);
        fprintf(stderr, "nodectl-hook: job %.20s: %s after %lld ms%s%s\n", notice.job, in_words(outcome),
                (long long)(now_ms() - began_ms), reason[0] ? ": " : "", plain);
    }
    return outcome == WAITING || outcome == NO_HEAD ? status_if_late : 0;
}
