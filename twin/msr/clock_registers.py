"""Clocks by registers: requests to the hardware, its present clock, and energy preferences.

A register has what the *hardware* was requested to do. Files of cpufreq have what the kernel was, which writes the
register when its own request changes. So a write to a register is in force until the kernel writes again, and the files
do not show it, as on a real node.
Source: Intel SDM vol. 3B §15.3 and §15.4 (HWP), vol. 4; AMD PPR of family 17h and 19h; Linux
drivers/cpufreq/{intel_pstate,amd-pstate}.c.
"""

from __future__ import annotations

import numpy as np

from twin.files.sysfs_cpufreq import PREFERENCE_NAMES, PREFERENCES, Policy
from twin.files.sysfs_tree import SysfsTree

RATIO_KHZ = 100_000
"""The bus clock, by which Intel's ratios multiply."""

_DYNAMIC = ("schedutil", "ondemand", "conservative")


class Clocks:
    """The clocks of a tree's machine as registers see them; CPUs are logical ones."""

    def __init__(self, tree: SysfsTree) -> None:
        self.tree = tree
        self.machine = tree.twin.machine

    def policy(self, cpu: int) -> Policy:
        """The cpufreq policy of a CPU."""
        return self.tree.policies[self.machine.policy_of[cpu]]

    def khz(self, cpu: int) -> int:
        """The present clock."""
        return self.policy(cpu).clock_khz()

    def top_khz(self) -> int:
        """The highest clock in turbo."""
        return self.machine.turbo_khz or self.machine.max_khz

    def base_khz(self) -> int:
        """The clock that is guaranteed."""
        return self.machine.base_khz or self.machine.max_khz

    def volts(self, khz: int) -> float:
        """The core's voltage at a clock."""
        points = self.machine.power.volts
        return float(np.interp(khz / 1e3, [mhz for mhz, _ in points], [volt for _, volt in points]))

    def requested_range_khz(self, cpu: int) -> tuple[int, int]:
        """The lowest and highest clock that the hardware may choose from."""
        low, high, speed, governor = self.tree.twin.policy_request(self.machine.policy_of[cpu])
        if governor == "userspace":
            return speed, speed
        if governor == "performance":
            return high, high
        return (low, low) if governor == "powersave" and not self._chooses_itself() else (low, high)

    def request_range(self, cpu: int, low_khz: int, high_khz: int) -> None:
        """Request that the hardware choose between these clocks, until the kernel requests another range."""
        high = max(min(high_khz, self.machine.max_khz), self.machine.min_khz)
        low = max(min(low_khz, high), self.machine.min_khz)
        self.tree.twin.set_policy(self.machine.policy_of[cpu], min_khz=low, max_khz=high)

    def request_speed(self, cpu: int, khz: int) -> None:
        """Request one clock. A governor that follows the load requests another one within milliseconds: no effect."""
        if self.policy(cpu).governor in _DYNAMIC:
            return
        if self.machine.turbo_khz and khz > self.base_khz():
            khz = self.machine.max_khz  # the table's name of the turbo step
        low, high = self.machine.min_khz, self.machine.max_khz
        speed = max(min(khz, high), low)
        policy = self.machine.policy_of[cpu]
        self.tree.twin.set_policy(policy, min_khz=low, max_khz=high, setspeed_khz=speed, governor="userspace")

    def requested_khz(self, cpu: int) -> int:
        """The clock requested last, of hardware that is given one clock at a time."""
        if self.policy(cpu).governor in _DYNAMIC:
            return self.khz(cpu)
        khz = self.requested_range_khz(cpu)[1]
        return self.top_khz() if self.machine.turbo_khz and khz > self.base_khz() else khz

    def preference(self, cpu: int) -> int:
        """The energy preference in force, 0 (performance) to 255."""
        shown = self.policy(cpu).show_preference().strip()
        return int(shown) if shown.isdigit() else PREFERENCES[shown]

    def store_preference(self, cpu: int, value: int) -> None:
        """Set the energy preference; a value without a name shows as its number, as in the kernel's file."""
        self.policy(cpu).set_preference(PREFERENCE_NAMES.get(value, str(value)))

    def is_boost_off(self) -> bool:
        """Whether clocks above the base clock are switched off."""
        return any(
            self.tree.read(path).strip() == off for path, off in self._switches() if self.tree.kind(path) == "file"
        )

    def switch_boost(self, off: bool) -> None:
        """Switch clocks above the base clock off or on, as the kernel's own switch does."""
        for path, text in self._switches():
            if self.tree.kind(path) == "file":
                self.tree.write(path, text if off else str(1 - int(text)).encode())

    def _chooses_itself(self) -> bool:
        return self.machine.driver in ("intel_pstate", "amd-pstate-epp")

    @staticmethod
    def _switches() -> tuple[tuple[str, bytes], ...]:
        """Files of the kernel's switch, and what each shows when boost is off."""
        cpu = "/sys/devices/system/cpu"
        return (f"{cpu}/intel_pstate/no_turbo", b"1"), (f"{cpu}/cpufreq/boost", b"0")
