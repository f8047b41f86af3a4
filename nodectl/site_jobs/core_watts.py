"""What the cores of each job draw, by a model that this node learns from its own counters and meters.

Problem. Processor time takes every second for the same watts, and RAPL has no meter of one core. What a core draws does
follow what it does: cycles at their clock, instructions per cycle, misses of the last-level cache.

Method. Each second of each package is an example: by job, those three sums over its cores, and the watts of all of them
together (the zone ``core`` where there is one, else ``package``); four jobs there at most. A Gaussian process explains
them: the watts of a core are its cycles, times a clock factor, times a function of its instructions and misses by
cycle. That function is a constant, plus a slope in instructions, plus what examples nearby show. Before anything was
learned that is processor time, and it stays that far from all examples. Examples that are alike are one, so that a
program that runs for days counts once. A job that ran here alone, or one like it, makes an example whose watts are its
own.

What it needs: counters of cycles and instructions, and jobs with cores of their own. It says whose the watts are, never
how many: the sum is that of the meters.
Source: Rasmussen, Williams, Gaussian Processes for Machine Learning, 2006, section 2.2; the kernel is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pmu.layout import Layout
from pmu.readings import Sample, type_f64

SECOND_S: Final = 1.0
KEPT: Final = 48
"""Ours: examples that are kept; then the one that the newest is most similar to goes, or if it is similar to none, the
one that was not seen for the longest time."""

MOST_GROUPS: Final = 4
"""Ours: an example of more jobs says little of each of them, and the time that a fit takes grows with its square."""

MOST_JOBS: Final = 32
"""Ours: among more jobs on a node nothing is said, for the time that it takes: 1.7 % of a core at 32 jobs, 384 CPUs."""

ALIKE, SIMILAR = 0.05, 0.5
"""Ours: two examples are one, or similar, if each of their numbers differs by no more than this part."""

LITTLE: Final = 0.1
"""Ours: busy for so much of one core at most, a job draws next to nothing, and what it does there does not matter."""

FRESH: Final = 0.2
"""Ours: the weight of the newest of examples that are alike."""

CONSTANT, SLOPE, NEARBY = 4.0, 0.02, 0.01
"""Ours: prior variances, in the square of the typical watts of a core. First guesses, kept when the errors on all pairs
of docs/slurm.md were known; what programs show decides."""

NEAR_INSTRUCTIONS, NEAR_MISSES = 0.5, 1.0
"""Ours, likewise: how far an example reaches, in instructions per cycle, and in the logarithm of misses."""

NOISE, BASE = 0.01, 2.4
"""Ours, likewise: the error of an example, as a part; and what a package draws without its cores, in the typical watts
of a core."""

CLOCK: Final = 0.8
"""Ours: volts squared go about with the clock to this power (fitted on a Curie node's table of volts)."""

MISSES: Final = 0.01
"""Ours: misses in a hundred cycles; fewer are none."""


class Example(msgspec.Struct):
    """A second of a package. ``groups``: of each job there, its cores' cycles (in those of a core that is busy at the
    highest clock; with the clock factor), its instructions per cycle, and its misses per hundred cycles."""

    groups: list[tuple[float, float, float]]
    watts: float


class _Fit(NamedTuple):
    """``scale``: the typical watts of a core; ``groups`` of all examples, and the ``first`` one of each; ``weights`` of
    examples."""

    scale: float
    groups: type_f64
    first: npt.NDArray[np.intp]
    weights: type_f64


class CoreWatts:
    """``add`` each interval with the jobs' CPUs; ``joules`` says what of another one is whose."""

    def __init__(self, layout: Layout) -> None:
        self._counts = {"cycles", "instructions"} <= set(layout.events)
        numbers = sorted(set(layout.package_of))
        packages = np.array(layout.package_of)
        self._packages = [packages == number for number in numbers]
        self._zones = [_zones(layout, number) for number in numbers]
        self._highest_khz = float(max((domain.max_khz for domain in layout.domains), default=0))
        self._is_highest_known = self._highest_khz > 0
        self._sums: dict[tuple[str, ...], tuple[float, type_f64]] = {}
        self.examples: list[Example] = []
        self._fit: _Fit | None = None

    def add(self, sample: Sample, cpus: Mapping[str, type_f64]) -> None:
        """An interval at whose end these jobs were here, each with its CPUs as ones ``[n_cpus]``; their names may be
        any."""
        if not self._counts or not 0 < len(cpus) <= MOST_JOBS:
            return
        names = tuple(cpus)
        now = np.concatenate([self._of(sample, cpus), self._joules(sample)[:, None, None].repeat(3, 2)], 1)
        seconds, before = self._sums.get(names, (0.0, np.zeros_like(now)))
        self._sums = {names: (seconds + sample.elapsed_s, before + now)}
        if seconds + sample.elapsed_s >= SECOND_S:
            ((seconds, sums),) = self._sums.values()
            self._sums = {}
            for package in sums / seconds:
                groups = _ratios(package[:-1])
                self._learn([tuple(group) for group in groups[groups[:, 0] > 0].tolist()], float(package[-1, 0]))

    def joules(self, sample: Sample, cpus: Mapping[str, type_f64], packages_j: Sequence[float]) -> type_f64 | None:
        """What the cores of each job have drawn of each package ``[n_packages, n_jobs]``; None: not known yet. Together
        what their own meter shows, or where there is none, what the model says, and no more than the package."""
        if not self._counts or not self.examples or len(cpus) > MOST_JOBS:
            return None
        sums = self._of(sample, cpus) / sample.elapsed_s
        if not np.isfinite(sums).all():
            return None
        try:
            scale, groups, first, weights = self._fit = self._fit or _fitted(self.examples)
        except np.linalg.LinAlgError:  # no counters show such examples
            self.examples = []
            return None
        found = np.zeros(sums.shape[:2])
        for row, (package, (zones, is_of_cores), most_j) in enumerate(zip(sums, self._zones, packages_j, strict=True)):
            own = _ratios(package)
            near = np.add.reduceat(_kernel(groups, own), first, 0)
            watts = np.maximum(own[:, 0] + weights @ near, 0.0) * (own[:, 0] > 0) * scale
            if (all_w := float(watts.sum())) > 0:
                shown_j = float(sample.energy_j[zones].sum()) if is_of_cores else math.nan
                all_j = shown_j if math.isfinite(shown_j) else all_w * sample.elapsed_s
                found[row] = watts * (min(all_j, most_j) / all_w)
        return found

    def restore(self, text: bytes) -> None:
        """Take over ``stored``; nothing if that is not what it wrote."""
        try:
            found = msgspec.json.decode(text, type=list[Example])
        except msgspec.MsgspecError:
            return
        self.examples = [one for one in found if _is_sound(one)][:KEPT]
        self._fit = None

    def stored(self) -> bytes:
        """What was learned."""
        return msgspec.json.encode(self.examples)

    def _of(self, sample: Sample, cpus: Mapping[str, type_f64]) -> type_f64:
        """Of each package and job: cycles with the clock factor, instructions with it, and misses ``[packages, jobs,
        3]``."""
        cpu = sample.cpu
        if not self._is_highest_known:
            self._highest_khz = float(np.nanmax(cpu.frequency_khz, initial=max(self._highest_khz, 1.0)))
        highest_khz = self._highest_khz
        factor = (np.nan_to_num(cpu.frequency_khz) / highest_khz) ** CLOCK / (1000.0 * highest_khz)
        columns = np.stack([cpu.cycles * factor, cpu.instructions * factor, np.nan_to_num(cpu.llc_misses) * factor], 1)
        columns[~(cpu.busy > 0)] = 0.0  # an idle CPU may count nothing at all
        owners = np.stack(list(cpus.values()))
        return np.stack([(owners * package) @ columns for package in self._packages])

    def _joules(self, sample: Sample) -> type_f64:
        return np.array([float(sample.energy_j[zones].sum()) for zones, _ in self._zones])

    def _learn(self, groups: list[tuple[float, float, float]], watts: float) -> None:
        new = Example(groups, watts)
        if not groups or not _is_sound(new):
            return
        apart, place = min(
            ((_apart(one, new), place) for place, one in enumerate(self.examples)), default=(math.inf, 0)
        )
        if apart <= ALIKE:
            one = self.examples[place]
            pairs = zip(one.groups, groups, strict=True)
            mixed = [tuple(a + FRESH * (b - a) for a, b in zip(*pair, strict=True)) for pair in pairs]
            new = Example(mixed, one.watts + FRESH * (watts - one.watts))  # type: ignore[arg-type]
        if apart <= ALIKE or (apart <= SIMILAR and len(self.examples) == KEPT):
            del self.examples[place]
        self.examples = [new, *self.examples[: KEPT - 1]]
        self._fit = None


def zones_of(layout: Layout, kind: str, package: int) -> npt.NDArray[np.bool_]:
    """Which zones are of this kind and package ``[n_zones]``."""
    return np.array([(zone.kind, zone.package) == (kind, package) for zone in layout.zones], np.bool_)


def _zones(layout: Layout, package: int) -> tuple[npt.NDArray[np.bool_], bool]:
    """Which zones show the watts of this package's cores, and whether they are of cores alone."""
    cores = zones_of(layout, "core", package)
    return (cores, True) if cores.any() else (zones_of(layout, "package", package), False)


def _ratios(sums: type_f64) -> type_f64:
    """The numbers of groups ``[n, 3]``, by their sums; zeros for those that did nothing."""
    cycles = sums[:, :1]
    ratios = np.divide(sums * (1.0, 1.0, 100.0), cycles, out=np.zeros_like(sums), where=cycles > 0)
    return np.concatenate([np.maximum(cycles, 0.0), ratios[:, 1:]], 1)


def _is_sound(one: Example) -> bool:
    numbers = [one.watts, *(number for group in one.groups for number in group)]
    is_some = 0 < len(one.groups) <= MOST_GROUPS and one.groups[0][0] > 0
    return is_some and all(0 <= number < 1e6 for number in numbers) and one.watts > 0


def _apart(one: Example, two: Example) -> float:
    """The part by which that of their numbers differs which differs most; infinite: they are of another number of jobs.
    What draws next to nothing is left out."""
    if len(one.groups) != len(two.groups):
        return math.inf
    pairs = [(one.watts, two.watts)]
    for (cycles, instructions, misses), (its_cycles, its_instructions, its_misses) in zip(
        one.groups, two.groups, strict=True
    ):
        if max(cycles, its_cycles) > LITTLE:
            pairs += (cycles, its_cycles), (instructions, its_instructions), (misses + MISSES, its_misses + MISSES)
    return max(abs(a - b) / max(a, b, 1e-9) for a, b in pairs)


def _kernel(one: type_f64, two: type_f64) -> type_f64:
    """The prior covariance of the watts of groups, in the square of the typical watts of a core."""
    cycles, instructions = np.outer(one[:, 0], two[:, 0]), np.outer(one[:, 1], two[:, 1])
    apart = (one[:, None, 1] - two[None, :, 1]) / NEAR_INSTRUCTIONS
    misses = (np.log(one[:, None, 2] + MISSES) - np.log(two[None, :, 2] + MISSES)) / NEAR_MISSES
    return np.asarray(cycles * (CONSTANT + SLOPE * instructions + NEARBY * np.exp(-(apart**2 + misses**2) / 2)))


def _fitted(examples: list[Example]) -> _Fit:
    groups = np.array([group for one in examples for group in one.groups])
    first = np.cumsum([0, *(len(one.groups) for one in examples[:-1])], dtype=np.intp)
    watts = np.array([one.watts for one in examples])
    cycles = np.add.reduceat(groups[:, 0], first)
    scale = float(np.median(watts / np.maximum(cycles, 0.1)))
    both = np.add.reduceat(np.add.reduceat(_kernel(groups, groups), first, 0), first, 1) + BASE**2
    both += np.diag((NOISE * np.maximum(watts / scale, 1.0)) ** 2)
    return _Fit(scale, groups, first, np.asarray(np.linalg.solve(both, watts / scale - cycles), np.float64))
