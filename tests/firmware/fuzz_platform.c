/*
 * Fuzzing of the whole controller on the host board: messages, mailboxes, FastChannels and sensors from arbitrary bytes.
 *
 * What must be true for every input: no sanitizer report; a command gets one answer with its own header; an area comes back.
 * Built with fuzz_main.c, or with clang's -fsanitize=fuzzer (`make fuzz`).
 */
#include "../../firmware_bridge/controlpulp/boards/host/host.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t fuzz_count;
const char fuzz_unit[] = "messages answered";

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_platform: %s\n", what);
    abort();
}

/* ---- one input ---- */

/* A header that is often right, words that are often small. */
static uint32_t make_message(struct fuzz_input *in, uint8_t message[136])
{
    static const uint8_t protocols[8] = {0x10, 0x13, 0x15, 0x18, 0x80, 0x10, 0x13, 0x18};
    uint32_t shape = fuzz_take(in, 1), words = shape & 0x80 ? fuzz_take(in, 1) % 34 : shape >> 3 & 3;
    uint32_t header = fuzz_take(in, 1) % 18 | (uint32_t)protocols[shape & 7] << 10 | (fuzz_take(in, 2) & 0x3ff) << 18;
    if ((shape & 0xe0) == 0xe0)
        header = fuzz_take(in, 4);
    memcpy(message, &header, 4);
    for (uint32_t i = 0; i < words; i++) {
        uint32_t kind = fuzz_take(in, 1), word = kind & 1 ? kind >> 4 : kind & 2 ? fuzz_take(in, 4) : fuzz_take(in, 3) % 4000000;
        memcpy(message + 4 + 4 * i, &word, 4);
    }
    return 4 + 4 * words;
}

static void exchange(host_t *h, struct fuzz_input *in)
{
    uint8_t message[136], *area;
    uint32_t size = make_message(in, message), flags = 1, status = 0, channel = fuzz_take(in, 1) % HOST_AGENTS;
    if (fuzz_take(in, 1) > 250)
        size = fuzz_take(in, 4);
    area = host_area(h, (int)channel, 0);
    memcpy(area + 0x04, &status, 4);
    memcpy(area + 0x10, &flags, 4);
    memcpy(area + 0x14, &size, 4);
    memcpy(area + 0x18, message, sizeof message);
    host_ring(h, (int)channel, fuzz_take(in, 1) + 1);
    host_advance(h, host_now_ns(h));
    memcpy(&status, area + 0x04, 4);
    if (!(status & 1))
        fail("the area was not handed back");
    if ((size < 4 || size > 136) != ((status & 2) != 0))
        fail("the error bit does not tell a wrong length");
    if (!(status & 2) && memcmp(area + 0x18, message, 4) != 0)
        fail("the answer has another header");
    fuzz_count++;
}

static void disturb(host_t *h, struct fuzz_input *in)
{
    host_wires_t *wires = host_wires(h);
    uint32_t kind = fuzz_take(in, 1), at = fuzz_take(in, 1), value = fuzz_take(in, 4);
    int32_t reading;
    memcpy(&reading, &value, 4);
    if (kind < 60)
        wires->temperature_mk[at % HOST_CORES] = kind & 1 ? reading : 280000 + (int32_t)(value % 120000);
    else if (kind < 120)
        wires->capacitance_ff[at % HOST_CORES] = kind & 1 ? reading : (int32_t)(value % 2100000);
    else if (kind < 160)
        wires->power_uw[at % HOST_POWER_DOMAINS] = kind & 1 ? reading : (int32_t)(value % 300000000);
    else if (kind < 220)
        host_fast_window(h, (int)(at % HOST_AGENTS))[at % HOST_FAST_WORDS] = value;
    else
        memset(host_area(h, (int)(at % HOST_AGENTS), 1) + 4, 1, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    host_options_t options = {.bypass = 1, .step_after = 500};
    void *memory = calloc(1, host_size());
    if (!memory)
        return 0;
    options.published_law = fuzz_take(&in, 1) > 200;
    host_t *h = host_open(memory, &options);
    while (in.size) {
        uint32_t what = fuzz_take(&in, 1);
        if (what < 180)
            exchange(h, &in);
        else if (what < 240)
            disturb(h, &in);
        else
            host_advance(h, host_now_ns(h) + (int64_t)fuzz_take(&in, 1) * 2000); /* up to a slot */
    }
    host_advance(h, host_now_ns(h) + 2000000);
    free(memory);
    return 0;
}
