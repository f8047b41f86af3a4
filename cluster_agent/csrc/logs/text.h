/* Numbers as text, for tables of millions of rows. */
#ifndef CLUSTER_TEXT_H
#define CLUSTER_TEXT_H

#include <stdint.h>
#include <string.h>

#define LONGEST_NUMBER 20 /* -9223372036854775808 */

/* Writes `value` and returns the place behind it. No terminating zero. */
static inline char *put_number(char *out, int64_t value)
{
    char digits[LONGEST_NUMBER];
    int count = 0;
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

    if (value < 0)
        *out++ = '-';
    do
        digits[count++] = (char)('0' + magnitude % 10);
    while (magnitude /= 10);
    while (count)
        *out++ = digits[--count];
    return out;
}

static inline char *put_text(char *out, const char *text)
{
    size_t length = strlen(text);
    memcpy(out, text, length);
    return out + length;
}

#endif
