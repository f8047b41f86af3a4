"""An agent that takes times and parameters from the calibration of its node, and the files in which they are."""

from __future__ import annotations

import datetime
import errno
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibration.limits.limits_file import report_of_limits, text_of_limits
from calibration.limits.limits_of_node import Limits
from calibration.limits.minimal_power import Mop, MopStep
from calibration.limits.standing_power import standing_power
from calibration.limits.step_response import StepResponse
from calibration.table.pstate_table import SCHEMA, Conditions, Quality, Table
from calibration.table.table_file import write_table
from foundation.sealed_file import sealed
from foundation.shell.settings import ConfigError
from nodectl.calibrated.node_calibration import LIMITS, TABLE, expiry, find_calibration, with_measured
from nodectl.calibrated.node_identity import Identity, identity
from nodectl.config import Config, build_config
from nodectl.journal.decide_again import replay
from nodectl.journal.reading import open_journal
from nodectl.knobs.timing import KnobLatency, Spread
from nodectl.loop.agent import Agent
from pmu.node import discover
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SLOW = KnobLatency("cpu/*/max_khz", Spread(60, 0.12, 0.15), Spread(60, 0.001, 0.002), 0.001, "kHz", 0.0002)
STEP = MopStep(205.0, 204.9, 0.0003, 0.01)
MEASURED = Limits(
    measured_at="2026-11-24T00:00:00+00:00",
    is_emulated=True,
    standing=standing_power((40.0, 120.0), (300.0, 380.0), 0.0, None),
    mop=Mop(205.0, "heartbeat", 'a beat "late"', 0.8, True, 0.005, 5.0, (STEP,)),
    node_mop_w=285.0,
    latency=(SLOW,),
    step=(StepResponse("rapl/*/long_term_uw", 300.0, 220.0, 0.02, 1.2, 0.3, 0.0, -0.001, 0.4, 0.01),),
    missing=("boot_w: not known",),
)


NOW = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)
MEASURED_W = 97.5


def settings_of(folder: Path, **more: Any) -> Config:
    settings = {
        "mode": "optimize", "period_ms": 100.0, "state_dir": str(folder), "calibration": str(folder / "calibration"),
        "gpu_policy": {"name": "none"}, **more,
    }  # fmt: skip
    return build_config(settings, lambda path: "test")


def node_of() -> InProcess:
    machine = load_machine("skylake-6146")
    return InProcess(Twin(machine, load_workload("stream", machine)))


def who_is(node: InProcess) -> Identity:
    return identity(node.ports, discover(node.ports)[0])


def write_limits(folder: Path, limits: Limits) -> None:
    (folder / "calibration").mkdir(parents=True, exist_ok=True)
    (folder / "calibration" / LIMITS).write_text(sealed(text_of_limits(limits)))


def write_policies(folder: Path, who: Identity, policies: dict[str, dict[str, float]], expires_at: str) -> Path:
    (folder / "calibration").mkdir(parents=True, exist_ok=True)
    path = folder / "calibration" / TABLE
    conditions, quality = Conditions(True, NOW.isoformat(), 60.0, True, 1.0, 1.0, 1.0), Quality(1, 0, 1, 1.0, 1.0)
    write_table(path, Table(SCHEMA, expires_at, who, conditions, quality, {}, (), policies))
    return path


def run_of(folder: Path, ticks: int = 20, **more: Any) -> tuple[float, list[str], dict[str, float], list[str]]:
    """The period at the end, notices, true joules, and the log."""
    log: list[str] = []
    with node_of() as node:
        with Agent.open(node.ports, settings_of(folder, **more), log.append) as agent:
            for _ in range(ticks):
                agent.tick()
        summary = agent.summary()
        return summary.period_ms, [str(line) for line in summary.notices], dict(node.twin.report().energy_j), log


def test_an_agent_does_not_write_a_clock_before_the_last_one_could_be_in_force(tmp_path: Path) -> None:
    with node_of() as node:
        write_limits(tmp_path, msgspec.structs.replace(MEASURED, identity=who_is(node), expires_at=expiry(NOW)))
    period_ms, notices, _, _ = run_of(tmp_path)
    assert period_ms >= 150.0
    assert any("by the calibration cpu/policy" in line for line in notices)


def test_without_a_calibration_the_agent_does_and_says_what_it_did(tmp_path: Path) -> None:
    period_ms, notices, joules, log = run_of(tmp_path / "a")
    assert period_ms == 100.0
    assert not any("calibration" in line for line in notices)
    assert not any("calibration" in line for line in log)
    quick = KnobLatency("cpu/*/max_khz", Spread(60, 0.0001, 0.0002), Spread(60, 0.0001, 0.0002))
    with node_of() as node:
        limits = Limits("", True, None, None, None, (quick,), (), (), expiry(NOW), who_is(node))
    write_limits(tmp_path / "b", limits)
    assert run_of(tmp_path / "b")[2] == joules  # decisions do not depend on latencies


