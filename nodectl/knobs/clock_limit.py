"""The clock limit of a cpufreq policy: ``scaling_max_freq``.

Policies of one frequency domain (``pmu.instruments.cpufreq``) limit its clock only together, since the hardware follows
the highest request. So their knobs are one row, and are set to one value; each has a captured value of its own.

Writing it changes one request in the kernel's list of frequency requests for the policy; the governor goes on choosing
a clock below the lowest of them, so its name and tunables stay as they were. Reading it returns what is in force after
*all* requests, so a value below ours may also be the firmware's (``bios_limit``, ACPI _PPC) or a cooling device's.
A value out of range is refused with EINVAL, a busy driver with EBUSY.
Source: Linux Documentation/admin-guide/pm/cpufreq.rst, drivers/cpufreq/cpufreq.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from nodectl.knobs.api import Reason
from nodectl.knobs.attribute_file import NumberFile
from nodectl.knobs.kind import BUSY_SHARE, Domain, KnobKind, Limit, file_finding, pairs
from nodectl.knobs.recipe import FileRecipe
from pmu.driver_values import MOST_KHZ, digits, whole
from pmu.layout import FrequencyDomain, KnobRange, Layout
from pmu.ports import Files, Ports
from pmu.readings import Sample, type_f64

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
COOLING = "/sys/class/thermal"

GOVERNOR_PERIOD_S = 0.02
"""Ours: two periods of a 10 ms governor, so that a clock has had the time to move."""

ROUNDING_KHZ = 100_000
"""The steps of drivers that take any limit and list none: intel_pstate's are 100 MHz, others' finer."""

FIXED_GOVERNORS = {"userspace": "keeps scaling_setspeed", "powersave": "keeps the lowest clock"}
"""Governors that do not follow load. intel_pstate and amd-pstate-epp mean others of their own by these names."""


class ClockLimit(NumberFile):
    """``scaling_max_freq`` of one cpufreq policy, kilohertz."""

    unit = "khz"
    bounds = (1, MOST_KHZ)

    def __init__(self, files: Files, policy: int) -> None:
        self.name = _name(policy)
        self._dir = f"{CPUFREQ}/policy{policy}"
        super().__init__(files, f"{self._dir}/scaling_max_freq")
        self.latency_s = GOVERNOR_PERIOD_S + self._transition_s()

    def matches(self, requested: int, present: int) -> bool:
        """cpufreq stores a limit exactly, in kilohertz."""
        return requested == present

    def recipe(self) -> FileRecipe:
        """The firmware's limit or a cooling device may keep what is read below what was written."""
        return FileRecipe(self.path, limited_by=f"{self._dir}/bios_limit", is_cooled=True)

    def hardware_limit(self) -> int | None:
        """The hardware's highest clock, boost included."""
        return whole(self._optional_khz("cpuinfo_max_freq"), self.bounds)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Never overruled: what is read back is the limit in force."""
        return "", ""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Find out what else limits this policy's clock."""
        in_force = requested if present is None else present
        bios_khz = self._optional_khz("bios_limit")
        if bios_khz is not None and bios_khz < requested and in_force >= bios_khz:
            return "firmware", f"the firmware limits this policy to {bios_khz} kHz (bios_limit)"
        cooling = self._active_cooling()
        if cooling and in_force <= requested:
            return "thermal", f"{cooling} keeps the clock lower"
        if present is not None and present != requested:
            return "", ""
        governor, driver = self._optional("scaling_governor"), self._optional("scaling_driver")
        own_governor = driver.startswith("intel_pstate") or driver == "amd-pstate-epp"
        preference = self._optional("energy_performance_preference")
        if governor in FIXED_GOVERNORS and not own_governor:
            return "governor", f"governor {governor} {FIXED_GOVERNORS[governor]}"
        if own_governor and preference:
            return "HWP", f"the processor chooses clocks by itself ({driver}, energy preference {preference})"
        return "firmware", "the processor chooses another clock by itself"

    def _optional(self, name: str) -> str:
        try:
            return self._files.read(f"{self._dir}/{name}").strip()
        except OSError:
            return ""  # absent on this driver: nothing to explain with

    def _optional_khz(self, name: str) -> int | None:
        return digits(self._optional(name))

    def _transition_s(self) -> float:
        latency_ns = self._optional_khz("cpuinfo_transition_latency")
        # -1 (CPUFREQ_ETERNAL, shown as 4294967295) means unknown
        return latency_ns / 1e9 if latency_ns is not None and latency_ns < 1_000_000_000 else 0.0

    def _active_cooling(self) -> str:
        """Name of a CPU cooling device that is in use now, or ""."""
        try:
            names = self._files.listdir(COOLING)
        except OSError:
            return ""
        for name in sorted(names):
            if not name.startswith("cooling_device"):
                continue
            try:
                kind = self._files.read(f"{COOLING}/{name}/type").strip()
                state = self._files.read(f"{COOLING}/{name}/cur_state").strip()
            except OSError:
                continue
            if ("cpufreq" in kind or kind == "Processor") and state not in ("", "0"):
                return f"cooling device {name} ({kind}, state {state})"
        return ""


