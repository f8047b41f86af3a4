"""Replays side by side: reading their folders."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cluster_agent import choosing
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES


class Run(msgspec.Struct, frozen=True):
    """One replay's folder. Rows are its jobs that were started, in the order of jobs.csv."""

    folder: Path
    policy: str
    group: str  # trace, machine, cap, state, closed loop and switches: replays that can be compared
    seed: int  # 0 where nothing is drawn
    trace: str
    is_plain: bool  # on the log's own processors, without cap, closed loop, tables or switches: as published figures
    not_modelled: dict[str, int]  # jobs of the log by what they state and the replay leaves out
    metrics: dict[str, Any]
    job: list[str]
    submit_s: Int64s
    start_s: Int64s
    end_s: Int64s
    width: Int64s
    places: list[str]
    power: tuple[Float64s, Float64s, Float64s] | None  # times, watts, caps (infinite: none)
    sha256: str = ""  # of the trace
    machine: str = ""  # as given, if that is more than a number of processors
    machine_sha256: str = ""  # of its file

    @property
    def log(self) -> str:
        """Which log it is, whatever its file is called."""
        return self.sha256 or self.trace

    @property
    def wait_s(self) -> Int64s:
        """Per job."""
        return self.start_s - self.submit_s

    @property
    def slowdown(self) -> Float64s:
        """Bounded, per job."""
        return bounded_slowdown(self.wait_s, self.end_s - self.start_s, int(self.metrics["bsld_tau_s"]))


def name_of(policy: str) -> str:
    """``NAME:key=value,...`` as ``Run.policy`` has it."""
    choice = registry.choose(policy)
    return short_name(choice.policy.name, choice.parameters, choice.origin.sha256 if choice.origin else "")


def short_name(name: str, parameters: dict[str, Any], sha256: str = "") -> str:
    """Without the parameters that are as by default. ``sha256``: of a policy that does not ship with nodectl; it stands
    in the name, so that two versions of a file can be compared, and nothing is run to know its defaults."""
    if sha256:
        given = [f"{key}={value}" for key, value in parameters.items() if value is not None]
        return ":".join([f"{name}@{sha256[:8]}", *([",".join(given)] if given else [])])
    defaults = choosing.flat(registry.policy(name).params())
    given = [f"{key}={one}" for key, one in parameters.items() if one is not None and one != defaults.get(key)]
    return ":".join([name, *([",".join(given)] if given else [])])


def find(folders: Sequence[str]) -> list[Run]:
    """Every replay in and below the folders, once, by name or in the campaign's order; ``WrongUseError`` names a folder
    that has none."""
    found: dict[Path, Path] = {}  # by where it is: two folders may be one, spelled in two ways
    for given in folders:
        for folder in _below(Path(given)):
            found.setdefault(folder.resolve(), folder)
    return _apart([read(folder) for folder in found.values()])


def _apart(runs: Sequence[Run]) -> list[Run]:
    """With longer names for logs that are called alike, and for machines of one size: they cannot be compared."""
    logs: dict[str, set[str]] = {}
    machines: dict[str, set[str]] = {}
    files: dict[str, set[str]] = {}
    for run in runs:
        logs.setdefault(run.trace, set()).add(run.sha256)
        machines.setdefault(run.group, set()).add(run.machine + run.machine_sha256)
        files.setdefault(run.machine, set()).add(run.machine_sha256)

    def named(run: Run) -> Run:
        trace = f"{run.trace} {run.sha256[:8]}" if len(logs[run.trace]) > 1 else run.trace
        machine = f", {run.machine}" if len(machines[run.group]) > 1 and run.machine else ""
        machine += f" {run.machine_sha256[:8]}" if machine and len(files[run.machine]) > 1 else ""
        return msgspec.structs.replace(run, trace=trace, group=trace + run.group.removeprefix(run.trace) + machine)

    return [named(run) for run in runs]


