"""Emulated nodes in virtual time, as a measurement of limits sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calibration.kernels.port import FMA, running
from calibration.limits.session_probes import Knobs, PackagesCap
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.loop.survey import Survey, survey
from nodectl.write.writer import Writer
from twin.in_process_node import InProcess
from twin.machine import Machine, load_machine
from twin.physics.model import Twin


@dataclass(frozen=True, slots=True)
class LimitedNode:
    inside: InProcess
    found: Survey
    knobs: Knobs
    writer: Writer

    @property
    def twin(self) -> Twin:
        return self.inside.twin

    def cap(self, lowest_w: float = 0.0) -> PackagesCap:
        return PackagesCap(self.knobs, self.inside.ports, self.found, lowest_w)


def machine_that_hangs(below_w: float, name: str = "skylake-6146") -> Machine:
    machine = load_machine(name)
    return msgspec.structs.replace(machine, power=msgspec.structs.replace(machine.power, responsive_above_w=below_w))


@contextlib.contextmanager
def loaded_node(machine: Machine, folder: Path) -> Iterator[LimitedNode]:
    """Every core runs ``fma``; at the end every knob is put back."""
    with InProcess(Twin(machine)) as inside:
        found, clock = survey(inside.ports), inside.ports.clock
        load = running(emulated_kernels(inside.twin), FMA, range(machine.cpus))
        with Writer(found.knobs, str(folder / "save.jsonl"), "boot", clock) as writer, load:
            knobs = Knobs(inside.ports, writer, delayed_s=lambda: inside.tree.delayed_s)
            yield LimitedNode(inside, found, knobs, writer)
