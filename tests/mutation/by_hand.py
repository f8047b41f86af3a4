"""Defects put into the safety parts on purpose: for each, the tests that must fail.

``by_hand.toml`` lists them, each with its file, the exact text before and after, and the tests. Each is put into a
scratch copy of the checkout and its tests run there: every one of them must fail. One that passes would not notice
the defect, so the mutation has survived. Run all with ``python -m tests.mutation.by_hand``, some with words of
their names (``python -m tests.mutation.by_hand fsync lease``). ``make mutate`` runs all too: one row of its table.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation import results
from tests.mutation.results import MutationError, Result, Target, squeeze

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PATIENCE_S": "30"}
"""Some mutations are noticed only when a test has waited for as long as it can bear."""
LIST: Final = Path(__file__).with_suffix(".toml")

LEFT_OUT: Final = (
    ".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "out",
)  # fmt: skip

TARGETS: Final = (Target(str(LIST.relative_to(ROOT)), ()),)
"""The list as a file of ``make mutate``. Each mutation names its own tests."""

MOST_S: Final = 600
"""Ours: the tests of one mutation may take so long in real time."""

TESTS_FAILED: Final = 1
"""pytest's exit status when tests ran and some failed; 2 and above mean that they could not be run."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """``before``: text that is in ``file`` exactly once. ``tests``: pytest node ids, each of which must fail.
    ``build``: a module that builds what ``file`` is compiled into; empty for Python."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    build: str = ""


def listed(words: Sequence[str] = ()) -> list[Mutation]:
    """All mutations of the list whose name contains one of the words; all without words."""
    rows = tomllib.loads(LIST.read_text())["mutation"]
    mutations = [Mutation(**row | {"tests": tuple(row["tests"])}) for row in rows]
    return [one for one in mutations if not words or any(word in one.name for word in words)]


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """The file with the defect in it. ``ValueError`` if the code has changed and the list has not."""
    text = (root / mutation.file).read_text()
    if text.count(mutation.before) != 1:
        found = text.count(mutation.before)
        raise ValueError(f"{mutation.name}: {mutation.file} has its text {found} times, not once: update {LIST.name}")
    return text.replace(mutation.before, mutation.after)


class ScratchCopy:
    """A copy of the checkout with its native modules, to put defects into. A context manager."""

    def __init__(self, root: Path = ROOT) -> None:
        self._original = root
        self.cpu_s = 0.0
        """What all that was run here has used."""

    def __enter__(self) -> ScratchCopy:
        self._directory = tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True)
        self.root = Path(self._directory.name) / "main"
        shutil.copytree(self._original, self.root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def unnoticed(self, mutation: Mutation) -> list[str]:
        """The tests that should have failed with the defect and passed. ``RuntimeError`` if they could not be run."""
        file = self.root / mutation.file
        original = file.read_text()
        file.write_text(mutated(mutation, self.root))
        try:
            self._build(mutation)
            return self._passed(mutation)
        finally:
            file.write_text(original)
            self._build(mutation)

    def _build(self, mutation: Mutation) -> None:
        if mutation.build:
            status, printed = self._run("-m", mutation.build)
            if status:
                raise RuntimeError(f"{mutation.name}: does not compile:\n{printed}")

    def _passed(self, mutation: Mutation) -> list[str]:
        status, printed = self._run("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *mutation.tests)
        if status not in (0, TESTS_FAILED):
            raise RuntimeError(f"{mutation.name}: the tests could not be run:\n{printed}")
        return re.findall(r"^(?:PASSED|SKIPPED) (\S.*)$", printed, re.MULTILINE)

    def _run(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output. From the copy, whose modules are found before the installed ones. No bytecode is
        written: it is recognised by size and second, and a mutation may change neither."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.root, env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        end = threading.Timer(MOST_S, os.killpg, (process.pid, signal.SIGKILL))
        end.start()
        try:
            with process.stdout:
                printed = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
        finally:
            end.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s += used.ru_utime + used.ru_stime
        return process.returncode, printed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutation: the tests that passed with it, and the CPU time that this took."""

    mutation: Mutation
    passed: list[str]
    cpu_s: float


def verdicts(mutations: Sequence[Mutation], jobs: int = 1, root: Path = ROOT) -> Iterator[Verdict]:
    """Try all, ``jobs`` at a time; what became of them in their order."""
    copies: queue.SimpleQueue[ScratchCopy] = queue.SimpleQueue()

    def tried(mutation: Mutation) -> Verdict:
        copy = copies.get()
        try:
            before_s = copy.cpu_s
            return Verdict(mutation, copy.unnoticed(mutation), copy.cpu_s - before_s)
        finally:
            copies.put(copy)

    with contextlib.ExitStack() as stack:
        for _ in range(jobs):
            copies.put(stack.enter_context(ScratchCopy(root)))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        waiting = [pool.submit(tried, one) for one in mutations]
        stack.callback(pool.shutdown, cancel_futures=True)
        for one in waiting:
            yield one.result()


def survivors(
    mutations: Sequence[Mutation], say: Callable[[str], None] = print
) -> Iterator[tuple[Mutation, list[str]]]:
    """The mutations that a test named for them did not notice, with these tests."""
    for verdict in verdicts(mutations):
        say(f"{'SURVIVED' if verdict.passed else 'killed':8} {verdict.mutation.name}")
        if verdict.passed:
            yield verdict.mutation, verdict.passed


def try_mutants(root: Path, targets: Sequence[Target], jobs: int, every: int) -> Iterator[Result]:
    """As ``results`` describes."""
    for target in targets:
        try:
            for one in verdicts(listed()[::every], jobs, root):
                change = (squeeze(one.mutation.before), squeeze(one.mutation.after))
                named = results.Mutation(target.file, one.mutation.name, *change)
                yield Result(named, "survived" if one.passed else "killed", one.cpu_s)
        except (RuntimeError, ValueError) as error:
            raise MutationError(str(error)) from None


def main(words: Sequence[str]) -> int:
    """Exit status 1 if one survives."""
    mutations = listed(words)
    alive = list(survivors(mutations, lambda line: print(line, flush=True)))
    for mutation, passed in alive:
        print(f"{mutation.name} ({mutation.file}) goes unnoticed by {', '.join(passed)}")
    print(f"{len(mutations) - len(alive)} of {len(mutations)} mutations made by hand are noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
