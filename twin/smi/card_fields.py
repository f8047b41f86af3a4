"""The fields that ``--query-gpu`` and its kin know: each with its name in the header, its unit and how it is read.

Names, units and forms of values are those by which monitoring programs parse the output of the driver's program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml as nvml

UNAVAILABLE = "[N/A]"
"""What a card does not have."""

_MIB = 1 << 20

_REASONS = {
    "gpu_idle": nvml.nvmlClocksThrottleReasonGpuIdle,
    "applications_clocks_setting": nvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
    "sw_power_cap": nvml.nvmlClocksThrottleReasonSwPowerCap,
    "hw_slowdown": nvml.nvmlClocksThrottleReasonHwSlowdown,
    "hw_thermal_slowdown": nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "sw_thermal_slowdown": nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "sync_boost": nvml.nvmlClocksThrottleReasonSyncBoost,
}


class UnknownFieldError(Exception):
    """There is no field of this name."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a card; ``memory`` in bytes, None if unknown."""

    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a line is about: a card, and for a process or a supported clock also that."""

    card: Any
    process: Process | None = None
    clocks: tuple[int, int] | None = None  # memory, graphics; MHz


@dataclass(frozen=True, slots=True)
class Field:
    """``label`` is its name in the header; ``shown`` the value without its unit."""

    label: str
    unit: str
    shown: Callable[[Subject], str]

    def header(self) -> str:
        """As the first line of the CSV has it; the unit is there even with ``nounits``."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def value(self, subject: Subject, with_unit: bool) -> str:
        """The text of one cell; an error of NVML is text too, since other cells of the line are right."""
        try:
            text = self.shown(subject)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return UNAVAILABLE
        except nvml.NVMLError as error:
            return f"[{error}]"
        return f"{text} {self.unit}" if self.unit and with_unit else text


def chosen(names: str, known: Mapping[str, Field]) -> list[Field]:
    """The fields of a list separated by commas; UnknownFieldError with the first name that is none."""
    fields = []
    for name in (word.strip() for word in names.split(",")):
        if name not in known:
            raise UnknownFieldError(name)
        fields.append(known[name])
    return fields


def processes(card: Any) -> list[Process]:
    """Those that compute on the card, as NVML lists them."""
    return [Process(each.pid, each.usedGpuMemory) for each in nvml.nvmlDeviceGetComputeRunningProcesses(card)]


def supported_clocks(card: Any) -> Iterator[tuple[int, int]]:
    """All pairs of memory and graphics clocks, MHz, highest first."""
    for memory_mhz in nvml.nvmlDeviceGetSupportedMemoryClocks(card):
        for graphics_mhz in nvml.nvmlDeviceGetSupportedGraphicsClocks(card, memory_mhz):
            yield memory_mhz, graphics_mhz


def bus_id(card: Any) -> str:
    """Such as 00000000:07:00.0."""
    return str(nvml.nvmlDeviceGetPciInfo(card).busId)


# ---- how values are shown ------------------------------------------------------------------------------------------


def _of_card(read: Callable[[Any], object]) -> Callable[[Subject], str]:
    return lambda subject: str(read(subject.card))


def _watts(read: Callable[[Any], int]) -> Callable[[Subject], str]:
    return lambda subject: f"{read(subject.card) / 1000:.2f}"


def _enabled(read: Callable[[Any], int]) -> Callable[[Subject], str]:
    return lambda subject: "Enabled" if read(subject.card) else "Disabled"


def _hexadecimal(read: Callable[[Any], int], digits: int) -> Callable[[Subject], str]:
    return lambda subject: f"0x{read(subject.card):0{digits}X}"


