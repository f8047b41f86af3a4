/*
 * The rows of jobs.csv, in the columns that Batsim 4 writes (https://batsim.readthedocs.io, "Outputs"), which evalys
 * reads. What a replay does not know stays empty.
 */
#ifndef CLUSTER_JOBS_CSV_H
#define CLUSTER_JOBS_CSV_H

#include <stdint.h>

#include "meter.h"
#include "placement.h"

typedef struct {
    int64_t n_jobs;
    const char *workload;            /* for the column workload_name */
    const int64_t *number, *submit_s, *run_s;
    const int64_t *request_s;        /* -1: not known */
    const int64_t *start_s;          /* -1: never started */
    const int32_t *width;
    const uint8_t *is_cut;           /* the job was ended at its requested time */
    const uint8_t *is_killed;        /* the job was killed, and not begun again */
    const double *energy_j;          /* NULL: not known */
    const char *processors;          /* as processors_write writes them */
    const int64_t *offsets;
} job_rows_t;

/* Writes rows `from` to `to` - 1. The bytes written, at most 448 a row in addition to its two texts. */
int64_t jobs_csv_write(const job_rows_t *rows, int64_t from, int64_t to, char *out);

/* A number below 10^7 as text. */
typedef struct {
    char text[7];
    uint8_t length;
} word_t;

/* The numbers from 0 to n_words - 1. */
void words_of_numbers(word_t *words, int32_t n_words);

/*
 * The column allocated_resources: the text of job j is out[offsets[j]] to out[offsets[j + 1] - 1]. The bytes written, at
 * most 24 per interval; `offsets` has n_jobs + 1. `words` of the lowest numbers: on a machine in pieces the column is
 * gigabytes of numbers, and to look one up takes half as long as to divide it.
 */
int64_t processors_write(const interval_t *intervals, const int64_t *first, const int32_t *count, int64_t n_jobs,
                         const word_t *words, int32_t n_words, int64_t *offsets, char *out);

/* Rows of time, watts and cap; no cap stays empty. The bytes written, at most 72 per step. */
int64_t power_csv_write(const power_step_t *steps, int64_t n_steps, char *out);

#endif
