#include "jobs_csv.h"

#include <string.h>

#include "text.h"

/* numerator / denominator with six decimals, rounded half up; numerator 0 or more, denominator 1 to 2^43 */
static char *put_ratio(char *out, int64_t numerator, int64_t denominator)
{
    int64_t whole = numerator / denominator;
    int64_t millionths = (numerator % denominator * 1000000 + denominator / 2) / denominator;
    out = put_number(out, whole + millionths / 1000000);
    *out++ = '.';
    for (int64_t unit = 100000; unit; unit /= 10)
        *out++ = (char)('0' + millionths / unit % 10);
    return out;
}

static char *put_row(char *out, const job_rows_t *rows, int64_t j)
{
    int64_t start_s = rows->start_s[j];

    out = put_number(out, rows->number[j]);
    *out++ = ',';
    out = put_text(out, rows->workload);
    out = put_text(out, ",,"); /* profile: a log has none */
    out = put_number(out, rows->submit_s[j]);
    *out++ = ',';
    out = put_number(out, rows->width[j]);
    *out++ = ',';
    if (rows->request_s[j] >= 0)
        out = put_number(out, rows->request_s[j]);
    if (start_s < 0) /* unknown: success, final_state, five times, stretch, processors, energy and metadata */
        return put_text(out, ",0,NOT_STARTED,,,,,,,,,\n");

    int64_t wait_s = start_s - rows->submit_s[j], run_s = rows->run_s[j];
    if (rows->is_killed[j])
        out = put_text(out, ",0,COMPLETED_KILLED,");
    else
        out = put_text(out, rows->is_cut[j] ? ",0,COMPLETED_WALLTIME_REACHED," : ",1,COMPLETED_SUCCESSFULLY,");
    const int64_t times[] = {start_s, run_s, start_s + run_s, wait_s, wait_s + run_s};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        out = put_number(out, times[i]);
        *out++ = ',';
    }
    out = put_ratio(out, wait_s + run_s, run_s > 0 ? run_s : 1);
    *out++ = ',';
    size_t length = (size_t)(rows->offsets[j + 1] - rows->offsets[j]);
    memcpy(out, rows->processors + rows->offsets[j], length);
    out += length;
    *out++ = ',';
    if (rows->energy_j) /* in millijoules, up to 2^63 of them */
        out = put_ratio(out, (int64_t)(rows->energy_j[j] * 1e3 + 0.5), 1000);
    return put_text(out, ",\n"); /* metadata */
}

int64_t jobs_csv_write(const job_rows_t *rows, int64_t from, int64_t to, char *out)
{
    char *begin = out;
    for (int64_t j = from; j < to; j++)
        out = put_row(out, rows, j);
    return out - begin;
}

int64_t power_csv_write(const power_step_t *steps, int64_t n_steps, char *out)
{
    char *begin = out;
    for (int64_t i = 0; i < n_steps; i++) {
        out = put_number(out, steps[i].at_s);
        *out++ = ',';
        out = put_ratio(out, steps[i].drawn_uw, 1000000);
        *out++ = ',';
        if (steps[i].cap_uw != NO_CAP)
            out = put_ratio(out, steps[i].cap_uw, 1000000);
        *out++ = '\n';
    }
    return out - begin;
}

void words_of_numbers(word_t *words, int32_t n_words)
{
    char text[LONGEST_NUMBER];
    for (int32_t i = 0; i < n_words; i++) {
        words[i].length = (uint8_t)(put_number(text, i) - text);
        memcpy(words[i].text, text, sizeof words[i].text);
    }
}

static inline char *put_word(char *out, const word_t *words, int32_t n_words, int32_t number)
{
    if (__builtin_expect(number >= n_words, 0))
        return put_number(out, number);
    memcpy(out, &words[number], sizeof *words); /* what is behind the text is written over */
    return out + words[number].length;
}

int64_t processors_write(const interval_t *intervals, const int64_t *first, const int32_t *count, int64_t n_jobs,
                         const word_t *words, int32_t n_words, int64_t *offsets, char *out)
{
    char *begin = out;
    for (int64_t j = 0; j < n_jobs; j++) {
        offsets[j] = out - begin;
        for (const interval_t *one = intervals + first[j], *end = one + count[j]; one < end; one++) {
            char *behind = put_word(out, words, n_words, one->first);
            char *behind_last = put_word(behind + 1, words, n_words, one->last);
            *behind = '-';
            out = one->last != one->first ? behind_last : behind; /* no branch: nobody can foresee it */
            *out++ = ' ';
        }
        out -= count[j] > 0; /* no space at the end */
    }
    offsets[n_jobs] = out - begin;
    return out - begin;
}
