/*
 * sched_setaffinity(2), sched_getaffinity(2) and getcpu(2): programs see and choose the emulated CPUs.
 *
 * The kernel knows the host's CPUs alone, so these calls never reach it: what a program chooses is kept here, and the
 * task goes on running wherever the host lets it. A task that has chosen nothing has the CPUs of its process, and a
 * process those of its parent, as if inherited at fork(2). So that a later choice of the parent does not reach children
 * that were already there, it is first written down what these have. A process whose parent has ended before its
 * first choice or look-up has lost its inheritance and gets all CPUs.
 *
 * getcpu(2) gives one of the allowed CPUs by the task's number, always the same.
 * Errors are in the order of kernel/sched/syscalls.c. Cost: with no choice in the run, a look-up takes no request to
 * /proc; else one or two small files of it per generation.
 */
#include "serve_internal.h"

#include <dirent.h>
#include <linux/capability.h>

enum { BUCKETS = 1024, GENERATIONS = 64 /* ours: no chain of parents is longer */, WORD = 64, MOST_KEPT = 16384 };

typedef struct choice {
    struct choice *next;
    int task;
    uint64_t began; /* the task's start time, which a later task with its number has not */
    uint64_t mask[];
} choice_t;

struct affinity {
    pthread_mutex_t lock;
    choice_t *chosen[BUCKETS];
    int n_chosen;
    int n_cpus, words;
    int32_t *node_of;
    uint64_t *all;
};

typedef struct {
    int process, parent;
    unsigned uid, euid;
} family_t;

affinity_t *affinity_new(const int32_t *node_of, int32_t n_cpus)
{
    affinity_t *affinity = calloc(1, sizeof *affinity);
    if (!affinity)
        return NULL;
    pthread_mutex_init(&affinity->lock, NULL);
    affinity->n_cpus = n_cpus;
    affinity->words = (n_cpus + WORD - 1) / WORD;
    affinity->all = calloc((size_t)affinity->words, sizeof *affinity->all);
    affinity->node_of = malloc((size_t)n_cpus * sizeof *node_of);
    if (!affinity->all || !affinity->node_of) {
        free(affinity->all);
        free(affinity->node_of);
        free(affinity);
        return NULL;
    }
    memcpy(affinity->node_of, node_of, (size_t)n_cpus * sizeof *node_of);
    for (int cpu = 0; cpu < n_cpus; cpu++)
        affinity->all[cpu / WORD] |= 1ULL << cpu % WORD;
    return affinity;
}

/****************************************************************
 * Tasks
 ****************************************************************/

