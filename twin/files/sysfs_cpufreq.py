"""cpufreq: one directory per policy, with the attributes of the machine's driver.

With most drivers each logical CPU has a policy of its own (``twin.machine``), also where several share a clock, as the
threads of a core do. The hardware then runs at the highest of their requests: a policy's clock may be above its own
limit. Each policy shows the clock that is measured, and only ``freqdomain_cpus`` of acpi-cpufreq, which ACPI or the
topology fills, lists the CPUs that share it; ``affected_cpus`` and ``related_cpus`` list the policy's own.

Requests are stored separately from the limits in force. ``scaling_min_freq`` and ``scaling_max_freq`` are *requests*,
from which the kernel computes limits (cpufreq_set_policy): it clamps both into cpuinfo's range, keeps the minimum at or
below the maximum, and, with a driver that has a frequency table, rounds them to entries (the maximum down, the minimum
up). So a maximum written below the minimum lowers the minimum with it, and raising the maximum later restores it.
Drivers without a table (intel_pstate, amd-pstate) keep the number as written, and only the clock itself is rounded.

Refused: text that is not a number (EINVAL; ERANGE beyond 64 bits), an unknown governor (EINVAL), a set speed under a
governor other than ``userspace`` (EINVAL; reads ``<unsupported>``), an energy preference other than "performance" under
intel_pstate's performance governor (EBUSY).

Under the governor ``powersave`` of intel_pstate and amd-pstate-epp the hardware chooses the clock. An energy preference
lowers the highest one that it chooses for a load (``[frequency] preference_khz``). How quickly it follows a load is not
modelled, nor the preference in passive mode. Each thread has its own; the core runs at the higher choice.

Drivers: acpi-cpufreq (P-states by ACPI, governors in the kernel), intel_pstate (hardware-managed, two governors of its
own), intel_cpufreq (the same in passive mode), amd-pstate and amd-pstate-epp, scmi (firmware sets the clock).
Source: Linux 6.x drivers/cpufreq/{cpufreq,cpufreq_userspace,acpi-cpufreq,intel_pstate,amd-pstate}.c,
Documentation/admin-guide/pm/{cpufreq,intel_pstate}.rst (of the latter "Coordination of P-State Limits"),
Documentation/ABI/testing/sysfs-devices-system-cpu (freqdomain_cpus).
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import numpy as np

from twin.files.sysfs_nodes import Nodes, refused, unsigned, word
from twin.machine import CpufreqPolicy, Domain
from twin.physics.model import Twin

CPU = "/sys/devices/system/cpu"

PREFERENCES = {"performance": 0, "balance_performance": 128, "balance_power": 192, "power": 255}
"""Energy preference of the hardware by the kernel's names (intel_pstate.c, amd-pstate.c); AMD's driver writes 191 for
the third."""

PREFERENCE_NAMES = {number: name for name, number in PREFERENCES.items()}

HIGHEST_PREFERENCE = 255

_PREFERENCES = ("default", *PREFERENCES)

_OWN_POLICY_DRIVERS = ("intel_pstate", "amd-pstate-epp")
_PREFERENCE_DRIVERS = ("intel_pstate", "intel_cpufreq", "amd-pstate-epp")
_CPPC_HIGHEST = 255  # the scale of AMD's firmware (Linux Documentation/admin-guide/pm/amd-pstate.rst)
_S32_MAX = (1 << 31) - 1


class Platform:
    """State that all policies share: boost, and intel_pstate's limits in per cent of the highest clock."""

    def __init__(self) -> None:
        self.boost = True
        self.max_pct = 100
        self.min_pct = 0


