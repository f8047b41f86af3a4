"""The grid of a campaign: a file lists policies, traces, machines, caps; every combination is a cell, one replay."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import WrongUseError, without_types
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES
from cluster_agent.scheduler.switches import failures
from cluster_agent.workloads import rte
from cluster_agent.workloads.clusters.cluster_table import table_of
from foundation import __version__
from foundation.shell.errors import nearest
from foundation.shell.extension import below, is_file
from foundation.shell.plain_text import read_utf8
from foundation.shell.settings import decode_toml

SHIPPED: Final = Path(__file__).parent
KEYS: Final = (
    "traces", "instances", "policies", "machines", "caps", "closed_loops", "seeds", "configurations", "job_watts",
    *SWITCHES,
)  # fmt: skip
"""The lists of a campaign whose combinations are its cells, in the order of the cells."""
OPTIONS: Final = {
    "instances": "--instance",
    "machines": "--machine",
    "caps": "--cap",
    "closed_loops": "--closed-loop",
    "configurations": "--configurations",
    "job_watts": "--job-watts",
    **SWITCHES,
    "seeds": "--seed",
}
"""What ``clusterctl replay`` calls a value of these lists."""
_NAMES: Final = {option: name for name, option in SWITCHES.items()}
IN_FILES: Final = ("machines", "caps", "configurations", "job_watts", "failures", "reservations")
"""Those whose values may be files, which may be next to the campaign's."""
DECIDES: Final = ("campaigns", "csrc", "library", "prediction", "replay", "scheduler", "workloads")
"""Folders whose code the results of a replay follow from."""
MOST_NAME: Final = 120
"""Ours: letters of a cell's name. A folder's may have 255 bytes, and a letter four."""


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published mean bounded slowdown, shown next to ours where the replay is of that log, as it is."""

    trace: str  # the file's name without its endings
    policy: str
    AVEbsld: float
    jobs: int = 0  # of the log that it is of; 0: unknown


class Campaign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every combination is one replay. Paths are relative to the file; an empty text leaves the option out."""

    policies: tuple[str, ...]
    traces: tuple[str, ...] = ()
    machines: tuple[str, ...] = ("",)
    caps: tuple[str | float, ...] = ("",)
    closed_loops: tuple[str, ...] = ("",)
    seeds: tuple[int, ...] = (0,)
    instances: tuple[str, ...] = ("",)
    configurations: tuple[str, ...] = ("",)
    job_watts: tuple[str, ...] = ("",)
    limits: tuple[str, ...] = ("",)
    partitions: tuple[str, ...] = ("",)
    memory: tuple[str | float, ...] = ("",)
    failures: tuple[str, ...] = ("",)
    reservations: tuple[str, ...] = ("",)
    windows: tuple[str, ...] = ("",)
    best_effort: tuple[str, ...] = ("",)
    source: str = ""
    published: tuple[Published, ...] = ()


class Cell(msgspec.Struct, frozen=True):
    """One replay: its arguments, and what its files contained."""

    arguments: list[str]
    sha256: dict[str, str]
    version: str
    code: str  # the SHA-256 of what results follow from

    @property
    def options(self) -> dict[str, str]:
        """The values of its options, by what the library calls them."""
        given = zip(self.arguments[2::2], self.arguments[3::2], strict=True)
        return {_NAMES.get(one, one.removeprefix("--").replace("-", "_")): value for one, value in given}


def found(file: str) -> Path:
    """A campaign's file, or one that ships, by its name."""
    shipped = SHIPPED / f"{file}.toml"
    return shipped if not Path(file).exists() and shipped.exists() else Path(file)


