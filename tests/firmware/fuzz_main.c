/*
 * Runs a harness: fuzz_X COUNT SEED [FILE...] replays the files, then mutates them and makes inputs of its own, until the
 * harness has counted so many messages. With clang, libFuzzer takes this file's place (built with LIBFUZZER) and only
 * the count at the end is from here.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((destructor)) static void report(void)
{
    printf("%llu %s\n", (unsigned long long)fuzz_count, fuzz_unit);
}

#ifndef LIBFUZZER
#define LARGEST 16384

static uint64_t state;

static uint32_t dice(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth */
    return (uint32_t)(state >> 33);
}

static size_t load(const char *path, uint8_t *data)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size_t size = fread(data, 1, LARGEST, file);
    fclose(file);
    return size;
}

/* Flipped bytes, a part that is doubled or dropped, and the tail of another input. */
static size_t mutate(uint8_t *data, size_t size, const char *other)
{
    static uint8_t tail[LARGEST];
    for (uint32_t n = dice() % 8; n && size; n--)
        data[dice() % size] = (uint8_t)dice();
    if (size > 8 && dice() % 2) {
        size_t from = dice() % size, to = dice() % size, n = dice() % (size - (from > to ? from : to));
        memmove(data + to, data + from, n);
    }
    if (dice() % 2) {
        size_t more = load(other, tail), keep = size ? dice() % size : 0;
        if (more > LARGEST - keep)
            more = LARGEST - keep;
        memcpy(data + keep, tail, more);
        size = keep + more;
    }
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t data[LARGEST];
    uint64_t wanted = argc > 1 ? strtoull(argv[1], 0, 0) : 100000;
    uint32_t files = argc > 3 ? (uint32_t)argc - 3 : 0;
    state = argc > 2 ? strtoull(argv[2], 0, 0) : 1;
    for (uint32_t i = 0; i < files; i++)
        LLVMFuzzerTestOneInput(data, load(argv[3 + i], data));
    while (fuzz_count < wanted) {
        size_t size;
        if (files && dice() % 2) {
            size = load(argv[3 + dice() % files], data);
            size = mutate(data, size, argv[3 + dice() % files]);
        } else {
            size = LARGEST / 8 + dice() % (LARGEST * 7 / 8);
            for (size_t i = 0; i < size; i++)
                data[i] = (uint8_t)dice();
        }
        LLVMFuzzerTestOneInput(data, size);
    }
    return 0;
}
#endif
