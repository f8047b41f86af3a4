"""What running jobs would draw at other frequencies, by which reactions to a cap decide."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.scheduler.cap_reactions import watts_at
from cluster_agent.scheduler.power_phases import Running, Situation
from tests.cluster_agent.power_traces import machine

IDLE_W, BUSY_W = 15.0, (50.0, 40.0, 32.5)
"""Of a processor: half of a node's 30 and of its 100, 80, 65 W."""


def test_the_idle_share_of_a_job_stays_and_only_what_it_draws_above_follows_the_frequency() -> None:
    """One job draws what its processors do at most, the other half as much above idle."""
    widths = np.array([4, 2], np.int32)
    full_w = widths * BUSY_W[0]
    drawn_w = np.array([full_w[0], 2 * IDLE_W + (full_w[1] - 2 * IDLE_W) / 2])
    zeros = np.zeros(2, np.int32)
    running = Running(
        job=np.arange(2, dtype=np.int32), start_s=np.zeros(2, np.int64), width=widths, level=zeros,
        lowest=np.full(2, 2, np.int32), limit_s=np.full(2, 100), watts=drawn_w,
    )  # fmt: skip
    situation = Situation(
        0, machine(0.0, False), (), float(drawn_w.sum()), 400.0, running, 2,
        lambda width, level: width * (IDLE_W if level < 0 else BUSY_W[level]),
    )  # fmt: skip
    for level, busy_w in enumerate(BUSY_W):
        share = (busy_w - IDLE_W) / (BUSY_W[0] - IDLE_W)
        wanted = [4 * (IDLE_W + 35.0 * share), 2 * (IDLE_W + 17.5 * share)]
        assert watts_at(situation, np.full(2, level, np.int32)) == pytest.approx(wanted)
    assert watts_at(situation, np.full(2, -1, np.int32)) == pytest.approx([4 * IDLE_W, 2 * IDLE_W])
