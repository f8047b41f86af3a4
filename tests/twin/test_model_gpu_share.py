"""Programs that share a card: what a part of the SMs and of the memory costs, what they draw, and who is where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="pynvml is missing: install nvidia-ml-py")

from nodectl.knobs.find import open_knob
from twin.errors import TwinError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Report, Twin
from twin.programs.workload import load_workload

GROUP = """
[[gpu]]
gpus = "0"
memory_mib = {memory}
{share}
[[gpu.phase]]
name = "kernels"
seconds = 4
iterations = 20
knee_mhz = {knee}
sm_active = {active}
dram_active = {dram}
gap_share = {gap}
activity = {activity}
"""

COMPUTE = {"knee": 1400, "active": 1.0, "dram": 0.1, "gap": 0.0, "memory": 4000, "activity": 0.7}
MEMORY = {"knee": 500, "active": 0.9, "dram": 0.9, "gap": 0.0, "memory": 6000, "activity": 0.7}
SMALL = {"knee": 1400, "active": 0.3, "dram": 0.1, "gap": 0.0, "memory": 2000, "activity": 0.2}
HOST = {"knee": 1000, "active": 0.8, "dram": 0.2, "gap": 0.6, "memory": 2000, "activity": 0.7}

THREES = "on 9@0/2 9@4/2"
SEVEN = "on " + " ".join(f"19@{start}/0" for start in range(7))


def started(tmp_path: Path, *groups: tuple[str, dict[str, Any]], layout: str = "off", machine: str = "a100") -> Twin:
    made = load_machine(machine)
    twin = Twin(made, seed=3)
    with InProcess(twin) as inside:
        open_knob(inside.ports, "gpu/0/mig_layout").restore(layout)
    path = tmp_path / "shared.toml"
    head = 'name = "shared"\nsummary = "of a test"\nsource = "ours"\n'
    path.write_text(head + "".join(GROUP.format(share=share, **kind) for share, kind in groups))
    twin.start_workload(load_workload(str(path), made, bias=0.0))
    return twin


def run(tmp_path: Path, *groups: tuple[str, dict[str, Any]], layout: str = "off") -> Report:
    twin = started(tmp_path, *groups, layout=layout)
    while not twin.finished:
        twin.advance(0.1)
    return twin.report()


def seconds(report: Report) -> list[float]:
    return [phase.seconds for phase in report.phases]


def watts(report: Report) -> float:
    return report.energy_j["gpu-0"] / report.time_s


def test_one_program_with_a_whole_card_under_mps_is_as_without(tmp_path: Path) -> None:
    assert run(tmp_path, ("mps_percent = 100", COMPUTE)) == run(tmp_path, ("", COMPUTE))


def test_a_slice_costs_what_needs_the_sms_more_than_what_waits_for_memory(tmp_path: Path) -> None:
    (compute,) = seconds(run(tmp_path, ("mig = 0", COMPUTE), layout=THREES))
    (memory,) = seconds(run(tmp_path, ("mig = 0", MEMORY), layout=THREES))
    (small,) = seconds(run(tmp_path, ("mig = 0", SMALL), layout=THREES))
    assert compute == pytest.approx(4 * 108 / 42, rel=0.06)  # 42 of 108 SMs
    assert memory == pytest.approx(4 * 0.9 / 0.5, rel=0.02)  # four of eight memory slices, of which it used 0.9
    assert small == pytest.approx(4, rel=0.01)  # it fills less than the slice


def test_mig_devices_do_not_disturb_each_other(tmp_path: Path) -> None:
    (alone,) = seconds(run(tmp_path, ("mig = 0", COMPUTE), layout=THREES))
    together, _ = seconds(run(tmp_path, ("mig = 0", COMPUTE), ("mig = 1", MEMORY), layout=THREES))
    assert together == alone
    seven = run(tmp_path, *((f"mig = {number}", SMALL) for number in range(7)), layout=SEVEN)
    assert max(seconds(seven)) == min(seconds(seven)) == pytest.approx(4 * 0.3 * 108 / 14, rel=0.06)


def test_programs_in_turn_get_their_part_of_the_time_and_the_gaps_of_others(tmp_path: Path) -> None:
    assert seconds(run(tmp_path, ("", COMPUTE), ("", MEMORY))) == pytest.approx([8, 8], rel=0.01)
    (alone,) = seconds(run(tmp_path, ("", HOST)))
    both = seconds(run(tmp_path, ("", HOST), ("", HOST)))
    assert max(both) < 1.7 * alone  # kernels only 40 % of the time: much less than twice as long


def test_mps_is_not_turns_memory_bound_programs_lose_little_next_to_compute_bound_ones(tmp_path: Path) -> None:
    in_turn = seconds(run(tmp_path, ("", COMPUTE), ("", MEMORY)))
    compute, memory = seconds(run(tmp_path, ("mps_percent = 60", COMPUTE), ("mps_percent = 40", MEMORY)))
    assert memory < 0.6 * in_turn[1] and compute < in_turn[0]
    small = seconds(run(tmp_path, ("mps_percent = 50", SMALL), ("mps_percent = 50", SMALL)))
    assert small == pytest.approx([4, 4], rel=0.01)
    hungry = seconds(run(tmp_path, ("mps_percent = 50", MEMORY), ("mps_percent = 50", MEMORY)))
    assert hungry == pytest.approx([4 * 1.8] * 2, rel=0.02)  # 0.9 each of a bandwidth of 1


def test_a_card_draws_by_what_its_programs_do_and_never_more_than_alone(tmp_path: Path) -> None:
    whole = run(tmp_path, ("", COMPUTE))
    part = run(tmp_path, ("mig = 0", COMPUTE), layout=THREES)
    twice = run(tmp_path, ("mig = 0", COMPUTE), ("mig = 1", COMPUTE), layout=THREES)
    assert watts(part) < watts(twice) < watts(whole)
    assert part.energy_j["gpu-0"] > whole.energy_j["gpu-0"]  # the same work, and the card is ready for longer
    assert twice.energy_j["gpu-0"] < 2 * part.energy_j["gpu-0"]


def test_one_limit_of_the_board_holds_for_all_its_devices(tmp_path: Path) -> None:
    hot = {**SMALL, "activity": 0.7}  # draws as if it filled the card
    clocks = []
    for kind in (SMALL, hot):
        twin = started(tmp_path, *((f"mig = {number}", kind) for number in range(7)), layout=SEVEN)
        twin.advance(3)
        clocks.append(twin.gpus.gpu[0].sm_clock_mhz)
        assert twin.gpus.gpu[0].power_mw <= 300_000
    assert clocks[1] < 0.9 * clocks[0] and twin.gpus.gpu[0].throttle_reasons == 4  # the power limit


def test_each_program_is_listed_in_its_device_with_its_memory(tmp_path: Path) -> None:
    twin = started(tmp_path, ("mig = 0", COMPUTE), ("mig = 1", MEMORY), layout=THREES)
    twin.advance(0.2)
    with InProcess(twin) as inside:
        nvml: Any = inside.ports.nvml
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        found = [
            (one.gpuInstanceId, one.usedGpuMemory >> 20) for one in nvml.nvmlDeviceGetComputeRunningProcesses(card)
        ]
        assert sorted(found) == [(1, 4000), (2, 6000)]
        first = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        assert [one.usedGpuMemory >> 20 for one in nvml.nvmlDeviceGetComputeRunningProcesses(first)] == [4000]
        assert nvml.nvmlDeviceGetMemoryInfo(first).used >> 20 == 4000
        assert nvml.nvmlDeviceGetMemoryInfo(card).used >> 20 == 10000
        busy = nvml.nvmlGpuInstanceGetComputeInstanceById(nvml.nvmlDeviceGetGpuInstanceById(card, 1), 0)
        with pytest.raises(nvml.NVMLError_InUse):
            nvml.nvmlComputeInstanceDestroy(busy)
        nvml.nvmlShutdown()


def test_a_program_that_does_not_say_where_it_runs_on_a_divided_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TwinError, match=r"GPU 0 is divided \(MIG\): a program needs the number of a MIG device"):
        started(tmp_path, ("", COMPUTE), layout=THREES)
    with pytest.raises(TwinError, match="GPU 0 has 2 MIG devices; there is none of number 2"):
        started(tmp_path, ("mig = 2", COMPUTE), layout=THREES)
    with pytest.raises(TwinError, match="GPU 0 has 0 MIG devices"):
        started(tmp_path, ("mig = 0", COMPUTE))
