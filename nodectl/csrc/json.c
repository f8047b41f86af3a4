/* Reads JSON where it lies. It accepts more than JSON is: what is read has a checksum, and only its bounds matter. */
#include "restorer.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_space(span_t in, size_t at)
{
    while (at < in.length && is_space(in.at[at]))
        at++;
    return at;
}

/* The place after a string that begins at ``at``; 0 where it does not end. */
static size_t string_end(span_t in, size_t at)
{
    for (at++; at < in.length; at++) {
        if (in.at[at] == '"')
            return at + 1;
        if (in.at[at] == '\\')
            at++;
    }
    return 0;
}

/* The place after an object or array that begins at ``at``; 0 where it does not end. */
static size_t nested_end(span_t in, size_t at)
{
    size_t depth = 0;

    while (at < in.length) {
        char c = in.at[at];
        if (c == '"') {
            at = string_end(in, at);
            if (at == 0)
                return 0;
            continue;
        }
        at++;
        if (c == '{' || c == '[')
            depth++;
        if ((c == '}' || c == ']') && --depth == 0)
            return at;
    }
    return 0;
}

static size_t value_end(span_t in, size_t at)
{
    size_t begin = at;

    if (at >= in.length)
        return 0;
    if (in.at[at] == '"')
        return string_end(in, at);
    if (in.at[at] == '{' || in.at[at] == '[')
        return nested_end(in, at);
    while (at < in.length && strchr(",]}: \t\r\n", in.at[at]) == NULL)
        at++;
    return at > begin ? at : 0;
}

static bool take_value(span_t in, size_t *at, span_t *value)
{
    size_t begin = skip_space(in, *at), end = value_end(in, begin);

    if (end == 0)
        return false;
    *value = (span_t){in.at + begin, end - begin};
    *at = skip_space(in, end);
    return true;
}

bool json_next(span_t container, size_t *place, span_t *key, span_t *value)
{
    size_t at = *place;
    bool is_object;

    if (container.length < 2 || (container.at[0] != '{' && container.at[0] != '['))
        return false;
    is_object = container.at[0] == '{';
    at = skip_space(container, at == 0 ? 1 : at);
    if (at < container.length && container.at[at] == ',')
        at++;
    *key = (span_t){"", 0};
    if (is_object) {
        if (!take_value(container, &at, key) || at >= container.length || container.at[at] != ':')
            return false;
        at++;
    }
    if (!take_value(container, &at, value))
        return false;
    *place = at;
    return true;
}

bool json_member(span_t object, const char *name, span_t *value)
{
    size_t place = 0, length = strlen(name);
    span_t key;

    while (json_next(object, &place, &key, value)) {
        if (key.length == length + 2 && memcmp(key.at + 1, name, length) == 0)
            return true;
    }
    return false;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c | 0x20) : NULL;

    return found ? (int)(found - digits) : -1;
}

/* \uXXXX of a control character; others do not occur, since msgspec writes UTF-8. */
static bool unescape_unicode(span_t value, size_t *at, char *out)
{
    int code = 0;

    if (*at + 4 >= value.length)
        return false;
    for (int digit = 1; digit <= 4; digit++) {
        int found = hex_digit(value.at[*at + (size_t)digit]);
        if (found < 0)
            return false;
        code = code * 16 + found;
    }
    *at += 4;
    *out = (char)code;
    return code > 0 && code < 0x80;
}

static bool unescape(span_t value, size_t *at, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;

    if (value.at[*at] == 'u')
        return unescape_unicode(value, at, out);
    found = value.at[*at] ? strchr(from, value.at[*at]) : NULL;
    if (found == NULL)
        return false;
    *out = to[found - from];
    return true;
}

bool json_text(span_t value, char *out, size_t size)
{
    size_t n = 0;

    if (value.length < 2 || value.at[0] != '"' || value.at[value.length - 1] != '"')
        return false;
    for (size_t at = 1; at + 1 < value.length; at++) {
        char c = value.at[at];
        if (n + 1 >= size || c == 0)
            return false;
        if (c == '\\') {
            at++;
            if (at + 1 >= value.length || !unescape(value, &at, &c))
                return false;
        }
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

bool json_whole(span_t value, int64_t *out)
{
    bool is_negative = value.length > 0 && value.at[0] == '-';
    size_t at = is_negative ? 1 : 0;
    int64_t number = 0;

    if (value.length == at || value.length - at > 18) /* fits into 63 bits */
        return false;
    for (; at < value.length; at++) {
        if (value.at[at] < '0' || value.at[at] > '9')
            return false;
        number = number * 10 + (value.at[at] - '0');
    }
    *out = is_negative ? -number : number;
    return true;
}

bool span_is(span_t span, const char *text)
{
    return span.length == strlen(text) && memcmp(span.at, text, span.length) == 0;
}

bool span_equal(span_t a, span_t b)
{
    return a.length == b.length && memcmp(a.at, b.at, a.length) == 0;
}
