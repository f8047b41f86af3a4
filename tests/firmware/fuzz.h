/* What the fuzzing harnesses share: reading an input, and counting what they did. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_input {
    const uint8_t *data;
    size_t size;
};

/* The next bytes as a number; zeros behind the end. */
static inline uint32_t fuzz_take(struct fuzz_input *in, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes && in->size; i++, in->size--)
        value |= (uint32_t)*in->data++ << 8 * i;
    return value;
}

extern uint64_t fuzz_count;    /* of what the harness counts, */
extern const char fuzz_unit[]; /* and what that is */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