def test_a_policy_acts_on_what_was_calibrated_and_settings_win(tmp_path: Path) -> None:
    with node_of() as node:
        measured = {"bdpo-cpu-bounded": {"rest_w": MEASURED_W, "floor": 0.7}, "other": {"x": 1.0}}
        write_policies(tmp_path, who_is(node), measured, expiry(NOW))
        config = settings_of(tmp_path, cpu_policy={"name": "bdpo-cpu-bounded", "params": {"floor": 0.5}})
        found = find_calibration(config, node.ports, discover(node.ports)[0], NOW)
    assert [line.partition(": ")[2] for line in found.lines] == [f"of this node, until {expiry(NOW)}"]
    after, lines = with_measured(config, found)
    assert after.cpu_policy.params == {"rest_w": MEASURED_W, "floor": 0.5}
    assert f"bdpo-cpu-bounded uses the calibration: rest_w {MEASURED_W:g}" in lines


def test_the_journal_has_what_was_calibrated_so_it_replays_without_the_files(tmp_path: Path) -> None:
    with node_of() as node:
        path = write_policies(tmp_path, who_is(node), {"bdpo-cpu": {"low_ipc": 2.0, "high_ipc": 2.5}}, expiry(NOW))
    *_, log = run_of(tmp_path, 30, cpu_policy={"name": "bdpo-cpu"})
    assert "bdpo-cpu uses the calibration: low_ipc 2, high_ipc 2.5" in log
    path.unlink()
    report = replay(open_journal(tmp_path / "journal"))
    assert report.decided >= 29 and report.is_equal


def test_a_directory_that_the_agent_may_not_look_into_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with node_of() as node, monkeypatch.context() as patched:
        layout = discover(node.ports)[0]
        patched.setattr("nodectl.calibrated.node_calibration.Path.stat", refuse)
        found = find_calibration(Config(calibration="/closed"), node.ports, layout, NOW)
    assert found.lines == ("/closed: not used: Permission denied",) and not found.policies


def test_a_table_of_another_machine_is_not_used(tmp_path: Path) -> None:
    with node_of() as node:
        other = msgspec.structs.replace(who_is(node), cpu_model="Z80")
    write_policies(tmp_path, other, {"bdpo-cpu-bounded": {"rest_w": MEASURED_W}}, expiry(NOW))
    *_, log = run_of(tmp_path, 1)
    assert any("not used, it is of another machine or firmware: cpu_model: measured on Z80" in line for line in log)
    assert any("bdpo-cpu-bounded uses defaults" in line for line in log)


def test_an_expired_table_is_used_with_a_warning(tmp_path: Path) -> None:
    with node_of() as node:
        write_policies(
            tmp_path, who_is(node), {"bdpo-cpu-bounded": {"rest_w": MEASURED_W}}, "2020-01-01T00:00:00+00:00"
        )
    *_, log = run_of(tmp_path, 1)
    assert any("expired at 2020-01-01T00:00:00+00:00: still used, measure again" in line for line in log)
    assert any(f"uses the calibration: rest_w {MEASURED_W:g}" in line for line in log)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "its end is missing"),
        (lambda text: text.replace("rest_w", "rest_v"), "its sha256 differs"),
        (lambda text: sealed("rows = ["), "is no TOML"),
        (lambda text: sealed("[identity]\ncpu_model = 3\n"), "is no calibration"),
        (lambda text: "", "its end is missing"),
    ],
)
def test_a_damaged_table_is_not_used_and_does_not_stop_the_agent(
    tmp_path: Path, damage: Callable[[str], str], said: str
) -> None:
    with node_of() as node:
        path = write_policies(tmp_path, who_is(node), {"bdpo-cpu-bounded": {"rest_w": MEASURED_W}}, expiry(NOW))
    path.write_text(damage(path.read_text()))
    *_, log = run_of(tmp_path, 1)
    assert any(line.startswith("not used: ") and said in line and "\n" not in line for line in log)
    assert any("bdpo-cpu-bounded uses defaults" in line for line in log)


def test_a_parameter_that_the_policy_refuses_leaves_it_on_defaults(tmp_path: Path) -> None:
    with node_of() as node:
        write_policies(tmp_path, who_is(node), {"bdpo-cpu-bounded": {"rest_v": 1.0}}, expiry(NOW))
    *_, log = run_of(tmp_path, 1)
    assert any("bdpo-cpu-bounded uses defaults: what was calibrated does not fit" in line for line in log)


def test_an_agent_whose_calibration_is_no_directory_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("")
    with node_of() as node, pytest.raises(ConfigError, match=r"limits.toml is a file: name the directory"):
        Agent.open(node.ports, settings_of(tmp_path, calibration=str(file)))


def test_the_file_reads_back_and_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    with node_of() as node:
        write_limits(tmp_path, msgspec.structs.replace(MEASURED, identity=who_is(node), expires_at=expiry(NOW)))
        known = find_calibration(settings_of(tmp_path), node.ports, discover(node.ports)[0], NOW)
    found = tomllib.loads((tmp_path / "calibration" / LIMITS).read_text())
    assert found["mop"]["why"] == 'a beat "late"'
    assert found["mop"]["steps"] == [[205.0, 204.9, 0.0003, 0.01, "", ""]]
    assert found["standing"]["rest_w"] == 80.0 and "boot_w" not in found["standing"]
    assert found["latency"][0]["up"] == {"n": 60, "median_s": 0.12, "p95_s": 0.15}
    (due,) = known.deadlines
    assert (due.knob, due.gap_s, due.effect_s) == ("cpu/*/max_khz", 0.15, 0.3)
    lines = list(report_of_limits(MEASURED))
    assert lines[0] == "EMULATED: minimal operating power of the packages: 205 W, to 5 W"
    assert lines[-1] == "not measured: boot_w: not known"
