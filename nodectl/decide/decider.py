"""From a sample to decisions: both policies, the limits, and the arbiter, with the states of each.

Nothing here reads a clock, a file or a random source: the agent and a replay of its journal run this same code and must
come to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from nodectl.config import Config
from nodectl.decide import power_walk, temperature_limit
from nodectl.decide.arbiter import CAP, ClockTable, SharedClocks, arbitrate, domain_clocks, gpu_clocks
from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.decide.node_cap import CAP_ROW, NO_CAP, PackageCap
from nodectl.knobs.effect import BUSY_SHARE
from nodectl.policies import registry
from nodectl.policies.api import Policy
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_i64

if TYPE_CHECKING:
    from nodectl.wire.power_messages import Held

MISSING: Final = int(Quality.MISSING)
"""As a plain number: NumPy compares arrays with that five times as fast."""

SLOW: Final = 0.03
"""Ours: a clock within this part of another is the same; counters are noisy."""

_POWER: Final = ClockTable([1], [2**31 - 1], [()])
"""The packages' cap in milliwatts: any value; its knob knows the range."""


def knob_names(layout: Layout) -> tuple[str, ...]:
    """The first rows of ``Decisions.values``: every cpufreq policy, then every GPU, whether its knob can be moved or
    not. A run that may cap power has one row more, ``CAP_ROW``."""
    domains = (f"cpu/policy{domain.policy}/max_khz" for domain in layout.domains)
    gpus = (f"gpu/{gpu.index}/sm_clock_mhz" for gpu in layout.gpus)
    return (*domains, *gpus)


