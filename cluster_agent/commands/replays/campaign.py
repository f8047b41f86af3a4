"""``clusterctl campaign``: a grid of replays, each run as a command in its own process."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import click
import msgspec

from cluster_agent.errors import StoppedError, WrongUseError, without_types
from cluster_agent.replay import written_whole
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads import rte
from foundation import __version__
from foundation.shell.errors import nearest
from foundation.shell.extension import below, is_file
from foundation.shell.plain_text import echo, plain, read_utf8
from foundation.shell.settings import decode_toml

SHIPPED = Path(__file__).parents[2] / "campaigns"
DONE = "campaign.json"


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published mean bounded slowdown, shown next to ours where the replay is of that log, as it is."""

    trace: str  # the file's name without its endings
    policy: str
    AVEbsld: float
    jobs: int = 0  # of the log that it is of; 0: unknown


class Campaign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every combination is one replay. Paths are relative to the file; an empty machine, cap or loop means none."""

    policies: tuple[str, ...]
    traces: tuple[str, ...] = ()
    machines: tuple[str, ...] = ("",)
    caps: tuple[str | float, ...] = ("",)
    closed_loops: tuple[str, ...] = ("",)
    seeds: tuple[int, ...] = (0,)
    instances: tuple[str, ...] = ("",)
    configurations: tuple[str, ...] = ("",)
    job_watts: tuple[str, ...] = ("",)
    source: str = ""
    published: tuple[Published, ...] = ()


class Cell(msgspec.Struct, frozen=True):
    """One replay: its arguments, and what its files contained."""

    arguments: list[str]
    sha256: dict[str, str]
    version: str


Runner = Callable[[Sequence[str]], tuple[int, str]]
"""Runs ``clusterctl`` with these arguments somewhere; returns its exit status and its last line of errors."""


@click.command()
@click.argument("file", type=click.Path())
@click.option("--out", required=True, metavar="DIR", help="Where to put a folder per replay, and campaign.csv.")
@click.option(
    "--trace", "traces", multiple=True, metavar="FILE", help="Use this in place of the file's traces; may be repeated."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Use this in place of the file's policies; may be repeated.",
)
@click.option("-j", "--jobs", type=click.IntRange(1), default=1, help="Replays at the same time (default: 1).")
def campaign(file: str, out: str, traces: tuple[str, ...], policies: tuple[str, ...], jobs: int) -> int:
    """Replay every combination that FILE (TOML, or the name of one that ships: sc15) lists.

    Replays already done with the same files, policy and version are skipped. `clusterctl report DIR` compares.
    """
    path = _found(file)
    listed = read_campaign(path)
    if policies:
        listed = msgspec.structs.replace(listed, policies=policies)
        for one in policies:
            registry.choose(one)
    if not (traces or listed.traces):
        raise WrongUseError(f"{path}: traces: none are listed; give --trace FILE")
    cells = grid(listed, path.parent, traces)
    root = Path(out)
    todo = {name: cell for name, cell in cells.items() if not _is_done(root / name, cell)}
    with written_whole.folder(out) as made:
        for name in cells:
            (root / name).mkdir(exist_ok=True)
        (made / "published.json").write_bytes(msgspec.json.encode(listed.published))
    echo(f"{len(cells)} replays, {len(cells) - len(todo)} done before", to_stderr=True)
    failed = _run(root, todo, jobs, run_here)
    rows = write_table(root, cells)
    echo(f"{root / 'campaign.csv'}: {rows} replays; compare them with `clusterctl report {out}`")
    for name, why in failed.items():
        echo(f"{root / name}: {why}", to_stderr=True)
    return 1 if failed else 0


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
    for key in ("policies", "machines", "caps", "closed_loops", "seeds", "instances", "configurations", "job_watts"):
        if not getattr(listed, key):
            raise WrongUseError(f"{path}: {key}: the list is empty; leave the key out, or list something")
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
    lists = given, listed.instances, listed.policies, listed.machines, listed.caps, listed.closed_loops, listed.seeds
    for trace, instance, policy, machine, cap, loop, seed, rows, job_watts in product(
        *lists, listed.configurations, listed.job_watts
    ):
        machine, cap, rows, job_watts = (_near(str(one), folder) for one in (machine, cap, rows, job_watts))
        arguments = ["replay", trace, "--policy", policy]
        options = {"--instance": instance, "--machine": machine, "--cap": cap, "--closed-loop": loop}
        options |= {"--configurations": rows, "--job-watts": job_watts}
        for option, value in options.items():
            arguments += [option, value] if value else []
        if loop:
            arguments += ["--seed", str(seed)]
        named = {file for text in (trace, policy, machine, cap, rows, job_watts) for file in _files(text)}
        sha256 = {file: _sha256(file, known) for file in sorted(named)}
        if trace not in sha256:
            where = f"--trace {trace}" if traces else f"{trace}: traces"
            raise WrongUseError(f"{where}: there is no such file")
        called = Path(policy).name if is_file(policy) else policy
        words = [Path(trace).name.partition(".")[0], instance, called, Path(machine).stem, Path(cap).stem, loop]
        words += [Path(one).name for one in (rows, job_watts) if one]
        words += [f"seed={seed}"] if loop else []
        name = "__".join("".join(c if c.isalnum() or c in "=,.-" else "-" for c in word) for word in words if word)
        choice = registry.choose(policy)
        source = choice.origin.file if choice.origin else inspect.getfile(choice.policy.compose)
        cell = Cell(arguments, sha256 | {"policy": _sha256(source, known)}, __version__)
        if cells.get(name, cell) != cell:  # files of one name in two folders
            name += "__" + hashlib.sha256(repr(arguments).encode()).hexdigest()[:8]
        cells[name] = cell
    return cells


def run_here(arguments: Sequence[str]) -> tuple[int, str]:
    """Run it in a process on this machine."""
    command = [sys.executable, "-m", "cluster_agent.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return done.returncode, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _run(root: Path, todo: dict[str, Cell], jobs: int, run: Runner) -> dict[str, str]:
    """Run the cells; returns those that failed, and why."""
    failed: dict[str, str] = {}
    begun_s, done, lock = time.monotonic(), 0, threading.Lock()

    def one(name: str, cell: Cell) -> None:
        nonlocal done
        status, why = run([*cell.arguments, "--out", str(root / name)])
        with lock:
            done += 1
            if status:
                failed[name] = why
            else:
                with written_whole.one_file(str(root / name / DONE), "--out") as made:
                    made.write_bytes(msgspec.json.encode(cell))
            if sys.stderr.isatty():
                left_s = (time.monotonic() - begun_s) / done * (len(todo) - done)
                line = f"\r\033[K{done}/{len(todo)}  {left_s:.0f} s left  {plain(name)}"
                click.echo(line, err=True, nl=done == len(todo))

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for waiting in [pool.submit(one, name, cell) for name, cell in todo.items()]:
                waiting.result()
        except KeyboardInterrupt:
            # the terminal has sent SIGINT to the running replays too; unfinished ones do not count as done
            pool.shutdown(cancel_futures=True)
            left = sum(not _is_done(root / name, cell) for name, cell in todo.items())
            raise StoppedError(f"stopped with {left} replays to do; the same command goes on with them") from None
    return failed


def write_table(root: Path, cells: dict[str, Cell]) -> int:
    """campaign.csv and campaign.parquet: a row for every replay that is done, with all numbers of metrics.json."""
    rows: list[dict[str, Any]] = []
    for name, cell in cells.items():
        if not _is_done(root / name, cell):
            continue
        options = dict(zip(cell.arguments[2::2], cell.arguments[3::2], strict=True))
        row: dict[str, Any] = {"folder": name, "trace": cell.arguments[1]}
        names = ("policy", "instance", "machine", "cap", "closed-loop", "seed", "configurations", "job-watts")
        row |= {one.replace("-", "_"): options.get(f"--{one}") for one in names}
        rows.append(row | dict(_flat(msgspec.json.decode((root / name / "metrics.json").read_bytes()))))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [",".join(columns)] + [",".join(_quoted(row.get(key)) for key in columns) for row in rows]
    with written_whole.folder(str(root)) as made:
        (made / "campaign.csv").write_text("\n".join(lines) + "\n")
        try:
            import pyarrow as pa
            import pyarrow.parquet
        except ModuleNotFoundError:
            echo("campaign.parquet is not written: it needs pyarrow (pip install 'nodectl[export]')", to_stderr=True)
        else:
            table = pa.table({key: pa.array([row.get(key) for row in rows]) for key in columns})
            pyarrow.parquet.write_table(table, made / "campaign.parquet")
    return len(rows)


def _flat(metrics: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in metrics.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{before}{key}_") if inner else [(before + key, value)]
    return found


def _quoted(value: Any) -> str:
    text = "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


def _is_done(folder: Path, cell: Cell) -> bool:
    try:
        return msgspec.json.decode((folder / DONE).read_bytes(), type=Cell) == cell
    except (OSError, msgspec.DecodeError):
        return False


def _found(file: str) -> Path:
    shipped = SHIPPED / f"{file}.toml"
    return shipped if not os.path.exists(file) and shipped.exists() else Path(file)


def _near(text: str, folder: Path) -> str:
    """A file next to the campaign's, or the text as it is: a number, a name, or a path from the current directory."""
    source = f"{rte.NAME}:" if rte.is_rte(text) else ""
    path, colon, rest = text.removeprefix(source).partition(":")
    return f"{source}{folder / path}{colon}{rest}" if path and (folder / path).is_file() else text


def _files(text: str) -> list[str]:
    """The files that a trace or the value of an option names: itself, or a part of it such as FILE in rte:FILE:..."""
    return [one for one in (text, *re.split("[:=,]", text)) if one and Path(one).is_file()]


def _sha256(path: str, known: dict[str, str]) -> str:
    if path not in known:
        known[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return known[path]
