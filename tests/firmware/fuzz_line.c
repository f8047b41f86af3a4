/*
 * Fuzzing of the serial line on the host board: whole, damaged and half frames, stray bytes, silence, slow readers.
 *
 * What must be true for every input: no sanitizer report; all that the controller sends is whole frames of the kinds that it
 * may send; and when the storm is over, a greeting is welcomed and a command is answered once, with its own header.
 * Built with fuzz_main.c, or with clang's -fsanitize=fuzzer (`make fuzz`).
 */
#include "../../firmware_bridge/controlpulp/boards/host/board.c"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t fuzz_count;
const char fuzz_unit[] = "frames taken by the line";

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_line: %s\n", what);
    abort();
}

static uint32_t crc16(const uint8_t *bytes, uint32_t n)
{
    uint32_t crc = 0xffff;
    while (n--) {
        crc ^= (uint32_t)*bytes++ << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
    }
    return crc;
}

static uint32_t make_frame(uint8_t *out, uint32_t kind, uint32_t sequence, const uint8_t *payload, uint32_t bytes)
{
    const uint8_t head[6] = {0xa5, 0x5a, (uint8_t)kind, (uint8_t)sequence, (uint8_t)bytes, (uint8_t)(bytes >> 8)};
    memcpy(out, head, 6);
    memcpy(out + 6, payload, bytes);
    uint32_t crc = crc16(out + 2, 4 + bytes);
    out[6 + bytes] = (uint8_t)crc;
    out[7 + bytes] = (uint8_t)(crc >> 8);
    return 8 + bytes;
}

/* ---- the other end ---- */

struct end {
    host_t *h;
    uint8_t kept[2 * LINE_RING];
    uint32_t n;
    uint32_t welcomes, responses;
    uint8_t last[LINE_PAYLOAD];
};

static void understand(struct end *e)
{
    while (e->n >= 6) {
        uint32_t bytes = e->kept[4] | (uint32_t)e->kept[5] << 8, kind = e->kept[2];
        if (e->kept[0] != 0xa5 || e->kept[1] != 0x5a || bytes > LINE_PAYLOAD)
            fail("what the controller sends is no frame");
        if (kind != LINE_WELCOME && kind != LINE_RESPONSE && kind != LINE_EVENT && kind != LINE_NAK && kind != LINE_ACTUATORS)
            fail("the controller sends a frame of a kind that is not its own");
        if (e->n < 8 + bytes)
            return;
        if (crc16(e->kept + 2, 4 + bytes) != (e->kept[6 + bytes] | (uint32_t)e->kept[7 + bytes] << 8))
            fail("the controller sends a frame with a wrong CRC");
        e->welcomes += kind == LINE_WELCOME;
        e->responses += kind == LINE_RESPONSE;
        memcpy(e->last, e->kept + 6, bytes);
        e->n -= 8 + bytes;
        memmove(e->kept, e->kept + 8 + bytes, e->n);
    }
}

static void settle(struct end *e)
{
    if (e->h->line.slot_due)
        line_slot_done(&e->h->line, &e->h->firmware.control.in_force);
    host_advance(e->h, e->h->board.now_ns);
}

static void drain(struct end *e)
{
    uint32_t got;
    do {
        settle(e);
        got = host_line_read(e->h, e->kept + e->n, LINE_RING);
        e->n += got;
        understand(e);
    } while (got);
}

static void write(struct end *e, const uint8_t *bytes, uint32_t n)
{
    host_line_write(e->h, bytes, n);
    settle(e);
}

/* ---- one input ---- */

