"""The clocks that each logical CPU can be given, as arrays over CPUs, for policies that step along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foundation.shell.errors import UsageError
from pmu.layout import FrequencyDomain, Layout
from pmu.readings import type_f64, type_i64

MOST_CLOCKS: Final = 1 << 22
"""Ours: clocks of all CPUs of a node; in steps of 1 MHz this is a thousand CPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class ClockLadder:
    """Level 0 is a CPU's highest clock; ``khz[cpu, level]`` falls with the level and repeats the lowest at the end."""

    khz: type_i64  # [n_cpus, n_levels]
    levels: type_i64  # [n_cpus] distinct levels of each CPU
    domain_of: type_i64  # [n_cpus] index into layout.domains; -1 = no clock of its own to set
    relative: type_f64  # [n_levels] clock over highest clock of the first CPU, which is used for all
    rows: type_i64  # [n_cpus] 0, 1, 2, ...: to index ``khz`` with
    lowest: type_i64  # [n_cpus] the last distinct level
    is_free: npt.NDArray[np.bool_]  # [n_cpus] no clock of its own to set
    n_domains: int

    @staticmethod
    def of(layout: Layout, step_mhz: int) -> ClockLadder:
        """The ladder of a node, cached per layout; in steps of ``step_mhz`` where the driver accepts any clock.
        ``UsageError`` if they are so small that there are more than ``MOST_CLOCKS``."""
        kept = _kept.get(step_mhz)
        if kept is None or kept[0] is not layout:  # compared by identity: hashing a layout costs more than a tick may
            kept = _kept[step_mhz] = (layout, _ladder(layout, step_mhz))
        return kept[1]

    def level_at_or_above(self, share: float) -> type_i64:
        """The lowest level of each CPU whose clock is at least ``share`` of its highest."""
        reached = self.khz >= share * self.khz[:, :1]
        return np.asarray(reached.sum(axis=1) - 1, np.int64).clip(0, self.levels - 1)

    def target_khz(self, level: type_i64) -> type_i64:
        """Clock of each CPU at ``level``; 0, no request, at level 0 and for CPUs without a frequency domain."""
        chosen = self.khz[self.rows, level]
        return np.where((level == 0) | self.is_free, 0, chosen)

    def follow_domain(self, level: type_i64, judged: npt.NDArray[np.bool_]) -> type_i64:
        """Let CPUs that are not judged follow the others of their frequency domain.

        A domain runs at the highest request of its CPUs, so an idle SMT sibling without a request would keep the clock
        of its busy core up. Where a domain has judged CPUs, its other CPUs request no more than they do; a domain
        with none is free.
        """
        if judged.all():
            return level
        most = np.full(self.n_domains + 1, -1, np.int64)  # the last row: CPUs without a domain
        np.maximum.at(most, self.domain_of[judged], level[judged])
        followed = np.minimum(np.maximum(most[self.domain_of], 0), self.lowest)
        return np.where(judged, level, followed)


_kept: dict[int, tuple[Layout, ClockLadder]] = {}
"""A cache of the last ladder for each step."""


def _ladder(layout: Layout, step_mhz: int) -> ClockLadder:
    steps = [_descending(domain, step_mhz) for domain in layout.domains]
    width = max((len(row) for row in steps), default=1)
    if len(layout.cpus) * width > MOST_CLOCKS:
        raise UsageError(
            f"step_mhz: steps of {step_mhz} MHz give {len(layout.cpus)} CPUs {width} clocks each: too many"
        )
    khz = np.zeros((len(layout.cpus), width), np.int64)
    levels = np.ones(len(layout.cpus), np.int64)
    domain_of = np.full(len(layout.cpus), -1, np.int64)
    for index, (domain, row) in enumerate(zip(layout.domains, steps, strict=True)):
        for cpu in domain.cpus:
            khz[cpu, : len(row)], khz[cpu, len(row) :] = row, row[-1]
            levels[cpu] = len(row)
            domain_of[cpu] = index
    first = khz[0] if len(khz) and khz[0, 0] > 0 else np.ones(width, np.int64)
    rows, n_domains = np.arange(len(layout.cpus)), len(layout.domains)
    return ClockLadder(khz, levels, domain_of, first / first[0], rows, levels - 1, domain_of < 0, n_domains)


def _descending(domain: FrequencyDomain, step_mhz: int) -> Sequence[int]:
    if domain.steps_khz:
        inside = [khz for khz in domain.steps_khz if domain.min_khz <= khz <= domain.max_khz]
        return sorted(inside or [domain.max_khz], reverse=True)
    return range(domain.max_khz, domain.min_khz - 1, -1000 * step_mhz) or (domain.max_khz,)