def _below(root: Path) -> list[Path]:
    table = root / "campaign.csv"
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            listed = [root / row["folder"] for row in csv.DictReader(file)]
        # Cells that were recorded since, by a campaign that works still or was killed, are not in its table yet.
        found = list(dict.fromkeys([*listed, *(path.parent for path in sorted(root.glob("*/campaign.json")))]))
        if absent := [folder for folder in listed if not folder.is_dir()]:
            raise ClusterError(f"{absent[0]}: {table.name} lists it, but it is not there; run the campaign again")
    except (FileNotFoundError, NotADirectoryError):
        whole = [path.parent for path in sorted(root.rglob("metrics.json"))]
        # A folder with a dot is a campaign's own: cells that are claimed or superseded.
        found = [folder for folder in whole if not any(part[0] == "." for part in folder.relative_to(root).parts)]
    except (OSError, KeyError, TypeError, UnicodeDecodeError, csv.Error):
        raise ClusterError(f"{table}: not as a campaign writes it; run the campaign again") from None
    if not found:
        why = "no replay in it (metrics.json)" if root.is_dir() else "there is no such folder"
        raise WrongUseError(f"{root}: {why}; make one with `clusterctl replay --out`")
    return found


def read(folder: Path) -> Run:
    """Read one replay; the ``ClusterError`` names a file that is missing or damaged."""
    name = "manifest.json"
    try:
        manifest = msgspec.json.decode((folder / name).read_bytes())
        name = "metrics.json"
        metrics = _numbers(msgspec.json.decode((folder / name).read_bytes()))
        name = "manifest.json"
        chosen, trace = manifest["policy"], manifest["trace"]
        policy = short_name(chosen["name"], chosen["parameters"], chosen.get("origin", {}).get("sha256", ""))
        machine = manifest["machine"].get("processors", manifest["machine"].get("nodes"))
        given = _given(manifest["machine"])
        seed = int(manifest["seed"] or 0)
        parts = {"machine": machine, "cap": manifest["cap"], "closed loop": manifest.get("closed_loop")}
        parts["job watts"] = manifest.get("job_watts")
        state = manifest.get("state")
        parts["state"] = f"{Path(state['path']).name} {state['sha256'][:8]}" if state else None
        parts["configurations"] = manifest.get("configurations", {}).get("given")
        parts |= {name: manifest.get(name) for name in SWITCHES}  # another machine for the same jobs
        parts |= _files_of_switches(manifest)
        title = Path(trace["path"]).name.removesuffix(".gz").removesuffix(".swf")
        is_plain = manifest["machine"].get("given_by") == "MaxProcs" and not any(list(parts.values())[1:])
        group = ", ".join([title, *(f"{key} {value}" for key, value in parts.items() if value)])

        name = "jobs.csv"
        with (folder / name).open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.DictReader(file) if row["starting_time"] not in ("", "-1")]

        if len(rows) + metrics["unstarted"] != metrics["jobs"]:
            raise ValueError("rows are missing")

        def column(key: str) -> Int64s:
            return np.array([float(row[key]) for row in rows], np.float64).astype(np.int64)

        submit_s, start_s = column("submission_time"), column("starting_time")
        end_s, width = column("finish_time"), column("requested_number_of_resources")
        name = "power.csv"
        return Run(
            folder, policy, group, seed, title, is_plain, dict(trace.get("not_modelled", {})), metrics,
            [row["job_id"] for row in rows], submit_s, start_s, end_s, width,
            [row["allocated_resources"] for row in rows], _power(folder), trace["sha256"], given,
            manifest["machine"].get("sha256", ""),
        )  # fmt: skip
    except OSError as error:
        raise ClusterError(f"{folder / name}: {error.strerror}; replay again with --out") from None
    except (AttributeError, KeyError, ValueError, TypeError, msgspec.DecodeError):
        raise ClusterError(f"{folder / name}: not as a replay writes it; replay again with --out") from None


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """All of metrics.json; ``ValueError`` for a text in place of a number."""
    if any(isinstance(value, str) for value in metrics.values()) or metrics["bsld_tau_s"] is None:
        raise ValueError("no number")
    return metrics


def _given(machine: dict[str, Any]) -> str:
    """The manifest's machine as it was given; nothing for a number of processors."""
    return Path(machine.get("given_by" if "nodes" in machine else "given") or "").name


def _power(folder: Path) -> tuple[Float64s, Float64s, Float64s] | None:
    if not (folder / "power.csv").exists():
        return None
    with (folder / "power.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = [[float(one or "inf") for one in row] for row in list(csv.reader(file))[1:]]
    table = np.array(rows, np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _files_of_switches(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Those that were given as files, by the name and the first letters of the SHA-256."""
    marks = {name: manifest.get(f"{name}_sha256") for name in ("failures", "reservations")}
    return {name: f"{Path(manifest[name]).name} {mark[:8]}" for name, mark in marks.items() if mark}
