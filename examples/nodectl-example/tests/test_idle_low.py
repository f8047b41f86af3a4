"""The policy by itself, and under the real agent on an emulated node in virtual time."""

from types import SimpleNamespace

import numpy as np
from nodectl_example.idle_low import POLICY, Params

from lab.node_demo.experiment import Experiment, run

LAYOUT = SimpleNamespace(cpus=(0, 1), domains=(SimpleNamespace(cpus=(0, 1), min_khz=1_200_000),))


def test_an_idle_cpu_gets_the_lowest_clock_after_a_while_and_is_free_at_once_when_it_works():
    params, targets = Params(after=2), []
    state = POLICY.initial(params, LAYOUT)
    for busy in ([0.0, 1.0], [0.0, np.nan], [0.9, 0.0]):
        sample = SimpleNamespace(cpu=SimpleNamespace(busy=np.array(busy)))
        state, request = POLICY.decide(params, LAYOUT, state, sample)
        targets.append(request.target.tolist())
    assert targets == [[0, 0], [1_200_000, 0], [0, 0]]


def test_a_busy_node_loses_nothing():
    done = run(Experiment("skylake-6146", "hpl", duration_s=5.0, cpu_policy="idle-low"))
    assert done.finished
    assert done.slowdown < 0.01
