"""The twin's nvidia-smi, in a process of its own: what it prints, what it sets, and with which status it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Smi = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def smi(run_in_node: Smi, write_state: Any, cards: Any) -> Smi:
    """Run nvidia-smi with options, on the three cards as the test has left them."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        write_state(cards)
        return run_in_node(sys.executable, "-m", "twin.smi.smi_program", *options)

    return run


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [line.split(", ") for line in done.stdout.splitlines()]


# ---- reading -------------------------------------------------------------------------------------------------------

SHOWN = {
    "index": ("index", "0"),
    "name": ("name", "NVIDIA A100-SXM4-80GB"),
    "gpu_uuid": ("uuid", "GPU-00000000-0000-4000-8000-000000000000"),
    "pci.bus_id": ("pci.bus_id", "00000000:07:00.0"),
    "pci.bus": ("pci.bus", "0x07"),
    "driver_version": ("driver_version", "570.86.15"),
    "serial": ("serial", "1320120000000"),
    "count": ("count", "3"),
    "utilization.gpu": ("utilization.gpu [%]", "97 %"),
    "utilization.memory": ("utilization.memory [%]", "41 %"),
    "memory.total": ("memory.total [MiB]", "81920 MiB"),
    "memory.used": ("memory.used [MiB]", "1024 MiB"),
    "memory.free": ("memory.free [MiB]", "80896 MiB"),
    "temperature.gpu": ("temperature.gpu", "61"),
    "temperature.memory": ("temperature.memory", "70"),
    "power.draw": ("power.draw [W]", "251.00 W"),
    "power.draw.instant": ("power.draw.instant [W]", "263.50 W"),
    "power.limit": ("power.limit [W]", "400.00 W"),
    "enforced.power.limit": ("enforced.power.limit [W]", "400.00 W"),
    "power.default_limit": ("power.default_limit [W]", "400.00 W"),
    "power.min_limit": ("power.min_limit [W]", "100.00 W"),
    "power.max_limit": ("power.max_limit [W]", "400.00 W"),
    "clocks.sm": ("clocks.current.sm [MHz]", "1410 MHz"),
    "clocks.gr": ("clocks.current.graphics [MHz]", "1410 MHz"),
    "clocks.mem": ("clocks.current.memory [MHz]", "1593 MHz"),
    "clocks.video": ("clocks.current.video [MHz]", "[N/A]"),
    "clocks.max.sm": ("clocks.max.sm [MHz]", "1410 MHz"),
    "clocks.max.mem": ("clocks.max.memory [MHz]", "1593 MHz"),
    "pstate": ("pstate", "P0"),
    "persistence_mode": ("persistence_mode", "Enabled"),
    "display_active": ("display_active", "Disabled"),
    "display_mode": ("display_mode", "Disabled"),
    "fan.speed": ("fan.speed [%]", "[N/A]"),
    "compute_cap": ("compute_cap", "8.0"),
    "mig.mode.current": ("mig.mode.current", "Disabled"),
    "clocks_throttle_reasons.active": ("clocks_event_reasons.active", "0x0000000000000004"),
    "clocks_throttle_reasons.sw_power_cap": ("clocks_event_reasons.sw_power_cap", "Active"),
    "clocks_event_reasons.gpu_idle": ("clocks_event_reasons.gpu_idle", "Not Active"),
}
"""By the queried name: the header, and the value of the first card (conftest.py)."""


def test_a_query_shows_each_field_with_its_unit(smi: Smi) -> None:
    header, first, *others = rows(smi(f"--query-gpu={','.join(SHOWN)}", "--format=csv"))
    assert dict(zip(SHOWN, zip(header, first, strict=True), strict=True)) == SHOWN
    assert [row[1] for row in others] == ["NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"]


