"""GPUs through NVML: what each is, and one sweep over all.

A call costs some microseconds in the driver and as much again in ctypes, so a sweep makes seven calls per GPU; the
memory clock, which only changes with the performance state, is read once a second. On Hopper and newer two more calls,
ten times a second, give the GPM metrics: SM occupancy and activity and DRAM bandwidth, as means between two samples,
which must be more than 100 ms apart (NVML API reference, nvmlGpmMetricsGet). Before Hopper NVML has no such reading.
Of a card that is divided (MIG) they are missing: they are means over all SMs, also those that no program can use, so a
busy slice would look like an idle card.

``utilization`` is averaged by the driver over 1/6 to 1 s. Energy is the total since the driver was loaded,
millijoules (Volta on). NVML does not report whether clocks are locked.

Errors are data: a reading that was never supported is not tried again; one that fails is missing from that sweep; a
GPU that fell off the bus is missing as a whole and tried again every few seconds, since each call may then be slow. A
number that no card can show is missing, too (``pmu.driver_values``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pmu.driver_values import MOST_BOARD_MW, MOST_CLOCK_MHZ, ODD_ANSWERS, bits, raw, type_bounds, whole, words
from pmu.findings import Finding, absent
from pmu.instruments.pci_gpus import address_of
from pmu.layout import Gpu
from pmu.readings import GPU_FIELDS, RAW_HIGHEST, RAW_MISSING, type_i64

RETRY_NS = 5_000_000_000
"""Ours: how often a lost GPU, or a reading that ceased, is tried again."""

SELDOM_NS = 1_000_000_000
"""Ours: how often the memory clock is read, and whether the card is divided."""

Value = TypeVar("Value")

GPM_NS = 95_000_000
"""The 100 ms that NVML needs between samples, less 5 % for ticks that come early at a period of 100 ms."""

# nvmlReturn_t (nvml.h); the numbers are part of the library's binary interface
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION = 1, 3, 4
NOT_FOUND, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 6, 9, 13, 15, 16
DEPRECATED, GPU_NOT_FOUND = 26, 28

LOST = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, NOT_FOUND, GPU_NOT_FOUND})
NEVER = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, DEPRECATED})

_COLUMN = {name: column for column, name in enumerate(GPU_FIELDS)}
_GPM_COLUMNS = tuple(_COLUMN[name] for name in ("sm_occupancy_ppm", "sm_active_ppm", "dram_active_ppm"))


_CLOCK: type_bounds = (0, MOST_CLOCK_MHZ)
_PERCENT: type_bounds = (0, 1000)  # ours: above 100 is decoded as CLIPPED, far above as nothing at all
_PPM: type_bounds = (0, 1_000_000_000)  # likewise
_BOUNDS: dict[str, type_bounds] = {
    "sm_clock_mhz": _CLOCK,
    "memory_clock_mhz": _CLOCK,
    "power_mw": (0, MOST_BOARD_MW),
    "energy_mj": (0, RAW_HIGHEST),
    "temperature_c": (-55, 400),  # ours: also what a broken sensor shows, so that a limit sees that it is hot
    "gpu_utilization_pct": _PERCENT,
    "memory_utilization_pct": _PERCENT,
}
MOST_GPUS = 1024
"""Ours: a node has 16."""


def find(nvml: Any | None, nvml_why: str) -> tuple[tuple[Gpu, ...], list[Finding]]:
    """Every GPU that answers, and a finding for each; a GPU that does not answer is a finding only."""
    if nvml is None:
        return (), [absent("gpu", "gpu", nvml_why)]
    try:
        nvml.nvmlInit()  # counted by the library, so once more does no harm
        count = whole(nvml.nvmlDeviceGetCount(), (0, MOST_GPUS))
    except (nvml.NVMLError, *ODD_ANSWERS) as error:
        return (), [absent("gpu", "gpu", f"counting GPUs: {error}")]
    if count is None:
        return (), [absent("gpu", "gpu", "counting GPUs: NVML answers what is no number of GPUs")]
    if not count:
        return (), [absent("gpu", "gpu", "NVML counts no GPU on this node")]
    gpus: list[Gpu] = []
    findings: list[Finding] = []
    for index in range(count):
        try:
            gpu = _describe(nvml, index)
        except (nvml.NVMLError, *ODD_ANSWERS) as error:
            findings.append(Finding(f"gpu-{index}", "gpu", present=True, why=f"it does not answer: {error}"))
            continue
        gpus.append(gpu)
        occupancy = "SM occupancy by GPM" if gpu.has_gpm else "no SM occupancy before Hopper: utilization.gpu instead"
        ladder = f"{gpu.clocks_mhz[0]}-{gpu.clocks_mhz[-1]} MHz" if gpu.clocks_mhz else "it lists no clocks"
        findings.append(Finding(f"gpu-{index}", "gpu", True, True, why=f"{gpu.name}, {ladder}; {occupancy}"))
    return tuple(gpus), findings


class Gpus:
    """The GPUs of a layout, read together."""

    def __init__(self, nvml: Any | None, gpus: Sequence[Gpu]) -> None:
        self._cards = [_Card(nvml, gpu) for gpu in gpus] if nvml is not None else []

    def sweep(self, time_ns: int, out: type_i64) -> None:
        """Fill ``out`` ``[n_gpus, len(GPU_FIELDS)]``."""
        out.fill(RAW_MISSING)
        for card, row in zip(self._cards, out, strict=False):
            card.sweep(time_ns, row)

    def close(self) -> None:
        """Free the GPM buffers."""
        for card in self._cards:
            card.close()
        self._cards = []


class _Seldom(Generic[Value]):
    """A reading that changes seldom. ``unknown``: what it is until ``read`` has answered, and while that fails."""

    def __init__(self, read: Callable[[], Value], unknown: Value) -> None:
        self._read, self._unknown = read, unknown
        self._due_ns, self._last = 0, unknown

    def at(self, time_ns: int) -> Value:
        """Read again once in ``SELDOM_NS``."""
        if time_ns >= self._due_ns:
            self._due_ns, self._last = time_ns + SELDOM_NS, self._unknown
            self._last = self._read()
        return self._last

    def forget(self) -> None:
        """Read it the next time."""
        self._due_ns, self._last = 0, self._unknown


class _Card:
    """One GPU: its handle, what it has refused, and its GPM buffers."""

    def __init__(self, nvml: Any, gpu: Gpu) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._handle: Any = None
        self._gpm: _Gpm | None = None
        self._retry_ns = 0
        self._memory_clock = _Seldom(self._memory_mhz, RAW_MISSING)
        self._divided = _Seldom(self._may_be_divided, True)
        self._has_worked: set[int] = set()
        self._try_again_ns: dict[int, float] = {}
        self._readings = self._choose_readings()

    def sweep(self, time_ns: int, row: type_i64) -> None:
        """Fill this GPU's row, which is all missing so far."""
        if self._handle is None and not self._find_again(time_ns):
            return
        for column, read in self._readings:
            try:
                self._ask(column, read, time_ns, row)
            except self._nvml.NVMLError:
                self._lose(time_ns)
                row.fill(RAW_MISSING)
                return
            except ODD_ANSWERS:
                continue  # no reading

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _choose_readings(self) -> list[tuple[int, Callable[[int, type_i64], None]]]:
        nvml = self._nvml
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # the name from driver 535 on
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return [
            (_COLUMN["sm_clock_mhz"], self._number("sm_clock_mhz", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)),
            (_COLUMN["memory_clock_mhz"], self._read_memory_clock),
            (_COLUMN["power_mw"], self._number("power_mw", nvml.nvmlDeviceGetPowerUsage)),
            (_COLUMN["energy_mj"], self._number("energy_mj", nvml.nvmlDeviceGetTotalEnergyConsumption)),
            (
                _COLUMN["temperature_c"],
                self._number("temperature_c", nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            ),
            (_COLUMN["gpu_utilization_pct"], self._read_utilization),
            (_COLUMN["throttle_reasons"], self._reasons(reasons)),
            *([(_GPM_COLUMNS[0], self._read_gpm)] if self._gpu.has_gpm else []),
        ]

    def _ask(self, column: int, read: Callable[[int, type_i64], None], time_ns: int, row: type_i64) -> None:
        """Take one reading; NVMLError only if the GPU is lost."""
        if time_ns < self._try_again_ns.get(column, 0):
            return
        try:
            read(time_ns, row)
            self._has_worked.add(column)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", 0)
            if code in LOST:
                raise
            if code in NEVER:
                self._try_again_ns[column] = time_ns + RETRY_NS if column in self._has_worked else math.inf

    def _number(self, name: str, function: Callable[..., int], *arguments: Any) -> Callable[[int, type_i64], None]:
        column, bounds = _COLUMN[name], _BOUNDS[name]
        low, high = bounds

        def read(_time_ns: int, row: type_i64) -> None:
            value = function(self._handle, *arguments)
            row[column] = value if type(value) is int and low <= value <= high else raw(value, bounds)

        return read

    def _reasons(self, function: Callable[..., int]) -> Callable[[int, type_i64], None]:
        column = _COLUMN["throttle_reasons"]

        def read(_time_ns: int, row: type_i64) -> None:
            row[column] = bits(function(self._handle))

        return read

    def _read_memory_clock(self, time_ns: int, row: type_i64) -> None:
        row[_COLUMN["memory_clock_mhz"]] = self._memory_clock.at(time_ns)

    def _memory_mhz(self) -> int:
        return raw(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_MEM), _CLOCK)

    def _read_utilization(self, _time_ns: int, row: type_i64) -> None:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        row[_COLUMN["gpu_utilization_pct"]] = raw(rates.gpu, _PERCENT)
        row[_COLUMN["memory_utilization_pct"]] = raw(rates.memory, _PERCENT)

    def _read_gpm(self, time_ns: int, row: type_i64) -> None:
        if self._gpm is None:
            self._gpm = _Gpm(self._nvml)
        if self._gpu.has_mig and self._divided.at(time_ns):
            return
        for column, value in zip(_GPM_COLUMNS, self._gpm.read(self._handle, time_ns), strict=True):
            row[column] = value

    def _may_be_divided(self) -> bool:
        """Occupancy of a divided card is a mean over slices that a program does not have."""
        modes = self._nvml.nvmlDeviceGetMigMode(self._handle)
        return not (isinstance(modes, list | tuple) and len(modes) == 2 and whole(modes[0], (0, 1)) == 0)

    def _find_again(self, time_ns: int) -> bool:
        if time_ns < self._retry_ns:
            return False
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._gpu.uuid)
        except (self._nvml.NVMLError, *ODD_ANSWERS):
            self._lose(time_ns)
            return False
        return True

    def _lose(self, time_ns: int) -> None:
        self._handle = None
        self._retry_ns = time_ns + RETRY_NS
        self._memory_clock.forget()
        self._divided.forget()
        self.close()


