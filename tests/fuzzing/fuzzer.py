"""A fast loop in one process that feeds one reader files that are nearly right, and judges what becomes of each.

A reader takes a file, or refuses it in one plain line that names the file. What it takes is checked: watts, seconds and
counts that a machine can have. A file that is only encoded in another way must give the same as the plain one, and one
of known meaning exactly that (``Reader.truth``). Which readers there are: ``readers``, ``packed_readers``.
"""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from foundation.sealed_file import sealed
from foundation.shell.log import LONGEST_LINE, one_line
from tests.fuzzing.foreign_files import broken, damaged, encoded
from tests.fuzzing.parsers import is_finite

REFUSED: Final = object()
"""What must be read from a file that must be refused."""


@dataclass(frozen=True, slots=True)
class Reader:
    """``seeds``: valid files, small ones, since a file costs what its size does. ``read`` returns what it took, or
    raises one of ``refusals``. ``between``: what separates the cells of a table; "" for TOML and JSON. ``truth``: a
    text and what must be read from it (``REFUSED``: nothing). ``has_seal``: its last line is a digest of the text.
    ``damage``: of a format that is no text, which has no other encodings. ``ending``: of the file's name.
    ``cost``: so many times fewer files than others must find a planted fault, since each takes so many times longer."""

    seeds: tuple[str | bytes, ...]
    read: Callable[[Path], Any]
    refusals: tuple[type[BaseException], ...]
    between: str = ""
    truth: Callable[[random.Random], tuple[str, Any]] | None = None
    has_seal: bool = False
    damage: Callable[[random.Random, bytes], bytes] | None = None
    ending: str = ".toml"  # which a machine is named by
    cost: int = 1


def sound(is_so: bool, what: str) -> None:
    """What was taken must be something that a machine can have."""
    if not is_so:
        raise AssertionError(what)


@cache
def _place(ending: str) -> tuple[Path, int]:
    """The file that readers read, in memory if there is such a place, and a descriptor of it."""
    shared = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
    path = Path(folder.name, f"input{ending}")
    _KEPT.append(folder)
    return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


_KEPT: Final[list[tempfile.TemporaryDirectory[str]]] = []
"""It goes when the process ends."""


class Fuzzer:
    """Feeds files to one reader."""

    def __init__(self, name: str, reader: Reader, seed: int) -> None:
        self.went: Counter[str] = Counter()
        self.found: dict[str, str] = {}
        self._name, self._reader, self._rng = name, reader, random.Random(f"{name} {seed}")
        self._path, self._file = _place(reader.ending)
        self.seeds = [(one, self.judged(self.raw(one))[1]) for one in reader.seeds]

    def feed(self, files: int, stops: bool = False) -> bool:
        """So many; whether anything was found. ``stops``: at the first finding."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of NumPy: a number that does not fit
            return self._feed(files, stops)

    def _feed(self, files: int, stops: bool) -> bool:
        for _ in range(files):
            problem, raw = self._one()
            kind = "taken" if problem == "taken" else "FOUND" if problem else "refused"
            self.went[f"{self._name}: {kind}"] += 1
            if kind == "FOUND":
                self.found.setdefault(f"{self._name}: {problem}", f"{self._name}: {problem}: {raw[:1500]!r}")
                if stops:
                    return True
        return bool(self.found)

    def _one(self) -> tuple[str, bytes]:
        rng, reader = self._rng, self._reader
        draw = rng.random()
        if reader.truth and draw < 0.3:
            given, must = reader.truth(rng)
            must = must if must is REFUSED else msgspec.json.encode(must)
        elif draw < 0.4:
            given, must = rng.choice(self.seeds)
        else:
            return self._damaged()
        raw = encoded(rng, self.sealed(given))[1] if isinstance(given, str) and rng.random() < 0.5 else self.raw(given)
        problem, taken = self.judged(raw)
        if must is REFUSED:
            return ("takes what it must refuse" if problem == "taken" else problem), raw
        if problem != "taken":
            return problem or "refuses a valid file", raw
        return (problem if taken == must else "reads another meaning"), raw

    def _damaged(self) -> tuple[str, bytes]:
        rng, reader = self._rng, self._reader
        given, _ = rng.choice(self.seeds)
        if isinstance(given, bytes):
            raw = reader.damage(rng, given) if reader.damage else given
        else:
            text = damaged(rng, given, reader.between)
            if rng.random() < 0.9:
                text = self.sealed(text)
            raw = text.encode("utf-8", "surrogatepass")
            if rng.random() < 0.1:
                raw = encoded(rng, text)[1]
        if rng.random() < 0.1:
            raw = broken(rng, raw)
        return self.judged(raw)[0], raw

    def sealed(self, text: str) -> str:
        """With the digest that such a file ends with."""
        return sealed(text) if self._reader.has_seal else text

    def raw(self, given: str | bytes) -> bytes:
        """A seed as it stands in a file."""
        return given if isinstance(given, bytes) else self.sealed(given).encode()

    def judged(self, raw: bytes) -> tuple[str, bytes]:
        """What is wrong with what the reader does ("taken" or "": nothing), and what it took, as JSON."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, raw, 0)
        try:
            taken = self._reader.read(self._path)
            plain = msgspec.json.encode(taken)
        except self._reader.refusals as error:
            line = one_line(str(error))  # as it is printed
            if len(line) > LONGEST_LINE or not line.isprintable():
                return f"refused in other than one line: {line[:200]!r}", b""
            return "" if str(self._path) in line else f"does not name the file: {line[:200]}", b""
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200], b""
        if not is_finite(msgspec.to_builtins(taken)):
            return "takes a number that is none", b""
        return "taken", plain