static void one_frame(struct end *e, struct fuzz_input *in)
{
    uint8_t payload[LINE_PAYLOAD] = {0}, frame[8 + LINE_PAYLOAD];
    uint32_t shape = fuzz_take(in, 1), kind = fuzz_take(in, 1) % 10, bytes = 0;
    if (kind == LINE_SENSORS && shape & 1) {
        bytes = LINE_SENSOR_BYTES;
        for (uint32_t i = 0; i < 32; i++)
            payload[fuzz_take(in, 1) % bytes] = (uint8_t)fuzz_take(in, 1);
    } else if (kind == LINE_COMMAND && shape & 1) {
        static const uint8_t protocols[4] = {0x10, 0x13, 0x15, 0x18};
        uint32_t header = fuzz_take(in, 1) % 18 | (uint32_t)protocols[shape >> 1 & 3] << 10;
        memcpy(payload, &header, 4);
        bytes = 4 + 4 * (shape >> 4 & 3);
        for (uint32_t i = 4; i < bytes; i++)
            payload[i] = (uint8_t)(i % 4 == 0 ? fuzz_take(in, 1) : 0);
    } else {
        bytes = fuzz_take(in, 1) + (shape & 1);
        for (uint32_t i = 0; i < bytes && in->size; i++)
            payload[i] = (uint8_t)fuzz_take(in, 1);
    }
    uint32_t n = make_frame(frame, kind, fuzz_take(in, 1) % 4, payload, bytes);
    if (shape >= 0xc0)
        frame[fuzz_take(in, 2) % n] ^= (uint8_t)fuzz_take(in, 1);
    if (shape >= 0xe0)
        n = fuzz_take(in, 2) % (n + 1);
    write(e, frame, n);
    fuzz_count++;
}

static void stray_bytes(struct end *e, struct fuzz_input *in)
{
    uint8_t stray[64];
    uint32_t n = fuzz_take(in, 1) % sizeof stray;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t byte = fuzz_take(in, 1);
        stray[i] = byte % 5 == 0 ? 0xa5 : byte % 5 == 1 ? 0x5a : (uint8_t)byte;
    }
    write(e, stray, n);
}

/* 20 ms as the line counts them; the control slots that fall into them have a harness of their own. */
static void silence(struct end *e)
{
    for (uint32_t i = 0; i < LINE_SILENT_TICKS; i++)
        line_tick(&e->h->line);
    drain(e);
}

/* Whatever is in the ring, one silence ends it; then all must work. */
static void recover(struct end *e)
{
    static const uint8_t version[4] = {0x00, 0x40, 0x00, 0x00}, greeting[7] = {'S', 'C', 'M', 'I', 1, 0, 1};
    uint8_t frame[8 + LINE_PAYLOAD];
    drain(e);
    silence(e);
    if (e->n)
        fail("a frame to the host was left unfinished");
    e->welcomes = 0;
    write(e, frame, make_frame(frame, LINE_HELLO, 0, greeting, sizeof greeting));
    drain(e);
    if (e->welcomes != 1)
        fail("a greeting is not welcomed");
    e->responses = 0;
    write(e, frame, make_frame(frame, LINE_COMMAND, 1, version, sizeof version));
    drain(e);
    if (e->responses != 1 || memcmp(e->last, version, 4) != 0)
        fail("a command is not answered once, with its header");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    host_options_t options = {.bypass = 1};
    void *memory = calloc(1, host_size());
    struct end *e = calloc(1, sizeof *e);
    if (!memory || !e)
        abort();
    e->h = host_open(memory, &options);
    host_line_open(e->h, 0);
    e->h->line.is_lock_step = fuzz_take(&in, 1) & 1;
    while (in.size) {
        uint32_t what = fuzz_take(&in, 1);
        if (what < 160)
            one_frame(e, &in);
        else if (what < 200)
            stray_bytes(e, &in);
        else if (what < 210)
            host_advance(e->h, e->h->board.now_ns + (int64_t)fuzz_take(&in, 1) * 1000); /* up to two ticks */
        else if (what < 220)
            silence(e);
        else
            drain(e); /* otherwise the reader is slow, and the ring fills */
    }
    recover(e);
    free(e);
    free(memory);
    return 0;
}
