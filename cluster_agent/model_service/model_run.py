"""One run: the jobs that have ended since the last one are predicted and compared, and what follows is published.

For each model, champion and candidate predict the same jobs, those that were submitted after both had been trained; the
candidate's predictions decide nothing but its promotion (shadow mode). The candidate is the newest version, if it is
newer than the champion and was not rolled back. A champion that has drifted is rolled back to the newest former one
that has not, else to none. Then the jobs that wait and run are predicted for whoever reads them.

``run.json`` has how far the ring was read and the errors of both. It is written last, by one rename, so a run that is
killed is repeated by the next one; a change of the champion meanwhile makes the pairs begin again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import ClusterError
from cluster_agent.model_service.group_table import LEVELS, kinds_of
from cluster_agent.model_service.job_records import JobWords
from cluster_agent.model_service.job_ring import JobRing
from cluster_agent.model_service.model_registry import (
    HAZARD,
    WATTS,
    Change,
    Metrics,
    Registry,
    Version,
    own_content,
)
from cluster_agent.model_service.model_training import nearest_error
from cluster_agent.model_service.on_line_errors import WINDOW, Drift, Interval, Pairs, drift, errors_of
from cluster_agent.prediction.job_power import Submission
from foundation.planted_links import replacing
from foundation.sealed_file import SealedFileError, write_whole

RUN, PUBLISHED = "run.json", "predictions.json"
LOOKED_AT: Final = 4 * WINDOW
"""Ours: of so many of the newest jobs those count for drift that were submitted after the training."""


class RunState(msgspec.Struct):
    """``read``: the number of the last record of the ring that was judged. ``champion``, ``candidate``: whose errors
    ``pairs`` has; 0: none."""

    format: int = 1
    read: int = 0
    champion: int = 0
    candidate: int = 0
    pairs: Pairs = msgspec.field(default_factory=Pairs)
    drift: Drift | None = None
    ended_s: float = 0.0
    """When the run ended, in Unix seconds."""


class Waiting(msgspec.Struct, frozen=True):
    """A job that waits or runs."""

    job: str
    submission: Submission


class PublishedJob(msgspec.Struct, frozen=True):
    """Watts of the whole job, and what they rest on."""

    job: str
    typical_w: float
    expected_w: float
    maximum_w: float
    why: str


class Published(msgspec.Struct, frozen=True):
    """``sha256``: of the version's card."""

    model: str
    version: int
    sha256: str
    jobs: list[PublishedJob]


class Hazard(msgspec.Struct, frozen=True):
    """That the next six hours are in thermal hazard: the chance, from which on it is an alarm, and what speaks for it
    most."""

    chance: float
    threshold: float
    reasons: list[str]

    @property
    def is_alarm(self) -> bool:
        """Whether a hazard is predicted."""
        return self.chance >= self.threshold

    @property
    def words(self) -> str:
        """For people."""
        why = f": {', '.join(self.reasons)}" if self.reasons else ""
        return f"chance of a thermal hazard {self.chance:.2f}, an alarm from {self.threshold:.2f} on{why}"


class ModelState(msgspec.Struct, frozen=True):
    """A model after a run, for people and metrics. ``lines``: what happened. ``hazard``: of a model of a room."""

    name: str
    champion: int
    candidate: int
    alarm: str
    state: RunState
    published: Published | None
    lines: list[str]
    hazard: Hazard | None = None
    kind: str = WATTS


def read_state(registry: Registry) -> tuple[RunState, str]:
    """Where the last run ended; and what is wrong with that file, which is then begun again."""
    path = registry.path / RUN
    try:
        found = msgspec.json.decode(own_content(path), type=RunState)
    except FileNotFoundError:
        return RunState(), ""
    except msgspec.MsgspecError:
        return RunState(), f"{path}: is damaged: errors are counted again, from the jobs that the ring still has"
    if found.format > RunState().format:
        raise ClusterError(f"{path}: was made by a newer nodectl (format {found.format})")
    return found, ""


def candidate_of(registry: Registry) -> int:
    """The version that predicts silently; 0: none."""
    champion, newest = registry.champion(), max(registry.versions(), default=0)
    return 0 if newest <= champion.version or newest in champion.taken_back else newest


