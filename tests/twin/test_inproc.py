"""The emulated node behind the four ports in one process: virtual time, counters, NVML, and the real readers on it."""

from __future__ import annotations

import errno
import gc
import time
from pathlib import Path

import numpy as np
import pytest

from pmu.decode import decode
from pmu.node import Instruments, discover
from pmu.readings import RAW_MISSING, PmuError
from twin.errors import TwinError
from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess, detach, ports
from twin.machine import MACHINES, load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

ENERGY = "/sys/class/powercap/intel-rapl:0/energy_uj"
MAXIMUM = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"


@pytest.fixture
def curie() -> InProcess:
    machine = load_machine("curie")
    return InProcess(Twin(machine, load_workload("hpl", machine)))


# ---- clock ---------------------------------------------------------------------------------------------------------


def test_sleeping_advances_the_model_to_the_deadline(curie: InProcess) -> None:
    clock = curie.ports.clock
    begin_ns = clock.now_ns()
    clock.sleep_until_ns(begin_ns + 100_000_000)
    assert clock.now_ns() == begin_ns + 100_000_000
    clock.sleep_until_ns(begin_ns)  # already past
    assert clock.now_ns() == begin_ns + 100_000_000
    clock.sleep_until_ns(clock.now_ns() + 1)
    assert clock.now_ns() == begin_ns + 100_050_000  # the model's grain


def test_in_real_time_the_model_is_where_the_clock_is_whenever_it_is_looked_at() -> None:
    machine = load_machine("curie")
    twin = Twin(machine)
    began_ns = time.monotonic_ns()
    clock = InProcess(twin, is_realtime=True).ports.clock
    first_ns = clock.now_ns()
    clock.sleep_until_ns(first_ns + 50_000_000)
    passed_ns = clock.now_ns() - first_ns
    assert 50_000_000 <= passed_ns <= time.monotonic_ns() - began_ns + 50_000  # the model's grain
    energy = twin.node_j
    time.sleep(0.05)
    assert twin.node_j == energy
    clock.now_ns()
    assert twin.node_j - energy >= 0.05 * 100  # an idle Curie node draws more than 100 W


def test_what_faults_do_happens_at_its_time_during_a_sleep(curie: InProcess) -> None:
    curie.ports.files.write("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance")
    curie.faults.add(Fault("foreign-writer", MAXIMUM, at_s=1.0, for_s=0.5, value="1200000", every_s=1.0))
    clock = curie.ports.clock
    begin_ns = clock.now_ns()
    clock.sleep_until_ns(begin_ns + 3_000_000_000)
    assert curie.ports.files.read(MAXIMUM) == "1200000\n"
    cycles = curie.twin.counters(("cycles",))[0, 0]
    assert cycles == pytest.approx(1.0 * 2.7e9 + 2.0 * 1.2e9, rel=0.01)


def test_the_same_run_gives_the_same_bits() -> None:
    def run() -> tuple[bytes, str]:
        machine = load_machine("curie")
        node = InProcess(Twin(machine, load_workload("hpl", machine, seed=7), seed=7))
        node.faults.add(Fault("foreign-writer", MAXIMUM, value="1500000", every_s=0.13))
        clock = node.ports.clock
        for _ in range(10):
            clock.sleep_until_ns(clock.now_ns() + 100_000_000)
            node.ports.files.write(MAXIMUM, "2700000")
        return node.twin.counters(("cycles", "instructions")).tobytes(), node.ports.files.read(ENERGY)

    assert run() == run()


# ---- files ---------------------------------------------------------------------------------------------------------


def test_files_answer_as_the_kernel_s(curie: InProcess) -> None:
    files = curie.ports.files
    assert files.exists(ENERGY) and not files.exists("/sys/class/powercap/dtpm")
    assert files.writable(MAXIMUM) and not files.writable(ENERGY) and not files.writable("/nowhere")
    assert files.realpath("/sys/class/powercap/intel-rapl:0") == "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0"
    assert "policy8" in files.listdir("/sys/devices/system/cpu/cpufreq")
    with pytest.raises(FileNotFoundError):
        files.keep("/sys/class/powercap/dtpm/energy_uj")
    with pytest.raises(FileNotFoundError):
        files.read("/proc/meminfo")


def test_a_kept_file_follows_and_is_enodev_once_its_device_is_gone(curie: InProcess) -> None:
    kept = curie.ports.files.keep(ENERGY)
    first = int(kept.read())
    curie.twin.advance(0.1)
    assert int(kept.read()) > first
    curie.faults.add(Fault("missing", "/sys/class/powercap/intel-rapl:0", value="ENOENT"))
    with pytest.raises(OSError) as gone:
        kept.read()
    assert gone.value.errno == errno.ENODEV
    assert not curie.ports.files.exists(ENERGY)


# ---- counters ------------------------------------------------------------------------------------------------------


def test_counters_begin_at_zero_and_count_the_requested_cpus(curie: InProcess) -> None:
    curie.twin.advance(1.0)
    counters = curie.ports.counters.open((3, 0), ("instructions", "cycles"))
    out = np.empty((2, 2), np.int64)
    counters.sweep(out)
    assert not out.any()
    before = curie.twin.counters(("instructions", "cycles"))
    curie.twin.advance(0.1)
    counters.sweep(out)
    assert (out == (curie.twin.counters(("instructions", "cycles")) - before)[[3, 0]]).all()
    assert out[0, 1] > 1e8


