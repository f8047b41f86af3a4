/* MessagePack (github.com/msgpack/msgpack/blob/master/spec.md), as much of it as one request and its answer need.
 *
 * A writer that runs out of room marks the frame, and a reader that meets what it does not expect marks itself; both
 * then do nothing more. So callers check once, at the end. */
#include "hook.h"

#include <string.h>

void put_bytes(frame_t *frame, const void *bytes, size_t size)
{
    if (frame->is_full || size > sizeof frame->bytes - frame->size) {
        frame->is_full = true;
        return;
    }
    memcpy(frame->bytes + frame->size, bytes, size);
    frame->size += size;
}

static void put_head(frame_t *frame, uint8_t kind, uint64_t value, int width)
{
    uint8_t head[9] = {kind};
    for (int at = 0; at < width; at++)
        head[width - at] = (uint8_t)(value >> (8 * at));
    put_bytes(frame, head, (size_t)width + 1);
}

void put_array(frame_t *frame, unsigned items)
{
    put_head(frame, (uint8_t)(0x90 | items), 0, 0); /* fixarray: fewer than 16 */
}

void put_map(frame_t *frame, unsigned pairs)
{
    put_head(frame, (uint8_t)(0x80 | pairs), 0, 0); /* fixmap: fewer than 16 */
}

void put_text(frame_t *frame, const char *text)
{
    size_t size = strlen(text);
    if (size < 32)
        put_head(frame, (uint8_t)(0xa0 | size), 0, 0);
    else if (size < 1 << 16)
        put_head(frame, 0xda, size, 2);
    else
        frame->is_full = true;
    put_bytes(frame, text, size);
}

void put_count(frame_t *frame, uint32_t value)
{
    put_head(frame, 0xce, value, 4);
}

void put_seconds(frame_t *frame, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_head(frame, 0xcb, bits, 8);
}

static uint64_t get_number(reader_t *reader, size_t width)
{
    uint64_t value = 0;
    if (reader->is_bad || (size_t)(reader->end - reader->at) < width) {
        reader->is_bad = true;
        return 0;
    }
    for (size_t at = 0; at < width; at++)
        value = value << 8 | *reader->at++;
    return value;
}

/* The length of an array or a map: ``fixed`` is the mask of its short form, ``wide`` its form with 16 bits. */
static uint32_t get_length(reader_t *reader, uint8_t fixed, uint8_t wide)
{
    uint8_t kind = (uint8_t)get_number(reader, 1);
    if (reader->is_bad)
        return 0;
    if ((kind & 0xf0) == fixed)
        return kind & 0x0f;
    if (kind == wide || kind == wide + 1)
        return (uint32_t)get_number(reader, kind == wide ? 2 : 4);
    reader->is_bad = true;
    return 0;
}

uint32_t get_array(reader_t *reader)
{
    return get_length(reader, 0x90, 0xdc);
}

uint32_t get_map(reader_t *reader)
{
    return get_length(reader, 0x80, 0xde);
}

int64_t get_integer(reader_t *reader)
{
    uint8_t kind = (uint8_t)get_number(reader, 1);
    if (kind < 0x80)
        return kind;
    if (kind >= 0xe0)
        return (int8_t)kind;
    if (kind >= 0xcc && kind <= 0xcf)
        return (int64_t)get_number(reader, (size_t)1 << (kind - 0xcc));
    if (kind >= 0xd0 && kind <= 0xd3) {
        int width = 1 << (kind - 0xd0);
        uint64_t value = get_number(reader, (size_t)width);
        return (int64_t)(value << (64 - 8 * width)) >> (64 - 8 * width);
    }
    reader->is_bad = true;
    return 0;
}

static size_t get_size(reader_t *reader) /* of a text */
{
    uint8_t kind = (uint8_t)get_number(reader, 1);
    size_t size = 0;
    if ((kind & 0xe0) == 0xa0)
        size = kind & 0x1f;
    else if (kind >= 0xd9 && kind <= 0xdb)
        size = (size_t)get_number(reader, (size_t)1 << (kind - 0xd9));
    else
        reader->is_bad = true;
    if (reader->is_bad || size > (size_t)(reader->end - reader->at)) {
        reader->is_bad = true;
        return 0;
    }
    return size;
}

void get_text(reader_t *reader, char *text, size_t room)
{
    size_t size = get_size(reader), kept = size < room - 1 ? size : room - 1;
    text[0] = '\0';
    if (reader->is_bad)
        return;
    memcpy(text, reader->at, kept);
    text[kept] = '\0';
    reader->at += size;
}

static bool is_text(uint8_t kind)
{
    return (kind & 0xe0) == 0xa0 || (kind >= 0xd9 && kind <= 0xdb);
}

static void skip_leaf(reader_t *reader, uint8_t kind)
{
    char nothing[1];
    if (is_text(kind))
        get_text(reader, nothing, sizeof nothing);
    else if (kind == 0xc0 || kind == 0xc2 || kind == 0xc3) /* nil, false, true */
        reader->at++;
    else if (kind == 0xca || kind == 0xcb) /* float 32 and 64, with their head */
        get_number(reader, kind == 0xca ? 5 : 9);
    else
        get_integer(reader);
}

/* One value of any kind that an answer may have: nil, booleans, numbers, texts, arrays and maps of them. */
void skip(reader_t *reader)
{
    for (uint64_t left = 1; left && !reader->is_bad; left--) {
        uint8_t kind = reader->at < reader->end ? *reader->at : 0xc1; /* 0xc1: never used, so nothing takes it */
        if ((kind & 0xf0) == 0x90 || kind == 0xdc || kind == 0xdd)
            left += get_array(reader);
        else if ((kind & 0xf0) == 0x80 || kind == 0xde || kind == 0xdf)
            left += 2 * (uint64_t)get_map(reader);
        else
            skip_leaf(reader, kind);
    }
}

/* How many bytes the character at ``from`` has, 0 if it is no valid UTF-8 (RFC 3629) or is a control character. */
static size_t character(const unsigned char *from)
{
    static const uint32_t LEAST[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = from[0] < 0x80 ? 1 : (from[0] & 0xe0) == 0xc0 ? 2 : (from[0] & 0xf0) == 0xe0 ? 3 : 4;
    if (size == 1)
        return from[0] >= 0x20 && from[0] != 0x7f;
    if (size == 4 && (from[0] & 0xf8) != 0xf0)
        return 0;
    uint32_t code = from[0] & (0x7fu >> size);
    for (size_t at = 1; at < size; at++) {
        if ((from[at] & 0xc0) != 0x80) /* the terminating 0 as well */
            return 0;
        code = code << 6 | (from[at] & 0x3f);
    }
    bool is_valid = code >= LEAST[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) && code >= 0xa0;
    return is_valid ? size : 0;
}

void make_plain(char *into, size_t room, const char *from, size_t most)
{
    size_t used = 0;
    for (size_t count = 0; *from && count < most && used + 5 <= room; count++) {
        size_t size = character((const unsigned char *)from);
        if (size)
            memcpy(into + used, from, size);
        else
            into[used] = '?';
        used += size ? size : 1;
        from += size ? size : 1;
    }
    into[used] = '\0';
}
