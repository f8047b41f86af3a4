"""A program under each clock of emulated GPUs: near the truth, put back, in its file; and real programs of a shell."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from calibration.commands.calibrate_gpus import kernel_programs, measure, site_locks
from calibration.commands.calibrate_tables import show
from calibration.gpu_table.clock_sweep import MOST_ROUNDS, Ran, Row, clocks_of, rows_of
from calibration.gpu_table.command_runs import CommandError, ShellCommand
from calibration.gpu_table.gpu_table import GPU_TABLE, GpuTable, best, read_gpu_table, write_gpu_table
from calibration.measure.node_session import SessionError
from foundation.sealed_file import SealedFileError, sealed
from foundation.shell.errors import UsageError
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_calibration import read_head
from nodectl.config import GpuSettings
from nodectl.loop.survey import survey
from nodectl.write.writer import Writer
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.machine_tables import GpuSensors
from twin.physics.model import Twin
from twin.programs.kernels import gpu_kernel_truth
from twin.programs.workload import PhaseTruth, gpu_group, load_workload
from twin.programs.workload_phases import GpuGroup

RUN_S = 30.0  # cards warm up from run to run
NEAR = 0.02


@dataclass
class TwinCommand:
    """A program that an emulated node executes, from the beginning at each start."""

    twin: Twin
    name: str
    seconds: float = RUN_S
    progress_s: float | None = None
    locks: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.locks.append(int(self.twin.gpus.gpu[0].sm_clock_mhz))
        self.twin.start_workload(
            load_workload(self.name, self.twin.machine, duration_s=self.seconds, progress_s=self.progress_s)
        )

    def is_over(self) -> bool:
        return self.twin.finished

    def units(self) -> int:
        return self.twin.progress_units() or 0

    def stop(self) -> None:
        self.twin.stop_workload()


def swept(twin: Twin, programs: Callable[[InProcess], dict[str, Any]], text: str, folder: Path, clocks: int = 4):
    """The table of programs on an emulated node, what is said, and the highest lock that is left."""
    with InProcess(twin) as node:
        found = survey(node.ports)
        assert set(site_locks(found, GpuSettings(0)).values()) == {0}
        with Writer(found.knobs, str(folder / "save.jsonl"), "boot", node.ports.clock) as writer:
            chosen = clocks_of(found.layout.gpus[0], clocks, 0.5)
            said: list[str] = []
            out = folder / GPU_TABLE
            rest = {"say": said.append, "is_emulated": True}
            assert measure(node.ports, found, writer, programs(node), text, chosen, NEAR, out, **rest) == 0
            lock_mhz = max(twin.gpus.gpu[card].lock_max_mhz for card in range(len(found.layout.gpus)))
    return read_gpu_table(out), said, lock_mhz


def measured(machine: str, workload: str, folder: Path, clocks: int = 4, **command: float):
    """The table of a program on an emulated node, with its truth."""
    twin = Twin(load_machine(machine))
    program = TwinCommand(twin, workload, **command)
    table, said, lock_mhz = swept(twin, lambda node: {"": program}, workload, folder, clocks)
    truth = load_workload(workload, twin.machine).truth
    phases = [phase for group in truth.groups if group.on_gpu for phase in group.phases]
    return table, phases, said, lock_mhz


def near_truth(table: GpuTable, rows: Sequence[Row], phase: PhaseTruth, sensors: GpuSensors) -> None:
    """Each row has speed and watts of the phase, as the cards' own meters err."""
    top = rows[-1].mhz
    for row in rows:
        at = int(np.argmin(np.abs(np.array(phase.clocks_mhz) - row.mhz)))
        highest = int(np.argmin(np.abs(np.array(phase.clocks_mhz) - top)))
        assert row.speed == pytest.approx(phase.speed[at] / phase.speed[highest], rel=NEAR)
        shown_w = sensors.power_gain * phase.power_w[at] + sensors.power_offset_w
        assert row.watts == pytest.approx(table.cards * shown_w, rel=NEAR)
        assert row.joules == pytest.approx(row.watts / row.speed / rows[-1].watts, rel=0.01)
        assert 2 <= row.runs <= MOST_ROUNDS and row.clock_mhz == pytest.approx(row.mhz, rel=0.02)


