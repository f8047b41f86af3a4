"""From a sample to decisions: both policies, the limits, and the arbiter, with the states they carry along.

Nothing here reads a clock, a file or a random source, so the agent and a replay of its journal run this very code and
must come to the same bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from nodectl.arbiter import Decisions, SharedClocks, arbitrate, domain_clocks, gpu_clocks
from nodectl.config import Config, PolicyChoice
from nodectl.policies import registry
from nodectl.policies.api import Policy, Request
from nodectl.thermal import ThermalState, thermal_limit
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_i64


class Decider:
    """What a node's agent has decided so far and therefore decides next."""

    def __init__(self, layout: Layout, config: Config) -> None:
        self._layout = layout
        self._cpu = _Side.chosen(config.cpu_policy, "cpu", layout) if config.decides and layout.cpus else None
        self._gpu = _Side.chosen(config.gpu_policy, "gpu", layout) if config.decides and layout.gpus else None
        self._shared = SharedClocks(layout)
        self._domains, self._gpus = domain_clocks(layout), gpu_clocks(layout)
        self._domain_cap = np.full(len(self._domains), config.caps.cpu_max_khz if config.decides else 0, np.int64)
        self._gpu_cap = np.full(len(self._gpus), config.caps.gpu_max_mhz if config.decides else 0, np.int64)
        self._no_domain_limit = np.zeros(len(self._domains), np.int64)
        self._no_gpu_limit = np.zeros(len(self._gpus), np.int64)
        self._limit_c = config.caps.gpu_temperature_c if config.decides else 0.0
        self._thermal = ThermalState.cool(len(self._gpus))

    @property
    def policies(self) -> tuple[Policy | None, Policy | None]:
        """The CPU and the GPU policy at work."""
        return (self._cpu.policy if self._cpu else None, self._gpu.policy if self._gpu else None)

    def decide(self, sample: Sample) -> Decisions:
        """Ask the policies about one interval and settle every knob."""
        cpu_request = self._cpu.next(self._layout, sample) if self._cpu else None
        gpu_request = self._gpu.next(self._layout, sample) if self._gpu else None
        domain_khz, domain_bound = arbitrate(
            self._domains,
            self._shared.fastest(cpu_request.target) if cpu_request else self._no_domain_limit,
            self._domain_cap,
            self._no_domain_limit,
            self._shared.any_of(sample.cpu.quality == Quality.MISSING),
        )
        gpu_mhz, gpu_bound = arbitrate(
            self._gpus,
            gpu_request.target if gpu_request else self._no_gpu_limit,
            self._gpu_cap,
            self._thermal_mhz(sample),
            sample.gpu.quality == Quality.MISSING,
        )
        return Decisions(cpu_request, gpu_request, domain_khz, domain_bound, gpu_mhz, gpu_bound)

    def _thermal_mhz(self, sample: Sample) -> type_i64:
        if not self._limit_c:
            return self._no_gpu_limit
        self._thermal, limit = thermal_limit(self._layout, self._limit_c, self._thermal, sample)
        return limit


class _Side:
    """One policy at work: what was chosen, and the state it handed back last."""

    def __init__(self, policy: Policy, params: msgspec.Struct, state: Any) -> None:
        self.policy, self._params, self._state = policy, params, state

    @classmethod
    def chosen(cls, choice: PolicyChoice, domain: registry.type_domain, layout: Layout) -> _Side | None:
        if choice.name == registry.NONE:
            return None
        policy = registry.policy(choice.name, domain)
        params = registry.params(policy, choice.params)
        return cls(policy, params, policy.initial(params, layout))

    def next(self, layout: Layout, sample: Sample) -> Request:
        self._state, request = self.policy.decide(self._params, layout, self._state, sample)
        return request
