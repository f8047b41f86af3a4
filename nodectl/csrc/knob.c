/* A knob as its recipe describes it (nodectl/knobs/recipe.py): reading, putting back, comparing. */
#include "restorer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define UNLOCKED "unlocked" /* nodectl/knobs/gpu_limits.py */
#define LOCKED "locked "
#define DISABLED "disabled" /* nodectl/controller/scmi_knobs.py */
#define OTHER_LAYOUT 1000000 /* nodectl/knobs/gpu_layout.py */
#define POWERCAP "/sys/class/powercap/" /* nodectl/knobs/package_power_limit.py */

static void text_member(span_t recipe, const char *name, char *out, size_t size)
{
    span_t value;

    if (!json_member(recipe, name, &value) || !json_text(value, out, size))
        out[0] = 0;
}

static int64_t whole_member(span_t recipe, const char *name, int64_t otherwise)
{
    span_t value;
    int64_t number;

    return json_member(recipe, name, &value) && json_whole(value, &number) ? number : otherwise;
}

static bool parse_words(span_t recipe, knob_t *knob)
{
    span_t words, key, word;
    size_t place = 0;

    if (!json_member(recipe, "words", &words))
        return true;
    while (json_next(words, &place, &key, &word)) {
        if (knob->n_words == MOST_WORDS || !json_text(word, knob->words[knob->n_words], sizeof knob->words[0]))
            return false;
        knob->n_words++;
    }
    return true;
}

static bool parse_hidden(span_t recipe, knob_t *knob)
{
    span_t pair, key, path, text;
    size_t place = 0;

    if (!json_member(recipe, "hidden_by", &pair))
        return true;
    return json_next(pair, &place, &key, &path) && json_next(pair, &place, &key, &text) &&
           json_text(path, knob->hidden_by, PATH) && json_text(text, knob->hidden_text, TEXT);
}

/* A recipe that says what it wants written must name an absolute path without "..". */
static bool is_path(const char *path)
{
    return path[0] == '/' && strstr(path, "/../") == NULL;
}

static bool parse_file(span_t recipe, knob_t *knob)
{
    char rounding[TEXT];

    knob->kind = KIND_FILE;
    text_member(recipe, "path", knob->path, PATH);
    text_member(recipe, "limited_by", knob->limited_by, PATH);
    text_member(recipe, "rounding", rounding, TEXT);
    knob->rounding = strcmp(rounding, "within") == 0 ? WITHIN : strcmp(rounding, "down") == 0 ? DOWN : EXACT;
    knob->step = whole_member(recipe, "step", 1);
    knob->raw = whole_member(recipe, "raw", 0);
    knob->any_word = whole_member(recipe, "any_word", 0);
    span_t cooled;
    knob->is_cooled = json_member(recipe, "is_cooled", &cooled) && span_is(cooled, "true");
    return is_path(knob->path) && knob->step > 0 && parse_words(recipe, knob) && parse_hidden(recipe, knob);
}

static bool parse_nvml(span_t recipe, knob_t *knob)
{
    char call[TEXT];

    text_member(recipe, "call", call, TEXT);
    knob->kind = strcmp(call, "clock_lock") == 0 ? KIND_LOCK : strcmp(call, "mig_layout") == 0 ? KIND_MIG : KIND_BOARD;
    knob->card.number = whole_member(recipe, "gpu", -1);
    text_member(recipe, "uuid", knob->card.uuid, TEXT);
    return knob->card.number >= 0 && knob->card.number <= INT32_MAX && parse_words(recipe, knob) &&
           (knob->kind != KIND_BOARD || strcmp(call, "power_limit") == 0);
}

/* The numbers of an array, as many as there is room for; how many there are. */
static int parse_numbers(span_t array, int64_t *out, int room)
{
    span_t key, value;
    size_t place = 0;
    int n = 0;

    while (n < room && json_next(array, &place, &key, &value) && json_whole(value, &out[n]))
        n++;
    return n;
}

