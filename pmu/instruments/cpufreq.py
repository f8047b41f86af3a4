"""Frequency domains (cpufreq policies) and the rate at which reference cycles count.

A policy is a set of CPUs that share one clock: a socket on Sandy Bridge, a core with its threads on newer processors.
Drivers with a table list their steps in ``scaling_available_frequencies`` (acpi-cpufreq); others take any value and
round it themselves (intel_pstate: 100 MHz). acpi-cpufreq names turbo by a step 1 MHz above the nominal clock.

Reference cycles count at the rate of the time-stamp counter, which is the nominal clock: ``base_frequency`` from
intel_pstate, ``acpi_cppc/nominal_freq`` (MHz) on AMD and Arm. Both have three digits at most, so the measured share of
busy time may exceed 1 by some parts in a thousand.
Sources: Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst; drivers/cpufreq/acpi-cpufreq.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pmu.cpulist import format_list, parse_list
from pmu.findings import Finding, absent, read_number, read_or_none
from pmu.layout import FrequencyDomain
from pmu.ports import Files
from pmu.readings import Quality, Reading

CPU = "/sys/devices/system/cpu"
CPUFREQ = f"{CPU}/cpufreq"

TURBO_MARK_KHZ = 1000
"""acpi-cpufreq's step for turbo is this much above the nominal clock, and stands for any clock above it."""

ABSURD_KHZ = 10_000_000
"""Ours: no processor runs at 10 GHz."""


def find(files: Files, cpus: Sequence[int]) -> tuple[tuple[FrequencyDomain, ...], list[Finding]]:
    """Domains with at least one of ``cpus``, and one finding for each run of domains that are alike."""
    index_of = {cpu: index for index, cpu in enumerate(cpus)}
    domains = []
    for policy in _policies(files):
        domain = _domain(files, policy, index_of)
        if domain is not None:
            domains.append(domain)
    if not domains:
        return (), [absent("cpufreq", "frequency", _why_none(files))]
    return tuple(domains), _findings(files, domains)


def reference_khz(files: Files, domains: Sequence[FrequencyDomain]) -> tuple[int, str]:
    """Rate of reference cycles and its source; 0 where none is known, since a guess would look like a measurement."""
    measured = read_number(files, f"{CPU}/cpu0/tsc_freq_khz")
    if measured:
        return measured, "tsc_freq_khz"
    base = max((domain.base_khz for domain in domains), default=0)
    if base:
        return base, "the nominal clock"
    text = read_or_none(files, "/proc/cpuinfo") or ""
    if match := re.search(r"^model name.*@ ([\d.]+)GHz", text, re.MULTILINE):
        return round(float(match[1]) * 1e6), "the processor's name"
    if not domains and (match := re.search(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)):
        return round(float(match[1]) * 1e3), "/proc/cpuinfo, which shows it where clocks cannot be read"
    return 0, "the nominal clock is not reported, so the share of busy time and the mean clock are unknown"


class Clocks:
    """The present clock of each domain, as the driver reports it; for people, not for the loop."""

    def __init__(self, files: Files, domains: Sequence[FrequencyDomain]) -> None:
        self._files = files
        self._domains = domains

    def read(self, time_ns: int) -> list[Reading]:
        """One reading per domain, kHz."""
        return [self._read(domain, time_ns) for domain in self._domains]

    def _read(self, domain: FrequencyDomain, time_ns: int) -> Reading:
        name = f"policy{domain.policy}"
        path = f"{CPUFREQ}/{name}/scaling_cur_freq"
        khz = read_number(self._files, path)
        if khz is None or not 0 < khz < ABSURD_KHZ:
            why = f"{path} gives {'no number' if khz is None else f'{khz} kHz'}"
            return Reading(name, float("nan"), "kHz", time_ns, Quality.MISSING, why)
        return Reading(name, float(khz), "kHz", time_ns, Quality.MEASURED)


def _policies(files: Files) -> list[int]:
    try:
        names = files.listdir(CPUFREQ)
    except OSError:
        return []
    return sorted(int(name[6:]) for name in names if re.fullmatch(r"policy\d+", name))


def _domain(files: Files, policy: int, index_of: dict[int, int]) -> FrequencyDomain | None:
    folder = f"{CPUFREQ}/policy{policy}"
    members = read_or_none(files, f"{folder}/related_cpus") or read_or_none(files, f"{folder}/affected_cpus") or ""
    try:
        cpus = tuple(index_of[cpu] for cpu in parse_list(members) if cpu in index_of)
    except ValueError:
        return None
    low = read_number(files, f"{folder}/cpuinfo_min_freq")
    high = read_number(files, f"{folder}/cpuinfo_max_freq")
    if not cpus or not low or not high or not 0 < low <= high < ABSURD_KHZ:
        return None
    steps = _steps(read_or_none(files, f"{folder}/scaling_available_frequencies"))
    return FrequencyDomain(policy, cpus, low, high, _base_khz(files, policy, steps), steps)


def _steps(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in (text or "").split()}))
    except ValueError:
        return ()


def _base_khz(files: Files, policy: int, steps: Sequence[int]) -> int:
    """Nominal clock of a domain; 0 where it is unknown."""
    if khz := read_number(files, f"{CPUFREQ}/policy{policy}/base_frequency"):
        return khz
    if mhz := read_number(files, f"{CPU}/cpu{policy}/acpi_cppc/nominal_freq"):
        return mhz * 1000
    if len(steps) >= 2 and steps[-1] - steps[-2] == TURBO_MARK_KHZ:
        return steps[-2]
    return steps[-1] if steps else 0  # a table without a turbo step ends at the nominal clock


def _findings(files: Files, domains: Sequence[FrequencyDomain]) -> list[Finding]:
    alike: dict[tuple[bool, bool, str], list[int]] = {}
    for domain in domains:
        folder = f"{CPUFREQ}/policy{domain.policy}"
        is_readable = read_number(files, f"{folder}/scaling_cur_freq") is not None
        is_writable = files.writable(f"{folder}/scaling_max_freq")
        driver = read_or_none(files, f"{folder}/scaling_driver") or "unknown driver"
        size = "1 CPU" if len(domain.cpus) == 1 else f"{len(domain.cpus)} CPUs"
        why = f"{size} each, {domain.min_khz}-{domain.max_khz} kHz, {driver}"
        if not is_writable:
            why += "; writing scaling_max_freq needs root"
        alike.setdefault((is_readable, is_writable, why), []).append(domain.policy)
    return [
        Finding(f"cpufreq policy {format_list(policies)}", "frequency", True, is_readable, is_writable, False, why)
        for (is_readable, is_writable, why), policies in alike.items()
    ]


def _why_none(files: Files) -> str:
    if files.exists(CPUFREQ):
        return f"{CPUFREQ} has no policy: no driver for this processor is loaded"
    return f"{CPUFREQ} does not exist: no driver (virtual machine, or clocks are the firmware's alone)"
