"""The control law, slowly: what ``control.h``, ``control.c`` and ``allocate.c`` say in their comments, in Python.

The firmware is compared with this, slot by slot and to the last bit. Integers are exact here, so an overflow in the
firmware shows as a difference. Powers are in microwatts, clocks in kilohertz, temperatures in millikelvin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tests.firmware.plain_chip import (
    CORE_IDLE,
    CORE_MAX,
    CORES,
    DOMAIN_CORES,
    DOMAINS,
    FREQ,
    FREQ_MAX,
    FREQ_MIN,
    LEVELS,
    ONE,
    UNLIMITED,
    bounded,
    dynamic,
    freq_for,
    leak,
    leak_factor,
    level_for,
    toward_zero,
)
from tests.firmware.plain_guard import PlainGuard

CORE_POWER, PACKAGE_CAP, DOMAIN_CAP, THERMAL, EMERGENCY, SENSOR, BYPASS, GUARD = 1, 2, 4, 8, 16, 64, 128, 512
STEP = 1024


# ---- what a domain may choose ----


@dataclass(frozen=True)
class Point:
    """Clock and level of a domain."""

    freq: int
    level: int


@dataclass
class Ladder:
    """Points in ascending order of power."""

    gain: int
    limit: int
    points: list[Point] = field(default_factory=list)
    powers: list[int] = field(default_factory=list)  # of the points
    busy: int = 0
    capacitance: int = 0
    leak_factor: int = 0
    idle: int = 0

    def power(self, point: Point) -> int:
        model = dynamic(self.capacitance, point.freq, point.level) + leak(self.leak_factor, point.level)
        return (model * self.gain >> 16) + self.idle

    def freq_within(self, power: int, level: int) -> int:
        """The clock that spends it at a level."""
        model = toward_zero((power - self.idle) * ONE, self.gain)
        return min(
            freq_for(min(model - leak(self.leak_factor, level), UNLIMITED), self.capacitance, level), FREQ[level]
        )


@dataclass(frozen=True)
class Allocation:
    points: tuple[Point, ...]
    work: int
    power: int


def allocation(ladders: Sequence[Ladder], points: Sequence[Point]) -> Allocation:
    pairs = list(zip(ladders, points, strict=True))
    return Allocation(
        tuple(points), sum(p.freq * ladder.busy for ladder, p in pairs), sum(ladder.power(p) for ladder, p in pairs)
    )


def climb(ladders: Sequence[Ladder], budget: int, rungs: list[int]) -> int:
    """Raises rungs while a whole one fits, the cheapest work first; the power spent."""
    spent = sum(ladder.powers[rung] for ladder, rung in zip(ladders, rungs, strict=True))
    while True:
        options = []
        for d, ladder in enumerate(ladders):
            if rungs[d] + 1 == len(ladder.points) or not ladder.busy:
                continue
            here, there = ladder.points[rungs[d] : rungs[d] + 2]
            cost = ladder.powers[rungs[d] + 1] - ladder.powers[rungs[d]]
            if ladder.powers[rungs[d] + 1] <= ladder.limit and spent + cost <= budget:
                options.append((Fraction(cost, (there.freq - here.freq) * ladder.busy), d, cost))
        if not options:
            return spent
        _, chosen, cost = min(options)
        rungs[chosen] += 1
        spent += cost


def fill(ladders: Sequence[Ladder], left: int, rungs: Sequence[int]) -> Allocation:
    """The rest goes into a part of one domain's next rung, where it brings most work."""
    points = [ladder.points[rung] for ladder, rung in zip(ladders, rungs, strict=True)]
    gains = []
    for d, ladder in enumerate(ladders):
        if rungs[d] + 1 == len(ladder.points) or not ladder.busy:
            continue
        here, there = ladder.points[rungs[d] : rungs[d] + 2]
        freq = min(ladder.freq_within(min(ladder.powers[rungs[d]] + left, ladder.limit), there.level), there.freq)
        if freq - here.freq > 5000:
            gains.append(((freq - here.freq) * ladder.busy, -d, Point(freq, there.level)))
    if gains:
        _, chosen, point = max(gains, key=lambda gain: gain[:2])
        points[-chosen] = point
    return allocation(ladders, points)


