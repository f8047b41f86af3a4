"""``nodectl calibrate kernels``: speeds with intervals, native or emulated, and why they are no table."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import pytest

from calibration.commands.calibrate_kernels import in_words, one_thread_of_each_core
from calibration.kernels.kernel_speed import WINDOWS, Speed, measure_speed
from calibration.kernels.port import FMA, KERNELS, STREAM
from foundation.student import mean_interval
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.cli import main
from tests.calibration.kernel_processes import kernel_processes
from tests.twin.served_node import ServedNode, why_not_served
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.kernels import kernel_truth

CURIE = load_machine("curie")


def test_the_interval_has_the_true_mean_in_95_of_100_measurements() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(4000):
        mean, half = mean_interval(random.normal(100.0, 7.0, WINDOWS).tolist())
        hits += abs(mean - 100.0) <= half
    assert hits / 4000 == pytest.approx(0.95, abs=0.01)


def test_a_speed_is_the_units_of_the_measured_time_in_the_clock_of_the_port() -> None:
    with InProcess(Twin(CURIE)) as node:
        port = emulated_kernels(node.twin)
        began_ns = node.ports.clock.now_ns()
        speed = measure_speed(port, node.ports.clock, FMA, (0, 1, 2), 2.0)
        taken_s = (node.ports.clock.now_ns() - began_ns) / 1e9
    assert speed.is_emulated and speed.cpus == (0, 1, 2) and speed.unit == "flops"
    assert (speed.seconds, taken_s) == (pytest.approx(2.0), pytest.approx(2.2, abs=0.01))  # virtual
    assert speed.low_units_per_s <= speed.units_per_s <= speed.high_units_per_s
    assert speed.units_per_s == pytest.approx(3 * kernel_truth(CURIE, "fma").units_per_s, rel=0.01)


def test_threads_of_one_core_are_not_measured_as_cores() -> None:
    rome = load_machine("rome")
    with InProcess(Twin(rome)) as node:
        assert one_thread_of_each_core(node.ports.files, emulated_kernels(node.twin)) == tuple(range(64))


def report(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["calibrate", "kernels", "--seconds", "0.1", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_kernel_is_measured_natively_and_no_watts_are_next_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--cpus", "0")
    assert found["emulated"] is False and found["vectors"]
    assert [speed["kernel"] for speed in found["speeds"]] == [kernel.name for kernel in KERNELS]
    for speed in found["speeds"]:
        assert speed["cpus"] == [0] and speed["units_per_s"] > 0
        assert speed["low_units_per_s"] <= speed["units_per_s"] <= speed["high_units_per_s"]
        assert set(speed) == set(Speed.__struct_fields__)
    assert set(found) == {"emulated", "vectors", "speeds", "disturbed", "lacks_for_a_table"}
    assert not [name for name in Speed.__struct_fields__ if name.endswith(("_w", "_j"))]
    assert kernel_processes(os.getpid()) == []


def test_the_table_says_in_a_line_each_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    lacks = report(capsys, "--cpus", "0")["lacks_for_a_table"]
    assert main(["calibrate", "kernels", "--seconds", "0.1", "--cpus", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("native: ")
    assert [line for line in lines if line.startswith("no ")] == lacks
    assert any("gets no P-state table" in line for line in lines) is bool(lacks)
    assert all(": " in line for line in lacks)


@pytest.mark.parametrize("text", ["", "x", "0,0", "0-", "99999", "3-1"])
def test_a_bad_list_of_cpus_is_wrong_use(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "kernels", "--cpus", text]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"nodectl calibrate: --cpus {text}: ") and error.count("\n") == 1


def test_speeds_are_written_with_three_digits_and_a_prefix() -> None:
    assert in_words(37.71e9, "flops") == "37.7 Gflops/s"
    assert in_words(2.5e12, "flops") == "2.5 Tflops/s"
    assert in_words(950.0, "loads") == "950 loads/s"


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")
def test_on_a_served_node_the_node_executes_the_kernels_and_the_output_says_emulated() -> None:
    options = (sys.executable, "-m", "nodectl.cli", "calibrate", "kernels", "--seconds", "0.5", "--cpus", "0-3")
    cases = [(kernel.name, cpus) for kernel in KERNELS for cpus in (1, 2, 4)]
    near = {
        (kernel.name, cpus): pytest.approx(cpus * kernel_truth(CURIE, kernel.name).units_per_s, rel=0.1)
        for kernel in (FMA, STREAM)
        for cpus in (1, 2, 4)
    }
    seen = dict.fromkeys(near, False)
    with ServedNode("curie") as node:
        for _ in range(10):  # a node served on a machine with other work is late now and then, so some speeds are wrong
            found = json.loads(node.output(*options, "--json"))
            assert found["emulated"] is True and found["vectors"] is None and found["lacks_for_a_table"] == []
            speeds = {(one["kernel"], len(one["cpus"])): one["units_per_s"] for one in found["speeds"]}
            assert sorted(speeds) == sorted(cases)
            seen = {case: seen[case] or speeds[case] == near[case] for case in near}
            if all(seen.values()):
                break
        assert node.output(*options).startswith("emulated: ")
    assert all(seen.values()), (seen, speeds)
