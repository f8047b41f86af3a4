"""Every kind of knob, in the order in which knobs are found, decided and listed."""

from __future__ import annotations

from functools import cache
from typing import Final

from nodectl.knobs import clock_limit, energy_preference, gpu_layout, gpu_limits, package_power_limit, uncore_limit
from nodectl.knobs.kind import Domain, KnobKind
from pmu.layout import Layout

KINDS: Final[tuple[KnobKind, ...]] = (
    clock_limit.KIND,  # cpu/policyN/max_khz: cpufreq scaling_max_freq
    gpu_limits.CLOCK_LOCK,  # gpu/N/sm_clock_mhz: NVML locked clocks, put back to the site's lock or unlocked
    gpu_limits.BOARD_LIMIT,  # gpu/N/power_limit_mw: NVML power management limit
    gpu_layout.KIND,  # gpu/N/mig_layout: NVML MIG mode, GPU instances and compute instances
    package_power_limit.KIND,  # rapl/package-N/{long,short}_term_uw: powercap limits of the package
    uncore_limit.KIND,  # uncore/FOLDER/max_khz: intel_uncore_frequency max_freq_khz
    energy_preference.KIND,  # epp/policyN/preference: cpufreq energy_performance_preference
)

DOMAINS: Final[dict[str, Domain]] = {kind.domain.name: kind.domain for kind in KINDS if kind.domain}
"""What policies can be chosen for, by name."""


def first_parts() -> tuple[str, ...]:
    """The first parts of knobs' names, by which settings name kinds; "scmi" for what is behind a controller."""
    return tuple(dict.fromkeys((*(kind.pattern.partition("/")[0] for kind in KINDS), "scmi")))


@cache  # a node has some hundred names, and each is looked up many times at a start
def kind_of(name: str) -> KnobKind | None:
    """The kind of the knob with that name."""
    return next((kind for kind in KINDS if kind.has(name)), None)


def domain_of(name: str) -> str:
    """The domain of the knob with that name; "" if no policy moves it."""
    kind = kind_of(name)
    return kind.domain.name if kind and kind.domain else ""


def rows_of_several(layout: Layout) -> dict[str, tuple[str, ...]]:
    """For the name of each knob that is one of several in a row: the names of all of them."""
    rows = [row for domain in DOMAINS.values() for row in domain.rows(layout) if row.also]
    return {name: row.names for row in rows for name in row.names}
