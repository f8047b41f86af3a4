"""The port of the kernels over an emulated node in virtual time: it executes them by its own truth."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.kernels.native import NativeKernels
from calibration.kernels.port import CHASE, FMA, KERNELS, STREAM, Kernel, KernelError, mix, running
from lab.emulated.emulated_kernels import emulated_kernels
from pmu.system import system_ports
from twin.errors import TwinError
from twin.machine import Machine, load_machine
from twin.physics.model import Twin
from twin.programs.kernels import NAMES, kernel_truth
from twin.programs.workload import load_workload

CURIE = load_machine("curie")


def at_clock(machine: Machine, khz: int) -> Twin:
    twin = Twin(machine)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, max_khz=khz, governor="performance")
    twin.advance(0.05)
    return twin


def speed(machine: Machine, khz: int, kernel: Kernel, cores: int = 1, seconds: float = 0.5) -> float:
    """Units per second."""
    twin = at_clock(machine, khz)
    port = emulated_kernels(twin)
    with running(port, kernel, range(cores)):
        twin.advance(0.1)
        before = port.units_done()
        twin.advance(seconds)
        return (port.units_done() - before) / seconds


def test_calibration_and_twin_name_the_same_kernels() -> None:
    assert tuple(kernel.name for kernel in KERNELS) == NAMES


@pytest.mark.parametrize("cores", [1, 16])
def test_the_speed_of_multiply_adds_falls_with_the_clock_and_that_of_memory_hardly(cores: int) -> None:
    left = {
        kernel: speed(CURIE, CURIE.min_khz, kernel, cores) / speed(CURIE, CURIE.max_khz, kernel, cores)
        for kernel in (FMA, STREAM, CHASE)
    }
    clock = CURIE.min_khz / CURIE.max_khz
    assert left[FMA] == pytest.approx(clock, rel=0.01)
    assert left[STREAM] == pytest.approx(1 / 1.26, rel=0.01)  # degradation of STREAM: Glesser, thesis, section 3.1
    assert left[CHASE] > 0.8


def test_cores_that_share_their_bandwidth_get_less_than_each_alone_and_do_not_need_the_clock() -> None:
    rome = load_machine("rome")
    alone, together = (speed(rome, rome.max_khz, STREAM, cores) for cores in (1, 32))
    assert alone == pytest.approx(30.4e9, rel=0.01)  # as measured: the machine's file
    assert together == pytest.approx(145e9, rel=0.03)
    assert speed(rome, rome.min_khz, STREAM, 32) == pytest.approx(together, rel=0.02)


def test_a_mix_is_bound_by_memory_at_low_intensity_and_by_the_clock_at_high() -> None:
    clock = CURIE.min_khz / CURIE.max_khz
    intensities = (0.25, 1.0, 4.0, 16.0, 64.0)
    fast, slow = ([speed(CURIE, khz, mix(one)) for one in intensities] for khz in (CURIE.max_khz, CURIE.min_khz))
    left = np.array(slow) / np.array(fast)
    assert (np.diff(left) <= 1e-3).all()
    assert left[0] > 0.75 and left[-1] == pytest.approx(clock, rel=0.01)
    roofline = np.minimum(speed(CURIE, CURIE.max_khz, FMA), speed(CURIE, CURIE.max_khz, STREAM) * np.array(intensities))
    assert (np.array(fast) <= roofline * 1.001).all() and (np.array(fast) >= 0.8 * roofline).all()


def test_units_never_fall_and_are_the_work_of_all_cpus() -> None:
    twin = at_clock(CURIE, CURIE.max_khz)
    port = emulated_kernels(twin)
    port.start(FMA, [0, 3, 9])
    units = [port.units_done()]
    assert units[0] == 0.0
    for _ in range(500):
        twin.advance(0.0071)
        units.append(port.units_done())
    steps = np.diff(units)
    assert (steps > 0).all()
    truth = kernel_truth(CURIE, "fma")
    assert units[-1] == pytest.approx(3 * truth.units_per_s * 500 * 0.0071, rel=0.005)
    port.stop()
    last = port.units_done()
    twin.advance(1.0)
    assert port.units_done() == last >= units[-1]


def test_a_kernel_draws_power_and_counts_instructions_only_where_it_runs() -> None:
    twin = at_clock(CURIE, CURIE.max_khz)
    with running(emulated_kernels(twin), FMA, [2]):
        before = twin.counters(["instructions"])[:, 0]
        twin.advance(0.5)
        grown = twin.counters(["instructions"])[:, 0] - before
    assert grown[2] > 1e9 and max(np.delete(grown, 2)) < 1e8
    powers = {}
    for kernel in (None, CHASE, STREAM, FMA):
        node = at_clock(CURIE, CURIE.max_khz)
        port = emulated_kernels(node)
        if kernel:
            port.start(kernel, range(CURIE.cores))
        node.advance(0.2)
        before_j = node.node_j
        node.advance(1.0)
        powers[kernel.name if kernel else "idle"] = node.node_j - before_j
    assert powers["idle"] < powers["chase"] < powers["stream"] < powers["fma"]


def test_equal_seeds_give_equal_units_to_the_last_bit() -> None:
    assert speed(CURIE, 2_000_000, mix(2.0), 7) == speed(CURIE, 2_000_000, mix(2.0), 7)


@pytest.mark.parametrize("cpus", [[], [0, 0], [16], [-1]])
def test_cpus_that_the_node_does_not_have_are_refused_in_one_line(cpus: list[int]) -> None:
    port = emulated_kernels(Twin(CURIE))
    with pytest.raises(KernelError, match="CPU") as caught:
        port.start(FMA, cpus)
    assert "\n" not in str(caught.value)
    port.start(FMA, [0])  # nothing is left running


def test_one_kernel_runs_at_a_time_and_none_next_to_a_workload() -> None:
    twin = Twin(CURIE)
    port = emulated_kernels(twin)
    port.start(FMA, [0])
    with pytest.raises(KernelError, match="runs already"):
        port.start(STREAM, [1])
    port.stop()
    port.stop()
    twin.start_workload(load_workload("hpl", CURIE))
    with pytest.raises(KernelError, match="without load"):
        port.start(FMA, [0])
    assert port.units_done() == 0.0


@pytest.mark.parametrize("flops_per_byte", [0.0, 0.3, -1.0, 128.0])
def test_a_mix_has_an_intensity_that_whole_multiply_adds_make(flops_per_byte: float) -> None:
    with pytest.raises(KernelError, match="flops per byte"):
        mix(flops_per_byte)


def test_a_kernel_that_the_twin_does_not_know_is_named() -> None:
    with pytest.raises(TwinError, match="fma"):
        kernel_truth(CURIE, "fna")


@pytest.mark.parametrize("flops_per_byte", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_mix_without_an_intensity_is_refused_by_the_twin_itself(flops_per_byte: float) -> None:
    with pytest.raises(TwinError, match="flops per byte"):
        kernel_truth(CURIE, "mix", flops_per_byte)


@pytest.mark.parametrize(
    "kernel", [Kernel("fna", "flops", ""), Kernel("mix", "flops", "", 0.3), Kernel("fma", "loads", "")]
)
def test_only_kernels_that_there_are_can_be_started(kernel: Kernel) -> None:
    port = emulated_kernels(Twin(CURIE))
    with pytest.raises(KernelError, match=r"kernel|flops per byte"):
        port.start(kernel, [0])
    with pytest.raises(KernelError, match=r"kernel|flops per byte"):
        NativeKernels(system_ports().files).start(kernel, [0])