def read_campaign(path: Path) -> Campaign:
    """Read a campaign; the ``WrongUseError`` names file and key of the first mistake."""
    try:
        listed = decode_toml(read_utf8(path), Campaign)
    except OSError as error:
        shipped = nearest(path.name, [one.stem for one in SHIPPED.glob("*.toml")])
        raise WrongUseError(
            f"{path}: cannot read the campaign: {error.strerror}; give a TOML file, or one that ships{shipped}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongUseError(f"{path}: {without_types(str(error)).replace('`$.', '`')}") from None
    for key in KEYS:
        if key != "traces" and not getattr(listed, key):
            raise WrongUseError(f"{path}: {key}: the list is empty; leave the key out, or list something")
    for one in listed.published:
        if not 1 <= one.AVEbsld < math.inf:
            raise WrongUseError(f"{path}: published: AVEbsld {one.AVEbsld:g}: a mean bounded slowdown is 1 or more")
    listed = msgspec.structs.replace(listed, policies=tuple(below(path.parent, text) for text in listed.policies))
    for text in listed.policies:
        try:
            registry.choose(text)
        except WrongUseError as error:
            raise WrongUseError(f"{path}: policies: {error}") from None
    return listed


def grid(listed: Campaign, folder: Path, traces: Sequence[str]) -> dict[str, Cell]:
    """Every replay, by the name of its folder."""
    known: dict[str, str] = {}
    cells: dict[str, Cell] = {}
    given = list(traces) or [_near(one, folder) for one in listed.traces]
    lists = [given if key == "traces" else getattr(listed, key) for key in KEYS]
    for values in product(*lists):
        row = {
            key: _near(str(one), folder) if key in IN_FILES else str(one) for key, one in zip(KEYS, values, strict=True)
        }
        draws = bool(row["closed_loops"]) or failures.are_drawn(row["failures"])
        if not draws:
            del row["seeds"]
        trace, policy = row["traces"], row["policies"]
        arguments = ["replay", trace, "--policy", policy]
        for key, option in OPTIONS.items():
            arguments += [option, row[key]] if row.get(key) else []
        named = {file for text in (*row.values(), table_of(trace) or "") for file in _files(text)}
        sha256 = {file: _sha256(file, known) for file in sorted(named)}
        if trace not in sha256:
            where = f"--trace {trace}" if traces else f"{trace}: traces"
            raise WrongUseError(f"{where}: there is no such file")
        choice = registry.choose(policy)
        source = choice.origin.file if choice.origin else inspect.getfile(choice.policy.compose)
        cell = Cell(arguments, sha256 | {"policy": _sha256(source, known)}, __version__, code_sha256())
        name = _name_of(row)
        if cells.get(name, cell) != cell or len(name) > MOST_NAME:  # files of one name in two folders; a long policy
            name = f"{name[:MOST_NAME]}__{hashlib.sha256(repr(arguments).encode()).hexdigest()[:8]}"
        cells[name] = cell
    return cells


def _name_of(row: Mapping[str, str]) -> str:
    """Of the folder: what the cell is made of, without the folders of its files."""
    trace, policy, machine, cap = (row[key] for key in ("traces", "policies", "machines", "caps"))
    called = Path(policy).name if is_file(policy) else policy
    words = [Path(trace).name.partition(".")[0], row["instances"], called, Path(machine).stem, Path(cap).stem]
    words += [row["closed_loops"], *(Path(row[key]).name for key in ("configurations", "job_watts"))]
    words += [f"{key}={Path(row[key]).name}" for key in SWITCHES if row[key]]
    words += [f"seed={row['seeds']}"] if "seeds" in row else []
    return "__".join("".join(c if c.isalnum() or c in "=,.-" else "-" for c in word) for word in words if word)


@cache
def code_sha256() -> str:
    """Of the code that results follow from: the sources in Python and C, or the native module where those in C are not
    installed."""
    package = SHIPPED.parent
    files = [*package.glob("*.py"), *(one for folder in DECIDES for one in (package / folder).rglob("*.*"))]
    has_c = (package / "csrc").is_dir()
    endings = (".py", ".c", ".h") if has_c else (".py",)
    kept = sorted(one for one in files if one.suffix in endings)
    kept += [] if has_c else sorted(package.glob("_native*.so"))
    found = hashlib.sha256()
    for file in kept:
        found.update(f"{file.relative_to(package)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _near(text: str, folder: Path) -> str:
    """A file next to the campaign's, or the text as it is: a number, a name, or a path from the current directory."""
    source = f"{rte.NAME}:" if rte.is_rte(text) else ""
    path, colon, rest = text.removeprefix(source).partition(":")
    return f"{source}{folder / path}{colon}{rest}" if path and os.path.isfile(folder / path) else text


def _files(text: str) -> list[str]:
    """The files that a trace or the value of an option names: itself, or a part of it such as FILE in rte:FILE:..."""
    return [one for one in (text, *re.split("[:=,]", text)) if os.path.isfile(one)]


def _sha256(path: str, known: dict[str, str]) -> str:
    if path not in known:
        known[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return known[path]
