/*
 * Is the image in RAM the one that was built? Two sums over code and constants, which build.sh stores in the ELF: the sum
 * of the words, and the sum of its partial sums, both modulo 2^32. They notice any change of one word and most others.
 */
#include "soc.h"

__attribute__((section(".image_sums"), used)) const volatile uint32_t image_sums[2] = {0, 0};

bool image_is_whole(void)
{
    uint32_t sum = 0, sums = 0;
    for (const uint32_t *word = image_start; word < image_end; word++) {
        sum += *word;
        sums += sum;
    }
    return sum == image_sums[0] && sums == image_sums[1];
}
