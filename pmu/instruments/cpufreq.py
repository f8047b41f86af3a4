"""Frequency domains, their cpufreq policies, and the rate at which reference cycles count.

A domain is a set of CPUs that share one clock: a socket on Sandy Bridge, a core with its threads on newer processors. A
cpufreq policy is a set of CPUs that the kernel requests one clock for. Where the hardware coordinates requests, the
kernel gives each CPU a policy of its own and ``related_cpus`` lists that CPU alone (intel_pstate, amd-pstate,
acpi-cpufreq on AMD before family 0x19). The clock then follows the highest request, so policies of one clock are one
domain here: those that share a core, and those that ``freqdomain_cpus`` lists (shown by acpi-cpufreq and
cppc_cpufreq).

Drivers with a table list their steps in ``scaling_available_frequencies`` (acpi-cpufreq); others take any value and
round it themselves (intel_pstate: 100 MHz). acpi-cpufreq names turbo by a step 1 MHz above the nominal clock.

Reference cycles count at the rate of the time-stamp counter, which is the nominal clock: ``base_frequency`` from
intel_pstate, ``acpi_cppc/nominal_freq`` (MHz) on AMD and Arm. Both have three digits at most, so the measured share of
busy time may exceed 1 by some parts in a thousand.
Sources: Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst (of intel_pstate "Coordination of P-State
Limits"); Documentation/ABI/testing/sysfs-devices-system-cpu (freqdomain_cpus);
drivers/cpufreq/{acpi-cpufreq,intel_pstate,amd-pstate}.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pmu.cpulist import format_list, parse_list
from pmu.driver_values import MOST_CLOCK_MHZ, MOST_KHZ, digits, whole
from pmu.findings import Finding, absent, read_number, read_or_none
from pmu.layout import FrequencyDomain
from pmu.ports import Files
from pmu.readings import Quality, Reading

CPU = "/sys/devices/system/cpu"
CPUFREQ = f"{CPU}/cpufreq"

TURBO_MARK_KHZ = 1000
"""acpi-cpufreq's step for turbo is this much above the nominal clock, and stands for any clock above it."""

_KHZ = (1, MOST_KHZ - 1)


def find(
    files: Files, cpus: Sequence[int], core_of: Sequence[int] | None = None
) -> tuple[tuple[FrequencyDomain, ...], list[Finding]]:
    """Domains with at least one of ``cpus``, and one finding for each run of policies that are alike. ``core_of``: the
    physical core of each CPU; None: no two share one."""
    index_of = {cpu: index for index, cpu in enumerate(cpus)}
    read = [_policy(files, number, index_of) for number in _policies(files)]
    policies = [found for found in read if isinstance(found, _Policy)]
    odd = [found for found in read if isinstance(found, Finding)]
    if not policies:
        return (), odd or [absent("cpufreq", "frequency", _why_none(files))]
    groups = _by_clock(policies, range(len(cpus)) if core_of is None else core_of)
    return tuple(_domain(files, group) for group in groups), [*_findings(files, groups), *odd]


