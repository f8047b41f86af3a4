"""Every reader of a file that somebody else wrote, fed by ``fuzzer``: which there are, and a command that feeds them.

python -m tests.fuzzing.readers 1000000|60s [SEED] [NAME]...     # so many files of each reader, or for so long
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import Final

from tests.fuzzing.fuzzer import Fuzzer, Reader
from tests.fuzzing.goal import Goal
from tests.fuzzing.job_readers import of_jobs
from tests.fuzzing.node_readers import of_nodes
from tests.fuzzing.packed_readers import of_packed
from tests.fuzzing.site_readers import of_sites
from tests.fuzzing.table_readers import of_tables

A_PART: Final = 500
"""Ours: files between two looks at the clock."""


def readers() -> dict[str, Reader]:
    """By name."""
    return of_jobs() | of_sites() | of_tables() | of_nodes() | of_packed()


def main() -> int:
    """Print what went where; exit status 1 if anything was found."""
    arguments, given = sys.argv[1:3], readers()
    chosen = sys.argv[3:] or list(given)
    _, seed = Goal.of_command(arguments)
    print(f"seed {seed}", flush=True)
    is_found = False
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for went, found in pool.map(_fed, chosen, repeat(arguments[0]), repeat(seed)):
            print(*found, *(f"{times:10d}  {what}" for what, times in went), sep="\n", flush=True)
            is_found |= bool(found)
    return 1 if is_found else 0


def _fed(name: str, given: str, seed: int) -> tuple[list[tuple[str, int]], list[str]]:
    """How many files of one reader went where, and what was found."""
    goal, fuzzer, done = Goal(given), Fuzzer(name, readers()[name], seed), 0
    while not goal.is_reached(done):
        part = goal.part(A_PART, done)
        fuzzer.feed(part)
        done += part
    return sorted(fuzzer.went.items()), list(fuzzer.found.values())


if __name__ == "__main__":
    sys.exit(main())