def swap(ladders: Sequence[Ladder], left: int, rungs: Sequence[int], up: int, down: int) -> Allocation | None:
    """One domain takes its next rung, another pays for it with its clock."""
    rising, paying = ladders[up], ladders[down]
    if up == down or rungs[up] + 1 == len(rising.points) or not rising.busy or not paying.busy:
        return None
    there = rising.points[rungs[up] + 1]
    missing = rising.powers[rungs[up] + 1] - rising.powers[rungs[up]] - left
    paid = paying.powers[rungs[down]] - missing
    if rising.powers[rungs[up] + 1] > rising.limit or missing <= 0 or paid <= paying.idle:
        return None
    points = [ladder.points[rung] for ladder, rung in zip(ladders, rungs, strict=True)]
    points[up] = there
    points[down] = Point(paying.freq_within(paid, points[down].level), points[down].level)
    return allocation(ladders, points) if points[down].freq >= FREQ_MIN else None


def allocate(ladders: Sequence[Ladder], budget: int) -> Allocation:
    """The climb filled up, or the same with one domain a rung lower, or one up at another's expense: most work wins."""
    rungs = [len(x.points) - 1 if not x.busy and budget == UNLIMITED else 0 for x in ladders]
    left = budget - climb(ladders, budget, rungs)
    candidates: list[Allocation | None] = [fill(ladders, left, rungs)]
    for d in range(DOMAINS):
        if rungs[d]:
            lower = [rung - (e == d) for e, rung in enumerate(rungs)]
            freed = ladders[d].powers[rungs[d]] - ladders[d].powers[lower[d]]
            candidates.append(fill(ladders, left + freed, lower))
    candidates += [swap(ladders, left, rungs, up, down) for up in range(DOMAINS) for down in range(DOMAINS)]
    return max((one for one in candidates if one), key=lambda one: one.work)


def allocate_kept(ladders: Sequence[Ladder], budget: int, levels: Sequence[int]) -> Allocation | None:
    """With the last slot's levels: all at their highest clocks, then the dearest domain is lowered until it fits."""
    points = []
    for ladder, level in zip(ladders, levels, strict=True):
        rung = 0
        while rung + 1 < len(ladder.points) and ladder.points[rung + 1].level <= level:
            rung += 1
        point = ladder.points[rung]
        if ladder.busy and ladder.power(point) > ladder.limit:
            point = Point(ladder.freq_within(ladder.limit, point.level), point.level)
        if point.freq < FREQ_MIN:
            return None
        points.append(point)
    for _ in range(DOMAINS):
        spent = allocation(ladders, points).power
        if spent <= budget:
            break
        floors = [FREQ[point.level - 1] if point.level else FREQ_MIN for point in points]
        movable = [d for d in range(DOMAINS) if ladders[d].busy and points[d].freq > floors[d]]
        if not movable:
            return None
        chosen = max(movable, key=lambda d: dearness(ladders[d], points[d]))
        ladder, point = ladders[chosen], points[chosen]
        room = ladder.power(point) - (spent - budget)
        freq = ladder.freq_within(room, point.level) if room > ladder.idle else 0
        points[chosen] = Point(max(freq, floors[chosen]), point.level)
    chosen_points = allocation(ladders, points)
    return chosen_points if chosen_points.power <= budget else None


def dearness(ladder: Ladder, point: Point) -> Fraction:
    """Watts per kilohertz and core, but for a factor that all share."""
    return Fraction(dynamic(ladder.capacitance, FREQ_MAX, point.level), ladder.busy)


# ---- a controller ----


@dataclass(frozen=True)
class Readings:
    temperature: Sequence[int]
    capacitance: Sequence[int]
    power: Sequence[int]


@dataclass
class Operating:
    freq: list[int]
    level: list[int]

    def copy(self) -> Operating:
        return Operating(list(self.freq), list(self.level))


def of_domain(domain: int) -> range:
    return range(domain * DOMAIN_CORES, (domain + 1) * DOMAIN_CORES)


