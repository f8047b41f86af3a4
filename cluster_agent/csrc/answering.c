#include "answering.h"

#include <string.h>

#include "events.h"

enum { NOBODY = -1, CAME = -2 };

typedef struct {
    int32_t open;    /* jobs submitted and not ended */
    int32_t blocked; /* the job that comes when they have ended; NOBODY */
} asking_t;

struct answering {
    answers_t answers;
    events_t due;      /* rows of the log */
    int32_t *row;      /* of each job in the table, the row of the log */
    int32_t submitted;
    int32_t next, waiting; /* queued: the next row, and how many wait or are about to come */
    asking_t *users;
    int32_t *following; /* of each row of the log, the next of the same user, or with the same preceding one; NOBODY:
                           none; CAME at the end */
    int32_t *first;     /* of each row, the first job that it precedes */
};

static void promise(answering_t *a, int64_t at_s, int32_t row)
{
    events_put(&a->due, (event_t){.at_s = at_s, .number = row, .job = row}); /* there is room for all rows */
}

/* A regulated queue has room. */
static void fill(answering_t *a, int64_t at_s)
{
    for (; a->answers.queued && a->waiting < a->answers.queued && a->next < a->answers.n_jobs; a->waiting++)
        promise(a, at_s, a->next++);
}

/* Each user's jobs, one after the other; the first ones come as in the log. */
static void ask_users(answering_t *a, int32_t *last)
{
    for (int32_t user = 0; user < a->answers.n_users; user++) {
        last[user] = NOBODY;
        a->users[user].blocked = NOBODY;
    }
    for (int32_t row = 0; row < a->answers.n_jobs; row++) {
        int32_t user = a->answers.user[row];
        if (last[user] == NOBODY)
            promise(a, a->answers.submit_s[row], row);
        else
            a->following[last[user]] = row;
        a->following[row] = NOBODY;
        last[user] = row;
    }
}

/* Each job after the one that precedes it, which has a lower row; the others come as in the log. */
static void ask_preceding(answering_t *a)
{
    for (int32_t row = 0; row < a->answers.n_jobs; row++) {
        int32_t preceding = a->answers.preceding[row];
        a->first[row] = NOBODY;
        if (preceding == NOBODY) {
            promise(a, a->answers.submit_s[row], row);
        } else {
            a->following[row] = a->first[preceding];
            a->first[preceding] = row;
        }
    }
}

answering_t *answering_new(memory_t *memory, const answers_t *answers)
{
    answering_t *a = column(memory, 1, sizeof *a);
    int32_t *last = column(memory, answers->n_users, sizeof *last);
    if (!a)
        return NULL;
    a->answers = *answers;
    a->row = column(memory, answers->n_jobs, sizeof *a->row);
    a->users = column(memory, answers->n_users, sizeof *a->users);
    a->following = column(memory, answers->n_jobs, sizeof *a->following);
    a->first = column(memory, answers->n_jobs, sizeof *a->first);
    if (events_init(&a->due, memory, answers->n_jobs) < 0)
        return NULL;
    if (answers->preceding)
        ask_preceding(a);
    else if (!answers->queued)
        ask_users(a, last);
    if (answers->n_jobs)
        fill(a, answers->submit_s[0]);
    return a;
}

int64_t answering_next(answering_t *a)
{
    return events_first(&a->due);
}

/* The row of the log is the next one of the table. */
static void move(answering_t *a, int64_t now_s, int32_t row)
{
    int32_t job = a->submitted++;
    for (int32_t i = 0; i < a->answers.n_moved; i++) {
        const moved_t *moved = &a->answers.moved[i];
        size_t size = (size_t)moved->size;
        memcpy((char *)moved->table + (size_t)job * size, (const char *)moved->log + (size_t)row * size, size);
    }
    a->answers.submitted_s[job] = now_s;
    a->row[job] = row;
}

void answering_submit(answering_t *a, int64_t now_s)
{
    int32_t row = events_take(&a->due);
    move(a, now_s, row);
    if (a->answers.queued || a->answers.preceding)
        return;
    asking_t *user = &a->users[a->answers.user[row]];
    int32_t following = a->following[row];
    user->open++;
    if (following != NOBODY && a->answers.think_s[following] < 0)
        promise(a, now_s + a->answers.gap_s[following], following);
    else
        user->blocked = following;
}

void answering_started(answering_t *a, int64_t now_s)
{
    a->waiting--;
    fill(a, now_s + 1);
}

void answering_requeued(answering_t *a)
{
    a->waiting++;
}

void answering_ended(answering_t *a, int64_t now_s, int32_t job)
{
    if (a->answers.queued)
        return;
    if (a->answers.preceding) {
        for (int32_t row = a->first[a->row[job]]; row != NOBODY; row = a->following[row])
            promise(a, now_s + a->answers.think_s[row], row);
        return;
    }
    asking_t *user = &a->users[a->answers.user[a->row[job]]];
    if (--user->open || user->blocked == NOBODY)
        return;
    promise(a, now_s + a->answers.think_s[user->blocked], user->blocked);
    user->blocked = NOBODY;
}

void answering_finish(answering_t *a, int64_t now_s)
{
    for (int32_t job = 0; job < a->submitted; job++)
        a->following[a->row[job]] = CAME;
    for (int32_t row = 0; a->submitted < a->answers.n_jobs; row++)
        if (a->following[row] != CAME)
            move(a, now_s, row);
}