def test_every_known_field_has_a_value_on_every_card(smi: Smi) -> None:
    names = smi("--help-query-gpu").stdout.split()
    table = rows(smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader"))
    assert {len(row) for row in table} == {len(names)} and len(names) > 90
    assert all(cell and "Error" not in cell for row in table for cell in row)


def test_header_and_units_are_left_out_as_requested(smi: Smi) -> None:
    query = "--query-gpu=power.draw,memory.used"
    assert rows(smi(query, "--format=csv,noheader,nounits", "-i", "1")) == [["251.00", "1024"]]
    assert rows(smi(query, "--format", "csv,nounits", "-i", "1"))[0] == ["power.draw [W]", "memory.used [MiB]"]


@pytest.mark.parametrize("name", ["2", "GPU-00000000-0000-4000-8000-000000000002", "1320120000002", "0000:87:00.0"])
def test_a_card_is_chosen_by_any_of_its_names(smi: Smi, name: str) -> None:
    assert rows(smi("-i", name, "--query-gpu=index", "--format=csv,noheader")) == [["2"]]


def test_cards_are_listed(smi: Smi) -> None:
    first, _, third = smi("-L").stdout.splitlines()
    assert first == "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-4000-8000-000000000000)"
    assert third.startswith("GPU 2: Tesla V100-SXM2-16GB (")


def test_the_table_shows_readings_and_does_not_pose_as_the_drivers_program(smi: Smi) -> None:
    text = smi().stdout
    for shown in ("251W / 400W", "1024MiB / 81920MiB", "97%", "61C", "Driver Version: 570.86.15", "CUDA Version: 12.8"):
        assert shown in text
    assert len({len(line) for line in text.splitlines()[1:] if line}) == 1
    assert "NVIDIA-SMI" not in text
    assert "twin" in smi("--help").stdout and "NVIDIA" not in smi("--help").stdout


def test_a_missing_reading_is_not_available(smi: Smi, cards: Any, readings: Any) -> None:
    cards.gpu[0].missing = readings.POWER
    assert rows(smi("-i", "0", "--query-gpu=power.draw,index", "--format=csv,noheader")) == [["[N/A]", "0"]]


def test_a_lost_card_ends_it_with_status_15(smi: Smi, cards: Any, faults: Any) -> None:
    cards.gpu[1].faults = faults.LOST
    done = smi("--query-gpu=index", "--format=csv")
    assert done.returncode == 15 and "GPU is lost" in done.stdout


def test_supported_clocks_are_listed(smi: Smi) -> None:
    clocks = rows(smi("-i", "0", "--query-supported-clocks=mem,gr", "--format=csv,noheader,nounits"))
    assert clocks[0] == ["1593", "1410"] and clocks[-1] == ["1593", "210"] and len(clocks) == 81


def test_a_loop_repeats_the_lines_without_the_header_until_nobody_reads(
    run_in_node: Smi, write_state: Any, cards: Any
) -> None:
    write_state(cards)
    query = "--query-gpu=index --format=csv -i 1 -lms 1"
    done = run_in_node("sh", "-c", f"{sys.executable} -m twin.smi.smi_program {query} | head -4")
    assert (done.stdout.splitlines(), done.stderr) == (["index", "1", "1", "1"], "")


# ---- setting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message", "state"),
    [
        (("-lgc", "1005,1200"), r'^GPU clocks set to "\(gpuClkMin 1005, gpuClkMax 1200\)" for GPU \S+\n', (1005, 1200)),
        (("--lock-gpu-clocks=1005",), "gpuClkMin 1005, gpuClkMax 1005", (1005, 1005)),
        (("-rgc",), "^All done.$", (0, 0)),
    ],
)
def test_clocks_are_locked_and_unlocked(
    smi: Smi, read_state: Any, tmp_path: Path, options: tuple[str, ...], message: str, state: tuple[int, int]
) -> None:
    done = smi("-i", "0", *options)
    assert done.returncode == 0 and re.search(message, done.stdout)
    gpus = read_state(tmp_path / "gpus")
    assert (gpus.gpu[0].lock_min_mhz, gpus.gpu[0].lock_max_mhz) == state
    assert (gpus.gpu[0].lock_seq, gpus.gpu[1].lock_seq) == (1, 0)


