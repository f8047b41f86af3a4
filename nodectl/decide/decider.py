"""From a sample to decisions: the policies, the limits, and the arbiter, with the states they carry along.

Nothing here reads a clock, a file or a random source: the agent and a replay of its journal run this same code and must
come to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.shell.extension import Extension, Origin
from nodectl.config import Config
from nodectl.decide import power_walk, temperature_limit
from nodectl.decide.arbiter import CAP, ClockTable, SharedClocks, arbitrate, clocks_of
from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.decide.node_cap import CAP_ROW, NO_CAP, PackageCap
from nodectl.knobs.kind import BUSY_SHARE, Domain
from nodectl.knobs.registry import DOMAINS
from nodectl.policies import registry
from nodectl.policies.api import Policy
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_i64, type_u8

if TYPE_CHECKING:
    from foundation.wire.power_messages import CapBound

MISSING: Final = int(Quality.MISSING)
"""As a plain number: NumPy compares arrays with that five times as fast."""

SLOW: Final = 0.03
"""Ours: a clock within this part of another is the same; counters are noisy."""

_POWER: Final = ClockTable([1], [2**31 - 1], [()])
"""The packages' cap in milliwatts: any value; its knob knows the range."""


class Decider:
    """Decides tick by tick, with the states of the policies.

    ``resume``: the policy decisions of a recorded tick. Policies named there start from the recorded state, so a
    journal whose oldest part has been dropped still replays.

    The rows of ``Decisions.values`` are those of each domain in the registry's order: every cpufreq policy, then every
    GPU, whether its knob can be moved or not, then the ranges in the layout. A run that may cap power has one row more,
    ``CAP_ROW``.
    """

    def __init__(self, layout: Layout, config: Config, resume: Sequence[PolicyDecision] = ()) -> None:
        self._layout = layout
        self._driven = [
            driven for domain in DOMAINS.values() if (driven := _Driven(domain, layout)).rows or domain.of_layout
        ]
        self._knobs = tuple(row.name for driven in self._driven for row in driven.rows)
        self._cpu = next(driven for driven in self._driven if driven.domain.name == "cpu")
        self._n_cpu_rows = len(self._cpu.rows)
        self._limits: list[_Side] = []
        self._walk: _Side | None = None
        self._caps_power = config.decides and config.caps_power
        self._base_khz = np.array([domain.base_khz or domain.max_khz for domain in layout.domains], np.int64)
        if self._caps_power:
            self._knobs = (*self._knobs, CAP_ROW)
        if config.decides:
            states = {decision.policy: decision.state for decision in resume}
            self._choose(config, states)
            for driven in self._driven:
                driven.cap = _everywhere(config.caps.highest(driven.domain.name), len(driven.rows))

    @property
    def extensions(self) -> list[Extension[Policy]]:
        """Those of the policies at work that do not ship with nodectl."""
        return [driven.side.found for driven in self._driven if driven.side and driven.side.found.origin]

    @property
    def origins(self) -> dict[str, Origin]:
        """Where those came from, by the policy's name."""
        return {found.value.name: found.origin for found in self.extensions if found.origin}

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies at work, one per domain at most."""
        return tuple(driven.side.policy for driven in self._driven if driven.side)

    @property
    def remembering(self) -> Remembering | None:
        """The GPU policy's state, if that policy hands to later runs what it has measured."""
        side = next((driven.side for driven in self._driven if driven.domain.name == "gpu"), None)
        return Remembering(side) if side and side.policy.memory else None

    def decide(self, sample: Sample, cap: PackageCap = NO_CAP) -> Decisions:
        """Have the policies decide on one interval and settle every knob, under the cap for the next interval."""
        limited: list[PolicyDecision] = []
        thermal: dict[str, type_i64 | None] = {}  # of each domain the lowest limits
        for limit in self._limits:
            limited.append(limit.next(sample))
            domain = limit.policy.domain
            thermal[domain] = _lower(thermal.get(domain), limited[-1].request.target)
        walk = self._walk.next(sample, power_walk.under(cap)) if self._walk else None
        decided: list[PolicyDecision] = []
        values: list[type_i64] = []
        bounds: list[type_u8] = []
        for driven in self._driven:
            name, request, highest = driven.domain.name, None, driven.cap
            if driven.side:
                decided.append(driven.side.next(sample))
                request = driven.per_row(decided[-1].request.target)
            if walk and name == power_walk.POLICY.domain:
                highest = _lower(highest, walk.request.target)
            value, bound = arbitrate(driven.clocks, request, highest, thermal.get(name), driven.is_missing(sample))
            values.append(value)
            bounds.append(bound)
        if self._caps_power:
            value, bound = arbitrate(_POWER, None, np.array([cap.packages_mw]), None, np.zeros(1, np.bool_))
            values.append(value)
            bounds.append(bound)
        return Decisions(
            (*decided, *limited, walk) if walk else (*decided, *limited),
            self._knobs,
            np.concatenate(values),
            np.concatenate(bounds),
            cap,
        )

    def cap_bound(self, decisions: Decisions, sample: Sample) -> CapBound:
        """Whether the cap in watts, and nothing else, limits a clock. Unsure while clocks rise, and where hardware
        runs them slower than requested: a RAPL limit compensates a peak, or it is hot."""
        walk = next((one for one in decisions.policies if one.policy == power_walk.POLICY.name), None)
        if walk is None:
            return "no"
        by_watts = (walk.request.target > 0) & (decisions.bound[: self._n_cpu_rows] == CAP)
        if self._cpu.cap is not None:
            by_watts &= walk.request.target < self._cpu.cap
        if not by_watts.any():
            return "unsure" if decisions.cap.packages_mw and self._is_slowed(decisions, sample) else "no"
        return "yes" if (walk.request.reason[by_watts] != power_walk.BELOW).any() else "unsure"

    def _is_slowed(self, decisions: Decisions, sample: Sample) -> bool:
        """Whether a busy CPU runs below its requested clock, or, where that is a turbo clock, below the nominal one."""
        requested_khz = decisions.values[: self._n_cpu_rows]
        floor_khz = np.where(requested_khz > 0, np.minimum(requested_khz, self._base_khz), self._base_khz)
        is_slow = sample.cpu.frequency_khz < (1 - SLOW) * self._cpu.shared.on_cpus(floor_khz)
        return bool((is_slow & (sample.cpu.busy >= BUSY_SHARE)).any())

    def _choose(self, config: Config, states: Mapping[str, Any]) -> None:
        for driven in self._driven:
            choice = config.choice(driven.domain.name)
            if choice.name != registry.NONE and driven.domain.has_work(self._layout):
                found = registry.find(choice.name, driven.domain.name)
                driven.side = _Side(found, registry.params(found.value, choice.params), self._layout, states)
        for limit, params in temperature_limit.chosen(config.caps):
            if DOMAINS[limit.policy.domain].rows(self._layout):
                self._limits.append(_Side(Extension(limit.policy), params, self._layout, states))
        if self._caps_power and self._layout.domains:
            self._walk = _Side(Extension(power_walk.POLICY), power_walk.WalkParams(), self._layout, states)


