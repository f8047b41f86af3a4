"""Defects put into the safety parts on purpose: for each, the tests that must fail.

``by_hand.toml`` lists them, each with its file, the exact text before and after, and the tests. Each is put into a
scratch copy of the checkout and its tests run there: every one of them must fail. One that passes would not notice
the defect, so the mutation has survived. Run all with ``python -m tests.mutation.by_hand``, some with words of
their names (``python -m tests.mutation.by_hand fsync lease``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).with_suffix(".toml")

LEFT_OUT: Final = (
    ".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "out",
)  # fmt: skip

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

    def __enter__(self) -> ScratchCopy:
        self._directory = tempfile.TemporaryDirectory(prefix="mutation-")
        self.root = Path(self._directory.name) / "main"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
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
            return self._passed(mutation.tests)
        finally:
            file.write_text(original)
            self._build(mutation)

    def _build(self, mutation: Mutation) -> None:
        if mutation.build:
            done = self._run("-m", mutation.build)
            if done.returncode:
                raise RuntimeError(f"{mutation.name}: does not compile:\n{done.stdout}")

    def _passed(self, tests: Sequence[str]) -> list[str]:
        done = self._run("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *tests)
        if done.returncode > TESTS_FAILED:
            raise RuntimeError(f"the tests could not be run:\n{done.stdout}")
        return re.findall(r"^(?:PASSED|SKIPPED) (\S.*)$", done.stdout, re.MULTILINE)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """From the copy, whose modules are found before the installed ones. No bytecode is written: it is recognised by
        size and second, and a mutation may change neither."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        )  # fmt: skip


def survivors(
    mutations: Sequence[Mutation], say: Callable[[str], None] = print
) -> Iterator[tuple[Mutation, list[str]]]:
    """The mutations that a test named for them did not notice, with these tests."""
    with ScratchCopy() as copy:
        for mutation in mutations:
            passed = copy.unnoticed(mutation)
            say(f"{'SURVIVED' if passed else 'killed':8} {mutation.name}")
            if passed:
                yield mutation, passed


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
