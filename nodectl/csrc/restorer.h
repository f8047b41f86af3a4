/*
 * nodectl-restorer: puts back what a killed agent left moved, without Python and without its virtual environment.
 *
 * It follows the recipes of the save (nodectl/write/saves.py, version 2) by the one rule of nodectl/write/restore.py.
 * Memory is bounded: one save of at most MOST_BYTES and MOST_KNOBS. Whatever the save says, nothing outside of it is
 * read, and a value is written only where its recipe says.
 *
 * Files, from the bottom up. A file calls only files below it.
 *
 *   json
 *   save
 *   link_shm, link_serial
 *   device_file, device_nvml, device_scmi
 *   device_mig
 *   knob
 *   rule
 *   turn
 *   restore
 *   supervise
 *   main
 */
#ifndef NODECTL_RESTORER_H
#define NODECTL_RESTORER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MOST_KNOBS = 8192,
    MOST_BYTES = 16 * 1024 * 1024, /* a save is rewritten above 4 MB */
    TEXT = 256,                    /* of a name or value, with its zero */
    PATH = 1024,
    LINE = 4096, /* what is said of one knob */
    RESTORE_S = 1, /* in which a writer without an agent has put its knobs back, once its leases are over */
};

#define MOMENT_S 0.05 /* in which whoever only looks at the lock has released it */

/* ---------------------------------------------------------------- json: reading without copying */

typedef struct {
    const char *at;
    size_t length;
} span_t;

bool json_member(span_t object, const char *name, span_t *value);
/* The next element of an array, or member of an object (key as it stands there, with its quotes). *place begins at 0. */
bool json_next(span_t container, size_t *place, span_t *key, span_t *value);
bool json_text(span_t value, char *out, size_t size); /* false: no string, or longer than the room */
bool json_whole(span_t value, int64_t *out);
bool span_is(span_t span, const char *text);
bool span_equal(span_t a, span_t b);

/* ---------------------------------------------------------------- save */

typedef struct {
    span_t name, value, recipe; /* as they stand in the save; recipe.length is 0 where there is none */
    int64_t ours[2];
    int n_ours;
    bool has_limit, is_settled;
    int64_t limit;
} record_t;

typedef struct {
    char path[PATH];
    char *data;
    size_t size, n;
    record_t records[MOST_KNOBS]; /* in the order of their capture */
    span_t limits;                /* of the last grant */
    char boot[TEXT], lost[LINE];
    int64_t version;
    uint8_t *found; /* a bit for each line number */
    int64_t most_lines, lines;
    bool has_any, has_head, is_there;
} save_t;

typedef void (*say_t)(const char *line);

uint32_t crc32_of(const char *data, size_t size);
/* False: it cannot be read, or a newer version wrote it; ``error`` says which. An absent save is an empty one. */
bool save_read(save_t *save, const char *path, char error[LINE], say_t say);
void save_free(save_t *save);
/* Write what is not settled again, or remove the save where nothing is left; first give a damaged one another name. */
bool save_settle(save_t *save, char error[LINE], say_t say);
bool save_set_aside(save_t *save, char aside[PATH], char error[LINE]);

/* ---------------------------------------------------------------- knob */

typedef enum { FINE, NO_GETTER, REFUSED, VANISHED } access_t;

enum { MOST_WORDS = 16, MOST_LEVELS = 64, MOST_INSTANCES = 8 };

/* A domain behind an SCMI controller: nodectl/knobs/recipe.py, ScmiRecipe. */
typedef struct {
    char url[PATH];
    int64_t number, lowest, highest, step;
    int64_t per_mw, lowest_units, step_units;
    int64_t levels[MOST_LEVELS][2];
    int n_levels;
    bool keeps_agents_apart;
} domain_t;

/* A GPU: by its UUID, or where a save of 0.2.0 has none, by its number at the capture. */
typedef struct {
    int64_t number;
    char uuid[TEXT];
} card_t;

typedef struct {
    enum { KIND_FILE, KIND_LOCK, KIND_BOARD, KIND_MIG, KIND_CAP, KIND_CLOCK_LIMIT, KIND_CLOCK_LEVEL, KIND_OTHER } kind;
    domain_t domain;
    char path[PATH], limited_by[PATH], hidden_by[PATH], hidden_text[TEXT];
    enum { EXACT, WITHIN, DOWN } rounding;
    int64_t step, raw, any_word;
    card_t card;
    char words[MOST_WORDS][64];
    int n_words;
    bool is_cooled;
} knob_t;

typedef struct {
    const char *root; /* put before every path; "" but for tests */
} world_t;

/* Each answers FINE, or why not, with words in ``why``. */
access_t file_read(const world_t *world, const char *path, char out[TEXT], char why[LINE]);
access_t file_write(const world_t *world, const char *path, const char *text, char why[LINE]);
bool file_whole(const world_t *world, const char *path, int64_t *out);
/* The cooling device of a processor that is in use now, in words. */
bool file_cooling(const world_t *world, char out[LINE]);

access_t nvml_unlock(const card_t *card, char why[LINE]);
access_t nvml_lock(const card_t *card, int64_t mhz, char why[LINE]);
access_t nvml_look(const card_t *card, char why[LINE]);
access_t nvml_limit(const card_t *card, int64_t *milliwatts, char why[LINE]);
access_t nvml_set_limit(const card_t *card, int64_t milliwatts, char why[LINE]);
/* For what else NVML does with a card: its handle, a function by its name, and what an answer means. */
access_t nvml_device(const card_t *card, void **device, char why[LINE]);
bool nvml_function(const char *name, void *function);
access_t nvml_answer(int code, const card_t *card, const char *verb, char why[LINE]);

