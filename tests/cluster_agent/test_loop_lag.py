"""How late the cluster agent's loop was, of late."""

from __future__ import annotations

from cluster_agent.fabric.loop_lag import WINDOW_S, LoopLag


def test_a_slow_round_shows_for_one_to_two_windows_and_then_no_more() -> None:
    lag = LoopLag()
    assert lag.worst_s == 0.0
    lag.add(100.0, 0.5)
    lag.add(101.0, 0.002)
    assert lag.worst_s == 0.5
    lag.add(100.0 + WINDOW_S, 0.003)
    assert lag.worst_s == 0.5
    lag.add(100.0 + 2 * WINDOW_S, 0.001)
    assert lag.worst_s == 0.003
    lag.add(100.0 + 9 * WINDOW_S, 0.001)
    assert lag.worst_s == 0.001, "nothing has happened for longer than a window"
