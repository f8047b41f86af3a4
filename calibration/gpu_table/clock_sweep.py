"""A program, or a kernel of our own, under locks of the GPUs' clock: run to its end at each, at least twice, the way up
after the way down.

A card warms up from run to run, which would look like an effect of the clock if the clocks came in one order; each
further round goes the other way. Rounds end when every relative half interval is below the aim, or after
``MOST_ROUNDS``. How much runs differ is one relative deviation for all clocks: few runs of each could not say it alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from calibration.gpu_table.command_runs import CommandError, CommandPort
from calibration.limits.probes import LimitsError
from calibration.limits.session_probes import Knobs
from foundation.student import student_t
from pmu.decode import decode
from pmu.layout import Gpu, Layout
from pmu.node import Instruments

SETTLE_S: Final = 1.0
"""Ours: a lock is in force after some ten to some hundred milliseconds."""

POLL_S: Final = 0.01
LOOK_S: Final = 0.2
"""Ours: how often the program's end is looked for, and how often the cards are read meanwhile."""

LEAST_S: Final = 5.0
"""Ours: a shorter run is too much start and end, and its joules are too few of a counter's steps."""

IDLE_S: Final = 5.0
FEWEST_ROUNDS, MOST_ROUNDS = 2, 4


class Ran(NamedTuple):
    """One run: seconds, joules of all cards, mean SM clock, and units of work (0: it reports none)."""

    mhz: int
    seconds: float
    joules: float
    clock_mhz: float
    units: float


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One clock. ``clock_mhz``: as found; ``watts`` of all cards; ``speed`` and ``joules`` of the same work over the
    highest clock's; ``*_half``: half of the 95 % interval; ``kernel``: of our own, empty: a program of the user's."""

    mhz: int
    clock_mhz: float
    runs: int
    seconds: float
    units_per_s: float
    watts: float
    watts_half: float
    speed: float
    speed_half: float
    joules: float
    joules_half: float
    kernel: str = ""


def clocks_of(gpu: Gpu, number: int, floor: float, locked_mhz: int = 0) -> tuple[int, ...]:
    """So many clocks of a card, ascending, from ``floor`` of the highest to the highest: that of the site's lock where
    there is one, above which no clock is set."""
    top = locked_mhz or gpu.clocks_mhz[-1]
    usable = [mhz for mhz in gpu.clocks_mhz if floor * top <= mhz <= top] or gpu.clocks_mhz[:1]
    wanted = np.linspace(usable[0], usable[-1], number)
    return tuple(sorted({min(usable, key=lambda mhz: abs(mhz - at)) for at in wanted}))


class GpuSweep:
    """Measurements of programs on one node. ``knobs`` moves clock locks through a writer and waits."""

    def __init__(
        self,
        knobs: Knobs,
        instruments: Instruments,
        layout: Layout,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._knobs, self._instruments, self._layout, self._note = knobs, instruments, layout, note
        self._names = [f"gpu/{gpu.index}/sm_clock_mhz" for gpu in layout.gpus]

    def run(self, command: CommandPort, clocks: Sequence[int], precision: float, kernel: str = "") -> tuple[Row, ...]:
        """A row of every clock. ``CommandError`` where the program fails or is too short, ``KernelError`` where a
        kernel fails; the locks are put back."""
        ran: list[Ran] = []
        try:
            for round_ in range(MOST_ROUNDS):
                for mhz in clocks[:: -1 if round_ % 2 == 0 else 1]:
                    self._note(f"{kernel}{kernel and ', '}round {round_ + 1}, {mhz} MHz")
                    ran.append(self._once(command, mhz))
                if round_ + 1 >= FEWEST_ROUNDS and _widest(rows_of(ran)) <= precision:
                    break
        finally:
            with contextlib.suppress(LimitsError):  # refused: it is put back, and reported, when the writer ends
                self._knobs.set(dict.fromkeys(self._names, 0))
        return tuple(msgspec.structs.replace(row, kernel=kernel) for row in rows_of(ran))

    def idle_w(self) -> float:
        """Watts of all cards without work."""
        self._note("idle")
        begin_ns = self._knobs.now_ns()
        joules, _ = self._watched(lambda: self._passed(begin_ns, IDLE_S))
        return joules * 1e9 / (self._knobs.now_ns() - begin_ns)

    def _once(self, command: CommandPort, mhz: int) -> Ran:
        self._knobs.set(dict.fromkeys(self._names, mhz))
        begin_ns = self._knobs.now_ns()
        self._watched(lambda: self._passed(begin_ns, SETTLE_S))
        command.start()
        begin_ns = self._knobs.now_ns()
        try:
            joules, clock_mhz = self._watched(command.is_over)
            seconds, units = (self._knobs.now_ns() - begin_ns) / 1e9, command.units()
        finally:
            command.stop()
        if seconds < LEAST_S:
            raise CommandError(f"--command: ran for {seconds:.1f} s: give it work for {LEAST_S:.0f} s or more")
        return Ran(mhz, seconds, joules, clock_mhz, units)

    def _passed(self, begin_ns: int, seconds: float) -> bool:
        return self._knobs.now_ns() >= begin_ns + round(seconds * 1e9)

    def _watched(self, is_over: Callable[[], bool]) -> tuple[float, float]:
        """Joules of all cards and their mean clock until then; ``CommandError`` where a card shows neither joules nor
        watts."""
        before, joules, clocks = self._instruments.sweep(), 0.0, []
        look_ns = self._knobs.now_ns()
        is_last = False
        while not is_last:
            self._knobs.sleep_until_ns(self._knobs.now_ns() + round(POLL_S * 1e9))
            is_last = is_over()
            if is_last or self._knobs.now_ns() >= look_ns + LOOK_S * 1e9:
                look_ns, now = self._knobs.now_ns(), self._instruments.sweep()
                if now.time_ns == before.time_ns:
                    continue
                sample = decode(self._layout, before, now)
                gpu, elapsed_s = sample.gpu, sample.elapsed_s
                own = np.where(np.isfinite(gpu.energy_j), gpu.energy_j, gpu.power_w * elapsed_s)
                joules, before = joules + float(own.sum()), now
                clocks.append((float(gpu.sm_clock_mhz.mean()), elapsed_s))
        if math.isnan(joules):
            raise CommandError("a card shows neither joules nor watts: see `nodectl doctor`")
        total_s = sum(seconds for _, seconds in clocks)
        return joules, sum(clock * seconds for clock, seconds in clocks) / total_s if total_s else math.nan


def rows_of(ran: Sequence[Ran]) -> tuple[Row, ...]:
    """A row for each clock, ascending."""
    has_units = all(one.units for one in ran)
    own = {mhz: [one for one in ran if one.mhz == mhz] for mhz in sorted({one.mhz for one in ran})}

    def speed(one: Ran) -> float:
        return one.units / one.seconds if has_units else 1.0 / one.seconds

    def watts(one: Ran) -> float:
        return one.joules / one.seconds

    def work_joules(one: Ran) -> float:
        return watts(one) / speed(one)

    (at_w, half_w), (at_s, half_s), (at_j, half_j) = (_means(own, value) for value in (watts, speed, work_joules))
    top = max(own)
    return tuple(
        Row(
            mhz=mhz,
            clock_mhz=float(np.mean([one.clock_mhz for one in runs])),
            runs=len(runs),
            seconds=float(np.mean([one.seconds for one in runs])),
            units_per_s=at_s[mhz] if has_units else math.nan,
            watts=at_w[mhz],
            watts_half=half_w[mhz] * at_w[mhz],
            speed=at_s[mhz] / at_s[top],
            speed_half=_of_ratio(half_s, mhz, top) * at_s[mhz] / at_s[top],
            joules=at_j[mhz] / at_j[top],
            joules_half=_of_ratio(half_j, mhz, top) * at_j[mhz] / at_j[top],
        )
        for mhz, runs in own.items()
    )


def _means(own: dict[int, list[Ran]], value: Callable[[Ran], float]) -> tuple[dict[int, float], dict[int, float]]:
    """By clock the mean, and half of its relative 95 % interval."""
    means = {mhz: float(np.mean([value(one) for one in runs])) for mhz, runs in own.items()}
    squares = sum((value(one) / means[mhz] - 1.0) ** 2 for mhz, runs in own.items() for one in runs)
    freedom = sum(len(runs) - 1 for runs in own.values())
    spread = student_t(freedom) * math.sqrt(squares / freedom) if freedom else math.inf
    return means, {mhz: spread / math.sqrt(len(runs)) for mhz, runs in own.items()}


def _of_ratio(half: dict[int, float], mhz: int, top: int) -> float:
    return 0.0 if mhz == top else math.hypot(half[mhz], half[top])


def _widest(rows: Sequence[Row]) -> float:
    return max(max(row.watts_half / row.watts, row.speed_half / row.speed) for row in rows)
