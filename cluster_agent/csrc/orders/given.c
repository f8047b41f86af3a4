/* An order that the caller works out: the waiting jobs as columns, and its answer as scores or as rows of them. */
#include "scheduler_inside.h"

int32_t scheduler_needs_order(scheduler_t *s, int64_t now_s)
{
    if (s->n_waiting < 2)
        return 0;
    /* Scores do not depend on the order before, so they may wait until the pass can start somebody (pass.c, decide). */
    if (s->answered != ANSWERED_SCORES || s->composition.backfill == BACKFILL_COMPRESS)
        return 1;
    int64_t free = scheduler_free_now(s, now_s);
    if (free >= s->narrowest) /* a lower bound, and a call costs more than to find it */
        scheduler_find_narrowest(s);
    return free >= s->narrowest;
}

void scheduler_columns(const scheduler_t *s, const int64_t *submit_s, int32_t n, int64_t room, int64_t *wide,
                       int32_t *narrow)
{
    int32_t row = 0;
    for (int32_t i = s->head; row < n; i++) {
        int32_t job = s->queue[i].job;
        if (s->has_started[job]) /* a gap */
            continue;
        wide[row] = submit_s[job];
        wide[room + row] = s->jobs.request_s[job];
        wide[2 * room + row] = s->first_estimate_s[job];
        narrow[row] = job;
        narrow[room + row] = s->jobs.width[job];
        narrow[2 * room + row] = s->jobs.user[job];
        row++;
    }
}

/* The queue without gaps, copied to where it is put in order. NULL: no memory. */
static ranked_t *begin(scheduler_t *s)
{
    scheduler_close_gaps(s, 0);
    s->is_reordered = 1;
    if (!s->ranking.ranked && ranking_new(s) < 0)
        return NULL;
    for (int32_t i = s->head; i < s->tail; i++)
        s->ranking.ranked[i - s->head] = (ranked_t){.waiting = s->queue[i]};
    return s->ranking.ranked;
}

int32_t scheduler_order_by(scheduler_t *s, const double *scores)
{
    ranked_t *ranked = begin(s);
    if (!ranked)
        return -1;
    for (int32_t i = 0; i < s->tail - s->head; i++)
        ranked[i].rank = -scores[i];
    ranking_all(s);
    if (s->answered == ANSWERED_NOTHING)
        s->answered = ANSWERED_SCORES;
    return 0;
}

int32_t scheduler_order_at(scheduler_t *s, const int64_t *rows)
{
    ranked_t *ranked = begin(s);
    int32_t count = s->tail - s->head, i = 0;
    if (!ranked)
        return -1;
    for (; i < count && rows[i] >= 0 && rows[i] < count && ranked[rows[i]].rank == 0.0; i++) {
        ranked[rows[i]].rank = 1.0; /* it is taken */
        s->queue[s->head + i] = ranked[rows[i]].waiting;
    }
    for (int32_t k = 0; i < count && k < count; k++) /* as it was */
        s->queue[s->head + k] = ranked[k].waiting;
    s->answered = ANSWERED_PLACES;
    return i < count ? -2 : 0;
}