def run_model(
    registry: Registry, ring: JobRing, words: JobWords, waiting: Sequence[Waiting], promotes: bool = False
) -> ModelState:
    """A run of one model. The caller has ``locked``."""
    registry.sweep()
    state, problem = read_state(registry)
    lines = [problem] if problem else []
    number, shadow = registry.champion().version, candidate_of(registry)
    champion = registry.version(number) if number else None
    candidate = registry.version(shadow) if shadow else None
    if (state.champion, state.candidate) != (number, shadow):
        state.pairs = Pairs()
    if state.read > ring.head:
        state.read, state.pairs = 0, Pairs()
        lines.append(f"the ring of jobs ends at {ring.head}, before what was read: errors are counted again")
    if champion and candidate:
        _compare(champion, candidate, ring, state)
    state.read, state.champion, state.candidate, state.drift = ring.head, number, shadow, None
    if champion is not None:
        if champion.card.known_s > time.time():
            lines.append(
                f"version {number} was trained on jobs that end later than now, so no job is new to it, and nobody"
                " judges it: is the clock right? If it is, train again and promote by --force"
            )
        state.drift = drift_of(champion, ring)
        if problem := state.drift.problem:
            champion = _roll_back(registry, champion, ring, problem, lines)
    if candidate is not None and promotes and not registry.champion().alarm:
        champion = _promote_if_better(registry, champion, candidate, state, lines)
    published = _publish(registry, champion, words, waiting)
    state.ended_s = time.time()
    write_state(registry, state)
    after = registry.champion()
    return ModelState(registry.name, after.version, candidate_of(registry), after.alarm, state, published, lines)


def _compare(champion: Version, candidate: Version, ring: JobRing, state: RunState) -> None:
    known_s = max(champion.card.known_s, candidate.card.known_s)
    for records in ring.since(state.read):
        unseen = records[records["submitted_s"] > known_s]
        if len(unseen):
            kinds = kinds_of(unseen)
            first, second = (
                errors_of(unseen, one.table.predict(kinds.records).watts[:, 0][kinds.place])
                for one in (champion, candidate)
            )
            state.pairs.add(unseen, kinds, first, second)
    state.pairs.trim()


def drift_of(version: Version, ring: JobRing) -> Drift:
    """Of a version, on the newest jobs. A version that its training could not judge, and that somebody promoted all the
    same, has to do as well as what would predict without it."""
    card, newest = version.card, ring.last(LOOKED_AT)
    if card.error is not None:
        return drift(version.table, card.shares, card.known_s, card.error, newest)
    error = nearest_error(newest, card.known_s)
    return replace(drift(version.table, card.shares, card.known_s, error, newest), by_nearest=True)


def gain_of(version: Version, champion: int, pairs: Pairs) -> Interval | None:
    """By how much the version's error is lower than the champion's on line; without a champion, than that of the
    nearest past jobs on the last jobs before its training ended. None: too few jobs."""
    if champion:
        return pairs.gain()
    found: Metrics = version.metrics
    if found.gain is None or found.gain_low is None or found.gain_high is None:
        return None
    return Interval(found.gain, found.gain_low, found.gain_high, found.judged, 0)


def gain_in_words(champion: int, gain: Interval | None, kind: str) -> str:
    """For people."""
    noun = "hours" if kind == HAZARD else "jobs"
    against = f"version {champion}" if champion else "the last value" if kind == HAZARD else "the nearest past jobs"
    if gain is None:
        again = "" if champion else "; wait, and train again"
        return f"too few {noun} compare it with {against}{again}"
    word, low, high = ("lower", gain.low, gain.high) if gain.mean >= 0 else ("higher", -gain.high, -gain.low)
    return (
        f"its error is {word} than that of {against} by {abs(gain.mean):.4f} ({low:+.4f} to {high:+.4f}, 95 %,"
        f" {gain.jobs} {noun})"
    )


def _promote_if_better(
    registry: Registry, champion: Version | None, candidate: Version, state: RunState, lines: list[str]
) -> Version | None:
    was = registry.champion().version
    gain = gain_of(candidate, was, state.pairs)
    if gain is None or gain.low <= 0:
        return champion
    why = gain_in_words(was, gain, candidate.card.kind)
    registry.change(Change(candidate.card.version, was, time.time(), "clusterctl models run", why))
    lines.append(f"version {candidate.card.version} is champion now: {why}")
    return candidate


def _roll_back(registry: Registry, champion: Version, ring: JobRing, problem: str, lines: list[str]) -> Version | None:
    """To the newest former champion that can be read and has not drifted; else to none."""
    chosen: Version | None = None
    for number in registry.champion().earlier:
        try:
            former = registry.version(number)
        except ClusterError as error:
            lines.append(str(error))
            continue
        if not drift_of(former, ring).problem:
            chosen = former
            break
    was, version = champion.card.version, chosen.card.version if chosen else 0
    why = f"version {was} was rolled back: {problem}"
    registry.change(
        Change(version, was, time.time(), "clusterctl models run", why, is_rollback=True, is_alarm=True)
    )  # fmt: skip
    lines.append(f"ALARM: {why}; {in_place(version)}")
    return chosen


def in_place(version: int, kind: str = WATTS) -> str:
    """Who predicts now."""
    nobody = "nobody predicts" if kind == HAZARD else "the nearest past jobs predict"
    return f"version {version} predicts" if version else nobody


