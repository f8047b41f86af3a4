"""The clock lock and the power limit of a GPU, through NVML.

A clock lock (``nvmlDeviceSetGpuLockedClocks``) keeps the SM clock between two clocks. Both are the same here: under a
mere upper limit the card's firmware follows its own policy, which cost a compute-bound code 3 % (REGALE D2.3 §3.4,
QE-PW) and would be charged to ours. The driver rounds the clock to the card's ladder. NVML has **no getter** for a
lock: nobody can find out whether one is set or who set it. So the lock that the site has set, the *baseline*, comes
from the settings or is observed (``nodectl.write.site_lock``), and until it is known a run locks nothing. A restore
sets the baseline again; where there is none it is ``nvmlDeviceResetGpuLockedClocks``. The power limit has a getter, in
milliwatts.

A knob is called by its card's number in this run ("gpu/0/power_limit_mw"), and finds the card by its UUID: the driver
numbers the cards of a process when that process begins, and without a card that is lost the others move up. In a save
the knob is called by the UUID ("gpu/GPU-…/power_limit_mw"), since the next run may number otherwise.
Both need root. Source: NVML API reference, "Device Commands".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nodectl.knobs.api import Knob, KnobError, Reason, WholeNumber
from nodectl.knobs.kind import BUSY_SHARE, Domain, KnobKind, Limit, pairs
from nodectl.knobs.recipe import NvmlRecipe
from pmu.driver_values import MOST_BOARD_MW, MOST_CLOCK_MHZ, ODD_ANSWERS, bits, digits, type_bounds, whole, words
from pmu.findings import Finding
from pmu.instruments.gpu import MOST_GPUS
from pmu.layout import KnobRange, Layout
from pmu.ports import Ports
from pmu.readings import RAW_MISSING, Sample, type_f64

UNLOCKED = "unlocked"
LOCKED = "locked "
"""What the card is captured as: unlocked, or "locked 1095" for a baseline of 1095 MHz."""

LATENCY_S = 0.5
"""Ours: a lock takes from some milliseconds to some hundred of them, by card and distance of the clocks."""

CARD = r"\d{1,4}|(?:GPU|MIG)-[\w./-]{1,90}"
"""The number of a card in this run, or its UUID."""

_CLOCKS_MHZ: type_bounds = (1, MOST_CLOCK_MHZ)
_LIMITS_MW: type_bounds = (1, MOST_BOARD_MW)

# nvmlReturn_t (nvml.h); the numbers are part of the library's binary interface
_GONE = {
    1: "NVML is not initialised",
    6: "no such GPU",
    9: "the NVIDIA driver is not loaded",
    15: "the GPU is lost",
    16: "the GPU must be reset",
    28: "no such GPU",
}
_NO_PERMISSION = 4

# nvmlClocksEventReasons (nvml.h)
_THERMAL = 0x20 | 0x40  # software, hardware thermal slowdown
_POWER = 0x04 | 0x80  # software power cap, power brake
_SLOWDOWN = 0x08
_APPLICATIONS = 0x02


class NvmlKnob(WholeNumber):
    """What knobs of a card share: the card and the translation of NVML's errors. ``uuid``: the card's."""

    def __init__(self, nvml: Any, gpu: str, what: str) -> None:
        """``gpu``: the card's number in this run, or its UUID."""
        self._nvml = nvml
        self.name = f"gpu/{gpu}/{what}"
        self._gpu = f"GPU {gpu}"
        self._found: Any = None
        self.uuid = "" if gpu.isdecimal() else gpu
        if not self.uuid:
            self._found = self._call("find", nvml.nvmlDeviceGetHandleByIndex, int(gpu))
            self.uuid = words(self._call("read its UUID", nvml.nvmlDeviceGetUUID, self._found))
        self._index = int(gpu) if gpu.isdecimal() else self._number_here()

    @property
    def _device(self) -> Any:
        """The handle of the card, found again where the card was gone meanwhile."""
        if self._found is None:
            self._call("begin", self._nvml.nvmlInit)  # counted by the library, so one more does no harm
            self._found = self._call("find", self._nvml.nvmlDeviceGetHandleByUUID, self.uuid)
        return self._found

    def _number_here(self) -> int:
        return whole(self._call("read its number", self._nvml.nvmlDeviceGetIndex, self._device), (0, MOST_GPUS)) or 0

    def _call(self, verb: str, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", 0)
            if code in _GONE:
                self._found = None
                raise KnobError(f"{self._gpu}: cannot {verb}: {_GONE[code]}", "vanished") from error
            fix = "; the agent needs root" if code == _NO_PERMISSION else ""
            raise KnobError(f"{self._gpu}: cannot {verb}: {error}{fix}") from error
        except ODD_ANSWERS as error:
            raise KnobError(
                f"{self._gpu}: cannot {verb}: the driver gave no answer that makes sense ({error})"
            ) from error

    def _number(self, verb: str, bounds: type_bounds, function: Any, *arguments: Any) -> int:
        """A number that the driver gives; ``KnobError`` where no card can be at it."""
        return self._believed(verb, bounds, self._call(verb, function, *arguments))

    def _believed(self, verb: str, bounds: type_bounds, answer: Any) -> int:
        number = whole(answer, bounds)
        if number is None:
            raise KnobError(f"{self._gpu}: cannot {verb}: the driver answers {str(answer)[:40]}, which cannot be")
        return number

    def _throttled_by(self) -> tuple[Reason, str]:
        bits = self._event_reasons()
        if bits & _THERMAL:
            return "thermal", f"the driver throttles clocks for temperature (reasons {bits:#x})"
        if bits & (_POWER | _SLOWDOWN):
            return "firmware", f"the driver throttles clocks for power (reasons {bits:#x})"
        if bits & _APPLICATIONS:
            return "firmware", "the applications clocks are lower (`nvidia-smi -rac` resets them)"
        return "firmware", "the card chooses another clock by itself"

    def _event_reasons(self) -> int:
        """Why the clock is where it is, as bits; 0 where the driver does not report it. The second name is the one
        before driver 535."""
        nvml = self._nvml
        for getter in (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons):
            try:
                found = bits(self._call("read why its clock is where it is", getter, self._device))
                return 0 if found == RAW_MISSING else found
            except KnobError:
                continue
        return 0


class ClockLock(NvmlKnob):
    """The SM clock, MHz, which only power and thermal limits then lower; 0 unlocks. ``baseline_mhz``: the site's own
    lock, 0 for none."""

    unit = "mhz"
    latency_s = LATENCY_S

    def __init__(self, nvml: Any, gpu: str) -> None:
        super().__init__(nvml, gpu, "sm_clock_mhz")
        self.baseline_mhz = 0

    def read(self) -> str:
        """The baseline: there is no getter (see above)."""
        self._look()
        return f"{LOCKED}{self.baseline_mhz}" if self.baseline_mhz else UNLOCKED

    def set(self, value: int) -> None:
        """Lock to ``value`` MHz, or unlock."""
        if value == 0:
            self._call("unlock clocks", self._nvml.nvmlDeviceResetGpuLockedClocks, self._device)
        else:
            lock = self._nvml.nvmlDeviceSetGpuLockedClocks
            self._call(f"lock clocks to {value} MHz", lock, self._device, value, value)

    def read_back(self) -> int | None:
        """None: NVML has no getter. ``KnobError`` where the card is gone, whose lock goes with it."""
        self._look()
        return None

    def _look(self) -> None:
        """Read a clock, to notice a card that is gone."""
        self._call("read its clock", self._nvml.nvmlDeviceGetClockInfo, self._device, self._nvml.NVML_CLOCK_SM)

    def restore(self, captured: str) -> None:
        """Unlock, or set the baseline again; any other captured state cannot have come from here."""
        baseline_mhz = self.locked(captured)
        if captured != UNLOCKED and not baseline_mhz:
            raise KnobError(f"{self.name}: the saved state {captured!r} is not one this knob can have captured")
        self.set(baseline_mhz or 0)

    def locked(self, text: str) -> int | None:
        """The lock in a text that ``read`` returned; None for "unlocked"."""
        clock = text.removeprefix(LOCKED)
        return digits(clock) if clock != text else None

    def highest(self) -> int | None:
        """The card's highest SM clock."""
        getter, sm_clock = self._nvml.nvmlDeviceGetMaxClockInfo, self._nvml.NVML_CLOCK_SM
        return self._number("read its highest clock", _CLOCKS_MHZ, getter, self._device, sm_clock)

    def applications_mhz(self) -> int | None:
        """The applications clock of the SMs if it is below its default: no lock then runs faster. None: it is not, or
        the card has none."""
        applied, default = self._nvml.nvmlDeviceGetApplicationsClock, self._nvml.nvmlDeviceGetDefaultApplicationsClock
        try:
            applied_mhz, default_mhz = (
                self._number("read its applications clock", _CLOCKS_MHZ, getter, self._device, self._nvml.NVML_CLOCK_SM)
                for getter in (applied, default)
            )
        except KnobError:
            return None
        return applied_mhz if applied_mhz < default_mhz else None

    def matches(self, requested: int, present: int) -> bool:
        """Never called: there is nothing to compare with."""
        return requested == present

    def recipe(self) -> NvmlRecipe:
        """Unlocking needs no value."""
        return NvmlRecipe(self._index, "clock_lock", self.uuid)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Unknown without a getter; the clock itself will show."""
        return "", ""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """The driver's own throttle reasons."""
        return self._throttled_by()


class BoardLimit(NvmlKnob):
    """Power limit of the board, milliwatts."""

    unit = "mw"
    latency_s = LATENCY_S

    def __init__(self, nvml: Any, gpu: str) -> None:
        super().__init__(nvml, gpu, "power_limit_mw")

    def read(self) -> str:
        """The limit, as digits."""
        return str(self.read_back())

    def set(self, value: int) -> None:
        """Set a limit of ``value`` milliwatts."""
        limit = self._nvml.nvmlDeviceSetPowerManagementLimit
        self._call(f"set its power limit to {value} mW", limit, self._device, value)

    def read_back(self) -> int | None:
        """The limit as the driver returns it."""
        getter = self._nvml.nvmlDeviceGetPowerManagementLimit
        return self._number("read its power limit", _LIMITS_MW, getter, self._device)

    def highest(self) -> int | None:
        """The most that the board can be limited to."""
        getter = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints
        verb = "read the range of its power limit"
        found = self._call(verb, getter, self._device)
        return self._believed(
            verb, _LIMITS_MW, found[1] if isinstance(found, list | tuple) and len(found) == 2 else None
        )

    def restore(self, captured: str) -> None:
        """Set the captured limit again."""
        limit_mw = whole(digits(captured), _LIMITS_MW)
        if limit_mw is None:
            raise KnobError(f"{self.name}: the saved state {captured!r} is not a limit in milliwatts")
        self.set(limit_mw)

    def matches(self, requested: int, present: int) -> bool:
        """The driver stores a limit exactly, in milliwatts."""
        return requested == present

    def recipe(self) -> NvmlRecipe:
        """The limit of the board, in milliwatts."""
        return NvmlRecipe(self._index, "power_limit", self.uuid)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """A lower limit from elsewhere (out of band, a shared power budget) shows as the enforced limit."""
        getter = self._nvml.nvmlDeviceGetEnforcedPowerLimit
        try:
            enforced_mw = self._number("read its enforced limit", _LIMITS_MW, getter, self._device)
        except KnobError:
            return "", ""
        return ("firmware", f"the limit in force is {enforced_mw} mW") if enforced_mw < value else ("", "")

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """A limit that reads back as set and has no effect is not kept by the card's firmware."""
        if present is not None and present != requested:
            return "", ""
        return "firmware", "the card does not keep to its limit"


class _ClocksSeen:
    """The SM clock of each busy GPU, which runs at its lock: it has no clock that is a gift."""

    def __init__(self, row_of: Mapping[str, int], layout: Layout) -> None:
        self.rows, self._gpus = pairs(row_of, _names("sm_clock_mhz", layout))
        self.rounding = np.zeros(len(self.rows))

    def look(self, sample: Sample, seen: type_f64, floor: type_f64) -> None:
        is_busy = sample.gpu.gpu_utilization[self._gpus] >= BUSY_SHARE
        seen[self.rows] = np.where(is_busy, sample.gpu.sm_clock_mhz[self._gpus], np.nan)
        floor[self.rows] = np.inf


class _PowerSeen:
    """The power of each board."""

    def __init__(self, row_of: Mapping[str, int], layout: Layout) -> None:
        self.rows, self._gpus = pairs(row_of, _names("power_limit_mw", layout))
        self.rounding = np.zeros(len(self.rows))

    def look(self, sample: Sample, seen: type_f64, floor: type_f64) -> None:
        seen[self.rows] = sample.gpu.power_w[self._gpus] * 1e3


def _names(what: str, layout: Layout) -> list[str]:
    return [f"gpu/{gpu.index}/{what}" for gpu in layout.gpus]


def open_card_knob(ports: Ports, name: re.Match[str], kind: Callable[[Any, str], Knob]) -> Knob:
    """The knob of the card that a name has; ``KnobError`` if NVML or the card is not there."""
    if ports.nvml is None:
        raise KnobError(f"{name[0]}: {ports.nvml_why}", "vanished")
    try:
        ports.nvml.nvmlInit()  # counted by the library, so one more does no harm
    except (ports.nvml.NVMLError, *ODD_ANSWERS) as error:
        raise KnobError(f"{name[0]}: {error}", "vanished") from error
    return kind(ports.nvml, name["gpu"])


def _look(knob: ClockLock | BoardLimit, *remarks: str) -> Finding:
    if os.geteuid() != 0:
        remarks = (*remarks, "the driver lets only root set it")
    return Finding(knob.name, "knob", True, knob.read_back() is not None, True, False, "; ".join(remarks))


def _rows(layout: Layout) -> Sequence[KnobRange]:
    return [
        KnobRange(name, "gpu", *((gpu.clocks_mhz[0], gpu.clocks_mhz[-1]) if gpu.clocks_mhz else (0, 0)), gpu.clocks_mhz)
        for name, gpu in zip(_names("sm_clock_mhz", layout), layout.gpus, strict=True)
    ]


CLOCK_LOCK = KnobKind(
    pattern=rf"gpu/(?P<gpu>{CARD})/sm_clock_mhz",
    name="gpu/*/sm_clock_mhz",
    find=lambda files, layout: (_names("sm_clock_mhz", layout), ""),
    open=lambda ports, name: open_card_knob(ports, name, ClockLock),
    look=lambda files, knob: _look(knob, "NVML cannot say whether clocks are locked: see [gpu] locked_clock_mhz"),
    effect=_ClocksSeen,
    limit=Limit(ClockLock.highest, ClockLock.locked),
    domain=Domain(
        name="gpu",
        what="GPU clock locks",
        rests_on="gpu",
        is_there=lambda layout: bool(layout.gpus),
        of_layout=_rows,
    ),
)

BOARD_LIMIT = KnobKind(
    pattern=rf"gpu/(?P<gpu>{CARD})/power_limit_mw",
    name="gpu/*/power_limit_mw",
    find=lambda files, layout: (_names("power_limit_mw", layout), ""),
    open=lambda ports, name: open_card_knob(ports, name, BoardLimit),
    look=lambda files, knob: _look(knob),
    effect=_PowerSeen,
    limit=Limit(BoardLimit.highest, is_for_caps=True),
)
