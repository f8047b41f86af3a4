"""The cap of an SCMI controller is measured against the true power of its chip, and put back; in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest

from calibration.kernels.port import KERNELS, Kernel
from calibration.limits import scmi_cap
from calibration.limits.heartbeat import EmulatedHeartbeat
from calibration.limits.limits_file import report_of_limits, text_of_limits
from calibration.limits.limits_of_node import Limits, measure_limits
from calibration.limits.minimal_power import MopPlan
from calibration.limits.probes import LimitsError
from calibration.limits.scmi_cap import ScmiCap
from calibration.limits.session_probes import Knobs
from calibration.measure.node_session import open_session
from firmware_bridge.scmi.controller import Controller
from lab.node_demo.pulp_node import PulpNode
from nodectl.knobs.timing import deadlines
from twin.pulp.plant import CLASSES

URL = "scmi+inproc:"
STEP_NS = 125_000


class AlwaysLoaded:
    """The chip executes instructions of one class all the time."""

    is_emulated = True
    cpus = tuple(range(36))

    def kernels(self) -> tuple[Kernel, ...]:
        return KERNELS

    def start(self, kernel: Kernel, cpus: Sequence[int]) -> None:
        """It is loaded already."""

    def units_done(self) -> float:
        return 0.0

    def stop(self) -> None:
        """It stays loaded."""


def no_beat(period_s: float) -> object:
    return lambda: ([], 0.0)


REPEATS = 8


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PulpNode, Limits]]:
    node = PulpNode(CLASSES[2])
    found_mw = node.cap_in_force_mw()
    cap = ScmiCap(Controller(node.connect()), URL, "package")
    state = str(tmp_path_factory.mktemp("state"))
    quick = msgspec.structs.replace(scmi_cap.PLAN, repeats=REPEATS)
    with (
        pytest.MonkeyPatch.context() as patch,
        open_session(node.ports, AlwaysLoaded(), state, others=[cap.for_writer]) as session,
    ):
        patch.setattr(scmi_cap, "PLAN", quick)
        knobs = Knobs(session.ports, session.writer)
        found = measure_limits(session, knobs, EmulatedHeartbeat(no_beat), MopPlan(), scmi=cap)
    assert node.cap_in_force_mw() == found_mw and max(node.caps_mw) > found_mw, "it was moved, and is back"
    yield node, found


def true_s(node: PulpNode, cap_w: float, new_w: float, old_w: float) -> float:
    """Until the chip's power, a mean over eight steps, has made 90 % of its way after this cap."""
    controller = Controller(node.connect())
    domain = controller.cap_domains[0]
    begin_ns, seen = node.now_ns, []
    controller.set_cap(domain, domain.rounded_down(cap_w))
    while node.now_ns < begin_ns + 500_000_000:
        before_j = node.plant.energy_j
        node.advance_to(node.now_ns + STEP_NS)
        seen.append(((node.plant.energy_j - before_j) * 1e9 / STEP_NS - old_w) / (new_w - old_w))
        if np.mean(seen[-8:]) >= 0.9:
            break
    return (node.now_ns - begin_ns) / 1e9


def test_latency_and_steps_of_the_cap_are_those_of_the_chip(measured: tuple[PulpNode, Limits]) -> None:
    node, found = measured
    (latency,) = (one for one in found.latency if one.knob == f"{URL}#package/cap_mw")
    down, up = (one for one in found.step if one.knob == latency.knob)
    assert latency.up.n == latency.down.n == REPEATS and not latency.missing
    for step in (down, up):
        assert abs(step.steady_error) < 0.03 and step.settle_s < 0.5
    low_w, high_w = down.to_w, down.from_w
    true_s(node, high_w, high_w, low_w)
    node.advance(0.5)
    falls = [true_s(node, low_w, down.to_w * (1 + down.steady_error), high_w * (1 + up.steady_error))]
    assert latency.down.median_s == pytest.approx(falls[0], abs=0.0015)
    (due,) = deadlines([latency])
    assert due.effect_s < 1.0


def test_what_the_node_lacks_is_a_line(measured: tuple[PulpNode, Limits]) -> None:
    _, found = measured
    assert found.is_emulated and not any("scmi" in line for line in found.missing)
    assert any(line.startswith("power limits of the packages: ") for line in found.missing)
    assert f"{URL}#package/cap_mw" in text_of_limits(found) + "".join(report_of_limits(found))


def test_a_domain_that_there_is_not_is_refused_in_one_line() -> None:
    node = PulpNode(CLASSES[2])
    with pytest.raises(LimitsError, match="no power domain"):
        ScmiCap(Controller(node.connect()), URL, "pakage")
