"""The firmware's own divisions (chip.c) against the compiler's, over edges and random operands."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "firmware_bridge/controlpulp/src"

PROGRAM = r"""
#include "chip.h"
#include <stdio.h>

static uint64_t state = 88172645463325252u;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; return state ^= state << 17; }
static uint64_t any(void) { return next() >> next() % 64; }

int main(void)
{
    const uint32_t edges[] = {1, 2, 3, 0x7fff, 0x8000, 0xffff, 0x10000, 0x10001, 0x7fffffff, 0x80000000,
                              0xffff0000, 0xffffffff};
    unsigned wrong = 0;
    for (int i = 0; i < 2000000; i++) {
        uint32_t d = i % 4 ? (uint32_t)any() : edges[next() % 12];
        uint64_t n = i % 3 ? any() : (uint64_t)edges[next() % 12] << next() % 33;
        if (d == 0)
            continue;
        if (i % 5 == 0)
            n = (uint64_t)d * (uint32_t)any() + (next() & 1 ? d - 1 : 0); /* just below a multiple, or one */
        uint64_t right = n / d > UINT32_MAX ? UINT32_MAX : n / d;
        wrong += divide(n, d) != right;
        int32_t x = i % 7 ? (int32_t)(any() & INT32_MAX) : INT32_MAX, factor = 32768 + (int32_t)(next() % 98305);
        if (i % 11 == 0)
            factor = i & 1 ? 32768 : 131072;
        wrong += inverse_q16(x, factor, inverse_of_q16(factor)) != ((uint64_t)x << 16) / (uint32_t)factor;
        int32_t watts = (int32_t)any(), ff = (int32_t)(any() % 144000001), limit = (int32_t)(next() % 3660001);
        int32_t level = (int32_t)(next() % LEVELS);
        wrong += chip_freq_within(watts, ff, level, limit) != min32(chip_freq_for(watts, ff, level), limit);
    }
    printf("%u\n", wrong);
    return 0;
}
"""


def test_divisions_are_exact(tmp_path: Path) -> None:
    (tmp_path / "division.c").write_text(PROGRAM)
    program = tmp_path / "division"
    sources = [tmp_path / "division.c", SOURCES / "chip.c"]
    subprocess.run(["cc", "-std=c11", "-O2", f"-I{SOURCES}", *map(str, sources), "-o", str(program)], check=True)
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout == "0\n"
