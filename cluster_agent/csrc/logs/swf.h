/*
 * The job lines of a log in Standard Workload Format: 18 whitespace-separated columns per line, -1 where unknown.
 * Some sites append columns of their own, which are not read. https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
 */
#ifndef CLUSTER_SWF_H
#define CLUSTER_SWF_H

#include <stdint.h>

#define SWF_COLUMNS 18

/* Why a line is no job. */
#define SWF_TOO_FEW 0   /* fewer than 18 columns */
#define SWF_NO_NUMBER 1 /* one of the 18 is not a number that fits 64 bits */
#define SWF_REASONS 2

typedef struct {
    int64_t jobs;
    int64_t broken[SWF_REASONS];      /* lines left out */
    int64_t first_line[SWF_REASONS];  /* the first of them, counted from 1 */
    int32_t first_column[SWF_REASONS]; /* columns there were, or the column that is no number, from 1 */
    int64_t cut;                      /* lines with a fraction in one of the 18 columns: it is cut off */
    int64_t first_cut_line;
} swf_found_t;

/*
 * Reads all lines of `text`. Column c of job j goes to columns[c * capacity + j], its line number to lines[j].
 * `capacity` is at least the number of lines. Lines that begin with ';' and empty lines are passed over.
 */
void swf_parse(const char *text, int64_t size, int64_t capacity, int64_t *columns, int64_t *lines, swf_found_t *found);

/* Writes jobs back as lines. The bytes written, at most 21 per column; columns[c * n_jobs + j] as in swf_parse. */
int64_t swf_format(const int64_t *columns, int64_t n_jobs, char *out);

#endif