/* The text of a small file of /proc/TASK; its length, or -1 if the task has ended. */
static ssize_t task_text(int task, const char *what, char *text, size_t size)
{
    int file = task_open(task, what, O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[length < 0 ? 0 : length] = 0;
    return length;
}

/* Clock ticks from boot to the task's start (field 22 of stat); 0 if it has ended. */
static uint64_t task_began(int task)
{
    char text[1024];
    task_text(task, "stat", text, sizeof text);
    char *at = strrchr(text, ')'); /* the name before it may contain anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static int task_family(int task, family_t *family)
{
    char text[4096];
    task_text(task, "status", text, sizeof text);
    const char *process = strstr(text, "\nTgid:"), *parent = strstr(text, "\nPPid:"), *users = strstr(text, "\nUid:");
    if (!process || !parent || !users || sscanf(users + 5, "%u %u", &family->uid, &family->euid) != 2)
        return -ESRCH;
    family->process = atoi(process + 6);
    family->parent = atoi(parent + 6);
    return 0;
}

/****************************************************************
 * What is chosen. With the lock
 ****************************************************************/

static choice_t *find(const affinity_t *affinity, int task)
{
    choice_t *choice = affinity->chosen[(unsigned)task % BUCKETS];
    while (choice && choice->task != task)
        choice = choice->next;
    return choice && choice->began == task_began(task) ? choice : NULL;
}

static const uint64_t *mask_of(const affinity_t *affinity, int task)
{
    family_t family;
    for (int i = 0; affinity->n_chosen && task > 1 && i < GENERATIONS; i++) {
        const choice_t *choice = find(affinity, task);
        if (choice)
            return choice->mask;
        if (task_family(task, &family))
            break;
        task = task == family.process ? family.parent : family.process;
    }
    return affinity->all;
}

/* Forgets tasks that have ended. */
static void sweep(affinity_t *affinity)
{
    for (int i = 0; i < BUCKETS; i++)
        for (choice_t **at = &affinity->chosen[i]; *at;) {
            choice_t *choice = *at;
            if (choice->began == task_began(choice->task)) {
                at = &choice->next;
                continue;
            }
            *at = choice->next;
            free(choice);
            affinity->n_chosen--;
        }
}

static int choose(affinity_t *affinity, int task, const uint64_t *mask)
{
    size_t size = (size_t)affinity->words * sizeof *mask;
    choice_t **at = &affinity->chosen[(unsigned)task % BUCKETS];
    while (*at && (*at)->task != task)
        at = &(*at)->next;
    if (!*at) {
        *at = calloc(1, sizeof **at + size);
        if (!*at)
            return -ENOMEM;
        affinity->n_chosen++;
    }
    (*at)->task = task;
    (*at)->began = task_began(task);
    memcpy((*at)->mask, mask, size);
    return (*at)->began ? 0 : -ESRCH;
}

/* Writes down what the children of one thread have. The file lists them (CONFIG_PROC_CHILDREN; none without it). */
static void settle_children(affinity_t *affinity, int process, const char *thread, const uint64_t *mask)
{
    char name[64], text[8192], *end;
    snprintf(name, sizeof name, "task/%.16s/children", thread);
    task_text(process, name, text, sizeof text);
    for (const char *at = text; *at; at = end) {
        long child = strtol(at, &end, 10);
        if (end == at)
            break;
        if (!find(affinity, (int)child))
            choose(affinity, (int)child, mask);
    }
}

/* Before a process's first thread gets another mask: its other threads and its children keep the one they have. */
static void settle_family(affinity_t *affinity, int process)
{
    uint64_t mask[affinity->words];
    char path[64];
    memcpy(mask, mask_of(affinity, process), sizeof mask);
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *threads = opendir(path);
    for (struct dirent *each; threads && (each = readdir(threads));) {
        int thread = atoi(each->d_name);
        if (!thread)
            continue;
        if (thread != process && !find(affinity, thread))
            choose(affinity, thread, mask);
        settle_children(affinity, process, each->d_name, mask);
    }
    if (threads)
        closedir(threads);
}

/****************************************************************
 * The calls
 ****************************************************************/

static int may_move(const watched_call_t *call, int task, const family_t *family)
{
    family_t own;
    if (task == call->task || task_capabilities(call->task) >> CAP_SYS_NICE & 1)
        return 1;
    return task_family(call->task, &own) == 0 && (own.euid == family->euid || own.euid == family->uid);
}

int judge_setaffinity(syscall_server_t *server, const watched_call_t *call)
{
    affinity_t *affinity = server->affinity;
    size_t size = (size_t)affinity->words * sizeof(uint64_t);
    uint64_t mask[affinity->words], any = 0;
    family_t family;
    memset(mask, 0, size);
    if (call->args[1] < size)
        size = call->args[1];
    if (size && task_memory(call->task, call->args[2], mask, size) != (ssize_t)size)
        return -EFAULT;
    int task = caller_process(call, (int)call->args[0]);
    if (task < 0 || task_family(task, &family))
        return -ESRCH;
    if (!may_move(call, task, &family))
        return -EPERM;
    for (int i = 0; i < affinity->words; i++)
        any |= mask[i] &= affinity->all[i];
    if (!any)
        return -EINVAL;
    if (!seccomp_is_waiting(call->listener, call->id))
        return -EINTR;

    pthread_mutex_lock(&affinity->lock);
    if (affinity->n_chosen > MOST_KEPT)
        sweep(affinity);
    if (task == family.process)
        settle_family(affinity, task);
    int error = choose(affinity, task, mask);
    pthread_mutex_unlock(&affinity->lock);
    return error;
}

int judge_getaffinity(syscall_server_t *server, const watched_call_t *call)
{
    affinity_t *affinity = server->affinity;
    size_t size = (size_t)affinity->words * sizeof(uint64_t), length = (unsigned)call->args[1];
    uint64_t mask[affinity->words];
    family_t family;
    if (length * 8 < (size_t)affinity->n_cpus || length % sizeof(long))
        return -EINVAL;
    int task = caller_process(call, (int)call->args[0]);
    if (task < 0 || (task != call->task && task_family(task, &family)))
        return -ESRCH;
    pthread_mutex_lock(&affinity->lock);
    memcpy(mask, mask_of(affinity, task), size);
    pthread_mutex_unlock(&affinity->lock);
    if (length > size)
        length = size;
    if (!seccomp_is_waiting(call->listener, call->id))
        return -EINTR;
    if (task_store(call->task, call->args[2], mask, length) != (ssize_t)length)
        return -EFAULT;
    return seccomp_answer_value(call->listener, call->id, (int64_t)length) ? -EINTR : ANSWERED;
}

/* The CPU of a mask that this task is on. */
static int cpu_of(const affinity_t *affinity, const uint64_t *mask, int task)
{
    int count = 0, cpu = 0;
    for (int i = 0; i < affinity->words; i++)
        count += __builtin_popcountll(mask[i]);
    for (int left = task % count;; cpu++)
        if (mask[cpu / WORD] >> cpu % WORD & 1 && left-- == 0)
            return cpu;
}

int judge_getcpu(syscall_server_t *server, const watched_call_t *call)
{
    affinity_t *affinity = server->affinity;
    pthread_mutex_lock(&affinity->lock);
    int cpu = cpu_of(affinity, mask_of(affinity, call->task), call->task);
    pthread_mutex_unlock(&affinity->lock);
    int32_t values[] = {cpu, affinity->node_of[cpu]};
    if (!seccomp_is_waiting(call->listener, call->id))
        return -EINTR;
    for (int i = 0; i < 2; i++)
        if (call->args[i] && task_store(call->task, call->args[i], &values[i], sizeof values[i]) != sizeof values[i])
            return -EFAULT;
    return 0;
}
