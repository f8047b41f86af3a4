/* Numbers as text, for tables of millions of rows. */
#ifndef CLUSTER_TEXT_H
#define CLUSTER_TEXT_H

#include <stdint.h>
#include <string.h>

#define LONGEST_NUMBER 20 /* -9223372036854775808 */

static inline int decimal_digits(uint64_t value)
{
    int count = 1;

    for (; value >= 10000; value /= 10000)
        count += 4;
    return count + (value >= 10) + (value >= 100) + (value >= 1000);
}

/*
 * Writes `value` and returns the place behind it. No terminating zero. From the last two digits to the first ones, at
 * their places: the columns of processors of a long log are gigabytes of numbers.
 */
static inline char *put_number(char *out, int64_t value)
{
    static const char pairs[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243"
                                "4445464748495051525354555657585960616263646566676869707172737475767778798081828384858687"
                                "888990919293949596979899";
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

    if (value < 0)
        *out++ = '-';
    out += decimal_digits(magnitude);
    char *at = out;
    for (; magnitude >= 100; magnitude /= 100) {
        at -= 2;
        memcpy(at, pairs + 2 * (magnitude % 100), 2);
    }
    if (magnitude >= 10)
        memcpy(at - 2, pairs + 2 * magnitude, 2);
    else
        at[-1] = (char)('0' + magnitude);
    return out;
}

static inline char *put_text(char *out, const char *text)
{
    size_t length = strlen(text);
    memcpy(out, text, length);
    return out + length;
}

#endif
