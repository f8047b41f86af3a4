"""The power limits of a processor package: powercap's ``constraint_N_power_limit_uw``.

A package has a long-term limit (PL1, a running average over about a second) and a short-term one (PL2, milliseconds).
A write may have another effect than it seems, for three reasons:

- the firmware can lock the register until the next boot: the kernel then refuses with ENODATA;
- client processors have the same limits a second time in memory-mapped registers (``intel-rapl-mmio:N``), and the lower
  of both is in force: a limit above its twin there changes nothing;
- the hardware stores eighths of a watt, so what is read back may differ from what was written by that much.

A limit that stays as it was written can still be made void: by the switch of its zone (``enabled``), by a longer
averaging window, and, for as long as that window, by a higher short-term limit. These files are its *companions*.

AMD shows energy only: its zones have no writable constraint, and no knob comes out of them.
Sources: Linux Documentation/power/powercap/powercap.rst; Intel SDM vol. 3B 15.10 (RAPL).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nodectl.knobs.api import Companion, KnobError, Reason
from nodectl.knobs.attribute_file import NumberFile, write_text
from nodectl.knobs.kind import KnobKind, Limit, file_finding, pairs
from nodectl.knobs.recipe import FileRecipe
from pmu.driver_values import MOST_LIMIT_UW, digits, whole
from pmu.findings import Finding
from pmu.layout import Layout
from pmu.ports import Files, Ports
from pmu.readings import Sample, type_f64

POWERCAP = "/sys/class/powercap"
SHORT_TERM = "short_term"
TERMS = ("long_term", SHORT_TERM)

POWER_STEP_UW = 125_000
"""1/8 W, the usual unit of the limit registers (SDM, MSR_RAPL_POWER_UNIT, default 0011b)."""

LONGEST_WINDOW_US = 1_000_000_000
"""Ours: the register counts to some minutes."""

SHORTEST_LATENCY_S = 0.1
"""Ours: energy counters move in 1 ms steps, so power over less than this is too coarse to judge a limit by."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One limit of one zone, as files. ``short``: of a long-term limit, limit and window of the zone's short-term
    one."""

    limit_path: str
    most_path: str
    window_path: str
    enabled_path: str
    short: tuple[str, str] | None = None


class PackageLimit(NumberFile):
    """One power limit of one package, microwatts. ``twin`` is the same limit in the memory-mapped registers."""

    unit = "uw"

    def __init__(self, files: Files, package: str, term: str, limit: Constraint, twin: Constraint | None) -> None:
        super().__init__(files, limit.limit_path)
        self.name = f"rapl/{package}/{term}_uw"
        self._limit = limit
        self._twin = twin
        self.latency_s = max(SHORTEST_LATENCY_S, 2 * self._window_s())
        self.companions = _companions(limit)

    def matches(self, requested: int, present: int) -> bool:
        """Equal to the register's own step."""
        return abs(requested - present) <= POWER_STEP_UW

    def recipe(self) -> FileRecipe:
        """What is read back may differ by the register's step."""
        return FileRecipe(self.path, "within", POWER_STEP_UW)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """The memory-mapped twin of this limit may be lower."""
        twin_uw = self.twin_limit_uw()
        if twin_uw is None or twin_uw + POWER_STEP_UW >= value:
            return "", ""
        return "second RAPL interface", f"the memory-mapped limit is lower and in force: {twin_uw} uW"

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Look at what else decides whether this limit counts."""
        if present is not None and not self.matches(requested, present):
            return "", ""
        if self.is_off():
            return "lock bit", f"{self._limit.enabled_path} is 0: switched off, or locked by the firmware"
        return "firmware", "the package does not keep to its limit"

    def read_companion(self, companion: Companion) -> int | None:
        """What a companion is at; None where this kernel or zone does not have it."""
        text = self._optional(companion.path)
        return int(text) if text.isdigit() else None

    def set_companion(self, companion: Companion, value: int) -> None:
        """Set a companion, in its own unit."""
        write_text(self._files, companion.path, str(value))

    def switch_on(self) -> None:
        """Switch the limits of the zone on where they are off. ``KnobError`` if they stay off."""
        if self.is_off():
            write_text(self._files, self._limit.enabled_path, "1")

    def is_off(self) -> bool:
        """Limits of the zone do not count: switched off, or locked, which the driver shows the same way
        (drivers/powercap/intel_rapl_common.c, get_domain_enable)."""
        return self._optional(self._limit.enabled_path) == "0"

    def highest(self) -> int | None:
        """The most that the package can be limited to; None where the kernel names none, or 0."""
        return whole(digits(self._optional(self._limit.most_path)), (1, MOST_LIMIT_UW))

    def twin_limit_uw(self) -> int | None:
        """The memory-mapped limit where it is switched on; None without one."""
        if self._twin is None or self._optional(self._twin.enabled_path) == "0":
            return None
        return digits(self._optional(self._twin.limit_path))

    def _optional(self, path: str) -> str:
        try:
            return self._files.read(path).strip()
        except OSError:
            return ""  # this kernel or zone does not have it

    def _window_s(self) -> float:
        return (whole(digits(self._optional(self._limit.window_path)), (0, LONGEST_WINDOW_US)) or 0) / 1e6


def package_limit(files: Files, package: str, term: str) -> PackageLimit:
    """The limit ``term`` of ``package`` ("package-0"), found by the names the kernel gives; KnobError without one."""
    limit = _constraint(files, "intel-rapl", package, term)
    if limit is None:
        raise KnobError(f"{POWERCAP} has no {term} limit for {package}", "vanished")
    return PackageLimit(files, package, term, limit, _constraint(files, "intel-rapl-mmio", package, term))


def _constraint(files: Files, control: str, package: str, term: str) -> Constraint | None:
    try:
        zones = files.listdir(POWERCAP)
    except OSError:
        return None
    for zone in sorted(zones):
        prefix, _, number = zone.partition(":")
        base = f"{POWERCAP}/{zone}"
        if prefix != control or not number.isdigit() or _name(files, f"{base}/name") != package:
            continue
        stems = {_name(files, f"{stem}_name"): stem for stem in (f"{base}/constraint_{n}" for n in range(len(TERMS)))}
        if stem := stems.get(term):
            paths = (f"{stem}_power_limit_uw", f"{stem}_max_power_uw", f"{stem}_time_window_us")
            short = stems.get(SHORT_TERM) if term != SHORT_TERM else None
            of_short = (f"{short}_power_limit_uw", f"{short}_time_window_us") if short else None
            return Constraint(*paths, f"{base}/enabled", of_short)
    return None


def _companions(limit: Constraint) -> tuple[Companion, ...]:
    short = limit.short
    return (
        Companion(limit.enabled_path, "the switch of its zone", is_switch=True),
        Companion(limit.window_path, "its time window"),
        *((Companion(short[0], "the short-term limit"), Companion(short[1], "the short-term window")) if short else ()),
    )


def _name(files: Files, path: str) -> str:
    try:
        return files.read(path).strip()
    except OSError:
        return ""


class _PowerSeen:
    """The mean power of each package: whoever draws less than its limit keeps it."""

    def __init__(self, row_of: Mapping[str, int], layout: Layout) -> None:
        packages = [zone.name if zone.kind == "package" else "" for zone in layout.zones]
        found = [pairs(row_of, [f"rapl/{package}/{term}_uw" for package in packages]) for term in TERMS]
        self.rows = np.concatenate([rows for rows, _ in found])
        self._zones = np.concatenate([zones for _, zones in found])
        self.rounding = np.zeros(len(self.rows))

    def look(self, sample: Sample, seen: type_f64, floor: type_f64) -> None:
        if sample.elapsed_s > 0:
            seen[self.rows] = sample.energy_j[self._zones] / sample.elapsed_s * 1e6


def _names(files: Files, layout: Layout) -> tuple[Sequence[str], str]:
    packages = dict.fromkeys(zone.name for zone in layout.zones if zone.kind == "package")
    return [f"rapl/{package}/{term}_uw" for package in packages for term in TERMS], ""


def _open(ports: Ports, name: re.Match[str]) -> PackageLimit:
    return package_limit(ports.files, name["package"], name["term"])


def _look(files: Files, knob: PackageLimit) -> Finding:
    """Whether a limit is locked shows at the first write."""
    found = file_finding(files, knob)
    if not found.writable:
        return found
    if knob.is_off():
        why = "limits of this zone are switched off, or locked by the firmware until the next boot"
        return Finding(knob.name, "knob", True, True, False, True, why)
    twin_uw = knob.twin_limit_uw()
    why = "" if twin_uw is None else f"intel-rapl-mmio has {twin_uw} uW; the lower of both is in force"
    return Finding(knob.name, "knob", True, True, True, False, why)


KIND = KnobKind(
    pattern=r"rapl/(?P<package>[^/]+)/(?P<term>long_term|short_term)_uw",
    find=_names,
    open=_open,
    look=_look,
    effect=_PowerSeen,
    limit=Limit(PackageLimit.highest, is_for_caps=True),
)
