/* The save as nodectl/write/saves.py writes it: read, judged, and written again without what is settled. */
#include "restorer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KNOWN_VERSION = 2, SHORTEST_LINE = 20, LINES_DIGITS = 10 };

uint32_t crc32_of(const char *data, size_t size)
{
    uint32_t crc = 0xffffffffu;

    for (size_t at = 0; at < size; at++) {
        crc ^= (uint8_t)data[at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static bool fail(char error[LINE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char error[LINE], const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error, LINE, format, arguments);
    va_end(arguments);
    return false;
}

/* ---------------------------------------------------------------- reading */

/* fd: -1 where there is no save. */
static bool open_save(const char *path, int *fd, struct stat *status, char error[LINE])
{
    const char *why = NULL;

    *fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return true;
    if (*fd < 0)
        why = strerror(errno);
    else if (fstat(*fd, status) != 0 || !S_ISREG(status->st_mode) || status->st_size > MOST_BYTES)
        why = "no file, or too large for a save";
    else if (status->st_uid != 0 && status->st_uid != geteuid())
        why = "it belongs to another user, who could have any knob set by it: remove it";
    if (why == NULL)
        return true;
    fail(error, "%s: cannot read what the knobs were: %s", path, why);
    if (*fd >= 0)
        close(*fd);
    return false;
}

static bool read_bytes(save_t *save, char error[LINE])
{
    struct stat status;
    size_t size = 0;
    ssize_t got = 1;
    int fd;

    if (!open_save(save->path, &fd, &status, error))
        return false;
    if (fd < 0)
        return true;
    save->is_there = true;
    save->data = malloc((size_t)status.st_size + 1);
    while (save->data && got > 0 && size < (size_t)status.st_size) {
        got = read(fd, save->data + size, (size_t)status.st_size - size);
        size += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    save->size = size;
    save->most_lines = (int64_t)(size / SHORTEST_LINE + 2);
    save->found = calloc((size_t)save->most_lines / 8 + 1, 1);
    if (save->data == NULL || save->found == NULL || got < 0)
        return fail(error, "%s: cannot read what the knobs were: %s", save->path, strerror(errno));
    return true;
}

static record_t *find(save_t *save, span_t name, size_t *hint)
{
    for (size_t step = 0; step < save->n; step++) { /* names come in the same order again and again */
        size_t at = (*hint + step) % save->n;
        if (span_equal(save->records[at].name, name)) {
            *hint = at + 1;
            return &save->records[at];
        }
    }
    return NULL;
}

static void lose(save_t *save, const char *why)
{
    if (save->lost[0] == 0)
        snprintf(save->lost, sizeof save->lost, "%s", why);
}

static void set_limit(record_t *record, span_t limits)
{
    span_t key, value;
    size_t place = 0;

    record->has_limit = false;
    while (json_next(limits, &place, &key, &value)) {
        if (span_equal(key, record->name))
            record->has_limit = json_whole(value, &record->limit);
    }
}

static void take_capture(save_t *save, span_t entry)
{
    record_t record = {0};
    size_t hint = 0;
    char text[TEXT];

    if (!json_member(entry, "knob", &record.name) || !json_member(entry, "value", &record.value) ||
        !json_text(record.name, text, sizeof text) || !json_text(record.value, text, sizeof text))
        return lose(save, "a capture without a name or value");
    if (!json_member(entry, "recipe", &record.recipe) || span_is(record.recipe, "null"))
        record.recipe.length = 0;
    if (find(save, record.name, &hint))
        return;
    if (save->n == MOST_KNOBS)
        return lose(save, "more knobs than any node has");
    set_limit(&record, save->limits);
    save->records[save->n++] = record;
}

static void take_wrote(save_t *save, span_t entry)
{
    span_t values, key, value;
    size_t place = 0, hint = 0;
    char name[TEXT] = "", why[LINE];

    if (!json_member(entry, "values", &values))
        return lose(save, "values that are not there");
    while (json_next(values, &place, &key, &value)) {
        record_t *record = save->n ? find(save, key, &hint) : NULL;
        int64_t number;
        if (record == NULL) {
            json_text(key, name, sizeof name);
            snprintf(why, sizeof why, "%s was written, and nothing says what it was before", name);
            lose(save, why);
        } else if (json_whole(value, &number) && (!record->n_ours || record->ours[record->n_ours - 1] != number)) {
            if (record->n_ours == 2)
                record->ours[0] = record->ours[1];
            else
                record->n_ours++;
            record->ours[record->n_ours - 1] = number;
        }
    }
}

static void take_limits(save_t *save, span_t entry)
{
    if (!json_member(entry, "values", &save->limits))
        return lose(save, "limits that are not there");
    for (size_t at = 0; at < save->n; at++)
        set_limit(&save->records[at], save->limits);
}

static void take_restored(save_t *save, span_t entry)
{
    span_t knobs, key, value;
    size_t place = 0, hint = 0;

    if (!json_member(entry, "knobs", &knobs))
        return lose(save, "knobs that are not there");
    while (json_next(knobs, &place, &key, &value)) {
        record_t *record = save->n ? find(save, value, &hint) : NULL;
        if (record) {
            memmove(record, record + 1, (size_t)(save->records + save->n - (record + 1)) * sizeof *record);
            save->n--;
        }
    }
}

static void take_number(save_t *save, span_t entry, bool is_head)
{
    span_t value;
    int64_t n;

    if (is_head) {
        save->has_head = json_member(entry, "lines", &value) && json_whole(value, &save->lines) && save->lines >= 0;
    } else if (json_member(entry, "n", &value) && json_whole(value, &n) && n > 0 && n <= save->most_lines) {
        save->found[n / 8] |= (uint8_t)(1 << n % 8);
    }
}

/* A boot's name is written again as it is. */
static bool is_plain(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
            return false;
    }
    return true;
}

/* One line without its newline; false: a newer version wrote it. */
static bool take_entry(save_t *save, span_t entry, int64_t version, int number, say_t tell)
{
    span_t kind, boot;
    char problem[LINE];

    if (!json_member(entry, "kind", &kind) || !json_member(entry, "boot", &boot)) {
        kind = (span_t){"", 0};
        boot = kind;
    }
    if (span_is(kind, "\"capture\"")) {
        take_capture(save, entry);
    } else if (span_is(kind, "\"wrote\"")) {
        take_wrote(save, entry);
    } else if (span_is(kind, "\"hold\"")) {
        take_limits(save, entry);
    } else if (span_is(kind, "\"restored\"")) {
        take_restored(save, entry);
    } else if (!span_is(kind, "\"head\"")) {
        snprintf(problem, sizeof problem, "%.900s:%d: line of an unknown kind, skipped", save->path, number);
        tell(problem);
        return true;
    }
    if (save->boot[0] == 0 && !(json_text(boot, save->boot, sizeof save->boot) && is_plain(save->boot)))
        save->boot[0] = 0;
    if (!save->has_any)
        save->version = version;
    save->has_any = true;
    take_number(save, entry, span_is(kind, "\"head\""));
    return true;
}

static bool take_line(save_t *save, span_t line, bool is_whole, int number, char error[LINE], say_t tell)
{
    span_t payload = {line.at + 9, line.length > 9 ? line.length - 9 : 0}, value;
    char sum[16], problem[LINE];
    int64_t version = 1;

    snprintf(sum, sizeof sum, "%08" PRIx32 " ", crc32_of(payload.at, payload.length));
    if (!is_whole || line.length < 10 || memcmp(sum, line.at, 9) != 0 || memchr(line.at, 0, line.length)) {
        snprintf(problem, sizeof problem, "%.900s:%d: line is %s, skipped", save->path, number,
                 is_whole ? "damaged" : "cut short");
        tell(problem);
        if (save->version < KNOWN_VERSION)
            lose(save, "an illegible line");
        return true;
    }
    if (json_member(payload, "v", &value) && json_whole(value, &version) && version > KNOWN_VERSION)
        return fail(error,
                    "%.900s:%d: written by a newer nodectl (save version %" PRId64 ", this one knows %d); run `nodectl"
                    " restore` of that version",
                    save->path, number, version, KNOWN_VERSION);
    return take_entry(save, payload, version, number, tell);
}

static void judge(save_t *save)
{
    char why[LINE];

    if (!save->has_any)
        return lose(save, "no line is legible");
    if (!save->has_head)
        return save->version == 1 ? (void)0 : lose(save, "no legible head");
    for (int64_t n = 1; n <= save->lines; n++) {
        if (n <= save->most_lines && save->found[n / 8] >> n % 8 & 1)
            continue;
        snprintf(why, sizeof why, "line %" PRId64 " of %" PRId64 " is missing or illegible", n, save->lines);
        return lose(save, why);
    }
}

bool save_read(save_t *save, const char *path, char error[LINE], say_t tell)
{
    int number = 1;

    memset(save, 0, sizeof *save);
    save->version = KNOWN_VERSION;
    snprintf(save->path, sizeof save->path, "%s", path);
    if (!read_bytes(save, error))
        return false;
    if (!save->is_there)
        return true;
    for (size_t at = 0; at < save->size; number++) {
        const char *end = memchr(save->data + at, '\n', save->size - at);
        size_t length = end ? (size_t)(end - save->data) - at : save->size - at;
        if (length && !take_line(save, (span_t){save->data + at, length}, end != NULL, number, error, tell))
            return false;
        at += length + 1;
    }
    judge(save);
    return true;
}

void save_free(save_t *save)
{
    free(save->data);
    free(save->found);
    save->data = NULL;
    save->found = NULL;
}

/* ---------------------------------------------------------------- writing */

static bool sync_directory(const char *path)
{
    char copy[PATH];
    int fd, result;

    snprintf(copy, sizeof copy, "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    result = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0)
        close(fd);
    return result == 0;
}

static bool free_name(const char *path, char aside[PATH])
{
    for (int number = 1; number < 10000; number++) {
        if (snprintf(aside, PATH, "%s.old-%d", path, number) >= PATH)
            return false;
        if (access(aside, F_OK) != 0)
            return true;
    }
    return false;
}

bool save_set_aside(save_t *save, char aside[PATH], char error[LINE])
{
    if (!free_name(save->path, aside) || rename(save->path, aside) != 0)
        return fail(error, "%s: cannot rename the save of what the knobs were: %s", save->path, strerror(errno));
    sync_directory(save->path);
    return true;
}

static void put_line(FILE *file, const char *payload, size_t length)
{
    fprintf(file, "%08" PRIx32 " ", crc32_of(payload, length));
    fwrite(payload, 1, length, file);
    fputc('\n', file);
}

/* A line of the save; ``room`` is as large as any, since it is made of parts of the old file. */
static void put(FILE *file, char *room, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void put(FILE *file, char *room, size_t size, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(room, size, format, arguments);
    va_end(arguments);
    put_line(file, room, (size_t)length < size ? (size_t)length : size - 1);
}

#define SPAN(span) (int)(span).length, (span).at

static int64_t put_record(FILE *file, char *room, size_t size, const save_t *save, const record_t *record, int64_t n)
{
    put(file, room, size,
        "{\"kind\":\"capture\",\"v\":2,\"boot\":\"%s\",\"n\":%" PRId64 ",\"knob\":%.*s,\"value\":%.*s,\"recipe\":%.*s}",
        save->boot, ++n, SPAN(record->name), SPAN(record->value), record->recipe.length ? (int)record->recipe.length : 4,
        record->recipe.length ? record->recipe.at : "null");
    for (int age = 0; age < record->n_ours; age++)
        put(file, room, size,
            "{\"kind\":\"wrote\",\"v\":2,\"boot\":\"%s\",\"n\":%" PRId64 ",\"values\":{%.*s:%" PRId64 "}}", save->boot, ++n,
            SPAN(record->name), record->ours[age]);
    return n;
}

static bool write_again(const save_t *save, FILE *file)
{
    size_t size = save->size + LINE;
    char *room = malloc(size);
    int64_t n = 0, lines = 0;

    if (room == NULL)
        return false;
    for (size_t at = 0; at < save->n; at++)
        lines += save->records[at].is_settled ? 0 : 1 + save->records[at].n_ours;
    put(file, room, size, "{\"kind\":\"head\",\"v\":2,\"boot\":\"%s\",\"n\":0,\"lines\":%-*" PRId64 "}", save->boot,
        LINES_DIGITS, lines + (save->limits.length ? 1 : 0));
    for (size_t at = 0; at < save->n; at++) {
        if (!save->records[at].is_settled)
            n = put_record(file, room, size, save, &save->records[at], n);
    }
    if (save->limits.length)
        put(file, room, size, "{\"kind\":\"hold\",\"v\":2,\"boot\":\"%s\",\"n\":%" PRId64 ",\"values\":%.*s}", save->boot,
            n + 1, SPAN(save->limits));
    free(room);
    return fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
}

static bool replace(const save_t *save, char error[LINE])
{
    char fresh[PATH + 16];
    FILE *file;
    bool is_written;

    snprintf(fresh, sizeof fresh, "%s.new", save->path);
    unlink(fresh);
    file = fopen(fresh, "wxe");
    is_written = file && fchmod(fileno(file), 0600) == 0 && write_again(save, file);
    if (file)
        fclose(file);
    if (!is_written || rename(fresh, save->path) != 0)
        return fail(error, "%s: cannot write the save of what the knobs were: %s", save->path, strerror(errno));
    sync_directory(save->path);
    return true;
}

bool save_settle(save_t *save, char error[LINE], say_t tell)
{
    char aside[PATH], remark[2 * LINE + 2 * PATH];
    size_t n_left = 0;

    for (size_t at = 0; at < save->n; at++)
        n_left += !save->records[at].is_settled;
    if (save->lost[0]) {
        if (!free_name(save->path, aside) || link(save->path, aside) != 0)
            return fail(error, "%s: cannot keep the save of what the knobs were: %s", save->path, strerror(errno));
        snprintf(remark, sizeof remark, "%s is damaged (%s): kept as %s; other knobs may have been moved", save->path,
                 save->lost, aside);
        tell(remark);
    }
    if (n_left == save->n && save->n && !save->lost[0])
        return true;
    if (n_left)
        return replace(save, error);
    if (unlink(save->path) != 0)
        return fail(error, "%s: cannot remove the save of what the knobs were: %s", save->path, strerror(errno));
    sync_directory(save->path);
    return true;
}
