"""Clocks of a node that its agent owns: limits are requested of the agent, and the cap that it keeps is watched.

A node of a cluster is calibrated under its cluster's budget: the agent stays and keeps the cap. Full power is needed,
since a cap would slow what is measured, so the node's grant is the gate: without it nothing is measured, and a stay in
which it was lost counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from calibration.measure.full_power import GrantLostError
from calibration.measure.node_session import SessionError
from nodectl.knobs import Outcome
from nodectl.loop.calibration_page import LEASE_NS, Answer, CalibrationPage, Request
from pmu.ports import Ports

LOOK_NS: Final = 20_000_000
ANSWER_NS: Final = 5_000_000_000
"""Ours: some fifty periods of the agent; without an answer until then there is none that would give one."""


RISE_NS: Final = 10_000_000_000
"""Ours: some five times what clocks take to double after a cap was raised (``nodectl.decide.power_walk``). A cap that
keeps clocks low at full power after that does so because the node draws more than its TDP there, and its clock is what
is found."""


class AgentClocks:
    """A ``ClockWriter``. ``wait``: of the session. ``apply`` raises ``GrantLostError`` while a cap is in force."""

    def __init__(self, ports: Ports, wait: Callable[[int], None]) -> None:
        if not ports.lock_path:
            raise SessionError("--through-agent: no agent reaches this node")
        self._clock, self._wait = ports.clock, wait
        self._page = CalibrationPage(ports.lock_path)
        self._full_since_ns: int | None = None

    def apply(self, settings: Mapping[str, int]) -> list[Outcome]:
        """Request this limit, the same for every clock, and wait until the agent has moved it."""
        (khz,) = set(settings.values())
        answer = self._answered(khz)
        if answer.trouble:
            return [Outcome(answer.trouble.partition(":")[0], "refused", answer.trouble.partition(": ")[2])]
        if not answer.has_full_power:
            self._full_since_ns = None
            raise GrantLostError(f"the cap is {answer.cap_mw / 1000:g} W, {answer.most_mw / 1000:g} W are needed")
        if self._full_since_ns is None:
            self._full_since_ns = answer.at_ns
        if answer.is_capped and answer.at_ns < self._full_since_ns + RISE_NS:
            raise GrantLostError("the cap still keeps the clocks low")
        return [Outcome(name, "written", "") for name in settings]

    def restore_all(self) -> list[Outcome]:
        """Withdraw the request: the agent's policies decide again, and its captured values are what it restores."""
        self._page.end()
        return []

    def close(self) -> None:
        """Nothing is open."""

    def _answered(self, khz: int) -> Answer:
        begin_ns = self._clock.now_ns()
        self._request(khz)
        while (now_ns := self._clock.now_ns()) < begin_ns + ANSWER_NS:
            answer = self._page.answered(now_ns)
            if answer and answer.khz == khz:
                return answer
            self._wait(now_ns + LOOK_NS)
            self._request(khz)
        raise SessionError("--through-agent: the agent of this node does not answer (does `nodectl run` optimize it?)")

    def _request(self, khz: int) -> None:
        try:
            self._page.request(Request(khz, self._clock.now_ns() + LEASE_NS))
        except OSError as error:
            raise SessionError(f"{self._page.request_path}: cannot be written: {error.strerror}") from None
