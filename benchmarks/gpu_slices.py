"""What two programs on one A100 cost each other in turns, under MPS and in MIG devices; results of the twin, EMULATED.

C's kernels need the clock (knee at 1400 MHz), M's the memory (90 % of its bandwidth); 10 s each alone on the card. The
table of docs/gpu-slices.md. ``--quick`` changes nothing: it takes seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.experiment import save
from nodectl.knobs.find import open_knob
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

MACHINE: Final = "a100"
CLOCK: Final = "knee_mhz = 1400\nsm_active = 1.0\ndram_active = 0.2"
MEMORY: Final = "knee_mhz = 600\nsm_active = 0.9\ndram_active = 0.9"
GROUP: Final = '[[gpu]]\ngpus = "0"\n{how}\n[[gpu.phase]]\nname = "kernels"\nseconds = 10\niterations = 10\n{kind}\n'
HEAD: Final = 'name = "shared"\nsummary = "two programs on one card"\nsource = "ours"\n'


class Case(NamedTuple):
    """``programs``: where each runs, and what it needs."""

    name: str
    programs: tuple[tuple[str, str], ...]
    layout: str = "off"


CASES: Final = (
    Case("C alone", (("", CLOCK),)),
    Case("M alone", (("", MEMORY),)),
    Case("C and M in turns", (("", CLOCK), ("", MEMORY))),
    Case("C and M, MPS 50 % each", (("mps_percent = 50", CLOCK), ("mps_percent = 50", MEMORY))),
    Case("C and M, MPS 80 % and 20 %", (("mps_percent = 80", CLOCK), ("mps_percent = 20", MEMORY))),
    Case("C and M, 3g each", (("mig = 0", CLOCK), ("mig = 1", MEMORY)), "3g+3g"),
    Case("C in 4g, M in 3g", (("mig = 1", CLOCK), ("mig = 0", MEMORY)), "4g+3g"),
    Case("C in 7g", (("mig = 0", CLOCK),), "7g"),
    Case("seven C, 1g each", tuple((f"mig = {at}", CLOCK) for at in range(7)), "1g+1g+1g+1g+1g+1g+1g"),
)


class Row(msgspec.Struct, frozen=True):
    """Seconds of the slowest program of each kind, NaN for none; the card's mean watts until all have ended."""

    name: str
    clock_s: float
    memory_s: float
    gpu_w: float


def measured(case: Case, folder: Path) -> Row:
    """Run the programs of a case to their end."""
    machine = load_machine(MACHINE)
    twin = Twin(machine, seed=1)
    with InProcess(twin) as node:
        knob = open_knob(node.ports, "gpu/0/mig_layout")
        words = getattr(knob, "words", ())
        if case.layout != "off":
            knob.set(1 + words.index(case.layout))
    path = folder / "shared.toml"
    path.write_text(HEAD + "".join(GROUP.format(how=how, kind=kind) for how, kind in case.programs))
    twin.start_workload(load_workload(str(path), machine, bias=0.0))
    while not twin.finished:
        twin.advance(0.5)
    report = twin.report()
    seconds: dict[str, float] = {}
    for phase in report.phases:
        kind = case.programs[phase.group][1]
        seconds[kind] = max(seconds.get(kind, 0.0), phase.seconds)
    nan = float("nan")
    watts = report.energy_j["gpu-0"] / report.time_s
    return Row(case.name, seconds.get(CLOCK, nan), seconds.get(MEMORY, nan), watts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="changes nothing")
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(case, Path(folder)) for case in CASES]
    print("| EMULATED | C, s | M, s | W |\n|---|---|---|---|")
    for row in rows:
        clock, memory = (f"{one:.1f}" if one == one else "" for one in (row.clock_s, row.memory_s))
        print(f"| {row.name} | {clock} | {memory} | {row.gpu_w:.0f} |")
    print("JSON:", save("gpu_slices", {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
