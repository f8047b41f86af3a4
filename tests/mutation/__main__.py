"""``make mutate``: try the mutants, print a table, compare the survivors with ``tests/mutants.toml``.

Exit status 0: every survivor is listed and every score is at least 90 %. 1: a new survivor, or a low score. 2: nothing
could be tried, for example since the tests fail without a mutation.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.mutation import by_hand, c_code, python
from tests.mutation.results import LEAST_SCORE, Entry, Half, Mutation, MutationError, Result, Target, read_entries

ROOT: Final = Path(__file__).parents[2]

MEMORY: Final = Path("/dev/shm")
"""Where tests may write, if it is there: most of those tried here sync what they write, thousands of times."""

HALVES: Final[tuple[tuple[Sequence[Target], Half], ...]] = (
    (python.TARGETS, python.try_mutants),
    (c_code.TARGETS, c_code.try_mutants),
    (by_hand.TARGETS, by_hand.try_mutants),
)


HEADER: Final = (
    f"{'file':<40}{'mutants':>8}{'killed':>8}{'survived':>10}{'explained':>11}{'timeouts':>10}{'score':>9}{'CPU s':>8}"
)


class Tally:
    """The results of one file, or of all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self.explained = 0
        self.cpu_s = 0.0

    def add(self, result: Result, is_explained: bool) -> None:
        """One more mutant."""
        if result.outcome != "build-failed":
            self.outcomes[result.outcome] += 1
            self.explained += is_explained
        self.cpu_s += result.seconds

    @property
    def killed(self) -> int:
        """A mutant that the tests do not come to an end with is noticed too."""
        return self.outcomes["killed"] + self.outcomes["timeout"]

    @property
    def score(self) -> float:
        """Killed of all; 1 where there are none."""
        tried = self.outcomes.total()
        return self.killed / tried if tried else 1.0

    def row(self) -> str:
        """A line of the table."""
        tried, survived = self.outcomes.total(), self.outcomes["survived"]
        return (
            f"{self.name:<40}{tried:>8}{self.killed:>8}{survived:>10}{self.explained:>11}"
            f"{self.outcomes['timeout']:>10}{100 * self.score:>8.1f}%{self.cpu_s:>8.0f}"
        )


def judge(results: Iterable[Result], entries: dict[Mutation, Entry], is_complete: bool) -> int:
    """Print the table and what is wrong; returns the exit status. ``is_complete``: all mutants of the files were tried,
    not a sample, so scores count, and a listed survivor that was not met is one no more."""
    tallies: dict[str, Tally] = {}
    total = Tally("all")
    stale = dict(entries)
    n_new = 0
    low: list[str] = []
    for result in results:
        is_listed = result.outcome == "survived" and stale.pop(result.mutation, None) is not None
        for tally in (tallies.setdefault(result.mutation.file, Tally(result.mutation.file)), total):
            if result.is_sampled:
                tally.add(result, is_listed)
            else:
                tally.cpu_s += result.seconds
        if result.outcome == "survived" and not is_listed:
            n_new += 1
            print(f"new survivor at line {result.line}: {result.mutation}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{total.outcomes.total()} mutants, {result.mutation.file}\033[K", end="\r", file=sys.stderr)
    print(HEADER)
    for tally in (*tallies.values(), total):
        print(tally.row())
        if is_complete and tally.score < LEAST_SCORE:
            low.append(f"{tally.name}: score {100 * tally.score:.1f} %, at least {100 * LEAST_SCORE:g} % is wanted")
    for one in stale:
        if is_complete and one.file in tallies:
            print(f"stale entry, it does not survive any more: {one}")
    if n_new:
        print(
            f"{n_new} new survivors, above: kill them with a test, or list them in tests/mutants.toml with the reason"
        )
    for line in low:
        print(line)
    return 1 if n_new or low else 0


def chosen(words: Sequence[str]) -> list[tuple[list[Target], Half]]:
    """The targets that the words name, by language: "safety", "all" or files."""
    known = {target.file for targets, _ in HALVES for target in targets}
    if unknown := [word for word in words if word not in {"safety", "all", *known}]:
        raise MutationError(f"{unknown[0]}: not one of safety, all, {', '.join(sorted(known))}")
    names = {*words, *(["safety"] if not words else [])}

    def is_chosen(target: Target) -> bool:
        return bool(names & {"all", target.file}) or (target.is_safety and "safety" in names)

    return [([target for target in targets if is_chosen(target)], half) for targets, half in HALVES]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Try mutants of the safety parts.")
    parser.add_argument("what", nargs="*", help="safety (default), all, or files")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each N-th mutant only")
    options = parser.parse_args()
    if os.access(MEMORY, os.W_OK):
        os.environ.setdefault("TMPDIR", str(MEMORY))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes the copies of the tree
    try:
        entries = read_entries(ROOT / "tests" / "mutants.toml")
        results = (
            result
            for targets, half in chosen(options.what)
            if targets
            for result in half(ROOT, targets, options.jobs, options.every)
        )
        began_s = time.monotonic()
        status = judge(results, entries, is_complete=options.every == 1)
    except MutationError as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    print(f"{time.monotonic() - began_s:.0f} s with {options.jobs} processes at a time")
    return status


if __name__ == "__main__":
    sys.exit(main())
