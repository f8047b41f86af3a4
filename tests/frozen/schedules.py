"""Computes the hashes of ``schedules.txt`` again: ``python -m tests.frozen.schedules [--print] [WORD ...]``.

A line has two hashes, of what was decided and of the watts drawn (``record``), and the options of a ``clusterctl
replay``. The hashes are those of commit 439d6a93: a change of the engine leaves them alone. Three of ``easy-power``
are of whole microwatts, since sums of doubles had decided exact ties by their rounding errors. Words choose the lines
that contain all of them; ``--print`` prints the lines as computed here, for options that are added to the list.

Two options are ours: ``--first N`` cuts a log after N jobs, and ``--cap FROM-TO:WATTS[@ANNOUNCED],...`` stands for a
file of caps.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.frozen.record import Hashes, replayed
from tests.recorded import RECORDED

LIST = Path(__file__).parent / "schedules.txt"
SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"


class Line(NamedTuple):
    """A line of the list."""

    kept: Hashes
    options: str

    @property
    def trace(self) -> Path:
        """The log, which is not on every machine."""
        return _trace(shlex.split(self.options)[0])


def lines(words: Sequence[str] = ()) -> list[Line]:
    """Those of the list that contain all words."""
    found = (line.split(" ", 2) for line in LIST.read_text().splitlines())
    return [Line(Hashes(*kept), options) for *kept, options in found if all(word in options for word in words)]


def hashes_of(options: str) -> Hashes:
    """Replays and returns the hashes of all that was decided and drawn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, *given = shlex.split(options)
        parser = argparse.ArgumentParser()
        parser.add_argument("--first", type=int)
        parser.add_argument("--cap")
        own, others = parser.parse_known_args(given)
        trace = cut(_trace(text), own.first, folder) if own.first else _trace(text)
        cap = ["--cap", cap_of(own.cap, folder)] if own.cap else []
        return replayed([str(trace), *others, *cap], folder, has_nodes="eurora" in text)


def cap_of(text: str, folder: Path) -> str:
    """As the command takes it."""
    if "-" in text and ":" in text and not text.startswith(("eurora/", "samples/")):
        return _cap_file(text, folder)
    path, colon, profile = text.partition(":")
    return f"{_trace(path)}{colon}{profile}" if "/" in text else text


def _trace(text: str) -> Path:
    root, _, name = text.partition("/")
    return SAMPLES / name if root == "samples" else RECORDED / root / name


def cut(log: Path, first: int, folder: Path) -> Path:
    """A copy with the first jobs only."""
    kept, jobs = [], 0
    with gzip.open(log, "rt") if log.suffix == ".gz" else log.open() as file:
        for line in file:
            jobs += not line.startswith(";")
            if jobs > first:
                break
            kept.append(line)
    cut = folder / log.name.removesuffix(".gz")
    cut.write_text("".join(kept))
    return cut


def _cap_file(text: str, folder: Path) -> str:
    header = "from_s,to_s,watts,announced_s" if "@" in text else "from_s,to_s,watts"
    parts = [part if "@" in part or "@" not in text else f"{part}@0" for part in text.split(",")]
    rows = [re.sub("[-:@]", ",", part) for part in parts]
    path = folder / "caps.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the lines as computed here")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args(arguments)
    count = wrong = 0
    for line in lines(given.words):
        if not line.trace.exists():
            print(f"skipped, no such log: {line.options}", flush=True)
            continue
        begun_s = time.process_time()
        found = hashes_of(line.options)
        count += 1
        if given.print:
            print(*found, line.options, flush=True)
        elif found != line.kept:
            wrong += 1
            what = [name for name, kept, here in zip(Hashes._fields, line.kept, found, strict=True) if kept != here]
            print(f"{time.process_time() - begun_s:7.1f} s  {' and '.join(what)} differ: {line.options}", flush=True)
    print(f"{count} schedules, {wrong} differ", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