class _Gpm:
    """GPM metrics as means between two samples. The two buffers swap, so that each sample is taken once."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._buffers: list[Any] = []
        try:
            self._old, self._new = (self._allocated() for _ in range(2))
        except BaseException:
            self.close()
            raise
        self._sampled_ns: int | None = None
        self._shares = [RAW_MISSING] * len(_GPM_COLUMNS)
        self._query = nvml.c_nvmlGpmMetricsGet_t()
        self._query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        metrics = (nvml.NVML_GPM_METRIC_SM_OCCUPANCY, nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL)
        self._query.numMetrics = len(metrics)
        self._metrics = [self._query.metrics[i] for i in range(len(metrics))]  # parts of it, not copies
        for slot, metric in zip(self._metrics, metrics, strict=True):
            slot.metricId = metric

    def read(self, handle: Any, time_ns: int) -> list[int]:
        """Occupancy, SM activity and DRAM activity in millionths; those of the last interval between samples."""
        if self._sampled_ns is not None and time_ns - self._sampled_ns < GPM_NS:
            return self._shares
        is_first, self._sampled_ns = self._sampled_ns is None, time_ns
        self._shares = [RAW_MISSING] * len(_GPM_COLUMNS)
        self._old, self._new = self._new, self._old
        try:
            self._nvml.nvmlGpmSampleGet(handle, self._new)
        except (self._nvml.NVMLError, *ODD_ANSWERS):
            self._sampled_ns = None  # the buffer has no valid sample: begin again
            raise
        if not is_first:
            for metric in self._metrics:
                metric.value = math.nan  # not that of an earlier call, whatever this one does
            self._query.sample1, self._query.sample2 = self._old, self._new
            self._nvml.nvmlGpmMetricsGet(self._query)
            self._shares = [self._in_ppm(metric) for metric in self._metrics]
        return self._shares

    def close(self) -> None:
        """Free both buffers."""
        for sample in self._buffers:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except (self._nvml.NVMLError, *ODD_ANSWERS):
                continue  # the driver is gone, and the buffers with it

    def _allocated(self) -> Any:
        self._buffers.append(self._nvml.nvmlGpmSampleAlloc())
        return self._buffers[-1]

    @staticmethod
    def _in_ppm(metric: Any) -> int:
        return raw(metric.value * 1e4, _PPM) if metric.nvmlReturn == 0 else RAW_MISSING  # NVML gives percent


def _describe(nvml: Any, index: int) -> Gpu:
    """The unchanging facts of one GPU; NVMLError if it does not answer at all."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def optional(default: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(handle, *arguments)
        except nvml.NVMLError as error:
            if getattr(error, "value", 0) in LOST:
                raise
            return default  # this card or driver does not report it
        except ODD_ANSWERS:
            return default

    uuid = words(nvml.nvmlDeviceGetUUID(handle))
    if not uuid:
        raise ValueError("it has no UUID")
    memory_mhz = max(_clocks(optional([], nvml.nvmlDeviceGetSupportedMemoryClocks)), default=0)
    clocks = optional([], nvml.nvmlDeviceGetSupportedGraphicsClocks, memory_mhz) if memory_mhz else []
    low_mw, high_mw = _limits_mw(optional((0, 0), nvml.nvmlDeviceGetPowerManagementLimitConstraints))
    default_mw = whole(optional(0, nvml.nvmlDeviceGetPowerManagementDefaultLimit), (0, MOST_BOARD_MW)) or 0
    return Gpu(
        index=index,
        uuid=uuid,
        name=words(optional("", nvml.nvmlDeviceGetName)) or "a GPU without a name",
        clocks_mhz=tuple(sorted(set(_clocks(clocks)))),
        memory_clock_mhz=memory_mhz,
        default_power_limit_w=default_mw / 1e3,
        min_power_limit_w=low_mw / 1e3,
        max_power_limit_w=high_mw / 1e3,
        has_gpm=_has_gpm(nvml, handle),
        pci=address_of(getattr(optional(None, nvml.nvmlDeviceGetPciInfo), "busId", "")),
        has_mig=isinstance(optional(None, getattr(nvml, "nvmlDeviceGetMigMode", lambda _: None)), list | tuple),
    )


def _clocks(found: Any) -> list[int]:
    """The clocks of a list that can be; none where the driver gives no list."""
    listed = found if isinstance(found, list | tuple) else ()
    return [clock for one in listed if (clock := whole(one, (1, MOST_CLOCK_MHZ)))]


def _limits_mw(found: Any) -> tuple[int, int]:
    """The lowest and highest power limit; zeros where the driver gives no range."""
    try:
        low, high = (whole(one, (0, MOST_BOARD_MW)) for one in found)
    except ODD_ANSWERS:
        return 0, 0
    return (low, high) if low is not None and high is not None and low <= high else (0, 0)


def _has_gpm(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (nvml.NVMLError, *ODD_ANSWERS):
        return False
