"""GPUs through the real pynvml on the emulated NVML library: readings, loss, refusals, GPM, and the cost in calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pmu.instruments import gpu
from pmu.instruments.gpu import Gpus
from pmu.layout import Gpu
from pmu.readings import GPU_FIELDS, RAW_MISSING, type_i64

pytest.importorskip("pynvml", reason="pynvml is missing: install nvidia-ml-py")

from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

COLUMN = {name: column for column, name in enumerate(GPU_FIELDS)}
GPM = [COLUMN["sm_occupancy_ppm"], COLUMN["sm_active_ppm"], COLUMN["dram_active_ppm"]]
BEFORE_HOPPER = [column for column in range(len(GPU_FIELDS)) if column not in GPM]
SECOND = 1_000_000_000

MOST_CALLS = 8
"""Per GPU and sweep."""


class CountingNvml:
    """pynvml with its calls counted, and errors in place of answers where a test wants them."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.calls: Counter[str] = Counter()
        self.errors: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._pynvml, name)
        if not name.startswith("nvml"):
            return value

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            if name in self.errors:
                raise self._pynvml.NVMLError(self.errors[name])
            return value(*arguments)

        return call


class Rig:
    """A twin with GPUs, its NVML and a clock that a test moves."""

    def __init__(self, machine_name: str) -> None:
        machine = load_machine(machine_name)
        self.twin = Twin(machine, load_workload("easywave", machine, seed=1), seed=1)
        self.faults = Faults(self.twin, [])
        self.node = InProcess(self.twin, self.faults)
        self.nvml = CountingNvml(self.node.ports.nvml)
        self.gpus, self.findings = gpu.find(self.nvml, self.node.ports.nvml_why)
        self.sensors = Gpus(self.nvml, self.gpus)

    def sweep(self, after_s: float = 0.1) -> type_i64:
        self.node.ports.clock.sleep_until_ns(self.twin.time_ns + round(after_s * SECOND))
        out = np.zeros((len(self.gpus), len(GPU_FIELDS)), np.int64)
        self.nvml.calls.clear()
        self.sensors.sweep(self.twin.time_ns, out)
        return out

    def close(self) -> None:
        self.sensors.close()
        self.node.close()


