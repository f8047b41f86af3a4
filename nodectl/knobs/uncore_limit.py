"""The highest clock of the uncore (mesh or ring, last-level cache, memory controllers) of Intel server processors.

The hardware chooses the uncore's clock by itself, between two limits that the driver ``intel_uncore_frequency`` shows
per scope of control, in kHz. This knob is the upper one, ``max_freq_khz``. Two generations of the driver:

- by MSR (Broadwell to Emerald Rapids): one folder ``package_XX_die_YY`` per package and die;
- by TPMI (from Granite Rapids on): one folder ``uncoreNN`` per fabric cluster, with ``package_id`` in it. The folders
  of the first kind are there as well and set all clusters of the package, so they are left alone here: two knobs of one
  register would undo each other.

The register counts steps of 100 MHz; the driver rounds down to one and refuses 0 and more than 127 of them with EINVAL.
A folder goes when the last CPU of its die goes offline. Clusters that serve input and output alone (``agent_types``,
Linux 6.13) are not moved: no counter that is read here would show what that costs.

No sample shows the uncore's clock, so a write counts when it is read back.
Sources: Linux Documentation/admin-guide/pm/intel_uncore_frequency_scaling.rst,
drivers/platform/x86/intel/uncore-frequency.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodectl.knobs.api import KnobError, Reason
from nodectl.knobs.attribute_file import SHOWN, NumberFile, read_text
from nodectl.knobs.kind import Domain, KnobKind, Limit, file_finding
from nodectl.knobs.recipe import FileRecipe
from pmu.driver_values import MOST_KHZ, digits, whole
from pmu.findings import Finding, read_number, read_or_none
from pmu.layout import KnobRange, Layout
from pmu.ports import Files, Ports

UNCORE = "/sys/devices/system/cpu/intel_uncore_frequency"

STEP_KHZ = 100_000

LATENCY_S = 0.02
"""Ours: the hardware looks at its limits about every 10 ms."""

_BY_PACKAGE = re.compile(r"package_(\d+)_die_\d+")
_BY_CLUSTER = re.compile(r"uncore\d+")


class UncoreLimit(NumberFile):
    """``max_freq_khz`` of one package and die, or of one cluster."""

    unit = "khz"
    latency_s = LATENCY_S
    bounds = (1, MOST_KHZ)

    def __init__(self, files: Files, folder: str) -> None:
        self.name = f"uncore/{folder}/max_khz"
        self._folder = folder
        self.clock_path = f"{UNCORE}/{folder}/current_freq_khz"
        """What the hardware runs at now: for a measurement without load, which can wait for it."""
        super().__init__(files, f"{UNCORE}/{folder}/max_freq_khz")

    def matches(self, requested: int, present: int) -> bool:
        """The driver rounds down to its step."""
        return requested // STEP_KHZ == present // STEP_KHZ

    def recipe(self) -> FileRecipe:
        """The driver rounds down to its step."""
        return FileRecipe(self.path, "down", STEP_KHZ)

    def hardware_limit(self) -> int | None:
        """The upper limit that the hardware had at boot, above which the driver names none."""
        return whole(read_number(self._files, f"{UNCORE}/{self._folder}/initial_max_freq_khz"), self.bounds)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """A lower limit above ours keeps the clock up."""
        low_khz = self._lowest_khz()
        if low_khz <= value:
            return "", ""
        return "firmware", f"min_freq_khz is {low_khz} kHz"

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Nothing but a write moves this limit."""
        return "", ""

    def range(self, layout: Layout) -> KnobRange:
        """From the lower limit to the upper one, as both are now."""
        high_khz = int(self.read())
        low_khz = min(self._lowest_khz(), high_khz)
        match = _BY_PACKAGE.fullmatch(self._folder)
        package = int(match[1]) if match else self._package()
        cpus = tuple(cpu for cpu, on in enumerate(layout.package_of) if on == package)
        return KnobRange(self.name, "uncore", low_khz, high_khz, tuple(range(low_khz, high_khz + 1, STEP_KHZ)), cpus)

    def why_not(self) -> str:
        """Why this scope should not be moved; empty if it may be."""
        agents = read_or_none(self._files, f"{UNCORE}/{self._folder}/agent_types")
        return "serves input and output alone (agent_types)" if agents == "io" else ""

    def _package(self) -> int:
        text = read_text(self._files, f"{UNCORE}/{self._folder}/package_id")
        package = digits(text)
        if package is None:
            raise KnobError(f"{UNCORE}/{self._folder}/package_id has {text[:SHOWN]!r}, not a number of a package")
        return package

    def _lowest_khz(self) -> int:
        text = read_text(self._files, f"{UNCORE}/{self._folder}/min_freq_khz")
        khz = whole(digits(text), (0, MOST_KHZ))
        if khz is None:
            raise KnobError(f"{UNCORE}/{self._folder}/min_freq_khz has {text[:SHOWN]!r}, not a number of kHz")
        return khz


def _find(files: Files, layout: Layout) -> tuple[Sequence[str], str]:
    try:
        folders = sorted(files.listdir(UNCORE))
    except OSError:
        return [], f"{UNCORE} does not exist: the driver intel_uncore_frequency is not loaded, or no Intel server"
    found = [folder for folder in folders if _BY_CLUSTER.fullmatch(folder)]
    found = found or [folder for folder in folders if _BY_PACKAGE.fullmatch(folder)]
    return [f"uncore/{folder}/max_khz" for folder in found], f"{UNCORE} has no folder of a package or cluster"


def _open(ports: Ports, name: re.Match[str]) -> UncoreLimit:
    limit = UncoreLimit(ports.files, name["folder"])
    limit.check()
    return limit


def _look(files: Files, knob: UncoreLimit) -> Finding:
    why_not = knob.why_not()
    return Finding(knob.name, "knob", True, True, False, False, why_not) if why_not else file_finding(files, knob)


KIND = KnobKind(
    pattern=r"uncore/(?P<folder>package_\d+_die_\d+|uncore\d+)/max_khz",
    name="uncore/*/max_khz",
    find=_find,
    open=_open,
    look=_look,
    limit=Limit(UncoreLimit.hardware_limit, is_seldom_lowered=True),
    domain=Domain(
        name="uncore",
        what="uncore clock limits",
        range_of=UncoreLimit.range,
        policies={"uncore-bounded": "nodectl.policies.uncore_bounded:POLICY"},
    ),
)