@pytest.mark.parametrize(
    ("machine", "workload", "progress_s"),
    [("v100", "v100:RNN", 0.0), ("v100", "v100:BScholes", 0.05), ("a100", "v100:ViT_t", 0.0)],
)
def test_watts_and_speed_at_each_clock_are_the_emulated_cards_own(
    tmp_path: Path, machine: str, workload: str, progress_s: float
) -> None:
    more = {"progress_s": progress_s} if progress_s else {}
    table, (phase,), said, lock_mhz = measured(machine, workload, tmp_path, **more)
    assert lock_mhz == 0, "every lock is put back"
    assert table.has_units == bool(progress_s) and table.cards == load_machine(machine).gpus
    near_truth(table, table.gpu_rows, phase, load_machine(machine).gpu.sensors)
    assert said[0].startswith("EMULATED") and said[-3].startswith("fewest joules within a slowdown of 3%")
    assert read_head(tmp_path / GPU_TABLE).identity == table.identity


@pytest.mark.parametrize("machine", ["v100", "a100", "spr-h100"])
def test_kernels_of_our_own_have_their_watts_and_speed_at_each_clock(tmp_path: Path, machine: str) -> None:
    twin = Twin(load_machine(machine))
    port = emulated_kernels(twin, on_gpus=True)
    table, said, lock_mhz = swept(
        twin, lambda node: kernel_programs(port, port.kernels(), node.ports.clock, RUN_S), "", tmp_path, clocks=3
    )
    assert lock_mhz == 0 and list(table.series) == ["gpu-fma", "gpu-stream"] and table.has_units
    card = twin.machine.gpu
    for kernel, rows in table.series.items():
        truth = gpu_kernel_truth(card, kernel)
        group = gpu_group(GpuGroup((truth.phase,)), card, np.random.default_rng(1), 0.0, kernel, [None])
        near_truth(table, rows, group.phases[0].truth, card.sensors)
        assert rows[-1].units_per_s == pytest.approx(card.count * truth.units_per_s, rel=NEAR)
    fma, stream = table.series["gpu-fma"], table.series["gpu-stream"]
    assert fma[0].speed < 0.6 and stream[0].speed > 0.8, "one is bound by the clock, the other by bandwidth"
    assert any(line.startswith("gpu-stream: ") and "bytes/s on all cards" in line for line in said)


def test_a_table_of_the_first_schema_is_still_read(tmp_path: Path) -> None:
    table, *_ = measured("v100", "v100:RNN", tmp_path, clocks=3, progress_s=0.05)
    path = tmp_path / GPU_TABLE
    text = path.read_text().replace("schema = 2", "schema = 1").replace(', "kernel"]', "]").replace(', ""],', "],")
    path.write_text(sealed(text[: text.rindex("#")]))
    assert read_gpu_table(path) == msgspec.structs.replace(table, schema=1)


def test_show_prints_it_and_a_changed_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, *_ = measured("v100", "v100:RNN", tmp_path, clocks=3)
    path = tmp_path / GPU_TABLE
    show.callback(path, False)
    out = capsys.readouterr().out
    assert "v100:RNN: speed by its run time" in out and f"{best(table.gpu_rows).mhz} MHz" in out
    path.write_text(path.read_text().replace("v100:RNN", "v100:RNM"))
    with pytest.raises(SealedFileError, match="sha256 differs"):
        read_gpu_table(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: (), "its clocks are not one or more"),
        (lambda rows: rows[::-1], "its clocks are not one or more"),
        (lambda rows: (msgspec.structs.replace(rows[0], speed=math.nan), *rows[1:]), "are numbers above 0"),
        (lambda rows: (msgspec.structs.replace(rows[0], watts=-1.0), *rows[1:]), "are numbers above 0"),
        (lambda rows: rows[:1], "the speed of the highest clock is 1"),
    ],
)
def test_a_sealed_table_that_no_sweep_has_written_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    table, *_ = measured("v100", "v100:RNN", tmp_path, clocks=3)
    path = tmp_path / GPU_TABLE
    write_gpu_table(path, msgspec.structs.replace(table, gpu_rows=change(table.gpu_rows)))
    with pytest.raises(SealedFileError, match=why):
        show.callback(path, False)


