"""Durations counted in buckets, so that a run of days has its medians and tails in one small list.

There are eight buckets per doubling: every value is within 6.25 % of its bucket's middle, and finding the bucket takes
a few integer operations.
"""

from __future__ import annotations

_SUB_BITS = 3
_BUCKETS = 64 << _SUB_BITS


class Histogram:
    """Counts of nanoseconds; below 16 ns every value has its own bucket."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration; a negative one counts as 0."""
        value = duration_ns if duration_ns > 0 else 0
        octave = max(value.bit_length() - 1 - _SUB_BITS, 0)
        self._counts[(octave << _SUB_BITS) + (value >> octave)] += 1
        self.count += 1

    def quantile_ns(self, share: float) -> float:
        """The duration that ``share`` of all counted ones do not exceed (middle of its bucket); NaN if none."""
        rank = share * self.count
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return _middle(index)
        return float("nan")


def _middle(index: int) -> float:
    octave = max((index >> _SUB_BITS) - 1, 0)
    low = (index - (octave << _SUB_BITS)) << octave
    return low + ((1 << octave) - 1) / 2