def _publish(
    registry: Registry, champion: Version | None, words: JobWords, waiting: Sequence[Waiting]
) -> Published | None:
    path = registry.path / PUBLISHED
    if champion is None:
        path.unlink(missing_ok=True)
        return None
    rows = list[PublishedJob]()
    if waiting:
        found = champion.table.predict(words.submitted([one.submission for one in waiting]))
        nodes = np.array([[max(one.submission.units, 1)] for one in waiting])
        for one, watts, level, jobs in zip(waiting, found.watts * nodes, found.level, found.jobs, strict=True):
            why = f"{int(jobs)} jobs of the same {LEVELS[int(level)][1]}"
            rows.append(PublishedJob(one.job, float(watts[0]), float(watts[1]), float(watts[2]), why))
    published = Published(registry.name, champion.card.version, champion.sha256, rows)
    _write(path, msgspec.json.encode(published))
    return published


def write_state(registry: Registry, state: RunState) -> None:
    """What the run has found, by one rename; ``ClusterError`` if that cannot be."""
    _write(registry.path / RUN, msgspec.json.encode(state))


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except SealedFileError as error:
        raise ClusterError(f"{error}; the next run repeats this one") from None


def state_of(registry: Registry) -> ModelState:
    """A model as the last run left it, and as it was changed since."""
    state, problem = read_state(registry)
    champion = registry.champion()
    published: Published | None = None
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        published = msgspec.json.decode(own_content(registry.path / PUBLISHED), type=Published)
    lines = [problem] if problem else []
    return ModelState(
        registry.name, champion.version, candidate_of(registry), champion.alarm, state, published, lines,
        kind=registry.kind,
    )  # fmt: skip


METRICS: Final = (
    ("version", "The version of the model that predicts; 0: the nearest past jobs do."),
    ("candidate_version", "The version that predicts silently; 0: none."),
    ("alarm", "1 from a rollback for drift until the next promotion or rollback, else 0."),
    ("error", "Mean error of its newest predictions, 0 to 1."),
    ("error_limit", "The error above which it is rolled back."),
    ("psi", "Population stability index of the newest jobs' inputs; above 0.25 they are others."),
    ("compared_jobs", "Jobs on which champion and candidate were compared."),
    ("compared_error", "Mean error of each on these."),
    ("predicted_watts", "What the jobs that run and wait are expected to draw, in all."),
    ("hazard_chance", "The chance that the next six hours are in thermal hazard."),
    ("hazard_limit", "The chance from which on that is an alarm."),
    ("run_timestamp_seconds", "When the last run ended."),
)


def figures_of(one: ModelState) -> Iterator[tuple[str, dict[str, str], float]]:
    """Those of ``METRICS`` that are known, with their labels but the model's name."""
    state = one.state
    values: list[tuple[str, dict[str, str], float | None]] = [
        ("version", {}, one.champion), ("candidate_version", {}, one.candidate), ("alarm", {}, bool(one.alarm)),
        ("compared_jobs", {}, state.pairs.jobs), ("run_timestamp_seconds", {}, state.ended_s),
    ]  # fmt: skip
    if state.drift is not None:
        values += [("error", {}, state.drift.error), ("error_limit", {}, state.drift.most_error)]
        values += [("psi", {"input": name}, value) for name, value in state.drift.psi.items()]
    if means := state.pairs.means():
        values += [("compared_error", {"role": role}, value)
                   for role, value in zip(("champion", "candidate"), means, strict=True)]  # fmt: skip
    if one.published is not None:
        values.append(("predicted_watts", {}, sum(job.expected_w for job in one.published.jobs)))
    if one.hazard is not None:
        values += [("hazard_chance", {}, one.hazard.chance), ("hazard_limit", {}, one.hazard.threshold)]
    for name, labels, value in values:
        if value is not None:
            yield name, labels, float(value)


def as_metrics(models: Sequence[ModelState]) -> str:
    """For Prometheus, as a file of node_exporter's textfile collector."""
    rows: dict[str, list[str]] = {name: [] for name, _ in METRICS}
    for one in models:
        for name, labels, value in figures_of(one):
            words = "".join(f',{key}="{label}"' for key, label in labels.items())
            rows[name].append(f'clusterctl_model_{name}{{model="{one.name}"{words}}} {value!r}')
    lines = list[str]()
    for name, text in METRICS:
        if rows[name]:
            lines += [f"# HELP clusterctl_model_{name} {text}", f"# TYPE clusterctl_model_{name} gauge", *rows[name]]
    return "\n".join(lines) + "\n"


def write_metrics(path: Path, models: Sequence[ModelState]) -> None:
    """Readable by everybody; nobody reads half of it."""
    try:
        with replacing(path, 0o644) as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(as_metrics(models).encode())
    except OSError as error:
        raise ClusterError(f"{path}: cannot be written: {error.strerror}") from None