class PlainLaw:
    """The state of the law, and one step per slot."""

    def __init__(self, step_after: int = 131_072) -> None:
        self.next = Operating([FREQ_MIN] * CORES, [0] * DOMAINS)
        self.in_force, self.measured = self.next.copy(), self.next.copy()
        self.capacitance, self.integral, self.reasons = [0] * CORES, [0] * CORES, [0] * CORES
        self.last_reading, self.same_reading = [0] * CORES, [0] * CORES
        self.is_hot = [False] * CORES
        self.gain = [ONE] * DOMAINS
        self.guard = PlainGuard(step_after)
        self.kept_levels: list[int] | None = None
        self.kept_slots = 0
        self.margin: int | None = None
        self.disturbed = False

    def lower(self, domain: int, target: int) -> None:
        """A lower request is applied ahead of the slot; its voltage follows with the next fast job."""
        cores = of_domain(domain)
        if target >= min(max(point.freq[i] for i in cores) for point in (self.in_force, self.next)):
            return
        for point in (self.in_force, self.next):
            for i in cores:
                point.freq[i] = min(point.freq[i], target)
            point.level[domain] = level_for(max(point.freq[i] for i in cores))
        for i in cores:
            self.reasons[i] |= BYPASS
        self.disturbed = True

    def step(self, readings: Readings, targets: Sequence[int], caps: Sequence[int]) -> None:
        """One control slot: what was decided is applied, the next is decided. Cap 0: none."""
        self.measured, self.in_force = self.in_force, self.next
        self.next = self.in_force.copy()
        self.reasons = [why & BYPASS if self.disturbed else 0 for why in self.reasons]
        self.temperature = self._sound(readings)
        factors = [leak_factor(t) for t in self.temperature]
        self._learn_capacitance(readings)
        models = self._models(readings, factors)
        self._learn_gain(readings, models)
        highest = self.guard.step(
            readings.temperature,
            readings.power,
            [busy + idle for busy, idle, _ in models],
            sum(leakage for *_, leakage in models),
            caps,
            disturbed=self.disturbed,
        )
        targets = [min(pair) for pair in zip(targets, highest, strict=True)]
        ladders = [self._ladder(readings, factors, d, targets[d], caps[1 + d]) for d in range(DOMAINS)]
        chosen = self._cap(ladders, caps[0])
        for d in range(DOMAINS):
            why = self._why(ladders[d], chosen.points[d], targets[d], caps[1 + d])
            why |= GUARD if self.guard.hold else 0
            why |= STEP if self.guard.own_step else 0
            for i in of_domain(d):
                self.reasons[i] |= why
                self.next.freq[i] = self._cool(i, factors[i], chosen.points[d], ladders[d].gain)
                self._emergency(i)
            self.next.level[d] = level_for(max(self.next.freq[i] for i in of_domain(d)))
        self.disturbed = False

    def _sound(self, readings: Readings) -> list[int]:
        """A failed sensor reads as the hottest sound one of its domain, and never below 353.15 K nor what the thermal
        model expects."""
        result = list(readings.temperature)
        distrusted = set()
        for i, reading in enumerate(result):
            if not 223_150 <= reading <= 423_150:
                continue
            is_same = reading == self.last_reading[i]
            self.same_reading[i] = min(self.same_reading[i] + 1, 4000) if is_same else 0
            self.last_reading[i] = reading
            if self.guard.distrusts(i, same=is_same):
                distrusted.add(i)
        for d in range(DOMAINS):
            absurd = [i for i in of_domain(d) if not 223_150 <= result[i] <= 423_150 or i in distrusted]
            moving = [result[i] for i in of_domain(d) if i not in absurd and self.same_reading[i] < 4000]
            hottest = max(moving, default=0)
            stuck = [
                i for i in of_domain(d) if self.same_reading[i] >= 4000 and moving and hottest > result[i] + 3000
            ]  # fmt: skip
            for i in of_domain(d):
                self.guard.failed[i] = i in absurd or i in stuck
                if self.guard.failed[i]:
                    result[i] = max(353_150, hottest, self.guard.expected_mk())
                    self.reasons[i] |= SENSOR
        return result

    def _learn_capacitance(self, readings: Readings) -> None:
        """A rise of more than a sixteenth counts at once; a smaller change is taken for noise."""
        for i, new in enumerate(readings.capacitance):
            old = self.capacitance[i]
            is_taken = new > old + old // 16 or abs(new - old) < 16
            self.capacitance[i] = new if is_taken else (old * 3 + new * 2) // 5

    def _models(self, readings: Readings, factors: Sequence[int]) -> list[tuple[int, int, int]]:
        """Modelled power of each domain in the slot of the readings: cores with work, idle ones, and the first ones'
        leakage."""
        result = []
        for d in range(DOMAINS):
            level, busy, idle, leakage = self.measured.level[d], 0, 0, 0
            for i in of_domain(d):
                power = CORE_IDLE
                if readings.capacitance[i]:
                    power = dynamic(readings.capacitance[i], self.measured.freq[i], level) + leak(factors[i], level)
                    busy += power
                    leakage += leak(factors[i], level)
                else:
                    idle += power
                self.guard.learn_power(i, power * self.gain[d] >> 16)
            result.append((busy, idle, leakage))
        return result

    def _learn_gain(self, readings: Readings, models: Sequence[tuple[int, int, int]]) -> None:
        """Measured over modelled power of the cores with work, an underestimate corrected twice as fast."""
        package, *rails = readings.power
        has_rails = all(rail > 0 for rail in rails)
        if self.disturbed or (not has_rails and package <= 0):
            return
        for d in range(DOMAINS):
            measured, (busy, idle, _) = rails[d], models[d]
            if not has_rails:
                busy, idle, _ = (sum(part) for part in zip(*models, strict=True))
                measured = package
            if busy == 0:
                continue
            seen = bounded(toward_zero((measured - idle) * ONE, busy), ONE // 2, ONE * 2)
            delta = seen - self.gain[d]
            self.gain[d] += toward_zero(delta, 4 if delta > 0 else 8)

    def _ladder(self, readings: Readings, factors: Sequence[int], domain: int, target: int, cap: int) -> Ladder:
        ladder = Ladder(self.gain[domain], cap or UNLIMITED)
        busy = [i for i in of_domain(domain) if readings.capacitance[i]]
        ladder.busy, ladder.idle = len(busy), (DOMAIN_CORES - len(busy)) * CORE_IDLE
        ladder.capacitance = sum(self.capacitance[i] for i in busy)
        ladder.leak_factor = sum(factors[i] for i in busy)
        hottest = max((factors[i] for i in busy), default=0)
        heaviest = max((self.capacitance[i] for i in busy), default=0)
        ladder.points.append(Point(FREQ_MIN, 0))
        for level in range(LEVELS):
            freq = min(FREQ[level], target, freq_for(CORE_MAX - leak(hottest, level), heaviest, level))
            if freq <= ladder.points[-1].freq:
                break
            ladder.points.append(Point(freq, level))
            if freq < FREQ[level]:
                break
        ladder.powers = [ladder.power(point) for point in ladder.points]
        return ladder

    def _cap(self, ladders: Sequence[Ladder], cap: int) -> Allocation:
        """The best allocation, or the last slot's levels while they do nearly as well."""
        budget = cap - cap // 256 if cap else UNLIMITED
        chosen = allocate(ladders, budget)
        kept = allocate_kept(ladders, budget, self.kept_levels) if self.kept_levels else None
        if (
            kept
            and kept.work >= chosen.work - chosen.work // 128
            and (kept.power >= chosen.power or kept.power >= budget - budget // 32)
        ):
            chosen = kept
        self.margin = cap - chosen.power if cap else None
        levels = [point.level for point in chosen.points]
        self.kept_slots = self.kept_slots + 1 if levels == (self.kept_levels or [0] * DOMAINS) else 0
        self.kept_levels = levels
        return chosen

    @staticmethod
    def _why(ladder: Ladder, point: Point, target: int, cap: int) -> int:
        top = ladder.points[-1]
        why = CORE_POWER if top.freq < target else 0
        if point.freq < top.freq:
            why |= DOMAIN_CAP if cap and ladder.power(top) > ladder.limit else PACKAGE_CAP
        return why

    def _cool(self, core: int, factor: int, point: Point, gain: int) -> int:
        """The PID takes power from a core that is hotter than 353.15 K."""
        capacitance = self.capacitance[core]
        model = dynamic(capacitance, point.freq, point.level) + leak(factor, point.level)
        idle = (dynamic(capacitance, FREQ_MIN, 0) + leak(factor, 0)) * gain >> 16
        power = model * gain >> 16
        error = bounded(353_150 - self.temperature[core], -200_000, 200_000)
        if -1000 < error < 2500:
            error = toward_zero(error * 7, 10)
        self.integral[core] = bounded(self.integral[core] + 591 * error, -power * 12, 50_000 * 16)
        taken = bounded(1952 * error + toward_zero(self.integral[core], 16), -max(power - idle, 0), 0)
        if taken == 0:
            return point.freq
        self.reasons[core] |= THERMAL
        allowed = toward_zero((power + taken) * ONE, gain) - leak(factor, point.level)
        return bounded(freq_for(allowed, capacitance, point.level), FREQ_MIN, point.freq)

    def _emergency(self, core: int) -> None:
        if self.temperature[core] >= 368_150:
            self.is_hot[core] = True
        elif self.temperature[core] <= 352_150:
            self.is_hot[core] = False
        if self.is_hot[core]:
            self.next.freq[core] = FREQ_MIN
            self.reasons[core] |= EMERGENCY
