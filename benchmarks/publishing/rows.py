"""Rows as files, the measurements that make them, and hashes of what they depend on."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT: Final = Path(__file__).parent.parent.parent
FOLDER: Final = ROOT / "benchmarks" / "published"
DATA: Final = ROOT.parent / "shared" / "data"
OUT: Final = ROOT / "out" / "bench"

Row: TypeAlias = dict[str, str]
"""One line of a file: text, as it is there."""
Cells: TypeAlias = list[list[str]]
"""A table as a page prints it, its heading first."""


# --- what a measurement publishes


@dataclass(frozen=True)
class Measurement:
    """How the rows of one measurement are made, shown and checked."""

    name: str
    collect: Callable[[], Iterable[Mapping[str, Any]]]  # from the JSON that it leaves in out/bench/
    tables: Mapping[str, Callable[[Sequence[Row]], Cells]]  # by key; "" where there is one
    again: Callable[[Row], Mapping[str, float]]  # computes some figures of a row again
    sample: Callable[[Row], bool]  # the rows that CI computes again
    precision: Mapping[str, float]  # what one unit of the last printed digit is, by figure
    runs: Sequence[Sequence[str]] = ((),)  # the arguments of each run that it takes
    leaves: Sequence[str] = ()  # files in out/bench/; default: NAME.json
    data: Sequence[str] = ()  # patterns of recorded data, below ../shared/data

    @property
    def command(self) -> str:
        return "; ".join(" ".join(["python -m", f"benchmarks.{self.name}", *run]) for run in self.runs)

    @property
    def left(self) -> list[Path]:
        return [OUT / name for name in self.leaves or [f"{self.name}.json"]]

    @property
    def has_data(self) -> bool:
        return all(any(DATA.glob(pattern)) for pattern in self.data)


@dataclass(frozen=True)
class Published:
    """One file: its header, and its rows."""

    header: Mapping[str, str]
    rows: Sequence[Row] = field(repr=False)

    @property
    def is_transcribed(self) -> bool:
        return self.header["origin"] == "transcribed"

    @classmethod
    def read(cls, path: Path) -> Published:
        lines = path.read_text().splitlines()
        count = next(at for at, line in enumerate(lines) if not line.startswith("# "))
        header = dict(line.removeprefix("# ").split(": ", 1) for line in lines[:count])
        return cls(header, list(csv.DictReader(lines[count:])))

    def write(self, path: Path) -> None:
        text = io.StringIO()
        text.writelines(f"# {key}: {value}\n" for key, value in self.header.items() if value)
        lines = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        lines.writeheader()
        lines.writerows(self.rows)
        path.write_text(text.getvalue())


def text_of(value: object) -> str:
    """A figure with six digits: more than any page prints."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


# --- what the rows depend on


@cache
def code_files(module: str) -> tuple[Path, ...]:
    """The sources that a module can reach. A string that names a module counts as an import of it, since registries
    load their members so; of each package that is reached, all files in C and all data count."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = _source(waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        waiting += _imports(path)
    packages = {path.relative_to(ROOT).parts[0] for path in found} - {"benchmarks"}
    for package in packages:
        found |= {path for path in (ROOT / package).rglob("*") if path.suffix in OTHER_SOURCES}
    return tuple(sorted(found))


OTHER_SOURCES: Final = (".c", ".h", ".S", ".toml", ".csv")


def _source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def _imports(path: Path) -> frozenset[str]:
    """The names of modules in a source, each with the packages above it."""
    return frozenset(_named(path))


def _named(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"^(\w+(?:\.\w+)+)(?::\w+)?$", node.value)
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def hash_of(files: Iterable[Path], above: Path, content: Callable[[Path], bytes]) -> str:
    """Of names and contents."""
    found = hashlib.sha256()
    for path in files:
        read = content(path)
        found.update(f"{path.relative_to(above).as_posix()}\0{len(read)}\0".encode())
        found.update(read)
    return found.hexdigest()[:16]


def code_hash(measurement: Measurement) -> str:
    return hash_of(code_files(f"benchmarks.{measurement.name}"), ROOT, meaning)


def data_hash(measurement: Measurement) -> str:
    return hash_of(sorted(path for pattern in measurement.data for path in DATA.glob(pattern)), DATA, Path.read_bytes)


@cache
def meaning(path: Path) -> bytes:
    """What of a source has an effect: a comment, a docstring or a line break put elsewhere changes no figure."""
    match path.suffix:
        case ".py":
            tree = ast.parse(path.read_text(), str(path))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, False):
                    node.body = node.body[1:]
            return ast.dump(tree).encode()
        case ".toml":
            return repr(tomllib.loads(path.read_text())).encode()
        case ".c" | ".h" | ".S":
            return b" ".join(_C_COMMENT.sub(lambda found: found[1] or b" ", path.read_bytes()).split())
    return path.read_bytes()


_C_COMMENT: Final = re.compile(rb"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|/\*.*?\*/|//[^\n]*""", re.DOTALL)
"""A string, which is kept, or a comment."""