class _ClocksSeen:
    """The fastest busy CPU of each domain. Above nominal a clock is the processor's gift: the floor ends there."""

    def __init__(self, row_of: Mapping[str, int], layout: Layout) -> None:
        limits = [(name, index) for index, domain in enumerate(layout.domains) for name in _limits(domain)]
        self.rows, known = pairs(row_of, [name for name, _ in limits])
        self._domains = np.array([index for _, index in limits], np.int64)[known]
        self.rounding = np.array([0.0 if domain.steps_khz else ROUNDING_KHZ for domain in layout.domains])
        self.rounding = self.rounding[self._domains]
        self._base_khz = np.array([domain.base_khz or np.inf for domain in layout.domains])[self._domains]
        self._members = np.array([cpu for domain in layout.domains for cpu in domain.cpus], np.int64)
        self._starts = np.cumsum([0, *(len(domain.cpus) for domain in layout.domains)])[:-1].astype(np.int64)

    def look(self, sample: Sample, seen: type_f64, floor: type_f64) -> None:
        is_busy = sample.cpu.busy[self._members] >= BUSY_SHARE
        clocks = np.where(is_busy, sample.cpu.frequency_khz[self._members], np.nan)
        seen[self.rows] = np.fmax.reduceat(clocks, self._starts)[self._domains]
        floor[self.rows] = self._base_khz


def _name(policy: int) -> str:
    return f"cpu/policy{policy}/max_khz"


def _limits(domain: FrequencyDomain) -> list[str]:
    """The names of all clock limits of a domain."""
    return [_name(policy) for policy in domain.policies]


def _names(files: Files, layout: Layout) -> tuple[Sequence[str], str]:
    return [name for domain in layout.domains for name in _limits(domain)], ""


def _open(ports: Ports, name: re.Match[str]) -> ClockLimit:
    limit = ClockLimit(ports.files, int(name["policy"]))
    limit.check()
    return limit


def _rows(layout: Layout) -> list[KnobRange]:
    return [
        KnobRange(first, "cpu", domain.min_khz, domain.max_khz, domain.steps_khz, domain.cpus, also=tuple(others))
        for domain in layout.domains
        for first, *others in [_limits(domain)]
    ]


KIND = KnobKind(
    pattern=r"cpu/policy(?P<policy>\d+)/max_khz",
    name="cpu/*/max_khz",
    find=_names,
    open=_open,
    look=file_finding,
    effect=_ClocksSeen,
    limit=Limit(ClockLimit.hardware_limit, is_seldom_lowered=True),
    domain=Domain(
        name="cpu",
        what="CPU clock limits",
        rests_on="cpu",
        is_per_cpu=True,
        is_there=lambda layout: bool(layout.cpus),
        of_layout=_rows,
    ),
)