static void parse_levels(span_t recipe, domain_t *domain)
{
    span_t levels, key, pair;
    size_t place = 0;

    if (!json_member(recipe, "levels", &levels))
        return;
    while (domain->n_levels < MOST_LEVELS && json_next(levels, &place, &key, &pair) &&
           parse_numbers(pair, domain->levels[domain->n_levels], 2) == 2)
        domain->n_levels++;
}

static bool parse_cap(span_t recipe, knob_t *knob)
{
    domain_t *domain = &knob->domain;
    int64_t units[3] = {1, 0, 0};
    span_t value;

    knob->kind = KIND_CAP;
    domain->lowest = whole_member(recipe, "lowest", 0);
    domain->highest = whole_member(recipe, "highest", 0);
    domain->step = whole_member(recipe, "step", 1);
    if (json_member(recipe, "units", &value))
        parse_numbers(value, units, 3);
    domain->per_mw = units[0];
    domain->lowest_units = units[1];
    domain->step_units = units[2];
    domain->keeps_agents_apart = json_member(recipe, "keeps_agents_apart", &value) && span_is(value, "true");
    return domain->step > 0 && domain->lowest >= 0 && domain->highest >= domain->lowest && domain->per_mw > 0 &&
           domain->per_mw <= 1000000 && domain->highest <= UINT32_MAX && domain->lowest_units >= 0 && domain->step_units >= 0;
}

/* A domain whose number was not known at the capture is left to Python, which looks for it by its name. */
static bool parse_scmi(span_t recipe, knob_t *knob)
{
    char setting[TEXT];

    knob->domain.number = whole_member(recipe, "number", -1);
    text_member(recipe, "url", knob->domain.url, PATH);
    text_member(recipe, "setting", setting, TEXT);
    if (knob->domain.number < 0 || knob->domain.number > UINT16_MAX)
        return true;
    if (strcmp(setting, "cap_mw") == 0)
        return parse_cap(recipe, knob);
    parse_levels(recipe, &knob->domain);
    if (knob->domain.n_levels)
        knob->kind = strcmp(setting, "level_khz") == 0 ? KIND_CLOCK_LEVEL : KIND_CLOCK_LIMIT;
    return true;
}

bool knob_parse(span_t recipe, knob_t *knob)
{
    char kind[TEXT];

    memset(knob, 0, sizeof *knob);
    knob->kind = KIND_OTHER;
    if (recipe.length == 0)
        return true;
    text_member(recipe, "kind", kind, TEXT);
    if (strcmp(kind, "file") == 0)
        return parse_file(recipe, knob);
    if (strcmp(kind, "nvml") == 0)
        return parse_nvml(recipe, knob);
    return strcmp(kind, "scmi") != 0 || parse_scmi(recipe, knob);
}

bool knob_is_shared(const knob_t *knob)
{
    return knob->kind == KIND_CAP || knob->kind == KIND_CLOCK_LIMIT || knob->kind == KIND_CLOCK_LEVEL;
}

bool knob_number(const knob_t *knob, const char *text, int64_t *number)
{
    if (text[0] >= '0' && text[0] <= '9' && json_whole((span_t){text, strlen(text)}, number)) {
        *number += knob->n_words ? knob->raw : 0;
        return true;
    }
    for (int word = 0; word < knob->n_words; word++) {
        if (strcmp(text, knob->words[word]) == 0) {
            *number = word + 1;
            return true;
        }
    }
    if (knob->kind == KIND_MIG)
        *number = OTHER_LAYOUT + crc32_of(text, strlen(text)) % 1000000000;
    return knob->kind == KIND_MIG;
}

static bool is_hidden(const world_t *world, const knob_t *knob)
{
    char text[TEXT], why[LINE];

    return knob->hidden_by[0] && file_read(world, knob->hidden_by, text, why) == FINE && strcmp(text, knob->hidden_text) == 0;
}

