"""What the plain-Python references decide on small logs: ``python -m tests.frozen.references [--print] [WORD ...]``.

A line of ``references.txt`` is a hash and options as in ``schedules.txt``. The hash is of starts and ends, and is that
of commit 439d6a93: one reference may take the place of another, but none may decide otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster_agent.replay.event_log import Setting
from tests.frozen.schedules import SAMPLES, cap_of, cut
from tests.oracle.reference import decided_by_reference

LIST = Path(__file__).parent / "references.txt"


def lines(words: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(hash, options) of the list, those that contain all words."""
    found = (line.split(" ", 1) for line in LIST.read_text().splitlines())
    return [(kept, options) for kept, options in found if all(word in options for word in words)]


def hash_of(options: str) -> str:
    """Of (job, start, end) of every job that the reference has started, by its number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    for name in ("--policy", "--machine", "--cap", "--job-watts"):
        parser.add_argument(name)
    parser.add_argument("--first", type=int)
    given = parser.parse_args(shlex.split(options))
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder, trace = Path(name), SAMPLES / given.trace
        trace = cut(trace, given.first, folder) if given.first else trace
        cap = cap_of(given.cap, folder) if given.cap else None
        setting = Setting(str(trace), given.policy, given.machine, cap, job_watts=given.job_watts)
        decided = decided_by_reference(setting)
    return hashlib.sha256(repr(decided).encode()).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the lines as computed here")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args(arguments)
    wrong = 0
    for kept, options in lines(given.words):
        found = hash_of(options)
        wrong += found != kept
        if given.print or found != kept:
            print(found, options, flush=True)
    return 0 if given.print or not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
