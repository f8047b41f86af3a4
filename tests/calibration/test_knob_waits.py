"""Policies wait as long as their knobs were measured to need; where none was measured, defaults that are said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from calibration.limits.knob_latency import UNCORE_CLOCK, measure_latency
from calibration.limits.limits_of_node import Limits
from calibration.limits.probes import LimitsError
from calibration.limits.session_probes import UncoreEffect
from calibration.table.policy_values import policy_values
from nodectl.calibrated.knob_waits import default_latencies, knob_waits
from nodectl.calibrated.node_calibration import LIMITS, NodeCalibration, expiry, with_measured
from nodectl.config import Config
from nodectl.journal.decide_again import replay
from nodectl.journal.reading import open_journal
from nodectl.knobs.timing import KnobLatency, Spread, deadlines
from nodectl.loop.agent import Agent
from nodectl.loop.survey import survey
from nodectl.policies import registry
from tests.calibration.limited_node import loaded_node
from tests.calibration.test_calibrated_agent import NOW, node_of, settings_of, who_is, write_limits, write_policies
from tests.calibration.test_policy_values import KERNELS, table_points
from twin.machine import load_machine


def latency(knob: str, p95_s: float, poll_s: float = 0.0002) -> KnobLatency:
    return KnobLatency(knob, Spread(60, p95_s, p95_s), Spread(60, p95_s / 2, p95_s / 2), poll_s=poll_s)


SLOW = deadlines([latency("cpu/*/max_khz", 0.4), latency("uncore/*/max_khz", 0.7), latency("gpu/*/sm_clock_mhz", 0.3)])
QUICK = deadlines([latency("cpu/*/max_khz", 1e-3), latency("uncore/*/max_khz", 5e-3), latency("gpu/*/sm_*", 0.02)])


def waits_of(name: str, domain: str, due=SLOW, settings=None, table=None):
    return knob_waits(registry.policy(name, domain), settings or {}, table or {}, due)


def test_a_slow_knob_makes_every_policy_that_moves_it_wait_longer() -> None:
    assert waits_of("bdpo-cpu", "cpu") == ({"dwell_s": 0.8002}, [])
    assert waits_of("bdpo-cpu-bounded", "cpu") == ({"baseline_s": 0.8002, "probe_s": 0.8002}, [])
    assert waits_of("uncore-bounded", "uncore") == ({"dwell_s": 1.4}, [])
    assert waits_of("gpu-ladder", "gpu") == ({"latency_s": 0.6}, [])


def test_a_wait_for_noise_stays_where_the_knob_needs_less_and_the_line_says_so() -> None:
    found, lines = waits_of("bdpo-cpu", "cpu", QUICK)
    assert not found and lines == ["bdpo-cpu waits by default (dwell_s 0.3 s): cpu/*/max_khz needs less"]
    assert waits_of("bdpo-cpu", "cpu", QUICK, table={"dwell_s": 0.1}) == ({}, [])
    assert waits_of("bdpo-cpu", "cpu", table={"dwell_s": 0.1}) == ({"dwell_s": 0.8002}, [])
    assert waits_of("gpu-ladder", "gpu", QUICK)[0] == {}


def test_settings_are_never_replaced() -> None:
    assert waits_of("bdpo-cpu", "cpu", settings={"dwell_s": 0.2}) == ({}, [])
    assert waits_of("gpu-ladder", "gpu", settings={"latency_s": 0.1}) == ({}, [])


def test_defaults_are_said_where_no_knob_was_measured() -> None:
    choice = {"uncore": {"name": "uncore-bounded"}}
    config = settings_of(Path("/none"), policies=choice)
    after, lines = with_measured(config, NodeCalibration({}, (), ()))
    assert after == config
    assert "uncore-bounded waits by default (dwell_s 0.5 s): no latency of uncore/*/max_khz was measured" in lines
    with node_of() as node:
        knobs = survey(node.ports).knobs
    (line,) = default_latencies(knobs, SLOW)
    assert line.startswith("effects of knobs are due after defaults: rapl/") and "cpu/" not in line
    assert "cpu/*/max_khz 0.02 s" in default_latencies(knobs, ())[0]


def config_with(folder: Path) -> Config:
    return settings_of(folder, cpu_policy={"name": "bdpo-cpu", "params": {"low_ipc": 3.0, "high_ipc": 3.5}})


def first_lower_clock(folder: Path) -> int:
    """The tick after which the first clock was lowered."""
    with node_of() as node, Agent.open(node.ports, config_with(folder)) as agent:
        for tick in range(40):
            agent.tick()
            if node.twin.policy_request(0)[1] < node.twin.machine.max_khz:
                return tick
    return 40


def test_an_agent_with_a_slow_knob_lowers_clocks_later_and_replays_without_the_files(
    tmp_path: Path,
) -> None:
    early = first_lower_clock(tmp_path / "none")
    with node_of() as node:
        one = latency("cpu/*/max_khz", 0.05)
        limits = Limits("", True, None, None, None, (one,), (), (), expiry(NOW), who_is(node))
        write_limits(tmp_path / "quick", limits)
        write_limits(tmp_path / "slow", msgspec.structs.replace(limits, latency=(latency(one.knob, 0.09, 0.6),)))
    assert early == first_lower_clock(tmp_path / "quick")
    late = first_lower_clock(tmp_path / "slow")
    assert late - early == 5  # 0.78 s instead of 0.3, at 0.1 s a tick
    (tmp_path / "slow" / "calibration" / LIMITS).unlink()
    report = replay(open_journal(tmp_path / "slow" / "journal"))
    assert report.decided >= late and report.is_equal


def test_a_table_gives_the_wait_that_its_noise_asks_for(tmp_path: Path) -> None:
    assert "uncore-bounded" not in policy_values(table_points(KERNELS), True)[0]
    quiet, _ = policy_values(table_points(KERNELS), True, table_points(KERNELS))
    assert quiet["uncore-bounded"]["dwell_s"] == 0.1
    noisy = [msgspec.structs.replace(one, ipc_half=0.02) for one in table_points(KERNELS)]
    loud, _ = policy_values(noisy, True, table_points(KERNELS))
    assert 0.1 < loud["uncore-bounded"]["dwell_s"] < 1.0
    registry.check("uncore-bounded", "uncore", loud["uncore-bounded"])
    with node_of() as node:
        write_policies(tmp_path, who_is(node), loud, expiry(NOW))


@pytest.mark.parametrize("machine", ["spr-h100", "skylake-6146"])
def test_the_uncore_limit_of_an_emulated_node_is_timed_and_put_back(tmp_path: Path, machine: str) -> None:
    with loaded_node(load_machine(machine), tmp_path) as node:
        effect = UncoreEffect(node.knobs, node.inside.ports, node.found)
        plan = msgspec.structs.replace(UNCORE_CLOCK, repeats=5)
        found = measure_latency(effect, node.knobs, effect.values, plan, np.random.default_rng(1))
        assert found.knob == "uncore/*/max_khz" and found.missing == 0
        assert 0 < found.up.p95_s < 0.01 and 0 < found.down.p95_s < 0.01
        path = effect._path.replace("current", "max")
        assert int(node.inside.ports.files.read(path)) == effect.values[1]


def test_a_node_whose_uncore_cannot_be_moved_is_a_line(tmp_path: Path) -> None:
    no_driver = pytest.raises(LimitsError, match="intel_uncore_frequency is not loaded")
    with loaded_node(load_machine("curie"), tmp_path) as node, no_driver:
        UncoreEffect(node.knobs, node.inside.ports, node.found)
