/* Processors alone: a job needs so many, and there are so many free. */
#include "scheduler_inside.h"

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    if (head->width > s->free_in_pass)
        return 0;
    s->free_in_pass -= head->width;
    scheduler_start(s, now_s, head->job);
    return 1;
}

/* When enough processors are expected to be free for the head, which does not fit now, and what it leaves over then. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    reservation_t *reserved = &offer->reserved;
    int64_t expected = s->free_in_pass;

    for (int32_t i = head ? scheduler_first_ahead(s, now_s) : s->n_running; i < s->n_running; i++) {
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (end_s > reserved->at_s) /* not at once: all that ends at that time adds to what is left over */
            break;
        expected += s->running[i].width;
        if (expected >= head->width) {
            reserved->at_s = end_s;
            reserved->left_over = expected - head->width;
        }
    }
    offer->widest = s->free_in_pass;
    offer->late_s = reserved->at_s == INT64_MAX ? INT64_MAX : reserved->at_s - now_s;
    offer->widest_late = reserved->left_over;
}

/* The bounds of the offer are all that counts. */
static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    scheduler_start(s, now_s, next->job);
    offer->widest = s->free_in_pass -= next->width;
    if (next->estimate_s > offer->late_s) /* it runs on next to the head */
        offer->widest_late -= next->width;
    return 1;
}

static int plan(scheduler_t *s, int64_t now_s)
{
    profile_t *profile = &s->profile;
    if (profile_reserve(profile, s->n_running + 1) < 0)
        return -1;
    profile->count = 1;
    profile->steps[0] = (step_t){.from_s = now_s, .free = s->free_in_pass};
    for (int32_t i = scheduler_first_ahead(s, now_s); i < s->n_running; i++) {
        step_t *last = &profile->steps[profile->count - 1];
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (last->from_s < end_s) {
            last[1] = (step_t){.from_s = end_s, .free = last->free};
            last++;
            profile->count++;
        }
        last->free += s->running[i].width;
    }
    return 0;
}

static int claim(const scheduler_t *s, const waiting_t *waiting, int32_t level, claim_t *claim)
{
    (void)s;
    (void)level;
    *claim = (claim_t){.width = waiting->width, .length_s = waiting->estimate_s};
    return 0;
}

const resources_t PROCESSORS = {
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .plan = plan,
    .claim = claim,
    .start_placed = scheduler_start_placed,
    .is_width_all = 1,
};
