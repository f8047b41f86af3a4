"""Joules of two jobs on the halves of an emulated node, next to what their cores draw."""

from __future__ import annotations

import pytest

from nodectl.config import Caps, Config
from nodectl.decide.shares import NodeShares
from nodectl.member.half_joules import HalfJoules
from pmu.core_halves import core_halves
from pmu.decode import decode
from pmu.node import Instruments, discover
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.side_by_side import on_cpus, together
from twin.programs.workload import load_workload


def test_the_joules_of_two_halves_follow_processor_time_and_add_up_to_the_nodes() -> None:
    """Without meters of cores a second of a half counts the same for both: so it is by time, as the table says."""
    machine = load_machine("curie")
    twin = Twin(machine)
    config = Config(caps=Caps(rest_w=60.0))
    with InProcess(twin) as inside:
        halves = core_halves(inside.ports.files)
        assert halves is not None
        now = {"7.1": halves[0], "8.1": halves[1]}
        some = sorted(halves[1])[:2]
        programs = [("hpl", sorted(halves[0])), ("hpl", some)]
        twin.start_workload(together([on_cpus(load_workload(name, machine), machine, cpus) for name, cpus in programs]))
        layout, _ = discover(inside.ports)
        instruments = Instruments(inside.ports, layout)
        before = instruments.sweep()
        inside.ports.clock.sleep_until_ns(inside.ports.clock.now_ns() + 2_000_000_000)
        sample = decode(layout, before, instruments.sweep())
        parts = HalfJoules(inside.ports, layout, config).of(sample, now)
        whole_j, _ = NodeShares(layout, config).node_energy(sample)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert whole_j > 0
    assert parts["7.1"] == pytest.approx(0.8, abs=0.03), "eight CPUs of ten that are busy"
    assert HalfJoules(inside.ports, layout, config).of(sample, {"7.1": halves[0]}) == {}, "alone: all is its own"
