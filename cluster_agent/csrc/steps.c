#include "steps.h"

#include <string.h>

#include "power_inside.h"
#include "search.h"

int32_t scheduler_set_stepped(scheduler_t *s)
{
    s->is_stepped = 1;
    return memory_keep_spare(&s->memory);
}

void scheduler_look(scheduler_t *s, seen_t *seen)
{
    scheduler_close_gaps(s, 0);
    seen->free = s->free;
    seen->waiting = s->tail - s->head;
    seen->running = s->n_running;
    seen->head = s->head;
    seen->queue = s->queue;
    seen->runs = s->running;
}

int32_t scheduler_has_choice(const scheduler_t *s)
{
    return s->n_waiting > 1 && s->narrowest <= s->free;
}

void scheduler_table(const scheduler_t *s, int64_t now_s, int32_t most, double *waiting, double *running)
{
    for (const waiting_t *next = s->queue + s->head, *end = next + most; next < end; next++) {
        *waiting++ = (double)(now_s - s->submit_s[next->job]);
        *waiting++ = (double)next->estimate_s;
        *waiting++ = (double)next->width;
    }
    for (const running_t *next = s->running, *end = next + s->n_running; next < end; next++) {
        *running++ = (double)(next->expected_end_s - now_s);
        *running++ = (double)next->width;
    }
}

/****************************************************************
 * Decisions of the caller
 ****************************************************************/

/* The jobs at these places come first. 0; -2: a place is not in the queue, or is given twice. */
static int32_t put_first(scheduler_t *s, const int32_t *places, int32_t count)
{
    waiting_t *queue = s->queue + s->head;
    int32_t waiting = s->tail - s->head, first = 0;

    for (; first < count; first++) {
        int is_place = places[first] >= 0 && places[first] < waiting;
        if (!is_place || s->has_started[s->kept[places[first]].job]) /* set until all have their places */
            break;
        queue[first] = s->kept[places[first]];
        s->has_started[queue[first].job] = 1;
    }
    for (int32_t i = 0, to = first; i < waiting && first == count; i++)
        if (!s->has_started[s->kept[i].job])
            queue[to++] = s->kept[i];
    for (int32_t i = 0; i < first; i++)
        s->has_started[queue[i].job] = 0;
    return first == count ? 0 : -2;
}

int32_t scheduler_decide_in(scheduler_t *s, int64_t now_s, const int32_t *places, int32_t count, int32_t *starts)
{
    int32_t waiting = s->tail - s->head;
    if (!count)
        return scheduler_decide(s, now_s, starts);
    if (waiting > s->n_kept) {
        waiting_t *kept = resized(&s->memory, s->kept, 2 * (int64_t)waiting, sizeof *kept);
        if (!kept)
            return -1;
        s->kept = kept;
        s->n_kept = 2 * waiting;
    }
    memcpy(s->kept, s->queue + s->head, (size_t)waiting * sizeof *s->kept);
    int32_t status = put_first(s, places, count), was_reordered = s->is_reordered;
    s->is_reordered = 1;
    int32_t started = status ? status : scheduler_decide(s, now_s, starts);
    s->is_reordered = was_reordered;
    int32_t to = s->head;
    for (int32_t i = 0; i < waiting; i++)
        if (!s->has_started[s->kept[i].job])
            s->queue[to++] = s->kept[i];
    scheduler_fill_stretches(s, s->head, s->tail);
    return started;
}

/* The job's place in the queue; -1: it does not wait. */
static int32_t place_of(const scheduler_t *s, int32_t job)
{
    int32_t i = s->head;
    if (scheduler_is_in_order(s))
        i = FIRST(at, s->head, s->tail, s->queue[at].job >= job);
    else
        while (i < s->tail && s->queue[i].job != job)
            i++;
    return i < s->tail && s->queue[i].job == job ? i : -1;
}

/* How many of these, which all wait, could start; -1: no memory. */
static int32_t start_in_turn(scheduler_t *s, int64_t now_s, const int32_t *jobs, int32_t count, int32_t level)
{
    const resources_t *resources = s->phases.resources;
    s->free_in_pass = s->free;
    if (resources->begin)
        resources->begin(s, now_s);
    if (resources->look)
        resources->look(s, now_s);
    for (int32_t i = 0, first = s->head; i < count; i++) {
        const waiting_t one = s->queue[place_of(s, jobs[i])];
        while (s->has_started[s->queue[first].job])
            first++;
        int overtakes = one.job != s->queue[first].job;
        int started = level < 0 ? resources->start_head(s, now_s, &one)
                                : resources->start_placed(s, now_s, one.job, level);
        if (started <= 0)
            return started < 0 ? -1 : i;
        s->overtook[one.job] = overtakes;
    }
    return count;
}

