#include "swf.h"

#include <string.h>

#include "text.h"

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/*
 * A decimal number from `*at`, which is moved behind it. Nonzero if it is one and ends at a blank or at `end`. The
 * fraction that some logs give (seconds, kilobytes) is cut off; *is_cut is whether it was more than zeros.
 */
static int number(const char **at, const char *end, int64_t *value, int *is_cut)
{
    const char *c = *at;
    int is_negative = c < end && *c == '-';
    uint64_t magnitude = 0;
    int digits = 0;

    c += is_negative || (c < end && *c == '+');
    for (; c < end && is_digit(*c); c++, digits++) {
        if (magnitude > (INT64_MAX - 9) / 10)
            return 0;
        magnitude = 10 * magnitude + (uint64_t)(*c - '0');
    }
    if (c < end && *c == '.')
        for (c++; c < end && is_digit(*c); c++, digits++)
            *is_cut |= *c != '0';
    if (!digits || (c < end && !is_blank(*c)))
        return 0;
    *value = is_negative ? -(int64_t)magnitude : (int64_t)magnitude;
    *at = c;
    return 1;
}

static int32_t count_columns(const char *at, const char *end)
{
    int32_t count = 0;
    while (at < end) {
        while (at < end && is_blank(*at))
            at++;
        count += at < end;
        while (at < end && !is_blank(*at))
            at++;
    }
    return count;
}

static void reject(swf_found_t *found, int reason, int64_t line, int32_t column)
{
    if (found->broken[reason]++ == 0) {
        found->first_line[reason] = line;
        found->first_column[reason] = column;
    }
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && is_blank(*at))
        at++;
    return at;
}

/* Reads the columns of one job from `*at`, which is moved behind the last that is a number; how many there are. */
static int32_t read_job(const char **at, const char *end, int64_t *columns, int64_t capacity, int *is_cut)
{
    for (int32_t column = 0; column < SWF_COLUMNS; column++) {
        *at = skip_blanks(*at, end);
        if (*at == end || !number(at, end, &columns[column * capacity], is_cut))
            return column;
    }
    return SWF_COLUMNS;
}

/* Why the line that begins at `begin` is no job: reading stopped at `at`, in this column. */
static void reject_line(swf_found_t *found, int64_t line, const char *begin, const char *at, const char *end,
                        int32_t column)
{
    int32_t there = at == end ? column : count_columns(begin, end);
    if (there < SWF_COLUMNS)
        reject(found, SWF_TOO_FEW, line, there);
    else
        reject(found, SWF_NO_NUMBER, line, column + 1);
}

void swf_parse(const char *text, int64_t size, int64_t capacity, int64_t *columns, int64_t *lines, swf_found_t *found)
{
    const char *end_of_text = text + size;
    int64_t job = 0;

    memset(found, 0, sizeof *found);
    for (int64_t line = 1; text < end_of_text; line++) {
        const char *end = memchr(text, '\n', (size_t)(end_of_text - text));
        if (!end)
            end = end_of_text;
        const char *begin = skip_blanks(text, end), *at = begin;
        text = end + 1;
        if (begin == end || *begin == ';') /* empty, or a comment */
            continue;
        int is_cut = 0;
        int32_t column = read_job(&at, end, columns + job, capacity, &is_cut);
        if (column < SWF_COLUMNS) {
            reject_line(found, line, begin, at, end, column);
            continue;
        }
        lines[job++] = line;
        if (is_cut && found->cut++ == 0)
            found->first_cut_line = line;
    }
    found->jobs = job;
}

int64_t swf_format(const int64_t *columns, int64_t n_jobs, char *out)
{
    char *begin = out;
    for (int64_t job = 0; job < n_jobs; job++)
        for (int32_t column = 0; column < SWF_COLUMNS; column++) {
            out = put_number(out, columns[column * n_jobs + job]);
            *out++ = column + 1 < SWF_COLUMNS ? ' ' : '\n';
        }
    return out - begin;
}