def _mebibytes(part: str) -> Callable[[Subject], str]:
    return lambda subject: str(getattr(nvml.nvmlDeviceGetMemoryInfo(subject.card), part) // _MIB)


def _instant(field: int) -> Callable[[Subject], str]:
    """A power by its number among NVML's field values."""

    def read(card: Any) -> int:
        value = nvml.nvmlDeviceGetFieldValues(card, [field])[0]
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
        return int(value.value.uiVal)

    return _watts(read)


def _memory_celsius(card: Any) -> int:
    value = nvml.nvmlDeviceGetFieldValues(card, [nvml.NVML_FI_DEV_MEMORY_TEMP])[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _clock(read: Callable[[Any, int], int], kind: int) -> Callable[[Subject], str]:
    return lambda subject: str(read(subject.card, kind))


def _has_reason(bit: int) -> Callable[[Subject], str]:
    def shown(subject: Subject) -> str:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(subject.card)
        return "Active" if reasons & bit else "Not Active"

    return shown


def _capability(card: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    return f"{major}.{minor}"


def _limit(end: int) -> Callable[[Subject], str]:
    return _watts(lambda card: int(nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[end]))


def _now(_: Subject) -> str:
    seconds = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}"


def _missing(_: Subject) -> str:
    return UNAVAILABLE


def _used_by_process(subject: Subject) -> str:
    assert subject.process
    return UNAVAILABLE if subject.process.memory is None else str(subject.process.memory // _MIB)


def _process_name(subject: Subject) -> str:
    assert subject.process
    return str(nvml.nvmlSystemGetProcessName(subject.process.pid))


# ---- the fields ----------------------------------------------------------------------------------------------------


def _named(fields: list[tuple[str, str, Callable[[Subject], str]]]) -> dict[str, Field]:
    """Each tuple: names separated by blanks, of which the first is the header's; unit; value."""
    named = {}
    for names, unit, shown in fields:
        label, *others = names.split()
        for name in (label, *others):
            named[name] = Field(label, unit, shown)
    return named


_IDENTITY: list[tuple[str, str, Callable[[Subject], str]]] = [
    ("timestamp", "", _now),
    ("name gpu_name", "", _of_card(nvml.nvmlDeviceGetName)),
    ("serial gpu_serial", "", _of_card(nvml.nvmlDeviceGetSerial)),
    ("uuid gpu_uuid", "", _of_card(nvml.nvmlDeviceGetUUID)),
    ("pci.bus_id gpu_bus_id", "", _of_card(bus_id)),
]

_PROPERTIES: list[tuple[str, str, Callable[[Subject], str]]] = [
    ("driver_version", "", lambda _: str(nvml.nvmlSystemGetDriverVersion())),
    ("count", "", lambda _: str(nvml.nvmlDeviceGetCount())),
    ("index", "", _of_card(nvml.nvmlDeviceGetIndex)),
    ("pci.domain", "", _hexadecimal(lambda card: nvml.nvmlDeviceGetPciInfo(card).domain, 4)),
    ("pci.bus", "", _hexadecimal(lambda card: nvml.nvmlDeviceGetPciInfo(card).bus, 2)),
    ("pci.device", "", _hexadecimal(lambda card: nvml.nvmlDeviceGetPciInfo(card).device, 2)),
    ("pci.device_id", "", _hexadecimal(lambda card: nvml.nvmlDeviceGetPciInfo(card).pciDeviceId, 8)),
    ("pci.sub_device_id", "", _hexadecimal(lambda card: nvml.nvmlDeviceGetPciInfo(card).pciSubSystemId, 8)),
    ("pcie.link.gen.gpucurrent pcie.link.gen.current", "", _of_card(nvml.nvmlDeviceGetCurrPcieLinkGeneration)),
    ("pcie.link.gen.max", "", _of_card(nvml.nvmlDeviceGetMaxPcieLinkGeneration)),
    ("pcie.link.width.current", "", _of_card(nvml.nvmlDeviceGetCurrPcieLinkWidth)),
    ("pcie.link.width.max", "", _of_card(nvml.nvmlDeviceGetMaxPcieLinkWidth)),
    ("vbios_version", "", _of_card(nvml.nvmlDeviceGetVbiosVersion)),
    ("compute_cap", "", _of_card(_capability)),
    ("compute_mode", "", lambda _: "Default"),
    ("display_mode", "", _enabled(nvml.nvmlDeviceGetDisplayMode)),
    ("display_active", "", _enabled(nvml.nvmlDeviceGetDisplayActive)),
    ("persistence_mode", "", _enabled(nvml.nvmlDeviceGetPersistenceMode)),
    ("power.management", "", _enabled(nvml.nvmlDeviceGetPowerManagementMode)),
    ("ecc.mode.current", "", _enabled(lambda card: nvml.nvmlDeviceGetEccMode(card)[0])),
    ("ecc.mode.pending", "", _enabled(lambda card: nvml.nvmlDeviceGetEccMode(card)[1])),
    ("mig.mode.current", "", _enabled(lambda card: nvml.nvmlDeviceGetMigMode(card)[0])),
    ("mig.mode.pending", "", _enabled(lambda card: nvml.nvmlDeviceGetMigMode(card)[1])),
    ("accounting.mode", "", _missing),
    ("driver_model.current", "", _missing),
    ("driver_model.pending", "", _missing),
    ("gom.current", "", _missing),
    ("gom.pending", "", _missing),
]

_READINGS: list[tuple[str, str, Callable[[Subject], str]]] = [
    ("pstate", "", lambda subject: f"P{nvml.nvmlDeviceGetPerformanceState(subject.card)}"),
    ("fan.speed", "%", _of_card(nvml.nvmlDeviceGetFanSpeed)),
    ("temperature.gpu", "", _of_card(lambda card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU))),
    ("temperature.memory", "", _of_card(_memory_celsius)),
    ("utilization.gpu", "%", _of_card(lambda card: nvml.nvmlDeviceGetUtilizationRates(card).gpu)),
    ("utilization.memory", "%", _of_card(lambda card: nvml.nvmlDeviceGetUtilizationRates(card).memory)),
    ("utilization.encoder", "%", _of_card(lambda card: nvml.nvmlDeviceGetEncoderUtilization(card)[0])),
    ("utilization.decoder", "%", _of_card(lambda card: nvml.nvmlDeviceGetDecoderUtilization(card)[0])),
    ("memory.total", "MiB", _mebibytes("total")),
    ("memory.used", "MiB", _mebibytes("used")),
    ("memory.free", "MiB", _mebibytes("free")),
    ("memory.reserved", "MiB", lambda _: "0"),
    ("power.draw", "W", _watts(nvml.nvmlDeviceGetPowerUsage)),
    ("power.draw.average", "W", _instant(nvml.NVML_FI_DEV_POWER_AVERAGE)),
    ("power.draw.instant", "W", _instant(nvml.NVML_FI_DEV_POWER_INSTANT)),
    ("power.limit", "W", _watts(nvml.nvmlDeviceGetPowerManagementLimit)),
    ("enforced.power.limit", "W", _watts(nvml.nvmlDeviceGetEnforcedPowerLimit)),
    ("power.default_limit", "W", _watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit)),
    ("power.min_limit", "W", _limit(0)),
    ("power.max_limit", "W", _limit(1)),
    ("ecc.errors.corrected.volatile.total", "", lambda _: "0"),
    ("ecc.errors.uncorrected.volatile.total", "", lambda _: "0"),
]


def _clock_fields() -> Iterator[tuple[str, str, Callable[[Subject], str]]]:
    kinds = {
        "graphics": ("gr", nvml.NVML_CLOCK_GRAPHICS),
        "sm": ("sm", nvml.NVML_CLOCK_SM),
        "memory": ("mem", nvml.NVML_CLOCK_MEM),
        "video": ("video", nvml.NVML_CLOCK_VIDEO),
    }
    for long, (short, kind) in kinds.items():
        names = f"clocks.current.{long} clocks.{short} clocks.{long}"
        yield names, "MHz", _clock(nvml.nvmlDeviceGetClockInfo, kind)
        if long == "video":
            continue
        yield f"clocks.max.{long} clocks.max.{short}", "MHz", _clock(nvml.nvmlDeviceGetMaxClockInfo, kind)
        if long == "sm":
            continue
        applied, by_default = nvml.nvmlDeviceGetApplicationsClock, nvml.nvmlDeviceGetDefaultApplicationsClock
        yield f"clocks.applications.{long} clocks.applications.{short}", "MHz", _clock(applied, kind)
        names = f"clocks.default_applications.{long} clocks.default_applications.{short}"
        yield names, "MHz", _clock(by_default, kind)


def _reason_fields() -> Iterator[tuple[str, str, Callable[[Subject], str]]]:
    """By the names from driver 535 on, and by those before."""
    whole = {
        "supported": _hexadecimal(nvml.nvmlDeviceGetSupportedClocksThrottleReasons, 16),
        "active": _hexadecimal(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, 16),
    }
    for name, shown in (*whole.items(), *((name, _has_reason(bit)) for name, bit in _REASONS.items())):
        yield f"clocks_event_reasons.{name} clocks_throttle_reasons.{name}", "", shown


OF_CARD = _named([*_IDENTITY, *_PROPERTIES, *_READINGS, *_clock_fields(), *_reason_fields()])
"""Fields of ``--query-gpu``."""

_ABOUT_CARD: list[tuple[str, str, Callable[[Subject], str]]] = [
    ("timestamp", "", _now),
    *((f"gpu_{name.split('.')[-1]}", "", OF_CARD[name].shown) for name in ("name", "serial", "uuid", "pci.bus_id")),
]

OF_PROCESS = _named(
    [
        *_ABOUT_CARD,
        ("pid", "", lambda subject: str(subject.process and subject.process.pid)),
        ("process_name name", "", _process_name),
        ("used_gpu_memory used_memory", "MiB", _used_by_process),
    ]
)
"""Fields of ``--query-compute-apps``."""

OF_CLOCKS = _named(
    [
        *_ABOUT_CARD,
        ("memory mem", "MHz", lambda subject: str(subject.clocks and subject.clocks[0])),
        ("graphics gr", "MHz", lambda subject: str(subject.clocks and subject.clocks[1])),
    ]
)
"""Fields of ``--query-supported-clocks``."""