def reference_khz(files: Files, domains: Sequence[FrequencyDomain]) -> tuple[int, str]:
    """Rate of reference cycles and its source; 0 where none is known, since a guess would look like a measurement."""
    measured = whole(read_number(files, f"{CPU}/cpu0/tsc_freq_khz"), _KHZ)
    if measured:
        return measured, "tsc_freq_khz"
    base = max((domain.base_khz for domain in domains), default=0)
    if base:
        return base, "the nominal clock"
    text = read_or_none(files, "/proc/cpuinfo") or ""
    if khz := _khz(re.search(r"^model name.*@ (\d+(?:\.\d+)?)GHz", text, re.MULTILINE), 1e6):
        return khz, "the processor's name"
    if not domains and (khz := _khz(re.search(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)", text, re.MULTILINE), 1e3)):
        return khz, "/proc/cpuinfo, which shows it where clocks cannot be read"
    return 0, "the nominal clock is not reported, so the share of busy time and the mean clock are unknown"


def _khz(match: re.Match[str] | None, khz_per_unit: float) -> int:
    """The clock of a number found in a text; 0 where there is none, or none that can be."""
    return whole(float(match[1]) * khz_per_unit, _KHZ) or 0 if match else 0


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
        if khz is None or not 0 < khz < MOST_KHZ:
            why = f"{path} gives {'no number' if khz is None else f'{khz} kHz'}"
            return Reading(name, float("nan"), "kHz", time_ns, Quality.MISSING, why)
        return Reading(name, float(khz), "kHz", time_ns, Quality.MEASURED)


def _policies(files: Files) -> list[int]:
    try:
        names = files.listdir(CPUFREQ)
    except OSError:
        return []
    return sorted(int(name[6:]) for name in names if re.fullmatch(r"policy\d+", name))


@dataclass(frozen=True, slots=True)
class _Policy:
    """CPUs are indices. ``tied``: those that share its clock as far as cpufreq shows it, its own among them."""

    number: int
    cpus: tuple[int, ...]
    tied: tuple[int, ...]
    min_khz: int
    max_khz: int
    steps_khz: tuple[int, ...]


def _policy(files: Files, number: int, index_of: dict[int, int]) -> _Policy | Finding | None:
    """The policy; None if none of its CPUs is in use; a finding if its CPUs or its range make no sense."""
    folder = f"{CPUFREQ}/policy{number}"
    members = read_or_none(files, f"{folder}/related_cpus") or read_or_none(files, f"{folder}/affected_cpus")
    cpus = _indices(members, index_of)
    tied = _indices(read_or_none(files, f"{folder}/freqdomain_cpus"), index_of)
    low = read_number(files, f"{folder}/cpuinfo_min_freq")
    high = read_number(files, f"{folder}/cpuinfo_max_freq")
    if not cpus and _numbers(members):  # all of them are off line
        return None
    if not cpus:
        why = "it does not say which CPUs it has (related_cpus): it is left alone"
        return Finding(f"cpufreq policy {number}", "frequency", present=True, why=why)
    if not low or not high or not 0 < low <= high < MOST_KHZ:
        why = f"its range is {low} to {high} kHz (cpuinfo_min_freq, cpuinfo_max_freq): it is left alone"
        return Finding(f"cpufreq policy {number}", "frequency", present=True, why=why)
    steps = _steps(read_or_none(files, f"{folder}/scaling_available_frequencies"))
    return _Policy(number, cpus, (*cpus, *tied), low, high, steps)


def _indices(text: str | None, index_of: dict[int, int]) -> tuple[int, ...]:
    """The CPUs of a list that are in use."""
    return tuple(index_of[cpu] for cpu in _numbers(text) if cpu in index_of)


def _numbers(text: str | None) -> tuple[int, ...]:
    """The CPUs of a list; none where it is absent or makes no sense."""
    try:
        return parse_list(text or "")
    except ValueError:
        return ()


def _by_clock(policies: Sequence[_Policy], core_of: Sequence[int]) -> list[list[_Policy]]:
    """The policies of each clock, by their lowest numbers: CPUs tied to each other or of one core are merged."""
    clock_of = list(range(len(core_of)))  # each CPU refers to one of the same clock, the lowest to itself

    def lowest(cpu: int) -> int:
        while clock_of[cpu] != cpu:
            cpu = clock_of[cpu]
        return cpu

    def merge(one: int, other: int) -> None:
        one, other = lowest(one), lowest(other)
        clock_of[max(one, other)] = min(one, other)

    first_of: dict[int, int] = {}  # by core
    for cpu, core in enumerate(core_of):
        merge(cpu, first_of.setdefault(core, cpu))
    for policy in policies:
        for cpu in policy.tied:
            merge(cpu, policy.cpus[0])
    groups: dict[int, list[_Policy]] = {}
    for policy in policies:
        groups.setdefault(lowest(policy.cpus[0]), []).append(policy)
    return list(groups.values())


def _domain(files: Files, policies: Sequence[_Policy]) -> FrequencyDomain:
    """The domain of the policies of one clock. Their ranges are the same wherever they are known to share a clock."""
    first, others = policies[0], policies[1:]
    steps = first.steps_khz
    return FrequencyDomain(
        first.number,
        tuple(sorted({cpu for policy in policies for cpu in policy.cpus})),
        max(policy.min_khz for policy in policies),
        max(policy.max_khz for policy in policies),
        _base_khz(files, first.number, steps),
        steps,
        tuple(policy.number for policy in others),
    )


def _steps(text: str | None) -> tuple[int, ...]:
    return tuple(sorted({khz for word in (text or "").split() if (khz := whole(digits(word), _KHZ))}))


def _base_khz(files: Files, policy: int, steps: Sequence[int]) -> int:
    """Nominal clock of a domain; 0 where it is unknown."""
    if khz := whole(read_number(files, f"{CPUFREQ}/policy{policy}/base_frequency"), _KHZ):
        return khz
    if mhz := whole(read_number(files, f"{CPU}/cpu{policy}/acpi_cppc/nominal_freq"), (1, MOST_CLOCK_MHZ - 1)):
        return mhz * 1000
    if len(steps) >= 2 and steps[-1] - steps[-2] == TURBO_MARK_KHZ:
        return steps[-2]
    return steps[-1] if steps else 0  # a table without a turbo step ends at the nominal clock


def _findings(files: Files, groups: Sequence[Sequence[_Policy]]) -> list[Finding]:
    alike: dict[tuple[bool, bool, str], list[int]] = {}
    for policy, sharing in [(policy, len(group)) for group in groups for policy in group]:
        folder = f"{CPUFREQ}/policy{policy.number}"
        is_readable = read_number(files, f"{folder}/scaling_cur_freq") is not None
        is_writable = files.writable(f"{folder}/scaling_max_freq")
        driver = read_or_none(files, f"{folder}/scaling_driver") or "unknown driver"
        size = "1 CPU" if len(policy.cpus) == 1 else f"{len(policy.cpus)} CPUs"
        why = f"{size} each, {policy.min_khz}-{policy.max_khz} kHz, {driver}"
        if sharing > 1:
            why += f"; {sharing} share a clock, which follows the highest request: they are set together"
        if not is_writable:
            why += "; writing scaling_max_freq needs root"
        alike.setdefault((is_readable, is_writable, why), []).append(policy.number)
    return [
        Finding(f"cpufreq policy {format_list(sorted(found))}", "frequency", True, is_readable, is_writable, False, why)
        for (is_readable, is_writable, why), found in alike.items()
    ]


def _why_none(files: Files) -> str:
    if files.exists(CPUFREQ):
        return f"{CPUFREQ} has no policy: no driver for this processor is loaded"
    return f"{CPUFREQ} does not exist: no driver (virtual machine, or clocks are the firmware's alone)"
