"""The order of the queue."""

import numpy as np
from nodectl_example.smallest_area import POLICY, Params

from cluster_agent.scheduler.policy_phases import Queue


def queue(**columns):
    kinds = {"job": np.int32, "width": np.int32, "user": np.int32}
    names = ("job", "submit_s", "request_s", "estimate_s", "width", "user")
    return Queue(**{name: np.array(columns.get(name, [0, 0, 0]), kinds.get(name, np.int64)) for name in names})


def test_the_smallest_job_is_first_but_for_one_that_has_waited_too_long():
    waiting = queue(job=[1, 2, 3], submit_s=[0, 900, 900], estimate_s=[600, 600, 60], width=[8, 2, 4])
    for oldest_s, expected in ((5000, [2, 1, 0]), (500, [0, 2, 1])):
        order = POLICY.compose(Params(oldest_s=oldest_s)).order
        assert order(waiting, 1000).tolist() == expected