@pytest.fixture
def rig() -> Iterator[Callable[[str], Rig]]:
    made: list[Rig] = []

    def make(machine_name: str) -> Rig:
        made.append(Rig(machine_name))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_card_reports_its_ladder_limits_and_whether_it_has_gpm(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    assert len(a100.gpus) == 4 and [card.index for card in a100.gpus] == [0, 1, 2, 3]
    card = a100.gpus[0]
    assert "A100" in card.name and card.uuid.startswith("GPU-") and not card.has_gpm
    assert card.clocks_mhz == tuple(range(210, 1411, 15)) and card.memory_clock_mhz == 1593
    assert (card.min_power_limit_w, card.default_power_limit_w, card.max_power_limit_w) == (100.0, 400.0, 400.0)
    assert "no SM occupancy before Hopper" in a100.findings[0].why


def test_a_sweep_reads_every_field_that_the_card_has(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep()
    table = a100.sweep(after_s=1.0)
    assert (table[:, BEFORE_HOPPER] != RAW_MISSING).all()
    assert (table[:, GPM] == RAW_MISSING).all()
    assert (table[:, COLUMN["sm_clock_mhz"]] > 200).all() and (table[:, COLUMN["power_mw"]] > 50_000).all()
    assert (table[:, COLUMN["gpu_utilization_pct"]] > 50).all(), "EasyWave keeps its GPUs busy"


def test_energy_is_the_total_counter_and_agrees_with_power(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep(after_s=2.0)
    before, after = a100.sweep(), a100.sweep(after_s=1.0)
    joules = (after - before)[:, COLUMN["energy_mj"]] / 1e3
    assert joules == pytest.approx(after[:, COLUMN["power_mw"]] / 1e3, rel=0.05)


def test_a_sweep_makes_few_calls_and_asks_the_memory_clock_once_a_second(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep()
    a100.sweep()
    assert sum(a100.nvml.calls.values()) == 6 * len(a100.gpus)
    a100.sweep(after_s=1.0)
    assert sum(a100.nvml.calls.values()) == 7 * len(a100.gpus) <= MOST_CALLS * len(a100.gpus)


def test_gpm_gives_occupancy_and_memory_activity_from_the_second_sample_on(rig: Callable[[str], Rig]) -> None:
    h100 = rig("genoa-h100")
    assert all(card.has_gpm for card in h100.gpus)
    assert (h100.sweep()[:, GPM] == RAW_MISSING).all()
    table = h100.sweep()
    assert sum(h100.nvml.calls.values()) <= MOST_CALLS * len(h100.gpus)
    shares = table[:, GPM]
    assert ((shares > 0) & (shares <= 1_000_000)).all()
    assert (table[:, COLUMN["sm_active_ppm"]] >= table[:, COLUMN["sm_occupancy_ppm"]]).all()


def test_gpm_samples_are_a_tenth_of_a_second_apart_and_their_mean_is_kept_meanwhile(rig: Callable[[str], Rig]) -> None:
    h100 = rig("genoa-h100")
    h100.sweep()
    kept = h100.sweep()[:, GPM]
    for _ in range(9):
        assert np.array_equal(h100.sweep(after_s=0.01)[:, GPM], kept)
        assert h100.nvml.calls["nvmlGpmSampleGet"] == 0
    h100.sweep(after_s=0.01)
    assert h100.nvml.calls["nvmlGpmSampleGet"] == h100.nvml.calls["nvmlGpmMetricsGet"] == len(h100.gpus)


def test_closing_frees_the_gpm_buffers(rig: Callable[[str], Rig]) -> None:
    h100 = rig("genoa-h100")
    h100.sweep()
    h100.nvml.calls.clear()
    h100.sensors.close()
    assert h100.nvml.calls["nvmlGpmSampleFree"] == 2 * len(h100.gpus)


def test_a_lost_gpu_is_missing_read_rarely_and_comes_back(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep()
    fault = a100.faults.add(Fault("gpu-lost", "gpu:1"))
    table = a100.sweep()
    assert (table[1] == RAW_MISSING).all()
    assert (table[[0, 2, 3]][:, BEFORE_HOPPER] != RAW_MISSING).all()
    a100.sweep()
    assert sum(a100.nvml.calls.values()) == 6 * 3, "a lost GPU is left alone"
    a100.faults.remove(fault)
    assert (a100.sweep()[1] == RAW_MISSING).all()
    table = a100.sweep(after_s=gpu.RETRY_NS / SECOND)
    assert (table[1, BEFORE_HOPPER] != RAW_MISSING).all()


def test_power_that_ceases_is_missing_alone_and_read_again_later(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep()
    fault = a100.faults.add(Fault("missing", "gpu:0:power"))
    table = a100.sweep()
    assert table[0, COLUMN["power_mw"]] == table[0, COLUMN["energy_mj"]] == RAW_MISSING
    assert table[0, COLUMN["sm_clock_mhz"]] != RAW_MISSING and table[1, COLUMN["power_mw"]] != RAW_MISSING
    a100.sweep()
    assert a100.nvml.calls["nvmlDeviceGetPowerUsage"] == 3
    a100.faults.remove(fault)
    assert a100.sweep(after_s=gpu.RETRY_NS / SECOND)[0, COLUMN["power_mw"]] != RAW_MISSING


def test_a_reading_that_never_worked_is_not_read_again(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.nvml.errors["nvmlDeviceGetTotalEnergyConsumption"] = gpu.NOT_SUPPORTED
    assert (a100.sweep()[:, COLUMN["energy_mj"]] == RAW_MISSING).all()
    assert a100.nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 4
    a100.sweep(after_s=100.0)
    assert a100.nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 0


def test_a_passing_error_is_missing_once(rig: Callable[[str], Rig]) -> None:
    a100 = rig("xh2415")
    a100.sweep()
    a100.nvml.errors["nvmlDeviceGetUtilizationRates"] = 999  # NVML_ERROR_UNKNOWN
    table = a100.sweep()
    assert (table[:, COLUMN["gpu_utilization_pct"]] == RAW_MISSING).all()
    a100.nvml.errors.clear()
    assert (a100.sweep()[:, COLUMN["gpu_utilization_pct"]] != RAW_MISSING).all()


def test_a_gpm_buffer_is_not_left_behind_where_the_second_one_cannot_be_had(rig: Callable[[str], Rig]) -> None:
    h100 = rig("genoa-h100")
    allocate = h100.nvml.nvmlGpmSampleAlloc
    buffers: list[Any] = []

    def one_alone() -> Any:
        if len(buffers) % 2:
            buffers.append(None)
            raise h100.nvml.NVMLError(20)  # NVML_ERROR_MEMORY
        buffers.append(allocate())
        return buffers[-1]

    h100.nvml.nvmlGpmSampleAlloc = one_alone  # type: ignore[attr-defined]
    assert (h100.sweep()[:, GPM] == RAW_MISSING).all()
    assert h100.nvml.calls["nvmlGpmSampleFree"] == h100.nvml.calls["nvmlGpmSampleAlloc"] == len(h100.gpus)


def test_gpm_that_fails_once_begins_again_with_a_fresh_sample(rig: Callable[[str], Rig]) -> None:
    h100 = rig("genoa-h100")
    h100.sweep()
    h100.nvml.errors["nvmlGpmSampleGet"] = 999
    assert (h100.sweep()[:, GPM] == RAW_MISSING).all()
    h100.nvml.errors.clear()
    assert (h100.sweep()[:, GPM] == RAW_MISSING).all()
    assert (h100.sweep()[:, GPM] != RAW_MISSING).all()


def test_no_nvml_is_one_finding_with_its_reason() -> None:
    found, (finding,) = gpu.find(None, "no NVIDIA driver: libnvidia-ml.so.1 is not found")
    assert found == () and not finding.present and finding.why.startswith("no NVIDIA driver")


def test_a_layout_with_gpus_on_a_machine_without_nvml_reads_all_missing() -> None:
    card = Gpu(0, "GPU-0", "H100", (210, 1980), 2619, 700.0, 200.0, 700.0, True)
    out = np.zeros((1, len(GPU_FIELDS)), np.int64)
    Gpus(None, [card]).sweep(0, out)
    assert (out == RAW_MISSING).all()