/* Of what is no file: the number that the device gives. */
static access_t device_number(const knob_t *knob, int64_t *number, char why[LINE])
{
    *number = 0;
    switch (knob->kind) {
    case KIND_BOARD: return nvml_limit(&knob->card, number, why);
    case KIND_CAP: return scmi_cap(&knob->domain, number, why);
    case KIND_CLOCK_LIMIT: return scmi_clock(&knob->domain, false, number, why);
    case KIND_CLOCK_LEVEL: return scmi_clock(&knob->domain, true, number, why);
    default: return NO_GETTER;
    }
}

static access_t device_read(const knob_t *knob, char text[TEXT], char why[LINE])
{
    access_t found;
    int64_t number;

    if (knob->kind == KIND_LOCK) {
        snprintf(text, TEXT, UNLOCKED);
        return nvml_look(&knob->card, why);
    }
    if (knob->kind == KIND_MIG)
        return mig_read(&knob->card, text, why);
    found = device_number(knob, &number, why);
    if (knob->kind == KIND_CAP && number == 0)
        snprintf(text, TEXT, DISABLED);
    else
        snprintf(text, TEXT, "%" PRId64, number);
    return found;
}

access_t knob_read(const world_t *world, const knob_t *knob, char text[TEXT], char why[LINE])
{
    access_t found;
    int64_t number;

    if (knob->kind != KIND_FILE)
        return device_read(knob, text, why);
    found = file_read(world, knob->path, text, why);
    if (found == FINE && knob->n_words == 0 && !knob_number(knob, text, &number)) {
        snprintf(why, LINE, "%s has '%s', not a number", knob->path, text);
        return REFUSED;
    }
    if (found == FINE && is_hidden(world, knob)) {
        snprintf(why, LINE, "%s: %s is %s, which hides it", knob->path, knob->hidden_by, knob->hidden_text);
        return REFUSED;
    }
    return found;
}

access_t knob_read_back(const world_t *world, const knob_t *knob, int64_t *present, char why[LINE])
{
    char text[TEXT];
    access_t found;

    if (knob->kind != KIND_FILE && knob->kind != KIND_MIG)
        return device_number(knob, present, why);
    found = knob->kind == KIND_MIG ? mig_read(&knob->card, text, why) : file_read(world, knob->path, text, why);
    if (found == FINE && !knob_number(knob, text, present)) {
        snprintf(why, LINE, "%s has '%s', which is no value of it", knob->path, text);
        return REFUSED;
    }
    return found;
}

static access_t device_set(const knob_t *knob, int64_t number, char why[LINE])
{
    switch (knob->kind) {
    case KIND_BOARD: return nvml_set_limit(&knob->card, number, why);
    case KIND_CAP: return scmi_set_cap(&knob->domain, number, why);
    default: return scmi_set_clock(&knob->domain, knob->kind == KIND_CLOCK_LEVEL, number, why);
    }
}

/* The captured cap (0: none). Where each agent has a cap of its own ours is withdrawn first: what is then in force shows
   whether the captured cap is another agent's, which must not be set as ours too. */
static access_t return_cap(const knob_t *knob, int64_t captured, char why[LINE])
{
    int64_t in_force = 0;
    access_t got = scmi_cap(&knob->domain, &in_force, why);

    if (got == FINE && (knob->domain.keeps_agents_apart || (in_force && !captured))) {
        got = scmi_withdraw_cap(&knob->domain, why);
        if (got == FINE)
            got = scmi_cap(&knob->domain, &in_force, why);
    }
    return got == FINE && captured && in_force != captured ? scmi_set_cap(&knob->domain, captured, why) : got;
}