def test_a_program_that_ends_too_soon_is_refused_and_the_locks_are_back(tmp_path: Path) -> None:
    twin = Twin(load_machine("v100"))
    with InProcess(twin) as node:
        found = survey(node.ports)
        with Writer(found.knobs, str(tmp_path / "save.jsonl"), "boot", node.ports.clock) as writer:
            program = TwinCommand(twin, "v100:RNN", seconds=1.0)
            with pytest.raises(CommandError, match=r"ran for 1\.\d s: give it work for 5 s or more"):
                measure(node.ports, found, writer, {"": program}, "x", (900, 1380), NEAR, tmp_path / GPU_TABLE)
            assert twin.gpus.gpu[0].lock_max_mhz == 0 and not (tmp_path / GPU_TABLE).exists()


def test_a_node_without_gpus_or_with_a_lock_that_nobody_declared_is_refused() -> None:
    with InProcess(Twin(load_machine("taurus"))) as node, pytest.raises(SessionError, match="no GPU clocks to measure"):
        site_locks(survey(node.ports), GpuSettings(0))
    with InProcess(Twin(load_machine("v100"))) as node, pytest.raises(UsageError, match="declare it, 0: none"):
        site_locks(survey(node.ports), GpuSettings())


def test_no_clock_above_the_lock_of_the_site_is_measured_since_none_is_ever_set() -> None:
    with InProcess(Twin(load_machine("v100"))) as node:
        gpu = survey(node.ports).layout.gpus[0]
    assert clocks_of(gpu, 3, 0.5)[-1] == gpu.clocks_mhz[-1]
    locked = clocks_of(gpu, 3, 0.5, locked_mhz=1005)
    assert len(locked) == 3 and 500 <= locked[0] < 520 and 990 < locked[-1] <= 1005
    assert clocks_of(gpu, 3, 0.5, locked_mhz=gpu.clocks_mhz[0] - 1) == (gpu.clocks_mhz[0],)


def test_intervals_come_from_how_runs_of_a_clock_differ_and_the_top_is_the_reference() -> None:
    ran = [Ran(1000, 10.0 * f, 2000.0, 1000.0, 0) for f in (1.01, 0.99)]
    ran += [Ran(700, 14.0, 1900.0, 700.0, 0)] * 2
    low, high = rows_of(ran)
    assert (high.speed, high.speed_half, high.joules_half) == (1.0, 0.0, 0.0)
    assert low.speed == pytest.approx(10.0 / 14.0, rel=1e-3) and 0.03 < low.speed_half / low.speed < 0.06
    assert math.isnan(low.units_per_s)
    assert rows_of([one._replace(units=70) for one in ran])[0].units_per_s == pytest.approx(5.0)


def finished(command: ShellCommand) -> int:
    command.start()
    try:
        while not command.is_over():
            time.sleep(0.01)
        return command.units()
    finally:
        command.stop()


def test_a_real_program_is_run_to_its_end_and_its_progress_is_read_anew_each_time() -> None:
    ticks = ShellCommand(f"{sys.executable} -c 'from nodectl.progress import tick; tick(41); tick()'")
    assert [finished(ticks), finished(ticks)] == [42, 42]
    assert finished(ShellCommand("true")) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("false", "false ended with status 1"),
        ("sh -c 'kill -9 $$'", "ended with signal 9"),
        ("/nowhere/app", "No such file or directory"),
        ("", "is empty"),
        ("'app", "cannot be split into words"),
    ],
)
def test_a_program_that_fails_is_one_line(text: str, why: str) -> None:
    with pytest.raises(CommandError, match=why) as error:
        finished(ShellCommand(text))
    assert str(error.value).startswith("--command: ") and "\n" not in str(error.value)


def test_a_program_that_is_stopped_ends_with_its_children() -> None:
    command = ShellCommand("sh -c 'sleep 60 & wait'")
    command.start()
    began_s = time.monotonic()
    command.stop()
    assert time.monotonic() - began_s < 5.0
