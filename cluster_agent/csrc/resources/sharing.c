/*
 * Jobs that share nodes.
 *
 * Problem. Two jobs on one node take bandwidth or time from each other, so how fast a job runs depends on its partners,
 * and changes when one of them starts or ends.
 *
 * Law. The parts of a job wait for each other, so it runs as on its slowest node. Of its speed alone on whole nodes:
 *
 *     speed = min over its nodes of    1                          where it has both shares
 *                                      speed[kind][its partner's] next to a partner
 *                                      speed[kind][n_kinds]       next to a share that nobody has
 *
 * Invariant. A node has two shares, so at most two jobs. A partner's speed is noted as a node is taken or given back, and
 * follows once all of the instant has happened (scheduler_repaced): the work done until then was done at the old one.
 *
 * Cost. O(nodes of the job) for each start, each end, and each job whose partners change.
 */
#include <math.h>

#include "resources/node_inside.h"

enum { NOBODY = -1, SHARES = 2 };

int sharing_new(scheduler_t *s)
{
    on_nodes_t *u = s->on_nodes;
    int32_t n = s->jobs.n_jobs, nodes = u->model.n_nodes;
    sharing_t *shared = u->sharing = column(&s->memory, 1, sizeof *shared);
    if (!shared)
        return -1;
    s->since_s = column(&s->memory, n, sizeof *s->since_s);
    s->done_s = column(&s->memory, n, sizeof *s->done_s);
    s->stretch = column(&s->memory, n, sizeof *s->stretch);
    shared->on = column(&s->memory, SHARES * nodes, sizeof *shared->on);
    shared->noted = column(&s->memory, n, sizeof *shared->noted);
    shared->is_noted = column(&s->memory, n, sizeof *shared->is_noted);
    if (s->memory.is_short)
        return -1;
    for (int32_t i = 0; i < SHARES * nodes; i++)
        shared->on[i] = NOBODY;
    return 0;
}

/* How many times as long as alone a second of the job's work takes now. */
static double stretch_of(const on_nodes_t *u, int32_t job)
{
    const node_model_t *m = &u->model;
    const double *speed = m->speed + (int64_t)m->kind[job] * (m->n_kinds + 1);
    double slowest = INFINITY;
    for (int32_t i = 0; i < u->count[job]; i++) {
        const placed_t *one = &u->placed[u->first[job] + i];
        const int32_t *on = u->sharing->on + SHARES * one->node;
        int32_t other = on[0] == job ? on[1] : on[0];
        double here = one->count == SHARES ? 1.0 : speed[other == NOBODY ? m->n_kinds : m->kind[other]];
        slowest = here < slowest ? here : slowest;
    }
    return 1.0 / slowest;
}

static void note(sharing_t *shared, int32_t job)
{
    if (!shared->is_noted[job])
        shared->noted[shared->n_noted++] = job;
    shared->is_noted[job] = 1;
}

void sharing_changes(scheduler_t *s, int32_t job, int sign)
{
    on_nodes_t *u = s->on_nodes;
    sharing_t *shared = u->sharing;
    for (int32_t i = 0; i < u->count[job]; i++) {
        int32_t *on = shared->on + SHARES * u->placed[u->first[job] + i].node;
        int32_t place = on[0] == (sign > 0 ? NOBODY : job) ? 0 : 1, other = on[!place];
        on[place] = sign > 0 ? job : NOBODY;
        if (other != NOBODY)
            note(shared, other);
    }
    shared->is_noted[job] = 0; /* it has ended, or its speed is known now */
    if (sign < 0)
        return;
    s->since_s[job] = u->pass_s;
    s->done_s[job] = 0;
    s->stretch[job] = stretch_of(u, job);
}

const int32_t *scheduler_repaced(scheduler_t *s, int64_t now_s, int32_t *count)
{
    sharing_t *shared = s->on_nodes->sharing;
    int32_t kept = 0;
    for (int32_t i = 0; i < shared->n_noted; i++) {
        int32_t job = shared->noted[i];
        if (!shared->is_noted[job])
            continue;
        shared->is_noted[job] = 0;
        scheduler_running_remove(s, job);
        s->done_s[job] += (double)(now_s - s->since_s[job]) / s->stretch[job];
        s->since_s[job] = now_s;
        s->stretch[job] = stretch_of(s->on_nodes, job);
        scheduler_running_add(s, job);
        shared->noted[kept++] = job;
    }
    shared->n_noted = 0;
    *count = kept;
    return shared->noted;
}
