"""An agent that takes its times from a calibration, and the file in which they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from calibration.limits.limits_file import report_of_limits, text_of_limits
from calibration.limits.limits_of_node import Limits
from calibration.limits.minimal_power import Mop, MopStep
from calibration.limits.standing_power import standing_power
from calibration.limits.step_response import StepResponse
from nodectl.config import build_config
from nodectl.knobs.timing import KnobLatency, Spread, read_deadlines
from nodectl.loop.agent import Agent
from nodectl.shell.settings import ConfigError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SLOW = KnobLatency("cpu/*/max_khz", Spread(60, 0.12, 0.15), Spread(60, 0.001, 0.002), 0.001, "kHz", 0.0002)
STEP = MopStep(205.0, 204.9, 0.0003, 0.01)
LIMITS = Limits(
    measured_at="2026-11-24T00:00:00+00:00",
    is_emulated=True,
    standing=standing_power((40.0, 120.0), (300.0, 380.0), 0.0, None),
    mop=Mop(205.0, "heartbeat", 'a beat "late"', 0.8, True, 0.005, 5.0, (STEP,)),
    node_mop_w=285.0,
    latency=(SLOW,),
    step=(StepResponse("rapl/*/long_term_uw", 300.0, 220.0, 0.02, 1.2, 0.3, 0.0, -0.001, 0.4, 0.01),),
    missing=("boot_w: not known",),
)


def agent_of(node: InProcess, folder: Path, calibration: str = "") -> Agent:
    settings = {
        "mode": "optimize", "period_ms": 100.0, "state_dir": str(folder), "calibration": calibration,
        "journal": {"max_bytes": 0}, "gpu_policy": {"name": "none"},
    }  # fmt: skip
    return Agent.open(node.ports, build_config(settings, lambda path: "test"))


def run_of(folder: Path, calibration: str = "") -> tuple[float, list[str], dict[str, float]]:
    """The period at the end, notices, and true joules."""
    machine = load_machine("skylake-6146")
    with InProcess(Twin(machine, load_workload("stream", machine))) as node:
        with agent_of(node, folder, calibration) as agent:
            for _ in range(20):
                agent.tick()
        summary = agent.summary()
        return summary.period_ms, [str(line) for line in summary.notices], dict(node.twin.report().energy_j)


def test_an_agent_does_not_write_a_clock_before_the_last_one_could_be_in_force(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text_of_limits(LIMITS))
    period_ms, notices, _ = run_of(tmp_path / "a", str(file))
    assert period_ms >= 150.0
    assert any("by the calibration cpu/policy" in line for line in notices)


def test_without_a_calibration_the_agent_does_what_it_did(tmp_path: Path) -> None:
    period_ms, notices, joules = run_of(tmp_path / "a")
    assert period_ms == 100.0
    assert not any("calibration" in line for line in notices)
    quick = KnobLatency("cpu/*/max_khz", Spread(60, 0.0001, 0.0002), Spread(60, 0.0001, 0.0002))
    file = tmp_path / "limits.toml"
    file.write_text(text_of_limits(Limits("", True, None, None, None, (quick,), (), ())))
    assert run_of(tmp_path / "b", str(file))[2] == joules  # decisions do not depend on it


def test_an_agent_without_its_calibration_does_not_start(tmp_path: Path) -> None:
    with (
        InProcess(Twin(load_machine("skylake-6146"))) as node,
        pytest.raises(ConfigError, match=r"none.toml: cannot read"),
    ):
        agent_of(node, tmp_path, str(tmp_path / "none.toml"))


def test_the_file_reads_back_and_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text_of_limits(LIMITS))
    found = tomllib.loads(file.read_text())
    assert found["mop"]["why"] == 'a beat "late"'
    assert found["mop"]["steps"] == [[205.0, 204.9, 0.0003, 0.01, "", ""]]
    assert found["standing"]["rest_w"] == 80.0 and "boot_w" not in found["standing"]
    assert found["latency"][0]["up"] == {"n": 60, "median_s": 0.12, "p95_s": 0.15}
    (due,) = read_deadlines(str(file))
    assert (due.knob, due.gap_s, due.effect_s) == ("cpu/*/max_khz", 0.15, 0.3)
    lines = list(report_of_limits(LIMITS))
    assert lines[0] == "EMULATED: minimal operating power of the packages: 205 W, to 5 W"
    assert lines[-1] == "not measured: boot_w: not known"
