"""The chip's tables and power model, for the plain law: integers as in ``chip.c``."""

from __future__ import annotations

import re

from firmware_bridge.build_firmware import FIRMWARE, ROOT

CORES, DOMAINS, DOMAIN_CORES, LEVELS = 36, 4, 9, 15
UNLIMITED = 2**31 - 1
FREQ_MIN, FREQ_MAX = 400_000, 3_660_000
CORE_MAX, CORE_IDLE = 9_000_000, 300_000
ONE = 65536  # gains and leakage factors are in 1/65536


def _table(name: str) -> list[int]:
    text = (ROOT / FIRMWARE / "src/chip.c").read_text()
    body = re.search(rf"{name}\[\w+\] = {{([^}}]*)}}", text)
    assert body
    return [int(number) for number in re.findall(r"\d+", body.group(1))]


FREQ, VOLT_MV = _table("chip_freq_khz"), _table("chip_volt_mv")
_VOLT2, _LEAK, _GROWTH = _table("volt2_q40"), _table("leak_at_0c_uw"), _table("leak_growth_q16")


def toward_zero(dividend: int, divisor: int) -> int:
    """As C divides."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def bounded(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def level_for(freq: int) -> int:
    return next((level for level in range(LEVELS) if FREQ[level] >= freq), LEVELS - 1)


def dynamic(capacitance: int, freq: int, level: int) -> int:
    return ((capacitance * freq >> 16) * _VOLT2[level]) >> 24


def freq_for(power: int, capacitance: int, level: int) -> int:
    per_khz = capacitance * _VOLT2[level] >> 16
    if power <= 0:
        return 0
    return min((power << 24) // per_khz, UNLIMITED) if per_khz > 0 else UNLIMITED


def leak_factor(temperature: int) -> int:
    whole, part = divmod(bounded(temperature - 273_150, 0, 125_000), 1000)
    return _GROWTH[whole] + (_GROWTH[whole + 1] - _GROWTH[whole]) * part // 1000


def leak(factor: int, level: int) -> int:
    return _LEAK[level] * factor >> 16