@pytest.mark.parametrize("options", [("-ac", "1593,1005"), ("--applications-clocks=1593,1005",)])
def test_applications_clocks_are_set_shown_and_reset(
    smi: Smi, run_in_node: Smi, read_state: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = smi("-i", "0", *options)
    assert done.returncode == 0
    assert 'Applications clocks set to "(MEM 1593, SM 1005)" for GPU 00000000:07:00.0' in done.stdout
    again = (sys.executable, "-m", "twin.smi.smi_program", "-i", "0")  # on the same cards
    fields = "clocks.applications.gr,clocks.applications.mem,clocks.default_applications.graphics"
    query = (f"--query-gpu={fields}", "--format=csv,noheader")
    assert rows(run_in_node(*again, *query)) == [["1005 MHz", "1593 MHz", "1410 MHz"]]
    assert read_state(tmp_path / "gpus").gpu[0].lock_seq == 1
    assert run_in_node(*again, "-rac").returncode == 0
    assert rows(run_in_node(*again, *query)) == [["1410 MHz", "1593 MHz", "1410 MHz"]]


def test_the_power_limit_of_all_cards_is_set(smi: Smi, read_state: Any, tmp_path: Path) -> None:
    done = smi("-pl", "250.5")
    assert done.returncode == 0
    assert "for GPU 00000000:07:00.0 was set to 250.50 W from 400.00 W." in done.stdout
    assert [gpu.power_limit_mw for gpu in read_state(tmp_path / "gpus").gpu[0:3]] == [250_500] * 3


def test_persistence_is_switched(smi: Smi, read_state: Any, tmp_path: Path) -> None:
    assert smi("-pm", "0", "-i", "1").stdout.startswith("Disabled persistence mode for GPU 00000000:47:00.0.")
    assert [gpu.persistence for gpu in read_state(tmp_path / "gpus").gpu[0:3]] == [1, 0, 1]


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (
            ("--query-gpu=index,clocks.applications.sm", "--format=csv"),
            2,
            'Field "clocks.applications.sm" is not a valid',
        ),
        (("--query-gpu=index",), 2, "--format=csv"),
        (("--query-gpu=index", "--format=xml"), 2, "--format=csv"),
        (("-i", "7", "-L"), 6, "No devices were found"),
        (("--frobnicate",), 2, "Option --frobnicate is not recognized"),
        (("-pl", "10"), 2, "10.00 W is not a valid power limit which should be between 100.00 W and 400.00 W for GPU"),
        (("-pl", "much"), 2, "no number"),
        (("-lgc", "1200,1005"), 2, "Invalid Argument"),
        (("-lgc", "low"), 2, "MIN,MAX"),
        (("-i", "0", "-ac", "1593,1006"), 2, "are not supported for GPU"),
        (("-ac", "1005"), 2, "MEMORY,GRAPHICS"),
        (("-pm", "2"), 2, "0 or 1"),
        (("-i", "2", "-lmc", "877"), 3, "is not supported for GPU"),
    ],
)
def test_wrong_use_has_the_status_of_the_drivers_program(
    smi: Smi, read_state: Any, tmp_path: Path, options: tuple[str, ...], status: int, message: str
) -> None:
    done = smi(*options)
    assert (done.returncode, done.stderr) == (status, "")
    assert message in done.stdout
    gpus = read_state(tmp_path / "gpus")
    assert [(gpu.lock_seq, gpu.limit_seq, gpu.persistence) for gpu in gpus.gpu[0:3]] == [(0, 0, 1)] * 3


def test_a_refused_setting_says_who_may_not(smi: Smi, cards: Any, faults: Any) -> None:
    cards.gpu[0].faults = faults.SET_REFUSED
    done = smi("-lgc", "1005")
    assert done.returncode == 4 and "does not have permission to change clocks for GPU 00000000:07:00.0" in done.stdout


def test_without_a_driver_the_status_is_9(run_in_node: Smi) -> None:
    assert run_in_node(sys.executable, "-m", "twin.smi.smi_program", "-L").returncode == 9


def test_a_file_that_cannot_be_written_is_one_line(smi: Smi) -> None:
    done = smi("--query-gpu=index", "--format=csv", "-f", "/proc/no-such-file")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (255, "", 1)
