"""Another simulator and ours on the same log in the same run: processor time and starts.

*AccaSim* 1.1.3 (Galleguillos et al. 2018, https://pypi.org/project/accasim) is installed into build/peers by pip; it
replays with its EASY and first fit, and writes its schedule. Its import of ``collections.Mapping``, which Python 3.10
dropped, is mended from outside. Both are processes of their own that read a log and write files, in turn which one is
first. The two need not agree job by job; how many starts are equal stands in the table. *pyss*, which was compared in
trials, runs on Python 2 alone and is not installed here. Without ../shared the log is the one that ships.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.experiment import save
from benchmarks.library_cost import SHIPPED, processor_s
from benchmarks.paired_cost import interval
from cluster_agent.library import World, replay

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = ROOT.parent / "shared" / "data" / "sc15-backfilling" / "KTH-SP2.swf.gz"
PEERS: Final = ROOT / "build" / "peers"
PACKAGE: Final = "accasim==1.1.3"
PAIRS: Final = 8
QUICK_LINES: Final = 2000

PROGRAM: Final = """
import collections, collections.abc, json, pathlib, sys
collections.Mapping = collections.abc.Mapping
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import EASYBackfilling
from accasim.base.simulator_class import Simulator
log, processors, out = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
out.mkdir()
machine = {"groups": {"all": {"core": 1}}, "resources": {"all": processors}, "start_time": 0}
machine["equivalence"] = {"processor": {"core": 1}}
(out / "machine.json").write_text(json.dumps(machine))
quiet = {"show_statistics": False, "statistics_output": False, "LOG_LEVEL": "ERROR"}
dispatcher = EASYBackfilling(FirstFit())
Simulator(log, str(out / "machine.json"), dispatcher, RESULTS_FOLDER_PATH=str(out), **quiet).start_simulation()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"two pairs, and the first {QUICK_LINES} lines of the log")
    quick = parser.parse_args(arguments).quick
    python, recorded = installed(), RECORDED if RECORDED.exists() else SHIPPED
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        log = Path(folder) / "log.swf"
        log.write_text(beginning(recorded, QUICK_LINES if quick else None))
        result = replay(World(str(log)), "easy")
        processors = str(result.world.workload.processors)
        commands = {
            "ours": [str(Path(sys.executable).parent / "clusterctl"), "replay", str(log), "--policy", "easy", "--out"],
            "AccaSim": [python, "-c", PROGRAM, str(log), processors],
        }
        took: dict[str, list[float]] = {name: [] for name in commands}
        for pair in range(2 if quick else PAIRS):
            for name in sorted(commands, reverse=pair % 2 == 1):
                took[name].append(processor_s([*commands[name], f"{folder}/{name}-{pair}"], {}))
        starts = accasim_starts(Path(folder) / "AccaSim-0")
    ours = dict(zip(result.jobs.number.tolist(), (result.start_s - result.start_s.min()).tolist(), strict=True))
    equal = sum(starts.get(job) == at_s for job, at_s in ours.items())
    mean, low, high = interval([theirs / us for theirs, us in zip(took["AccaSim"], took["ours"], strict=True)])
    print(f"{recorded.name}, easy: processor seconds of the whole process, medians of {len(took['ours'])}")
    for name, seconds in took.items():
        print(f"  {name:8} {statistics.median(seconds):8.2f} s")
    print(f"  AccaSim / ours: {mean:.1f} (95 %: {low:.1f} to {high:.1f}); {equal} of {len(ours)} starts are equal")
    save("peers", {"seconds": took, "ratio": [mean, low, high], "equal_starts": equal, "jobs": len(ours)})
    return 0


def beginning(log: Path, lines: int | None) -> str:
    """The log's text, or its first lines."""
    with gzip.open(log, "rt") if log.suffix == ".gz" else log.open() as file:
        return "".join(islice(file, lines))


def accasim_starts(folder: Path) -> dict[int, int]:
    """Job: its start, in seconds since the first start."""
    starts = dict[int, int]()
    for line in next(folder.glob("sched-*")).read_text().splitlines():
        job, rest = line.split(";", 1)
        start = rest.split("__")[2].split(";")[0]
        starts[int(job)] = int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp())
    return {job: at_s - min(starts.values()) for job, at_s in starts.items()}


def installed() -> str:
    """The Python that has AccaSim. ``CalledProcessError`` if no package registry answers."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE], check=True)
        (PEERS / "installed").touch()
    return str(python)


if __name__ == "__main__":
    sys.exit(main())
