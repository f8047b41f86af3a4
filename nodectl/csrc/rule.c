/*
 * What becomes of one knob: the rule of nodectl/write/restore.py, in the same words.
 *
 * At the captured value or at one of ours: the captured value is written. At any other value somebody else has set it,
 * and it is left, unless firmware or temperature explains the value. Under a cluster's grant it goes to the lower of its
 * present value and its restore limit. A knob that cannot be read is put back. So is one that nothing but a cap moves, where
 * it is above our last value or at 0 ("no limit"): that is nobody's. A zone that somebody has switched off is switched on.
 */
#include "restorer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const STATUS_NAMES[] = {"restored", "left", "held", "no-effect", "refused", "vanished"};

static void is(outcome_t *outcome, status_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void is(outcome_t *outcome, status_t status, const char *format, ...)
{
    va_list arguments;

    outcome->status = status;
    va_start(arguments, format);
    vsnprintf(outcome->detail, sizeof outcome->detail, format, arguments);
    va_end(arguments);
}

typedef struct {
    const world_t *world;
    const record_t *record;
    knob_t knob;
    char captured[TEXT], present[TEXT];
    int64_t number;
    bool has_number; /* of the present value */
} case_t;

static bool failed(access_t access, const char *why, outcome_t *outcome)
{
    if (access == FINE || access == NO_GETTER)
        return false;
    is(outcome, access == VANISHED ? HAS_VANISHED : WAS_REFUSED, "%s", why);
    return true;
}

static bool is_one_of_ours(const case_t *one, int64_t present)
{
    for (int age = 0; age < one->record->n_ours; age++) {
        if (knob_matches(&one->knob, one->record->ours[age], present))
            return true;
    }
    return false;
}

static int64_t captured_number(const case_t *one)
{
    int64_t number;

    return knob_number(&one->knob, one->captured, &number) ? number : 0;
}

static bool is_ours(const case_t *one)
{
    const record_t *record = one->record;

    return one->number == captured_number(one) || is_one_of_ours(one, one->number) ||
           (record->has_limit && knob_matches(&one->knob, record->limit, one->number));
}

static bool is_nobodys(const case_t *one)
{
    const record_t *record = one->record;

    return record->n_ours && knob_is_for_caps(&one->knob) &&
           (one->number == 0 || one->number > record->ours[record->n_ours - 1]);
}

static void would_put_back(const case_t *one, outcome_t *outcome)
{
    char why[LINE];
    int64_t number;
    access_t found = one->has_number ? FINE : knob_read_back(one->world, &one->knob, &number, why);

    if (found == NO_GETTER)
        is(outcome, RESTORED, "would be %s; where it is cannot be read (no getter)", one->captured);
    else
        is(outcome, RESTORED, "would go from %s to %s", one->present, one->captured);
}

static void after_restoring(const case_t *one, outcome_t *outcome)
{
    char why[LINE], text[LINE];
    int64_t after = 0, first;
    access_t found = knob_read_back(one->world, &one->knob, &after, why);

    if (failed(found, why, outcome))
        return;
    if (found == NO_GETTER) {
        is(outcome, RESTORED, "%s; where it was cannot be read (no getter)", one->captured);
    } else if (knob_number(&one->knob, one->captured, &first)) {
        if (knob_matches(&one->knob, first, after))
            is(outcome, RESTORED, "%s to %s", one->present, one->captured);
        else if (knob_explain(one->world, &one->knob, first, after, text))
            is(outcome, RESTORED, "%s requested, %" PRId64 " in force: %.1500s", one->captured, after, text);
        else
            is(outcome, NO_EFFECT, "requested %s, still at %" PRId64, one->captured, after);
    } else if (after && is_one_of_ours(one, after)) {
        is(outcome, NO_EFFECT, "our value was withdrawn, and %" PRId64 " is still in force: is it now another agent's channel?",
           after);
    } else if (after) {
        is(outcome, RESTORED, "our value was withdrawn; %" PRId64 " is somebody else's and stays", after);
    } else {
        is(outcome, RESTORED, "%s to %s", one->present, one->captured);
    }
}

static void put_back(const case_t *one, bool dry_run, outcome_t *outcome)
{
    const record_t *record = one->record;
    int64_t last = record->n_ours ? record->ours[record->n_ours - 1] : captured_number(one);
    char why[LINE];

    if (one->has_number && !knob_is_shared(&one->knob) && strcmp(one->present, one->captured) == 0)
        return is(outcome, RESTORED, "is at %s, as captured", one->present);
    if (one->has_number && !is_ours(one) && !is_nobodys(one) && !knob_explain(one->world, &one->knob, last, one->number, why))
        return is(outcome, LEFT, "somebody else set it to %s; it was %s before this agent", one->present, one->captured);
    if (dry_run)
        return would_put_back(one, outcome);
    if (!failed(knob_put(one->world, &one->knob, one->captured, why), why, outcome) &&
        !failed(knob_switch_on(one->world, &one->knob, why), why, outcome))
        after_restoring(one, outcome);
}

static void put_to_limit(const case_t *one, bool dry_run, outcome_t *outcome)
{
    int64_t limit = one->record->limit, after, digits;
    char why[LINE], waits[LINE];
    access_t found;

    snprintf(waits, sizeof waits, "%s as captured only when this node may leave its cluster", one->captured);
    if (json_whole((span_t){one->present, strlen(one->present)}, &digits) && digits > 0 && digits <= limit) {
        if (dry_run || !failed(knob_switch_on(one->world, &one->knob, why), why, outcome))
            is(outcome, AT_LIMIT, "stays at %s; %.1000s", one->present, waits);
        return;
    }
    if (dry_run)
        return is(outcome, AT_LIMIT, "would go from %s to %" PRId64 "; %.1000s", one->present, limit, waits);
    if (failed(knob_set(one->world, &one->knob, limit, why), why, outcome) ||
        failed(knob_switch_on(one->world, &one->knob, why), why, outcome))
        return;
    found = knob_read_back(one->world, &one->knob, &after, why);
    if (failed(found, why, outcome))
        return;
    if (found == FINE && !knob_matches(&one->knob, limit, after))
        return is(outcome, NO_EFFECT, "requested %" PRId64 ", is at %" PRId64, limit, after);
    is(outcome, AT_LIMIT, "%s to %" PRId64 "; %.1000s", one->present, limit, waits);
}

void rule_put_back(const world_t *world, const record_t *record, bool dry_run, bool leaves_cluster, outcome_t *outcome)
{
    case_t one = {.world = world, .record = record};
    char why[LINE];
    access_t found;

    memset(outcome, 0, sizeof *outcome);
    if (!knob_parse(record->recipe, &one.knob) || !json_text(record->value, one.captured, sizeof one.captured))
        return is(outcome, WAS_REFUSED, "its recipe in the save makes no sense; run `nodectl restore`");
    if (one.knob.kind == KIND_OTHER) {
        outcome->needs_python = true;
        return is(outcome, WAS_REFUSED, "only `nodectl restore` can put it back");
    }
    found = knob_read(world, &one.knob, one.present, why);
    if (found == VANISHED)
        return is(outcome, HAS_VANISHED, "%s", why);
    if (found == REFUSED)
        snprintf(one.present, sizeof one.present, "unreadable");
    one.has_number = knob_number(&one.knob, one.present, &one.number);
    if (record->has_limit && !leaves_cluster)
        put_to_limit(&one, dry_run, outcome);
    else
        put_back(&one, dry_run, outcome);
}