/* How a card is divided (MIG), as the text that nodectl/knobs/gpu_layout.py has of it. */
access_t mig_read(const card_t *card, char text[TEXT], char why[LINE]);
access_t mig_become(const card_t *card, const char *text, char why[LINE]);

/* A link to a controller: sends one message and waits for the one with the same first word. 0: no answer in time;
   -1: the link is gone, with words in ``why``. */
typedef struct link link_t;
struct link {
    int (*exchange)(link_t *link, const uint32_t *words, int n_words, uint32_t *reply, int room, char why[LINE]);
    int fds[6];
    void *memory; /* link_shm */
    size_t memory_bytes;
    volatile uint32_t *area;
    uint32_t agent, payload_bytes, doorbell, completion;
    uint8_t sequence; /* link_serial */
};
bool link_open_shm(link_t *link, const char *path, char why[LINE]);
void link_close_shm(link_t *link);
bool link_open_serial(link_t *link, const char *place, char why[LINE]);

access_t scmi_cap(const domain_t *domain, int64_t *milliwatts, char why[LINE]); /* 0: none */
access_t scmi_set_cap(const domain_t *domain, int64_t milliwatts, char why[LINE]);
access_t scmi_withdraw_cap(const domain_t *domain, char why[LINE]);
void scmi_close(void); /* every link: a channel belongs to one client */
int64_t scmi_in_range(const domain_t *domain, int64_t milliwatts);
access_t scmi_clock(const domain_t *domain, bool is_level, int64_t *khz, char why[LINE]);
access_t scmi_set_clock(const domain_t *domain, bool is_level, int64_t khz, char why[LINE]);
int64_t scmi_at_or_below(const domain_t *domain, int64_t khz);

bool knob_parse(span_t recipe, knob_t *knob);
bool knob_is_shared(const knob_t *knob); /* other agents set it too, so the value in force may be theirs */
bool knob_is_for_caps(const knob_t *knob); /* nothing but a cap in watts moves it: nodectl/write/cap_guard.py */
/* Have a package's limit count, where somebody has switched off the limits of its zone. */
access_t knob_switch_on(const world_t *world, const knob_t *knob, char why[LINE]);
bool knob_number(const knob_t *knob, const char *text, int64_t *number);
access_t knob_read(const world_t *world, const knob_t *knob, char text[TEXT], char why[LINE]);
access_t knob_read_back(const world_t *world, const knob_t *knob, int64_t *present, char why[LINE]);
access_t knob_put(const world_t *world, const knob_t *knob, const char *captured, char why[LINE]);
access_t knob_set(const world_t *world, const knob_t *knob, int64_t value, char why[LINE]);
bool knob_matches(const knob_t *knob, int64_t requested, int64_t present);
bool knob_explain(const world_t *world, const knob_t *knob, int64_t requested, int64_t present, char text[LINE]);

/* ---------------------------------------------------------------- rule */

typedef enum { RESTORED, LEFT, AT_LIMIT, NO_EFFECT, WAS_REFUSED, HAS_VANISHED } status_t;

typedef struct {
    status_t status;
    char detail[LINE];
    bool needs_python;
} outcome_t;

extern const char *const STATUS_NAMES[];

void rule_put_back(const world_t *world, const record_t *record, bool dry_run, bool leaves_cluster, outcome_t *outcome);

/* ---------------------------------------------------------------- turn: the node's lock and whose turn it is */

typedef struct {
    int lock;
    volatile uint64_t *shared; /* magic, number, until when its writer claims to be at work */
} turn_t;

bool turn_paths(char lock[PATH]); /* of this node */
void turn_save_path(const char *lock, char save[PATH]);
bool turn_boot(const char *lock, char boot[TEXT]);
/* Waits up to ``patience_s`` for another process that has the lock. */
bool turn_take(turn_t *turn, const char *lock, double patience_s, char error[LINE], bool *is_taken);
void turn_next(turn_t *turn); /* a writer that was stopped finds that it is no longer its turn */
bool turn_is_over(const turn_t *turn, uint64_t number);
bool turn_has_claim(const turn_t *turn);
uint64_t turn_number(const turn_t *turn);
void turn_release(turn_t *turn);

/* ---------------------------------------------------------------- restore, supervise */

typedef struct {
    world_t world;
    char lock[PATH], boot[TEXT];
    char saves[4][PATH];  /* the node's is the first */
    const char *boots[4]; /* that the save must be of */
    int n_saves;
    bool dry_run, leaves_cluster, if_idle;
    bool kills_stopped;  /* run: the program is killed before its knobs are put back */
    int refusal_fd;      /* run: gets the reason why the program was not started; 0: standard error does */
    const char *rest_by; /* the nodectl that does what needs Python; NULL: nobody */
    double lease_s;
} options_t;

typedef struct {
    bool is_complete, needs_python, has_any;
    int n_restored;
} restoration_t;

extern bool is_with_a_program; /* whose output must not be mixed with ours, nor be much */
void say(const char *line);
/* With the lock taken. Each knob is a line on standard output; with a program only what is not simply restored is one. */
restoration_t restore_all(const options_t *options);
/* A writer may be stopped between its look at whose turn it is and its write, which then comes when it goes on. So what
   the node's save has before a restore is remembered, and put back again, several times, after the writer has gone on. */
void restore_remember(const options_t *options);
void restore_again(const options_t *options);
int restore_command(options_t *options);
int supervise(const options_t *options, char *const program[]);

#endif
