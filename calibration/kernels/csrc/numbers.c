/* Data of kernels, and the known numbers that come out. */
#include "kernels.h"

#include <math.h>
#include <string.h>

/* Ends of the chains, by exact arithmetic (tests/calibration/test_native_kernels.py computes them again). */
static const uint64_t KNOWN[2][MOST_CHAINS] = {
    {0x3FFE220A8397F1DC, 0x3FF6E789E6AA1B96, 0x3FF06C45D1880094, 0x3FFF88BB8A8764C8,
     0x3FF1B39896A51A86, 0x3FF53CB9F0C747EA, 0x3FF2C829ABE1F454, 0x3FFC584133AC91A0,
     0x3FF3EE5789041C9A, 0x3FFF3B8488C3A8CA, 0x3FF657EECDD3CB14, 0x3FFC2D326E0055C2,
     0x3FF8621A03FE0BC0, 0x3FF8E1F7555983AC, 0x3FFB54E0F1600CD2, 0x3FF84BB3F97971D8},
    {0x3FFE220A8397D969, 0x3FF6E789E6AA1B9A, 0x3FF06C45D1880095, 0x3FFF88BB8A874C56,
     0x3FF1B39896A51A89, 0x3FF53CB9F0C747EE, 0x3FF2C829ABE1F453, 0x3FFC584133AC918B,
     0x3FF3EE5789041C99, 0x3FFF3B8488C39058, 0x3FF657EECDD3CB14, 0x3FFC2D326E0055C2,
     0x3FF8621A03FE0BBF, 0x3FF8E1F7555983AC, 0x3FFB54E0F1600CCD, 0x3FF84BB3F97971D8},
};

uint64_t number_mixed(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double of_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

double number_between_1_and_2(uint64_t index)
{
    return of_bits(number_mixed(index) >> 12 | 0x3FF0000000000000u);
}

double number_known_end(int chain, bool is_fused)
{
    return of_bits(KNOWN[is_fused][chain]);
}

double number_after(double x, int steps, bool is_fused)
{
    for (int step = 0; step < steps; step++) {
        double by = step % 2 == 0 ? UP_BY : DOWN_BY, more = step % 2 == 0 ? UP : DOWN;
        x = is_fused ? fma(x, by, more) : x * by + more;
    }
    return x;
}