class Policy:
    """One cpufreq policy: its requests, the limits in force, and applying these to the machine."""

    def __init__(self, twin: Twin, index: int, policy: CpufreqPolicy, platform: Platform) -> None:
        self._twin = twin
        self._index = index
        self._platform = platform
        self.number, self.cpus = policy.number, policy.cpus
        self._domain_index = policy.domain
        self.domain = domain = twin.machine.domains[policy.domain]
        self.driver = twin.machine.driver
        self.governor = twin.machine.governor
        self.governors = twin.machine.governors
        self.preference = "balance_performance"
        self.min_request = domain.min_khz
        self.max_request = _S32_MAX  # FREQ_QOS_MAX_DEFAULT_VALUE: no request yet
        self.setspeed_khz = domain.max_khz
        self._steps = domain.steps_khz if domain.lists_steps else ()
        self._prefer()

    def hardware_max_khz(self) -> int:
        """cpuinfo_max_freq: with boost off the pstate drivers lower it to the base clock; acpi-cpufreq does not."""
        if self._platform.boost or self.driver == "acpi-cpufreq" or not self.domain.base_khz:
            return self.domain.max_khz
        return self.domain.base_khz

    def limits_khz(self) -> tuple[int, int]:
        """scaling_min_freq and scaling_max_freq: the requests made consistent (cpufreq_set_policy)."""
        low, high = self.domain.min_khz, self.hardware_max_khz()
        max_khz = min(max(self.max_request, low), high)
        min_khz = min(max(self.min_request, low), max_khz)
        if self._steps:
            max_khz = self._steps[max(bisect_right(self._steps, max_khz) - 1, 0)]
            min_khz = min(self._steps[min(bisect_left(self._steps, min_khz), len(self._steps) - 1)], max_khz)
        return min_khz, max_khz

    def target_khz(self) -> int:
        """The clock of the userspace governor: the set speed within the limits, rounded up to a table entry."""
        min_khz, max_khz = self.limits_khz()
        target = min(max(self.setspeed_khz, min_khz), max_khz)
        if self._steps:
            target = self._steps[min(bisect_left(self._steps, target), len(self._steps) - 1)]
        return min(target, max_khz)

    def apply(self) -> None:
        """Apply the limits in force to the machine; its clock follows after its latency, unless another policy of the
        domain requests a higher one."""
        min_khz, max_khz = self.limits_khz()
        high = self.domain.max_khz
        if not self._platform.boost and self.domain.base_khz:
            high = self.domain.base_khz
        if self.driver == "intel_pstate":
            high = min(high, high * self._platform.max_pct // 100)
            min_khz = max(min_khz, high * self._platform.min_pct // 100)
        max_khz = max(min(max_khz, high), self.domain.min_khz)
        self._twin.set_policy(
            self._index,
            min_khz=min(min_khz, max_khz),
            max_khz=max_khz,
            setspeed_khz=self.target_khz(),
            governor=self.governor,
        )

    def set_preference(self, word: str) -> None:
        """Set the energy preference, one of ``PREFERENCES`` or a number from 0 to 255."""
        self.preference = word
        self._prefer()

    def _prefer(self) -> None:
        """Apply the preference to what the hardware chooses, where it does so by itself: by a law of the machine file.

        Under the governor ``performance`` the driver requests the highest clock alone, so there is nothing to choose.
        """
        points = self._twin.machine.preference_khz
        if points and self.driver in _OWN_POLICY_DRIVERS:
            value = int(self.preference) if self.preference.isdigit() else PREFERENCES[self.preference]
            khz = np.interp(value, [preference for preference, _ in points], [khz for _, khz in points])
            self._twin.prefer(self._index, round(float(khz)))

    # ---- stores: change the request, then apply it to the machine, unless a fault prevents that ----------------

    def store_min(self, text: str, effective: bool) -> None:
        """Request a lowest clock; the maximum has precedence."""
        self.min_request = _quality_of_service(text)
        self._follow(effective)

    def store_max(self, text: str, effective: bool) -> None:
        """Request a highest clock."""
        self.max_request = _quality_of_service(text)
        self._follow(effective)

    def store_governor(self, text: str, effective: bool) -> None:
        """Set the governor."""
        name = word(text).lower()
        if name not in self.governors:
            raise refused(errno.EINVAL)
        if name == "userspace" and self.governor != "userspace":
            self.setspeed_khz = self._twin.domain_khz(self._domain_index)  # starts at the present clock
        self.governor = name
        self._follow(effective)

    def store_setspeed(self, text: str, effective: bool) -> None:
        """Set the clock, under the userspace governor."""
        if self.governor != "userspace":
            raise refused(errno.EINVAL)
        self.setspeed_khz = unsigned(text, bits=32)
        self._follow(effective)

    def store_preference(self, text: str, effective: bool) -> None:
        """Energy preference, with an effect if the machine file says which."""
        name = word(text, 20)
        if name not in _PREFERENCES:
            name = self._preference_of(text)
        if self.driver in _OWN_POLICY_DRIVERS and self.governor == "performance" and name != "performance":
            raise refused(errno.EBUSY)
        self.preference = "balance_performance" if name == "default" else name
        if effective:
            self._prefer()

    def _preference_of(self, text: str) -> str:
        """Of a number, which Intel's drivers take: its name, or the number if it has none."""
        if not self.driver.startswith("intel_"):
            raise refused(errno.EINVAL)
        number = unsigned(text, bits=32, base=10)
        if number > HIGHEST_PREFERENCE:
            raise refused(errno.EINVAL)
        return PREFERENCE_NAMES.get(number, str(number))

    def _follow(self, effective: bool) -> None:
        if effective:
            self.apply()

    # ---- shows -------------------------------------------------------------------------------------------------

    def show_setspeed(self) -> str:
        """The set speed, within the limits."""
        return f"{self.target_khz()}\n" if self.governor == "userspace" else "<unsupported>\n"

    def show_clock(self) -> str:
        """scaling_cur_freq."""
        return f"{self.clock_khz()}\n"

    def clock_khz(self) -> int:
        """The clock as APERF and MPERF measure it: in turbo the true clock, not the table's number for it."""
        khz, turbo_khz = self._twin.domain_khz(self._domain_index), self._twin.machine.turbo_khz
        return turbo_khz if turbo_khz and khz == self.domain.max_khz else khz

    def show_preference(self) -> str:
        """The preference in force. A driver's own performance governor overrides it."""
        in_force = "performance" if self.governor == "performance" and self.driver in _OWN_POLICY_DRIVERS else None
        return f"{in_force or self.preference}\n"


def add(nodes: Nodes, twin: Twin) -> tuple[Policy, ...]:
    """Add cpufreq/policyN for each policy, the links from its CPUs, and the driver's own switches."""
    platform = Platform()
    policies = tuple(Policy(twin, index, policy, platform) for index, policy in enumerate(twin.machine.policies))
    for policy in policies:
        folder = f"{CPU}/cpufreq/policy{policy.number}"
        _add_common(nodes, folder, policy)
        _add_driver_files(nodes, folder, policy)
        for cpu in policy.cpus:
            nodes.link(f"{CPU}/cpu{cpu}/cpufreq", folder)
            if policy.driver.startswith(("amd-pstate", "scmi")):  # scmi: firmware that speaks both; ours
                _add_cppc(nodes, f"{CPU}/cpu{cpu}/acpi_cppc", policy.domain)
    _add_switches(nodes, policies, platform)
    return policies


def _add_common(nodes: Nodes, folder: str, policy: Policy) -> None:
    """The attributes that every driver has (cpufreq.c, cpufreq_attrs)."""
    domain = policy.domain
    cpus = " ".join(str(cpu) for cpu in policy.cpus) + "\n"
    available = " ".join(policy.governors)
    nodes.file(f"{folder}/affected_cpus", cpus)
    nodes.file(f"{folder}/related_cpus", cpus)
    nodes.file(f"{folder}/cpuinfo_min_freq", f"{domain.min_khz}\n")
    nodes.file(f"{folder}/cpuinfo_max_freq", lambda: f"{policy.hardware_max_khz()}\n")
    nodes.file(f"{folder}/cpuinfo_transition_latency", f"{_latency_ns(policy)}\n")
    nodes.file(f"{folder}/scaling_driver", f"{policy.driver}\n")
    nodes.file(f"{folder}/scaling_cur_freq", policy.show_clock)
    nodes.file(f"{folder}/scaling_min_freq", lambda: f"{policy.limits_khz()[0]}\n", policy.store_min)
    nodes.file(f"{folder}/scaling_max_freq", lambda: f"{policy.limits_khz()[1]}\n", policy.store_max)
    nodes.file(f"{folder}/scaling_governor", lambda: f"{policy.governor}\n", policy.store_governor)
    nodes.file(f"{folder}/scaling_setspeed", policy.show_setspeed, policy.store_setspeed)
    # the kernel's loop writes a blank after each name; a driver's own two words have none
    blank = "" if policy.driver in _OWN_POLICY_DRIVERS else " "
    nodes.file(f"{folder}/scaling_available_governors", f"{available}{blank}\n")


def _add_driver_files(nodes: Nodes, folder: str, policy: Policy) -> None:
    domain = policy.domain
    if domain.lists_steps:
        steps = " ".join(str(khz) for khz in reversed(domain.steps_khz))
        nodes.file(f"{folder}/scaling_available_frequencies", f"{steps} \n")
    if policy.driver == "acpi-cpufreq":
        nodes.file(f"{folder}/cpuinfo_cur_freq", policy.show_clock, mode=0o400)
        nodes.file(f"{folder}/bios_limit", f"{domain.max_khz}\n")
        nodes.file(f"{folder}/freqdomain_cpus", " ".join(str(cpu) for cpu in domain.cpus) + "\n")
    if policy.driver in ("intel_pstate", "intel_cpufreq") and domain.base_khz:
        nodes.file(f"{folder}/base_frequency", f"{domain.base_khz}\n")
    if policy.driver.startswith("amd-pstate"):
        nodes.file(f"{folder}/amd_pstate_max_freq", f"{domain.max_khz}\n")
    if policy.driver in _PREFERENCE_DRIVERS:
        nodes.file(f"{folder}/energy_performance_available_preferences", " ".join(_PREFERENCES) + " \n")
        nodes.file(f"{folder}/energy_performance_preference", policy.show_preference, policy.store_preference)


def _add_cppc(nodes: Nodes, folder: str, domain: Domain) -> None:
    """CPPC values of the firmware (drivers/acpi/cppc_acpi.c): clocks in MHz, performance on a scale up to 255."""

    def performance(khz: int) -> str:
        return f"{round(_CPPC_HIGHEST * khz / domain.max_khz)}\n"

    nodes.file(f"{folder}/nominal_freq", f"{domain.base_khz // 1000}\n")
    nodes.file(f"{folder}/lowest_freq", f"{domain.min_khz // 1000}\n")
    nodes.file(f"{folder}/highest_perf", performance(domain.max_khz))
    nodes.file(f"{folder}/nominal_perf", performance(domain.base_khz))
    nodes.file(f"{folder}/reference_perf", performance(domain.base_khz))
    nodes.file(f"{folder}/lowest_perf", performance(domain.min_khz))


def _add_switches(nodes: Nodes, policies: tuple[Policy, ...], platform: Platform) -> None:
    """Files that act on all policies: ``boost``, or the directory of intel_pstate or amd_pstate."""
    if not policies:
        return
    driver = policies[0].driver

    def apply_all(effective: bool) -> None:
        for policy in policies:
            if effective:
                policy.apply()

    def store_boost(text: str, effective: bool) -> None:
        platform.boost = _one_bit(text)
        apply_all(effective)

    def store_no_turbo(text: str, effective: bool) -> None:
        platform.boost = not _one_bit(text)
        apply_all(effective)

    def store_max_pct(text: str, effective: bool) -> None:
        platform.max_pct = max(min(unsigned(text, bits=32), 100), platform.min_pct)
        apply_all(effective)

    def store_min_pct(text: str, effective: bool) -> None:
        platform.min_pct = min(unsigned(text, bits=32), platform.max_pct)
        apply_all(effective)

    has_boost = any(policy.domain.max_khz > policy.domain.base_khz > 0 for policy in policies)
    if has_boost and driver.startswith(("acpi-cpufreq", "amd-pstate")):
        nodes.file(f"{CPU}/cpufreq/boost", lambda: f"{platform.boost:d}\n", store_boost)
    if driver in ("intel_pstate", "intel_cpufreq"):
        domain = policies[0].domain
        folder = f"{CPU}/intel_pstate"
        steps = (domain.max_khz - domain.min_khz) // 100_000 + 1
        turbo = (domain.max_khz - domain.base_khz) // 100_000 if domain.base_khz else 0
        nodes.file(f"{folder}/no_turbo", lambda: f"{not platform.boost:d}\n", store_no_turbo)
        nodes.file(f"{folder}/max_perf_pct", lambda: f"{platform.max_pct}\n", store_max_pct)
        nodes.file(f"{folder}/min_perf_pct", lambda: f"{_min_pct(platform, domain)}\n", store_min_pct)
        nodes.file(f"{folder}/num_pstates", f"{steps}\n")
        nodes.file(f"{folder}/turbo_pct", f"{-(-100 * turbo // steps)}\n")
        mode = "active" if driver == "intel_pstate" else "passive"
        nodes.file(f"{folder}/status", f"{mode}\n", _mode_store(mode), mode=0o644)
    if driver.startswith("amd-pstate"):
        mode = "active" if driver == "amd-pstate-epp" else "passive"
        nodes.file(f"{CPU}/amd_pstate/status", f"{mode}\n", _mode_store(mode), mode=0o644)


def _mode_store(mode: str) -> Callable[[str, bool], None]:
    """The driver's mode can be written but not changed: EBUSY, as when hardware fixes it (ours: not modelled)."""

    def store(text: str, effective: bool) -> None:
        name = word(text)
        if name not in ("active", "passive", "guided", "off"):
            raise refused(errno.EINVAL)
        if name != mode:
            raise refused(errno.EBUSY)

    return store


def _min_pct(platform: Platform, domain: Domain) -> int:
    """min_perf_pct is never below the share of the lowest clock (intel_pstate.c)."""
    return max(platform.min_pct, -(-100 * domain.min_khz // domain.max_khz))


def _quality_of_service(text: str) -> int:
    """store_one(): ``kstrtoul``, then cut to the s32 of freq_qos, where a negative value is EINVAL."""
    value = unsigned(text) & 0xFFFFFFFF
    if value > _S32_MAX:
        raise refused(errno.EINVAL)
    return value


def _one_bit(text: str) -> bool:
    value = unsigned(text, bits=32)
    if value > 1:
        raise refused(errno.EINVAL)
    return bool(value)


def _latency_ns(policy: Policy) -> int:
    """cpuinfo_transition_latency: intel_pstate reports none, the others the value of the firmware's tables."""
    return 0 if policy.driver == "intel_pstate" else policy.domain.latency_us * 1000