def test_only_the_machine_s_events_exist_and_the_reason_is_the_kernel_s() -> None:
    node = InProcess(Twin(load_machine("xh2415")))
    with node:
        why = node.ports.counters.why_not("stalls")
        assert why is not None and "ENOENT" in why
        assert node.ports.counters.why_not("reference-cycles") is None
        with pytest.raises(PmuError, match="stalls"):
            node.ports.counters.open((0,), ("cycles", "stalls"))


def test_a_counter_fault_is_seen_when_opening_and_when_reading(curie: InProcess) -> None:
    curie.faults.add(Fault("refused", "perf:stalls"))
    why = curie.ports.counters.why_not("stalls")
    assert why is not None and "EBUSY" in why
    curie.faults.add(Fault("refused", "perf:cycles:1"))
    curie.faults.add(Fault("missing", "perf:cycles:2", at_s=1.0))
    assert curie.ports.counters.why_not("cycles") is None
    counters = curie.ports.counters.open((0, 1, 2), ("cycles",))
    curie.faults.clear()
    curie.faults.add(Fault("missing", "perf:cycles:2", at_s=1.0))
    out = np.empty((3, 1), np.int64)
    seen = []
    for _ in range(2):
        counters.sweep(out)
        seen.append((out[:, 0] == RAW_MISSING).tolist())
        curie.twin.advance(1.0)
    assert seen == [[False, True, False], [False, True, True]]  # one that could not be opened stays missing


# ---- NVML ----------------------------------------------------------------------------------------------------------


def test_a_machine_without_gpus_says_so(curie: InProcess) -> None:
    assert curie.ports.nvml is None
    assert curie.ports.nvml_why == "machine curie has no GPU"


def test_the_real_pynvml_reads_the_twin_and_locks_its_clocks() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is missing: install it (pip install nvidia-ml-py)")
    machine = load_machine("v100")
    with InProcess(Twin(machine)) as node:
        nvml = node.ports.nvml
        assert nvml is not None
        nvml.nvmlInit()
        try:
            assert nvml.nvmlDeviceGetCount() == machine.gpus
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            node.ports.clock.sleep_until_ns(node.ports.clock.now_ns() + 1_000_000_000)
            assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) > 0
            nvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 900)
            assert node.twin.gpus.gpu[0].lock_max_mhz == 900
            node.faults.add(Fault("gpu-lost", "gpu:0", at_s=2.0))
            node.ports.clock.sleep_until_ns(node.ports.clock.now_ns() + 1_500_000_000)
            with pytest.raises(nvml.NVMLError_GpuIsLost):
                nvml.nvmlDeviceGetPowerUsage(gpu)
        finally:
            nvml.nvmlShutdown()


def test_only_one_twin_s_gpus_are_attached_at_a_time() -> None:
    first, second = Twin(load_machine("v100")), Twin(load_machine("xh2415"))
    taken = ports(first)
    with pytest.raises(TwinError, match=r"GPUs of another twin \(v100\) are attached"):
        ports(second)
    assert ports(first).nvml is taken.nvml  # the same twin may take them again
    detach(first)
    assert ports(second).nvml is not None
    detach(first)  # not attached any more: nothing happens
    with pytest.raises(TwinError):
        ports(first)
    detach(second)


def test_a_twin_that_is_gone_occupies_no_gpus() -> None:
    taken = ports(Twin(load_machine("v100")))
    del taken
    gc.collect()
    with InProcess(Twin(load_machine("xh2415"))) as node:
        assert node.ports.nvml is not None


# ---- the real readers on it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["curie", "xh2415", "v100", "genoa-h100"])
def test_the_real_readers_find_the_whole_node_and_measure_it(name: str) -> None:
    machine = load_machine(name)
    with InProcess(Twin(machine)) as node:
        layout, findings = discover(node.ports)
        assert len(layout.cpus) == machine.cpus
        assert [domain.min_khz for domain in layout.domains] == [domain.min_khz for domain in machine.domains]
        assert set(layout.events) == set(machine.events) and layout.reference_khz == machine.tsc_khz
        assert len(layout.gpus) == machine.gpus
        assert {zone.name for zone in layout.zones} >= {f"package-{i}" for i in range(machine.sockets)}
        assert any(finding.kind == "counter" and finding.present for finding in findings)
        instruments = Instruments(node.ports, layout)
        before = instruments.sweep()
        node.ports.clock.sleep_until_ns(before.time_ns + 500_000_000)
        sample = decode(layout, before, instruments.sweep())
        instruments.close()
        assert sample.elapsed_s == 0.5
        assert (sample.energy_j > 0).all()
        assert np.isfinite(sample.cpu.busy).all()


def test_faults_of_the_machine_file_apply_without_being_named(tmp_path: Path) -> None:
    path = tmp_path / "faulty.toml"
    table = f'[[fault]]\nkind = "missing"\ntarget = "{ENERGY}"\nat_s = 1.0\n'
    path.write_text((MACHINES / "curie.toml").read_text() + table)
    node = InProcess(Twin(load_machine(str(path))))
    node.ports.files.read(ENERGY)
    node.twin.advance(1.0)
    with pytest.raises(OSError):
        node.ports.files.read(ENERGY)
    path.write_text(path.read_text().replace('"missing"', '"mising"'))
    with pytest.raises(TwinError, match=r'faulty.toml: \[\[fault\]\] 1: unknown kind "mising" \(nearest: missing\)'):
        InProcess(Twin(load_machine(str(path))))
    assert InProcess(Twin(load_machine("curie")), Faults(Twin(load_machine("curie")), [])).faults.listing() == []
