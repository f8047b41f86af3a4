"""What the library costs: its import against that of NumPy, and a replay by it against the command, in pairs.

Processes of their own, in turn which of a pair is first, measured in processor seconds, which other programs on the
machine change less than the wall clock. Both halves of a pair meet the same minute. *import* loads what a replay
needs (``World``, ``policy``, ``replay``, ``compare``), not only the names. *replay* is a program of three lines and
``clusterctl replay`` on the same log; both print the measures. *replay, again* is the same in one process that has
imported all: without Python's start, in which the command spares garbage collections, which is not for a library to
do. Without the logs of ../shared/data it is the log that ships. Bounds: the median of the pairs' ratios is at most 1.4
for the import and 1.02 for replays.

The command lets OpenBLAS start no thread, since it needs none (``foundation.shell.single_thread``); a library must not,
since its user may need some. On an idle machine that thread waits busily: every ``import numpy`` on two cores pays some
0.1 s for it. So *replay* gives both halves one thread; *replay, as NumPy starts* has no bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.experiment import save
from benchmarks.paired_cost import interval

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = ROOT.parent / "shared" / "data" / "sc15-backfilling" / "CTC-SP2.swf.gz"
SHIPPED: Final = ROOT / "cluster_agent" / "samples" / "generated-500.swf"
PAIRS: Final = 40
MOST_IMPORT, MOST_REPLAY = 1.4, 1.02
SINGLE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}

IMPORT: Final = "from cluster_agent.library import World, compare, policy, replay"
NUMPY: Final = ("-c", "import numpy")
PROGRAM: Final = (
    "import sys; from cluster_agent.library import World, replay; print(replay(World(sys.argv[1])).summary())"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks library_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="eight pairs")
    pairs = 8 if parser.parse_args(arguments).quick else PAIRS
    log = str(RECORDED if RECORDED.exists() else SHIPPED)
    command = [str(Path(sys.executable).parent / "clusterctl"), "replay", log]
    library = [sys.executable, "-c", PROGRAM, log]
    name = f"replay of {Path(log).name}"
    found = {
        f"{name}, again": Row(*in_one_process(log, pairs), MOST_REPLAY),
        "import": Row(*in_processes([sys.executable, "-c", IMPORT], [sys.executable, *NUMPY], pairs), MOST_IMPORT),
        name: Row(*in_processes(library, command, pairs, SINGLE_THREAD), MOST_REPLAY),
        f"{name}, as NumPy starts": Row(*in_processes(library, command, pairs), None),
    }
    for what, row in found.items():
        print(
            f"{what}: median {row.median:.3f}, mean {row.mean:.3f} (95 %: {row.low:.3f} to {row.high:.3f}) of {pairs}"
            f" pairs, {'no bound' if row.most is None else f'bound {row.most}'}, {1e3 * row.own_s:.0f} ms of processor"
            " time"
        )
    print(f"load {os.getloadavg()[0]:.1f}")
    save("library_cost", {what: vars(row) for what, row in found.items()})
    return 0 if all(row.most is None or row.median <= row.most for row in found.values()) else 1


class Row:
    """The ratios of pairs: their median, their geometric mean and its 95 % interval."""

    def __init__(self, ratios: list[float], own_s: list[float], most: float | None) -> None:
        self.median, self.own_s, self.most = statistics.median(ratios), statistics.median(own_s), most
        self.mean, self.low, self.high = interval(ratios)


def in_processes(
    ours: list[str], theirs: list[str], pairs: int, settings: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[float], list[float]]:
    """Ratios, and the first command's seconds, both commands with these settings in their environment."""
    ratios, own_s = list[float](), list[float]()
    for pair in range(-1, pairs):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        took = {id(one): processor_s(one, settings) for one in (first, second)}
        if pair >= 0:  # the first ones compile
            own_s.append(took[id(ours)])
            ratios.append(took[id(ours)] / took[id(theirs)])
    return ratios, own_s


def in_one_process(log: str, pairs: int) -> tuple[list[float], list[float]]:
    """Ratios, and the library's seconds."""
    from cluster_agent.cli import main as command
    from cluster_agent.library import World, replay

    def by_library() -> None:
        print(replay(World(log)).summary())

    def by_command() -> None:
        command(["replay", log])

    ratios, own_s = list[float](), list[float]()
    for pair in range(-2, pairs):
        took = {}
        for run in (by_library, by_command) if pair % 2 else (by_command, by_library):
            begun_s = time.process_time()
            with redirect_stdout(StringIO()):
                run()
            took[run] = time.process_time() - begun_s
        if pair >= 0:  # the first ones import
            own_s.append(took[by_library])
            ratios.append(took[by_library] / took[by_command])
    return ratios, own_s


def processor_s(command: list[str], settings: Mapping[str, str]) -> float:
    """User and system time of the process."""
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, **settings})
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
