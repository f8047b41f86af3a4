/* What is free over time, as spans in each of which nothing changes: a line of a node, or of all nodes together. */
#ifndef CLUSTER_SPAN_LINE_H
#define CLUSTER_SPAN_LINE_H

#include "memory.h"
#include "resources/node_model.h"

enum { WATTS = NODE_KINDS, COLUMNS }; /* of a span: the kinds; microwatts, in the line of all */

typedef struct {
    int64_t from_s; /* until the next begins */
    int64_t left[COLUMNS];
} span_t;

typedef struct {
    span_t *spans; /* the first begins now, the last never ends */
    int32_t count, capacity;
    span_t *before; /* without any job of the order */
    int32_t n_before;
} line_t;

enum { AT_BEGIN = 1, AT_END = 2 }; /* where a job has split a span of a line */

/* One span, from now on. 0, or -1: no memory. */
int line_new(memory_t *memory, line_t *line, int64_t now_s, const int64_t *left);

/* The span that contains `at_s`. */
int32_t line_at(const line_t *line, int64_t at_s);

/* The span that begins at `at_s`, if need be a new one; -1: no memory. */
int32_t line_split(memory_t *memory, line_t *line, int64_t at_s);

/* This is taken from `from_s` to `to_s`. Returns where it has split a span. */
uint8_t line_take(memory_t *memory, line_t *line, int64_t from_s, int64_t to_s, const int64_t *taken);

/* The line as it was before the last job that is in it took this. */
void line_give(line_t *line, int64_t from_s, int64_t to_s, const int64_t *taken, uint8_t split);

/* What is left all the time from span `i` to `to_s`; returns the last span before that. */
int32_t line_least(const line_t *line, int32_t i, int64_t to_s, int64_t *least);

/* The line now is that to which it is reset. */
void line_keep(memory_t *memory, line_t *line);
void line_reset(line_t *line);

#endif
