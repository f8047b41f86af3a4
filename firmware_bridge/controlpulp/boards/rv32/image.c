/*
 * Is the image in RAM the one that was built? build.sh stores the CRC of code and constants in the ELF: that of POSIX
 * cksum, which covers the length too (polynomial 0x04c11db7, highest bit first, inverted at the end). It finds every
 * change of one to three bits, and every burst of up to 32.
 */
#include "soc.h"

extern const uint8_t image_start[], image_end[]; /* code and constants (link.ld) */

__attribute__((section(".image_crc"), used)) const volatile uint32_t image_crc_built = 0;

static uint32_t table[256];

static uint32_t step(uint32_t crc, uint8_t byte) { return crc << 8 ^ table[(uint8_t)(crc >> 24) ^ byte]; }

uint32_t image_crc(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i << 24;
        for (int bit = 0; bit < 8; bit++)
            crc = crc << 1 ^ (crc & 0x80000000u ? 0x04c11db7u : 0);
        table[i] = crc;
    }
    uint32_t crc = 0;
    for (const uint8_t *byte = image_start; byte < image_end; byte++)
        crc = step(crc, *byte);
    for (uint32_t length = (uint32_t)(image_end - image_start); length; length >>= 8)
        crc = step(crc, (uint8_t)length);
    return ~crc;
}