def _lower(first: type_i64 | None, second: type_i64 | None) -> type_i64 | None:
    """The lower of two limits for each knob, where 0 and None are none."""
    if first is None or second is None:
        return second if first is None else first
    return np.where((first > 0) & ((second == 0) | (first < second)), first, second)


def _everywhere(cap: int, size: int) -> type_i64 | None:
    return np.full(size, cap, np.int64) if cap else None


class Remembering:
    """A policy with a memory, at work on this node: ``Policy.memory``, with its parameters and present state."""

    def __init__(self, side: _Side) -> None:
        assert side.policy.memory
        self._side, self._memory = side, side.policy.memory

    def keep(self, card: int) -> tuple[Any, ...]:
        """See ``Memory``."""
        side = self._side
        return tuple(self._memory.keep(side.params, side.layout, side.state, card))

    def recall(self, card: int, phases: Sequence[Any]) -> None:
        """From the next decision on."""
        side = self._side
        side.state = self._memory.recall(side.params, side.layout, side.state, card, phases)

    def fit(self, card: int) -> float:
        """See ``Memory``."""
        return self._memory.fit(self._side.layout, self._side.state, card)

    def distance(self, card: int, phases: Sequence[Any]) -> float:
        """See ``Memory``."""
        side = self._side
        return self._memory.distance(side.params, side.layout, side.state, card, phases)


class _Driven:
    """The knobs of one domain: their rows, what they can be set to, and the policy for them."""

    def __init__(self, domain: Domain, layout: Layout) -> None:
        self.domain = domain
        self.rows = domain.rows(layout)
        self.clocks = clocks_of(self.rows)
        self.shared = SharedClocks([row.cpus for row in self.rows], len(layout.cpus))
        self.side: _Side | None = None
        self.cap: type_i64 | None = None

    def per_row(self, target: type_i64) -> type_i64:
        """A policy's targets, one for each row."""
        return self.shared.fastest(target) if self.domain.is_per_cpu else target

    def is_missing(self, sample: Sample) -> npt.NDArray[np.bool_]:
        """Whether readings that each row rests on are gone."""
        if self.domain.rests_on == "cpu":
            return self.shared.any_of(sample.cpu.quality == MISSING)
        if self.domain.rests_on == "gpu":
            return np.asarray(sample.gpu.quality == MISSING)
        return np.zeros(len(self.rows), np.bool_)


class _Side:
    """One policy at work on this node, and the state it handed back last."""

    def __init__(
        self, found: Extension[Policy], params: msgspec.Struct, layout: Layout, states: Mapping[str, Any]
    ) -> None:
        policy = found.value
        self.found, self.policy, self.params, self.layout = found, policy, params, layout
        self.state = states[policy.name] if policy.name in states else policy.initial(params, layout)

    def next(self, sample: Sample, prepare: Callable[[Any], Any] = lambda state: state) -> PolicyDecision:
        """The next decision; ``prepare`` puts into the state what the policy needs in addition to the sample."""
        before = prepare(self.state)
        self.state, request = self.policy.decide(self.params, self.layout, before, sample)
        return PolicyDecision(self.policy.name, self.params, before, request)
