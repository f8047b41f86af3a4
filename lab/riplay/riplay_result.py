"""What came of a riplay: measures, files, and replays of the same hours next to it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from cluster_agent.errors import WrongUseError
from cluster_agent.replay import written_whole
from foundation.shell.text_table import render
from lab.riplay.log_part import Delays, Hours, LogPart
from lab.riplay.ran_jobs import Part, Ran

KWH_J: Final = 3.6e6
MOST_DELAY_S: Final = 1e6
"""Ours: of the log, as no Slurm that came up has been late."""

COLUMNS: Final = ("job", "submit_s", "decided_s", "start_s", "end_s", "waited_s", "width", "mhz", "nodes")
HEADINGS: Final = ("", "started", "mean wait s", "work node-h", "energy kWh", "above cap", "riplay's wait", "energy")


class Metrics(msgspec.Struct, frozen=True):
    """``metrics.json``. Times are the log's seconds, but for ``latency_s`` (from a release to the job's first line
    before the hours begin, in real seconds: median, worst) and ``took_s``. ``energy_j``: of the emulated nodes;
    ``energy_by_table_j``: of the same jobs by the machine file's watts; ``over_cap_ws``: above the cap, by readings of
    a second; ``load``: of this machine, mean and highest."""

    log: str
    sha256: str
    from_s: int
    to_s: int
    nodes: int
    policy: str
    speed: float
    jobs: int
    started: int
    mean_wait_s: float
    work_node_h: float
    energy_j: float
    energy_by_table_j: float
    over_cap_ws: float
    start_delay_s: Annotated[float, Meta(ge=0, le=MOST_DELAY_S)] | None
    end_delay_s: Annotated[float, Meta(ge=0, le=MOST_DELAY_S)]
    latency_s: tuple[float, float]
    load: tuple[float, float]
    took_s: float


class Watts(NamedTuple):
    """A reading of all nodes: the mean from ``time_s`` on, for ``lasts_s``; without a cap it is infinite."""

    time_s: float
    watts: float
    cap_w: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Riplayed:
    """``ran``: by job. ``late``: the delays of a riplay of other hours, if one was given."""

    metrics: Metrics
    whole: LogPart
    part: Part
    ran: Mapping[int, Ran]
    readings: Sequence[Watts]
    late: Delays | None = None

    def table(self) -> str:
        """Next to replays of the same hours, without Slurm's delays and with those of other hours."""
        own = msgspec.structs.asdict(self.metrics)
        rows = [("riplay", own)]
        if self.metrics.policy:
            rows.append(("replay of the same hours", self.part.measures(self.whole.replayed())))
        if self.metrics.policy and self.late is not None:
            words = f"starts {self.late.start_s:.0f} s and ends {self.late.end_s:.0f} s late"
            rows.append((f"the same, {words}", self.part.measures(self.whole.replayed(self.late))))
        return render(HEADINGS, [_line(name, one, own) for name, one in rows])

    def write(self, folder: str) -> None:
        """``jobs.csv``, ``power.csv`` and ``metrics.json``; what did not happen is empty."""
        jobs = sorted({*self.part.left_s, *self.part.waiting})
        watts = ((f"{one.time_s:.1f}", f"{one.watts:.1f}", "" if isinf(one.cap_w) else f"{one.cap_w:g}")
                 for one in self.readings)  # fmt: skip
        with written_whole.folder(folder) as made:
            encoded = msgspec.json.encode(self.metrics)
            (made / "metrics.json").write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
            _write(made / "jobs.csv", COLUMNS, map(self._job, jobs))
            _write(made / "power.csv", ("time_s", "watts", "cap_w"), watts)

    def _job(self, job: int) -> tuple[Any, ...]:
        part, one = self.part, self.ran.get(job, Ran())
        times = ("" if each is None else f"{each:.1f}" for each in (one.decided_s, one.start_s, one.end_s))
        waited = "" if job in part.left_s else f"{part.wait_s(job, self.ran):.1f}"
        mhz = part.machine.node.frequency_mhz[one.level] if one.nodes else ""
        width, submit_s = int(part.jobs.width[job]), int(part.jobs.submit_s[job])
        return int(part.jobs.number[job]), submit_s, *times, waited, width, mhz, " ".join(one.nodes)


def delays_of(folder: str) -> tuple[Delays, Metrics]:
    """Those that another riplay has measured."""
    try:
        other = msgspec.json.decode(Path(folder, "metrics.json").read_bytes(), type=Metrics)
    except (OSError, msgspec.MsgspecError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise WrongUseError(f"--delays {folder}: no folder of a riplay: metrics.json: {reason}") from None
    if other.start_delay_s is None:
        raise WrongUseError(f"--delays {folder}: Slurm decided there, so nobody knows when; give one with a policy")
    return Delays(other.start_delay_s, other.end_delay_s), other


def check_other(folder: str, other: Metrics, hours: Hours, speed: float, sha256: str) -> None:
    """``WrongUseError`` if its delays are of the same hours, or of another speed: they are seconds of the log."""
    if other.speed != speed:
        fix = f"give --speed {other.speed:g}, or one of speed {speed:g}"
        raise WrongUseError(f"--delays {folder}: it went at speed {other.speed:g}, so its delays are not these; {fix}")
    if other.sha256 == sha256 and other.from_s < hours.to_s and hours.from_s < other.to_s:
        raise WrongUseError(f"--delays {folder}: it is of the same hours; give one of other hours")


def _line(name: str, one: Mapping[str, float], own: Mapping[str, float]) -> tuple[str, ...]:
    off = ("", "") if one is own else (
        f"{100 * (own[key] / one[key] - 1):+.1f} %" if one[key] else "" for key in ("mean_wait_s", "energy_j")
    )  # fmt: skip
    counts = f"{one['started']:.0f} of {one['jobs']:.0f}"
    measures = f"{one['mean_wait_s']:.0f}", f"{one['work_node_h']:.1f}", f"{one['energy_j'] / KWH_J:.2f}"
    above = f"{one['over_cap_ws'] / KWH_J:.2f}"
    return name, counts, *measures, above, *off


def _write(path: Path, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        written = csv.writer(file, lineterminator="\n")
        written.writerow(headings)
        written.writerows(rows)
