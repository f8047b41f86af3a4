"""RAPL as nodectl reads it against pyRAPL and the node's meter."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from calibration.limits import limits_of_node
from calibration.limits.heartbeat import EmulatedHeartbeat
from calibration.limits.limits_file import report_of_limits, text_of_limits
from calibration.limits.minimal_power import MopPlan
from calibration.limits.other_readers import TRIES, PyRapl, ReaderCheck, compare
from calibration.limits.probes import LimitsError
from calibration.limits.session_probes import Knobs
from calibration.measure.node_session import open_session
from lab.emulated.emulated_kernels import emulated_kernels
from pmu.node import discover
from tests.twin.served_node import ServedNode, why_not_served
from tests.waiting import PATIENCE_S, within
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

GAIN = 1.02


class Other:
    """A program that reads the packages' counters, ``GAIN`` high; they wrap in the first tries."""

    name = "other"

    def __init__(self, node: InProcess, wraps: int = 0) -> None:
        self._node, self._wraps = node, wraps
        self._before: Mapping[str, float] = {}

    def begin(self) -> None:
        self._before = self._joules()

    def end(self) -> Mapping[str, float]:
        self._wraps -= 1
        now = self._joules()
        return {name: math.nan if self._wraps >= 0 else now[name] - self._before[name] for name in now}

    def _joules(self) -> dict[str, float]:
        energy = self._node.twin.report().energy_j
        return {name: GAIN * joules for name, joules in energy.items() if name.startswith("package")}


def checks_of(node: InProcess, wraps: int) -> dict[str, ReaderCheck]:
    layout = discover(node.ports)[0]
    found = compare(Other(node, wraps), node.ports.files, layout, node.ports.clock)
    return {check.of: check for check in found}


def test_another_reader_of_the_same_counters_is_compared_for_each_package() -> None:
    with InProcess(Twin(load_machine("curie"))) as node:
        found = checks_of(node, wraps=0)
        assert list(found) == ["package-0", "package-1"]
        for check in found.values():
            assert check.difference == pytest.approx(1 / GAIN - 1, abs=0.002)
            assert check.rapl_w == pytest.approx(check.reader_w / GAIN, rel=0.002) and check.rapl_w > 5.0


def test_a_reader_whose_counters_wrapped_is_asked_again_and_a_silent_one_is_a_line() -> None:
    with InProcess(Twin(load_machine("curie"))) as node:
        assert checks_of(node, wraps=TRIES - 1)["package-1"].difference == pytest.approx(1 / GAIN - 1, abs=0.002)
        with pytest.raises(LimitsError, match="other gives no energy of the packages"):
            checks_of(node, wraps=TRIES)


@pytest.mark.parametrize("is_there", [True, False])
def test_the_limits_of_a_node_have_what_other_readers_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    for name in ("CPU_CLOCK", "PACKAGE_POWER"):
        monkeypatch.setattr(
            limits_of_node, name, msgspec.structs.replace(getattr(limits_of_node, name), repeats=1, give_up_s=2.0)
        )
    monkeypatch.setitem(sys.modules, "pyRAPL", None)
    with InProcess(Twin(load_machine("curie"))) as node:
        port = emulated_kernels(node.twin)
        with open_session(node.ports, port, str(tmp_path)) as session:
            knobs = Knobs(session.ports, session.writer)
            found = limits_of_node.measure_limits(
                session, knobs, EmulatedHeartbeat(lambda period_s: lambda: ([], 0.0)), MopPlan(step_w=60.0),
                open_reader=(lambda: Other(node)) if is_there else PyRapl,
            )  # fmt: skip
    meter, *packages = found.reader
    assert meter.of == "packages and DRAM, idle to load" and meter.rapl_w > 30.0
    assert meter.difference == pytest.approx(0.0, abs=0.03), "the emulated meter has no losses"
    assert [check.reader for check in packages] == ["other"] * 2 * is_there
    lines = list(report_of_limits(found))
    missing = [line for line in lines if "pyRAPL" in line]
    if is_there:
        assert not missing and any("W by other: -1.9" in line or "W by other: -2.0" in line for line in lines)
        assert 'reader = "other"' in text_of_limits(found)
    else:
        wanted = "not measured: RAPL by another reader: needs pyRAPL: pip install 'nodectl[compare]'"
        assert missing == [wanted]


_COMPARE = """
import json
from calibration.limits.other_readers import PyRapl, compare
from pmu.node import discover
from pmu.system import system_ports
ports = system_ports()
found = compare(PyRapl(), ports.files, discover(ports)[0], ports.clock)
print(json.dumps([(check.of, check.difference) for check in found]))
"""


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")
@pytest.mark.skipif(importlib.util.find_spec("pyRAPL") is None, reason="pip install 'nodectl[compare]'")
def test_pyrapl_reads_the_joules_of_a_served_node_that_nodectl_reads() -> None:
    with ServedNode("taurus", "--workload", "hpl") as node:

        def is_equal() -> bool:
            """On a busy machine one of them may read a while later."""
            found = dict(json.loads(node.python(_COMPARE)))
            assert set(found) == {"package-0", "package-1", "package-0/dram", "package-1/dram"}
            return all(abs(difference) < 0.005 for difference in found.values())

        assert within(PATIENCE_S, is_equal)
