"""Replays side by side: reading their folders, and how certain a difference between two of them is.

A paired difference is taken job by job over the jobs that both replays started. Its 95 % interval is a bootstrap over
blocks of consecutive jobs (Künsch, Annals of Statistics 17(3), 1989): jobs of one time share a queue, so single jobs
are not independent and would make the interval too narrow. The interval shows how much the figure depends on which
parts of this log were replayed; it says nothing about jobs of another site.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s
from cluster_agent.scheduler.policies import registry

BLOCKS: Final = 50
RESAMPLES: Final = 1000
SEED: Final = 1
"""Ours."""


@dataclass(frozen=True, slots=True)
class Run:
    """One replay's folder. Rows are its jobs that were started, in the order of jobs.csv."""

    folder: Path
    policy: str
    group: str  # trace, machine, cap, state and closed loop: replays that can be compared
    trace: str
    is_plain: bool  # on the log's own processors, without cap, closed loop or tables: as published figures are
    not_modelled: dict[str, int]  # jobs of the log by what they state and the replay leaves out
    metrics: dict[str, Any]
    job: list[str]
    submit_s: Int64s
    start_s: Int64s
    end_s: Int64s
    width: Int64s
    places: list[str]
    power: tuple[Float64s, Float64s, Float64s] | None  # times, watts, caps (infinite: none)

    @property
    def wait_s(self) -> Int64s:
        """Per job."""
        return self.start_s - self.submit_s

    @property
    def slowdown(self) -> Float64s:
        """Bounded, per job."""
        return bounded_slowdown(self.wait_s, self.end_s - self.start_s, int(self.metrics["bsld_tau_s"]))


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences, and its 95 % interval."""

    mean: float
    low: float
    high: float
    jobs: int


def name_of(policy: str) -> str:
    """``NAME:key=value,...`` as ``Run.policy`` has it."""
    choice = registry.choose(policy)
    parameters = {key: getattr(choice.params, key) for key in choice.params.__struct_fields__}
    return short_name(choice.policy.name, parameters, choice.origin.sha256 if choice.origin else "")


def short_name(name: str, parameters: dict[str, Any], sha256: str = "") -> str:
    """Without the parameters that are as by default. ``sha256``: of a policy that does not ship with nodectl; it stands
    in the name, so that two versions of a file can be compared, and nothing is run to know its defaults."""
    if sha256:
        given = [f"{key}={value}" for key, value in parameters.items() if value is not None]
        return ":".join([f"{name}@{sha256[:8]}", *([",".join(given)] if given else [])])
    defaults = registry.policy(name).params()
    given = [f"{key}={value}" for key, value in parameters.items() if value != getattr(defaults, key, None)]
    return ":".join([name, *([",".join(given)] if given else [])])


def find(folders: Sequence[str]) -> list[Run]:
    """Every replay in and below the folders, by name or in the campaign's order; ``WrongUseError`` if there is none."""
    found: list[Path] = []
    for one in map(Path, folders):
        table = one / "campaign.csv"
        if table.exists():
            try:
                with table.open(newline="", encoding="utf-8-sig") as file:
                    found += [one / row["folder"] for row in csv.DictReader(file)]
            except (OSError, KeyError, TypeError, UnicodeDecodeError, csv.Error):
                raise ClusterError(f"{table}: not as a campaign writes it; run the campaign again") from None
        else:
            found += [path.parent for path in sorted(one.rglob("metrics.json"))]
    if not found:
        raise WrongUseError(f"{folders[0]}: no replay in it (metrics.json); make one with `clusterctl replay --out`")
    return [read(folder) for folder in dict.fromkeys(found)]


def read(folder: Path) -> Run:
    """Read one replay; the ``ClusterError`` names a file that is missing or damaged."""
    name = "manifest.json"
    try:
        manifest = msgspec.json.decode((folder / name).read_bytes())
        name = "metrics.json"
        metrics = msgspec.json.decode((folder / name).read_bytes())
        name = "manifest.json"
        chosen, trace = manifest["policy"], manifest["trace"]
        policy = short_name(chosen["name"], chosen["parameters"], chosen.get("origin", {}).get("sha256", ""))
        machine = manifest["machine"].get("processors", manifest["machine"].get("nodes"))
        loop = f"{manifest['closed_loop']}, seed {manifest['seed']}" if manifest.get("closed_loop") else None
        parts = {"machine": machine, "cap": manifest["cap"], "closed loop": loop}
        parts["job watts"] = manifest.get("job_watts")
        state = manifest.get("state")
        parts["state"] = f"{Path(state['path']).name} {state['sha256'][:8]}" if state else None
        parts["configurations"] = manifest.get("configurations", {}).get("given")
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
            folder, policy, group, title, is_plain, dict(trace.get("not_modelled", {})), metrics,
            [row["job_id"] for row in rows], submit_s, start_s, end_s, width,
            [row["allocated_resources"] for row in rows], _power(folder),
        )  # fmt: skip
    except OSError as error:
        raise ClusterError(f"{folder / name}: {error.strerror}; replay again with --out") from None
    except (KeyError, ValueError, TypeError, msgspec.DecodeError):
        raise ClusterError(f"{folder / name}: not as a replay writes it; replay again with --out") from None


def _power(folder: Path) -> tuple[Float64s, Float64s, Float64s] | None:
    if not (folder / "power.csv").exists():
        return None
    with (folder / "power.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = [[float(one or "inf") for one in row] for row in list(csv.reader(file))[1:]]
    table = np.array(rows, np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def paired(values: Float64s, jobs: Sequence[str], base: Float64s, base_jobs: Sequence[str]) -> Difference | None:
    """``values`` - ``base`` over the jobs of both; None if there are fewer than two. In order of ``base_jobs``."""
    at = {job: i for i, job in enumerate(jobs)}
    common = [(at[job], i) for i, job in enumerate(base_jobs) if job in at]
    if len(common) < 2:
        return None
    mine, theirs = (np.array(one) for one in zip(*common, strict=True))
    difference = values[mine] - base[theirs]
    mean = float(difference.mean())
    low, high = interval(difference)
    return Difference(mean, low, high, len(difference))


def interval(values: Float64s) -> tuple[float, float]:
    """The 95 % interval of the mean, by resampling blocks of consecutive values."""
    blocks = np.array_split(values, min(BLOCKS, len(values)))
    total, count = (np.array([f(one) for one in blocks], np.float64) for f in (np.sum, len))
    chosen: Int32s = np.random.default_rng(SEED).integers(0, len(blocks), (RESAMPLES, len(blocks)), np.int32)
    low, high = np.percentile(total[chosen].sum(1) / count[chosen].sum(1), [2.5, 97.5])
    return float(low), float(high)
