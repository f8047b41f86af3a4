"""The guard, slowly: what the comments of ``guard.c`` say, in Python. ``plain_law.py`` has the rest of the law."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.firmware.plain_chip import CORES, DOMAIN_CORES, DOMAINS, FREQ, FREQ_MIN, bounded, dynamic, leak, leak_factor

SUM, MODEL, CAP, HEAT, FROZEN = 1, 2, 4, 8, 16
FAULT, UNLIMITED = -(2**31), 2**31 - 1
SLOTS = {
    "sum": 4,
    "model": 6,
    "cap": 5,
    "heat": 8,
    "failed": 3,
    "frozen": 3,
    "odd": 8,
    "scatter": 4,
    "leak": 16,
    "answer": 8,
}
"""In a row, until a contradiction is a fault."""
HOLD, HOLD_MAX = 2000, 65_536
SAFE_UW = 100_000_000


class PlainGuard:
    """State of the guard, one step per slot."""

    def __init__(self, step_after: int) -> None:
        self.step_after = step_after
        self.hold, self.penalty, self.alarms, self.faults = 0, HOLD, 0, 0
        self.sum_error = self.scatter = 0
        self.excess = self.model = self.leak = 0  # filtered
        self.caps: list[Sequence[int]] = []  # of the slots before
        self.core_power, self.at_change, self.slow_power = [0] * CORES, [0] * CORES, [0] * CORES
        self.warm, self.warm_at_change = 0, [0] * CORES
        self.failed = [False] * CORES
        self.heat: list[int] | None = None  # silicon, copper, sink, ambient; in 1/256 mK
        self.heat_slots = 0
        self.slow_expected = self.slow_mean = self.moved = self.answered = self.sound = self.mean = 0
        self.quiet = self.own_step = 0
        self._rows: dict[tuple[str, int], int] = {}
        hottest = leak_factor(358_150)
        rungs = [(FREQ_MIN, 0), *((freq, level) for level, freq in enumerate(FREQ))]
        self.worst = [(freq, dynamic(2_038_519, freq, level) + leak(hottest, level)) for freq, level in rungs]

    def _lasts(self, name: str, number: int, *, so: bool) -> bool:
        """True when it has been so for enough slots in a row."""
        self._rows[name, number] = self._rows.get((name, number), 0) + 1 if so else 0
        return self._rows[name, number] >= SLOTS[name]

    def distrusts(self, core: int, *, same: bool) -> bool:
        """A reading that did not move with the core's power or the sink, or that was too cool for too long."""
        if not same:
            self._rows["frozen", core] = 0
            self.at_change[core], self.warm_at_change[core] = self.core_power[core], self.warm
        elif (
            abs(self.core_power[core] - self.at_change[core]) > 500_000
            or abs(self.warm - self.warm_at_change[core]) > 2000 * 256
        ):
            self._lasts("frozen", core, so=True)
        return any(self._rows.get((name, core), 0) >= SLOTS[name] for name in ("frozen", "odd"))

    def expected_mk(self) -> int:
        """Temperature of a core by the thermal model."""
        if not self.heat:
            return 0
        silicon, copper, sink, _ = self.heat
        return (silicon + copper + sink) // 256 + 3000

    def learn_power(self, core: int, power: int) -> None:
        """The filtered power of a core."""
        self.core_power[core] += (power - self.core_power[core]) >> 5

    def step(
        self,
        temperatures: Sequence[int],
        powers: Sequence[int],
        models: Sequence[int],
        leakage: int,
        caps: Sequence[int],
        *,
        disturbed: bool,
    ) -> list[int]:
        """One slot: the highest clock of each domain."""
        for i in range(CORES):
            self.slow_power[i] += (self.core_power[i] - self.slow_power[i]) >> 7
        sound = [i for i in range(CORES) if not self.failed[i]]
        mean = sum(temperatures[i] for i in sound) // len(sound) if sound else 0
        if sound:
            warmer = [self._warmer(powers, sound) for powers in (self.core_power, self.slow_power)]
            for i in range(CORES):
                expected = mean + min(by_power[i] for by_power in warmer)
                self._lasts("odd", i, so=temperatures[i] < expected - 8000)
        measured, faults = self._sum(powers)
        if not disturbed:
            faults |= self._model(measured, powers[1:], models)
            faults |= self._leakage(measured, sum(models), leakage)
        faults |= self._caps([measured, *powers[1:]], caps)
        faults |= self._heat(len(sound), mean, (sum(models) if measured == FAULT else measured) // 1000)
        self._hold(faults)
        self._plan_step(measured)
        if self.own_step:
            return [FREQ_MIN] * DOMAINS
        if not self.hold:
            return [FREQ[-1]] * DOMAINS
        package = self._safe(min(caps[0] or SAFE_UW, SAFE_UW), CORES)
        return [min(package, self._safe(cap or UNLIMITED, DOMAIN_CORES)) for cap in caps[1:]]

    @staticmethod
    def _warmer(powers: Sequence[int], sound: Sequence[int]) -> list[int]:
        """Of each core, mK: 1 K/W above the mean power, 2.5 K/W below."""
        mean = sum(powers[i] // 1000 for i in sound) // len(sound)
        more = [power // 1000 - mean for power in powers]
        return [one if one >= 0 else one * 5 >> 1 for one in more]

    def _sum(self, powers: Sequence[int]) -> tuple[int, int]:
        package, *rails = powers
        total = FAULT if FAULT in rails else sum(rail // 4 for rail in rails) * 4
        has_both = package != FAULT and total != FAULT
        if has_both:
            most = max(package, total) // 8
            self.sum_error += (bounded(package - total, -most, most) - self.sum_error) >> 3
            allowed = package // 32 + total // 32
            self.scatter += (min(abs(package - total), 2 * most) - allowed - self.scatter) >> 3
        is_wrong = has_both and abs(self.sum_error) > package // 64 + total // 64 + 500_000
        is_wrong = self._lasts("sum", 0, so=is_wrong)
        is_noisy = self._lasts("scatter", 0, so=has_both and self.scatter > 500_000)
        return max(package, total), SUM if is_wrong or is_noisy else 0

    def _model(self, measured: int, rails: Sequence[int], models: Sequence[int]) -> int:
        found = 0
        for d, (rail, model) in enumerate(zip(rails, models, strict=True)):
            is_wrong = rail != FAULT and not 4 * model <= rail * 6 <= 9 * model
            found |= self._lasts("model", 1 + d, so=is_wrong)
        model = sum(models)
        found |= self._lasts("model", 0, so=measured != FAULT and not 25 * model <= 30 * measured <= 36 * model)
        return MODEL if found else 0

    def _leakage(self, measured: int, model: int, leakage: int) -> int:
        """More power than the model explains, as of a die that is hotter than its readings."""
        if measured == FAULT:
            return 0
        most = model // 8
        self.excess += (bounded(measured - model, -most, most) - self.excess) >> 5
        self.model += (model - self.model) >> 5
        self.leak += (leakage - self.leak) >> 5
        is_hot = self.model > SAFE_UW and self.excess > self.model // 32 + self.leak // 8
        return HEAT if self._lasts("leak", 0, so=is_hot) else 0

    def _caps(self, powers: Sequence[int], caps: Sequence[int]) -> int:
        ceilings = [10_125_000 * cores for cores in (CORES, *[DOMAIN_CORES] * DOMAINS)]
        now = [cap or ceiling for cap, ceiling in zip(caps, ceilings, strict=True)]
        found = 0
        for p, power in enumerate(powers):
            highest = max(now[p], *(before[p] for before in self.caps)) if self.caps else UNLIMITED
            is_above = power > highest + highest // 32 + 100_000
            found |= self._lasts("cap", p, so=is_above)
        self.caps = [now, self.caps[0] if self.caps else [0] * len(now)]
        return CAP if found else 0

    def _heat(self, sound: int, mean: int, power: int) -> int:
        faults = FROZEN if self._lasts("failed", 0, so=CORES - sound > 4) else 0
        silicon_at, copper_at, sink_over = (power * k // 4 for k in (18, 63, 153))
        low, high = 278_150 * 256, 328_150 * 256
        if not self.heat:
            if not sound:
                return faults
            self.heat = [0, 0, mean * 256, 298_150 * 256]
        silicon, copper, sink, ambient = self.heat
        silicon += (silicon_at - silicon) >> 3
        copper += (copper_at - copper) * 5 >> 9
        sink += (ambient + sink_over - sink) >> 14
        faults |= HEAT if self._answer(sound, mean * 256, silicon + copper) else 0
        ahead = mean * 256 - sink - silicon - copper if sound else 0
        self.heat_slots += 1
        if self.heat_slots <= 400:
            self.heat = [silicon, copper, sink + (ahead >> 3), ambient]
            self.warm = sink_over
            self.warm_at_change = [sink_over] * CORES
            return faults
        self.warm += (sink_over - self.warm) >> 14
        is_low, is_high = ahead < -1_280_000, ahead > 1_280_000
        if not is_low:
            sink += ahead >> (10 if is_high else 6)
            if not is_high:
                ambient = bounded(ambient + (ahead >> 8), low - 256_000, high)
        self.heat = [silicon, copper, sink, ambient]
        return faults | (HEAT if self._lasts("heat", 0, so=is_low or ambient < low) else 0)

    def _answer(self, sound: int, mean: int, expected: int) -> bool:
        """Whether the die moves by more than measured power explains, against slow averages of both."""
        self.slow_mean += mean - self.mean if sound != self.sound else 0
        self.sound, self.mean = sound, mean
        if self.heat_slots < 400:
            self.slow_expected, self.slow_mean = expected, mean
            return False
        self.slow_expected += (expected - self.slow_expected) >> 7
        self.slow_mean += (mean - self.slow_mean) >> 7
        move, answer = (
            bounded(one >> 13, -1600, 1600) for one in (expected - self.slow_expected, mean - self.slow_mean)
        )
        if abs(move) > 15:
            self.moved += move * move - (self.moved >> 8)
            self.answered += move * answer - (self.answered >> 8)
        self.moved -= self.moved >> 14
        self.answered -= self.answered >> 14
        is_more = self.answered > self.moved + self.moved // 8 + 16_384
        return self._lasts("answer", 0, so=self.moved > 250_000 and is_more)

    def _plan_step(self, measured: int) -> None:
        """A step of its own, 128 slots long, once none has come for ``step_after``; 0: never."""
        self.quiet = 0 if self.moved > 250_000 else self.quiet + 1
        if self.own_step:
            self.own_step -= 1
        elif 0 < self.step_after <= self.quiet and measured > 30_000_000:
            self.own_step, self.quiet = 128, 0

    def _hold(self, faults: int) -> None:
        if faults and not self.hold:
            self.penalty = min(2 * self.penalty, HOLD_MAX) if self.alarms else HOLD
            self.alarms += 1
        self.hold = self.penalty if faults else max(self.hold - 1, 0)
        self.faults = faults

    def _safe(self, cap: int, cores: int) -> int:
        """The highest clock at which the heaviest load on a hot chip stays within a cap."""
        fitting = [freq for freq, worst in self.worst if worst * cores <= cap]
        assert all(a < b for (_, a), (_, b) in pairwise(self.worst))
        return max(fitting, default=FREQ_MIN)
