#include "kinds.h"

#include <string.h>

#include "search.h"

int kinds_init(kinds_t *k, memory_t *memory, int32_t n_jobs, int is_shortest_first)
{
    uint64_t places = 16;
    while (places < 2 * (uint64_t)n_jobs)
        places *= 2;
    k->mask = places - 1;
    k->is_shortest_first = is_shortest_first;
    k->kinds = column(memory, n_jobs, sizeof *k->kinds);
    k->table = column(memory, (int64_t)places, sizeof *k->table);
    k->kind_of = column(memory, n_jobs, sizeof *k->kind_of);
    k->next = column(memory, n_jobs, sizeof *k->next);
    k->fronts = column(memory, n_jobs, sizeof *k->fronts);
    return memory_status(memory);
}

/****************************************************************
 * Which kind a job is of
 ****************************************************************/

static uint64_t hash(const kind_t *kind)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio (Knuth, vol. 3, §6.4) */
    uint64_t found = (uint64_t)kind->request_s * odd;
    found = (found ^ (found >> 32) ^ (uint64_t)kind->estimate_s) * odd;
    found = (found ^ (found >> 32) ^ (uint64_t)kind->width) * odd;
    return found ^ (found >> 32) ^ (uint64_t)kind->lowest;
}

static int is_same(const kind_t *a, const kind_t *b)
{
    return a->request_s == b->request_s && a->estimate_s == b->estimate_s && a->width == b->width &&
           a->lowest == b->lowest;
}

static int32_t number_of(kinds_t *k, const kind_t *kind)
{
    uint64_t place = hash(kind) & k->mask;
    for (; k->table[place]; place = (place + 1) & k->mask)
        if (is_same(&k->kinds[k->table[place] - 1], kind))
            return k->table[place] - 1;
    k->kinds[k->n_kinds] = *kind;
    k->kinds[k->n_kinds].first = -1;
    k->table[place] = ++k->n_kinds;
    return k->n_kinds - 1;
}

/****************************************************************
 * The fronts
 ****************************************************************/

/* How many fronts are before this job. */
static int32_t before(const kinds_t *k, int64_t estimate_s, int32_t job)
{
    const waiting_t *fronts = k->fronts;
    return FIRST(i, 0, k->n_fronts, k->is_shortest_first && fronts[i].estimate_s != estimate_s
                                        ? fronts[i].estimate_s > estimate_s
                                        : fronts[i].job >= job);
}

static void put_front(kinds_t *k, int32_t number)
{
    const kind_t *kind = &k->kinds[number];
    int32_t i = before(k, kind->estimate_s, kind->first);
    memmove(k->fronts + i + 1, k->fronts + i, (size_t)(k->n_fronts++ - i) * sizeof *k->fronts);
    k->fronts[i] = (waiting_t){.estimate_s = kind->estimate_s, .job = kind->first, .width = kind->width};
}

static void remove_front(kinds_t *k, int32_t number)
{
    int32_t i = before(k, k->kinds[number].estimate_s, k->kinds[number].first);
    memmove(k->fronts + i, k->fronts + i + 1, (size_t)(--k->n_fronts - i) * sizeof *k->fronts);
}

void kinds_add(kinds_t *k, int32_t job, const kind_t *wanted)
{
    int32_t number = number_of(k, wanted);
    kind_t *kind = &k->kinds[number];
    k->kind_of[job] = number;
    if (kind->first < 0 || job < kind->first) {
        if (kind->first >= 0)
            remove_front(k, number);
        else
            kind->last = job;
        k->next[job] = kind->first;
        kind->first = job;
        put_front(k, number);
        return;
    }
    int32_t earlier = job > kind->last ? kind->last : kind->first;
    while (k->next[earlier] >= 0 && k->next[earlier] < job)
        earlier = k->next[earlier];
    k->next[job] = k->next[earlier];
    k->next[earlier] = job;
    kind->last = job > kind->last ? job : kind->last;
}

void kinds_take(kinds_t *k, int32_t job)
{
    int32_t number = k->kind_of[job];
    kind_t *kind = &k->kinds[number];
    if (job == kind->first) {
        remove_front(k, number);
        kind->first = k->next[job];
        if (kind->first >= 0)
            put_front(k, number);
        return;
    }
    int32_t earlier = kind->first;
    while (k->next[earlier] != job)
        earlier = k->next[earlier];
    k->next[earlier] = k->next[job];
    kind->last = job == kind->last ? earlier : kind->last;
}
