"""The truths that the model is judged against are the emulated node's: caps, turbo and bandwidth show in them."""

from __future__ import annotations

import numpy as np

from benchmarks.rmap_truth import NODES, Platform, communication, drawn, truth

CORNERS = Platform("spr-h100", (56, 112), (150.0, 350.0))
CLOCK_BOUND, BANDWIDTH_BOUND = 8, 11
"""Applications of one and of the other kind."""


def test_a_low_cap_is_drawn_and_costs_time_and_a_high_one_is_not() -> None:
    time_s, watts = (values.reshape(len(NODES), 2, 2) for values in truth(CLOCK_BOUND, CORNERS))
    per_package = watts / (2 * np.array(NODES)[:, None, None])
    assert np.allclose(per_package[:, :, 0], 150, rtol=0.05)
    assert np.all(per_package[:, :, 1] < 345)
    assert np.all(time_s[:, :, 0] > 1.3 * time_s[:, :, 1])


def test_more_cores_help_clock_bound_work_by_less_than_their_number_and_bandwidth_bound_work_not_at_all() -> None:
    for application, least, most in ((CLOCK_BOUND, 1.3, 1.9), (BANDWIDTH_BOUND, 0.9, 1.1)):
        time_s = truth(application, CORNERS)[0].reshape(len(NODES), 2, 2)
        assert least < time_s[0, 0, 1] / time_s[0, 1, 1] < most  # turbo is higher on half of the cores


def test_more_nodes_share_the_work_but_not_the_communication() -> None:
    time_s = truth(CLOCK_BOUND, CORNERS)[0].reshape(len(NODES), 2, 2)[:, 0, 1]
    one = drawn(CLOCK_BOUND)
    law = [NODES[0] / nodes + communication(one, nodes) for nodes in NODES]
    assert np.allclose(time_s / time_s[0], np.array(law) / law[0], rtol=0.05)


def test_an_application_is_the_same_each_time() -> None:
    assert drawn(3) == drawn(3) != drawn(4)
    once, again = (truth.__wrapped__(3, CORNERS) for _ in range(2))
    assert np.array_equal(once, again)