class Decider:
    """Decides tick by tick, with the states of the policies.

    ``resume``: the policy decisions of a recorded tick. Policies named there start from the recorded state, so a
    journal whose oldest part has been dropped still replays.
    """

    def __init__(self, layout: Layout, config: Config, resume: Sequence[PolicyDecision] = ()) -> None:
        self._layout = layout
        self._knobs = knob_names(layout)
        self._shared = SharedClocks(layout)
        self._domains, self._gpus = domain_clocks(layout), gpu_clocks(layout)
        self._cpu: _Side | None = None
        self._gpu: _Side | None = None
        self._thermal: _Side | None = None
        self._walk: _Side | None = None
        self._domain_cap: type_i64 | None = None
        self._gpu_cap: type_i64 | None = None
        self._caps_power = config.decides and config.caps_power
        self._base_khz = np.array([domain.base_khz or domain.max_khz for domain in layout.domains], np.int64)
        if self._caps_power:
            self._knobs = (*self._knobs, CAP_ROW)
        if config.decides:
            states = {decision.policy: decision.state for decision in resume}
            self._choose(config, states)
            self._domain_cap = _everywhere(config.caps.cpu_max_khz, len(self._domains))
            self._gpu_cap = _everywhere(config.caps.gpu_max_mhz, len(self._gpus))

    @property
    def policies(self) -> tuple[Policy | None, Policy | None]:
        """The CPU and the GPU policy at work."""
        return (self._cpu.policy if self._cpu else None, self._gpu.policy if self._gpu else None)

    def decide(self, sample: Sample, cap: PackageCap = NO_CAP) -> Decisions:
        """Have the policies decide on one interval and settle every knob, under the cap for the next interval."""
        cpu = self._cpu.next(sample) if self._cpu else None
        gpu = self._gpu.next(sample) if self._gpu else None
        hot = self._thermal.next(sample) if self._thermal else None
        walk = self._walk.next(sample, power_walk.under(cap)) if self._walk else None
        domain_khz, domain_bound = arbitrate(
            self._domains,
            self._shared.fastest(cpu.request.target) if cpu else None,
            _lower(self._domain_cap, walk.request.target if walk else None),
            None,
            self._shared.any_of(sample.cpu.quality == MISSING),
        )
        gpu_mhz, gpu_bound = arbitrate(
            self._gpus,
            gpu.request.target if gpu else None,
            self._gpu_cap,
            hot.request.target if hot else None,
            sample.gpu.quality == MISSING,
        )
        values, bounds = [domain_khz, gpu_mhz], [domain_bound, gpu_bound]
        if self._caps_power:
            power_mw, power_bound = arbitrate(_POWER, None, np.array([cap.packages_mw]), None, np.zeros(1, np.bool_))
            values, bounds = [*values, power_mw], [*bounds, power_bound]
        return Decisions(
            tuple(decision for decision in (cpu, gpu, hot, walk) if decision),
            self._knobs,
            np.concatenate(values),
            np.concatenate(bounds),
            cap,
        )

    def held(self, decisions: Decisions, sample: Sample) -> Held:
        """Whether the cap in watts, and nothing else, limits a clock. Unsure while clocks rise, and where hardware
        runs them slower than requested: a RAPL limit compensates a peak, or it is hot."""
        walk = next((one for one in decisions.policies if one.policy == power_walk.POLICY.name), None)
        if walk is None:
            return "no"
        by_watts = (walk.request.target > 0) & (decisions.bound[: len(self._domains)] == CAP)
        if self._domain_cap is not None:
            by_watts &= walk.request.target < self._domain_cap
        if not by_watts.any():
            return "unsure" if decisions.cap.packages_mw and self._is_slowed(decisions, sample) else "no"
        return "yes" if (walk.request.reason[by_watts] != power_walk.BELOW).any() else "unsure"

    def _is_slowed(self, decisions: Decisions, sample: Sample) -> bool:
        """Whether a busy CPU runs below its requested clock, or, where that is a turbo clock, below the nominal one."""
        asked_khz = decisions.values[: len(self._domains)]
        floor_khz = np.where(asked_khz > 0, np.minimum(asked_khz, self._base_khz), self._base_khz)
        is_slow = sample.cpu.frequency_khz < (1 - SLOW) * self._shared.on_cpus(floor_khz)
        return bool((is_slow & (sample.cpu.busy >= BUSY_SHARE)).any())

    def _choose(self, config: Config, states: Mapping[str, Any]) -> None:
        if self._layout.cpus and config.cpu_policy.name != registry.NONE:
            policy = registry.policy(config.cpu_policy.name, "cpu")
            self._cpu = _Side(policy, registry.params(policy, config.cpu_policy.params), self._layout, states)
        if self._layout.gpus and config.gpu_policy.name != registry.NONE:
            policy = registry.policy(config.gpu_policy.name, "gpu")
            self._gpu = _Side(policy, registry.params(policy, config.gpu_policy.params), self._layout, states)
        if self._layout.gpus and config.caps.gpu_temperature_c:
            limit = temperature_limit.ThermalParams(limit_c=config.caps.gpu_temperature_c)
            self._thermal = _Side(temperature_limit.POLICY, limit, self._layout, states)
        if self._caps_power and self._layout.domains:
            self._walk = _Side(power_walk.POLICY, power_walk.WalkParams(), self._layout, states)


def _lower(first: type_i64 | None, second: type_i64 | None) -> type_i64 | None:
    """The lower of two limits for each knob, where 0 and None are none."""
    if first is None or second is None:
        return second if first is None else first
    return np.where((first > 0) & ((second == 0) | (first < second)), first, second)


def _everywhere(cap: int, size: int) -> type_i64 | None:
    return np.full(size, cap, np.int64) if cap else None


class _Side:
    """One policy at work on this node, and the state it handed back last."""

    def __init__(self, policy: Policy, params: msgspec.Struct, layout: Layout, states: Mapping[str, Any]) -> None:
        self.policy, self._params, self._layout = policy, params, layout
        self._state = states[policy.name] if policy.name in states else policy.initial(params, layout)

    def next(self, sample: Sample, told: Callable[[Any], Any] = lambda state: state) -> PolicyDecision:
        """The next decision; ``told`` puts into the state what the policy needs in addition to the sample."""
        before = told(self._state)
        self._state, request = self.policy.decide(self._params, self._layout, before, sample)
        return PolicyDecision(self.policy.name, self._params, before, request)