int32_t scheduler_start_these(scheduler_t *s, int64_t now_s, const int32_t *jobs, int32_t count, int32_t level)
{
    int64_t free = s->free;
    int32_t good = 0;

    for (; good < count; good++) {
        int32_t place = place_of(s, jobs[good]);
        if (place < 0 || s->has_started[jobs[good]] || s->queue[place].width > free)
            break;
        free -= s->queue[place].width;
        s->has_started[jobs[good]] = 1;
    }
    for (int32_t i = 0; i < good; i++)
        s->has_started[jobs[i]] = 0;
    if (good < count)
        return good;
    good = start_in_turn(s, now_s, jobs, count, level);
    s->n_waiting -= good > 0 ? good : 0;
    while (s->head < s->tail && s->has_started[s->queue[s->head].job])
        s->head++;
    scheduler_close_gaps(s, 0);
    s->ranking.n_ordered = 0;
    return good;
}

int32_t scheduler_exceeds(scheduler_t *s, int64_t now_s)
{
    const power_t *p = s->power;
    s->phases.resources->look(s, now_s);
    for (int32_t k = p->row; k < p->n_rows; k++)
        if (p->outlook[k].headroom_uw < 0)
            return k - p->row;
    return -1;
}

/****************************************************************
 * The copy
 ****************************************************************/

memory_t *scheduler_memory(scheduler_t *s)
{
    return &s->memory;
}

/* The rows of so many jobs from one on. */
static inline void copy_rows(scheduler_t *to, const scheduler_t *from, int32_t job, int32_t count)
{
#define COPY(column) memcpy(to->column + job, from->column + job, (size_t)count * sizeof *to->column)
    COPY(submit_s);
    COPY(started_s);
    COPY(estimate_s);
    COPY(first_estimate_s);
    COPY(corrections);
    COPY(is_reserved);
    COPY(overtook);
    COPY(has_started);
    if (from->composition.backfill == BACKFILL_COMPRESS)
        COPY(reserved_s);
#undef COPY
}

/* A cache line has so many rows of most columns. */
enum { ROWS_A_LINE = 8 };

/* The rows of the jobs that wait and run. Those that wait came near each other, and are often in another order: then all
 * rows between them are copied at once, which reads no more lines. */
static void copy_jobs(scheduler_t *to, const scheduler_t *from)
{
    int32_t first = INT32_MAX, last = -1;
    for (int32_t i = to->head; i < to->tail; i++) {
        first = to->queue[i].job < first ? to->queue[i].job : first;
        last = to->queue[i].job > last ? to->queue[i].job : last;
    }
    int at_once = last - first < ROWS_A_LINE * (int64_t)(to->tail - to->head);
    if (at_once && last >= first)
        copy_rows(to, from, first, last - first + 1);
    for (int32_t i = to->head; i < to->tail && !at_once; i++)
        copy_rows(to, from, to->queue[i].job, 1);
    for (int32_t i = 0; i < to->n_running; i++)
        copy_rows(to, from, to->running[i].job, 1);
}

static void copy_histories(scheduler_t *to, const scheduler_t *from)
{
    memcpy(to->users, from->users, (size_t)from->jobs.n_users * sizeof *to->users);
    if (to->composition.history != HISTORY_SIMILAR)
        return;
    memcpy(to->alike, from->alike, (size_t)from->jobs.n_jobs * sizeof *to->alike);
    memcpy(to->first_alike, from->first_alike, estimates_places_alike(from) * sizeof *to->first_alike);
}

/* The waiting jobs of another policy, shortest first. */
static void copy_shortest(scheduler_t *to, const scheduler_t *from)
{
    if (to->composition.scan != SCAN_SHORTEST)
        return;
    to->n_shortest = to->n_waiting;
    int is_sorted = from->composition.scan == SCAN_SHORTEST;
    memcpy(to->shortest, is_sorted ? from->shortest : from->queue + from->head,
           (size_t)to->n_waiting * sizeof *to->shortest);
    if (!is_sorted)
        qsort(to->shortest, (size_t)to->n_waiting, sizeof *to->shortest, by_shortest);
}

scheduler_t *scheduler_copy(const scheduler_t *from, const jobs_t *jobs, const composition_t *composition,
                            const score_t *score, int64_t first_s, int32_t is_blind)
{
    scheduler_t *to = scheduler_unwritten(composition, jobs ? jobs : &from->jobs, &from->memory);
    if (!to)
        return NULL;
    to->is_stepped = 1;
    to->phases.resources = jobs ? &PROCESSORS : from->phases.resources;
    to->caps = from->caps;
    to->head = from->head;
    to->tail = from->tail;
    to->n_waiting = from->n_waiting;
    to->n_running = from->n_running;
    to->is_reordered = !scheduler_is_in_order(from);
    to->narrowest = from->narrowest;
    to->free = from->free;
    memcpy(to->queue + to->head, from->queue + from->head, (size_t)(to->tail - to->head) * sizeof *to->queue);
    memcpy(to->running, from->running, (size_t)to->n_running * sizeof *to->running);
    copy_jobs(to, from);
    copy_histories(to, from);
    copy_shortest(to, from);
    int has_room = !to->phases.resources->copy || to->phases.resources->copy(to, from) == 0;
    if (is_blind)
        to->jobs.run_s = to->first_estimate_s;
    if (score && scheduler_set_score(to, score) == 0)
        score_all(to, first_s);
    scheduler_fill_stretches(to, to->head, to->tail);
    if (has_room && memory_status(&to->memory) == 0)
        return to;
    scheduler_free(to);
    return NULL;
}