access_t knob_put(const world_t *world, const knob_t *knob, const char *captured, char why[LINE])
{
    int64_t number;
    int end = 0;

    if (knob->kind == KIND_FILE)
        return file_write(world, knob->path, captured, why);
    if (knob->kind == KIND_MIG)
        return mig_become(&knob->card, captured, why);
    if (knob->kind == KIND_LOCK && strcmp(captured, UNLOCKED) == 0)
        return nvml_unlock(&knob->card, why);
    if (knob->kind == KIND_LOCK && sscanf(captured, LOCKED "%5" SCNd64 "%n", &number, &end) == 1 && number > 0 &&
        captured[end] == 0)
        return nvml_lock(&knob->card, number, why);
    if (knob->kind == KIND_CAP && strcmp(captured, DISABLED) == 0)
        return return_cap(knob, 0, why);
    if (knob->kind == KIND_LOCK || !knob_number(knob, captured, &number)) {
        snprintf(why, LINE, "the saved state '%s' is not one this knob can have captured", captured);
        return REFUSED;
    }
    return knob->kind == KIND_CAP ? return_cap(knob, number, why) : device_set(knob, number, why);
}

access_t knob_set(const world_t *world, const knob_t *knob, int64_t value, char why[LINE])
{
    char text[TEXT];

    if (knob->n_words && (value < 1 || value > knob->n_words)) {
        snprintf(why, LINE, "%s: it has no word number %" PRId64, knob->path, value);
        return REFUSED;
    }
    if (knob->kind != KIND_FILE && knob->kind != KIND_LOCK && knob->kind != KIND_MIG)
        return device_set(knob, value, why);
    snprintf(text, sizeof text, "%" PRId64, value);
    return knob_put(world, knob, knob->n_words ? knob->words[value - 1] : text, why);
}

static bool is_package_limit(const knob_t *knob)
{
    return knob->kind == KIND_FILE && strncmp(knob->path, POWERCAP, strlen(POWERCAP)) == 0;
}

bool knob_is_for_caps(const knob_t *knob)
{
    return knob->kind == KIND_BOARD || is_package_limit(knob);
}

access_t knob_switch_on(const world_t *world, const knob_t *knob, char why[LINE])
{
    char path[PATH + sizeof "enabled"];
    int64_t is_on;

    if (!is_package_limit(knob))
        return FINE;
    snprintf(path, sizeof path, "%.*senabled", (int)(strrchr(knob->path, '/') - knob->path + 1), knob->path);
    return file_whole(world, path, &is_on) && is_on == 0 ? file_write(world, path, "1", why) : FINE;
}

bool knob_matches(const knob_t *knob, int64_t requested, int64_t present)
{
    int64_t apart = requested > present ? requested - present : present - requested;

    if (knob->kind == KIND_CAP)
        return scmi_in_range(&knob->domain, requested) == present;
    if (knob_is_shared(knob))
        return scmi_at_or_below(&knob->domain, requested) == present;
    if (knob->any_word && requested == knob->any_word)
        return true;
    if (knob->rounding == WITHIN)
        return apart <= knob->step;
    if (knob->rounding == DOWN)
        return requested / knob->step == present / knob->step;
    return apart == 0;
}

bool knob_explain(const world_t *world, const knob_t *knob, int64_t requested, int64_t present, char text[LINE])
{
    int64_t limit;
    char cooling[LINE];

    if (knob->kind == KIND_CAP && knob->domain.keeps_agents_apart && present > 0 && present < requested) {
        snprintf(text, LINE, "another agent's lower cap of %" PRId64 " mW is in force", present);
        return true;
    }
    if (is_hidden(world, knob)) {
        snprintf(text, LINE, "%s is %s, which hides it", knob->hidden_by, knob->hidden_text);
        return true;
    }
    if (knob->limited_by[0] && file_whole(world, knob->limited_by, &limit) && limit < requested && present >= limit) {
        snprintf(text, LINE, "the firmware limits this domain to %" PRId64 " kHz (bios_limit)", limit);
        return true;
    }
    if (knob->is_cooled && present <= requested && file_cooling(world, cooling)) {
        snprintf(text, LINE, "%.1900s keeps the clock lower", cooling);
        return true;
    }
    return false;
}
