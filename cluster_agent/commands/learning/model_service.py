"""``clusterctl models``: train, run, judge and choose models of the power of jobs (docs/models.md)."""

from __future__ import annotations

import contextlib
import getpass
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from cluster_agent.commands.jobs import rows_of, rows_since
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place
from cluster_agent.history.watts_ahead import request
from cluster_agent.model_service import model_run
from cluster_agent.model_service.job_records import (
    OVERLAP,
    EndedJob,
    JobWords,
    ended_job,
    missing_since,
    open_ring,
    unknown,
)
from cluster_agent.model_service.job_ring import DEFAULT_KEPT, MOST_KEPT, JobRing, Records
from cluster_agent.model_service.model_registry import HAZARD, WATTS, Change, Registry, existing, locked, names
from cluster_agent.model_service.model_run import ModelState, Waiting, candidate_of, gain_in_words, gain_of, in_place
from cluster_agent.serve.people_protocol import ListHistory, ListJobs
from foundation.mqtt.mqtt_settings import MqttSettings, read_mqtt_settings
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo, echo_block, json_text, say
from foundation.shell.text_table import render

DEFAULT_FOLDER: Final = "/var/lib/clusterctl/models"

folder_option = click.option(
    "--folder", type=click.Path(path_type=Path), default=DEFAULT_FOLDER, show_default=True, help="Where models are."
)
keep_option = click.option(
    "--keep", type=click.IntRange(1000, MOST_KEPT), default=DEFAULT_KEPT, show_default=True,
    help="How many ended jobs the ring keeps, 80 bytes each; counts when it is made.",
)  # fmt: skip


@click.group()
def models() -> None:
    """Models of the power of jobs: trained, tried next to the champion, promoted, rolled back (docs/models.md)."""


@models.command()
@click.argument("name")
@click.option("--from", "log", type=click.Path(), metavar="LOG", help="Jobs of a log, in place of the history.")
@click.option("--format", "form", type=click.Choice(["auto", "pm100"]), default="auto", show_default=True,
              help="pm100: the job table of PM100.")  # fmt: skip
@click.option("--machine", metavar="NAME|FILE", help="Of a log: what nodes draw, as for a replay.")
@click.option("--node-w", type=float, metavar="WATTS", help="Of a log: a node at full load, without a machine file.")
@click.option("--job-watts", metavar="FILE|generated", help="Of a log of processors: watts of its jobs.")
@click.option(
    "--inlets",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Of a room's thermal hazard: temperatures, as for `hazard judge`, or those kept in FOLDER/inlets.",
)
@click.option(
    "--share",
    type=FloatRange(0.01, 0.5),
    default=0.05,
    show_default=True,
    help="With --inlets: of readings above their thresholds that is a hazard.",
)
@click.option("--kept", "is_kept", is_flag=True, help="From the jobs of the ring alone, without the cluster agent.")
@click.option("--submit", "is_job", is_flag=True, help="As a job of the partition, which has to have the folder.")
@click.option("--time", "walltime", default="00:30:00", show_default=True, metavar="TIME", help="Of the job.")
@folder_option
@keep_option
@socket_option
def train(
    name: str, log: str | None, form: str, machine: str | None, node_w: float | None, job_watts: str | None,
    inlets: Path | None, share: float, is_kept: bool, is_job: bool, walltime: str, folder: Path, keep: int,
    socket: Place,
) -> None:  # fmt: skip
    """Train a new version of NAME from the jobs that have ended, ours and another manager's; with --inlets one that
    predicts thermal hazard."""
    registry = Registry(folder, name)
    with locked(folder):
        words = JobWords(folder, is_made=True)
        registry.refuse_other(WATTS if inlets is None else HAZARD)
        lines = list[str]()
        if inlets is not None:
            lines = [] if is_job else _train_room(registry, inlets, share)
        elif log is None:
            records = _of_ring(folder, keep, words, None if is_kept else socket, is_job)
            lines = [] if is_job else _train_watts(registry, records)
        elif not is_job:
            lines = _train_watts(registry, words.records(_logged(log, form == "pm100", machine, job_watts, node_w)))
    if is_job:
        from cluster_agent.commands.learning.training_job import submit_training

        watts = None if node_w is None else str(node_w)
        given = {"--from": log, "--format": form, "--machine": machine, "--node-w": watts, "--job-watts": job_watts}
        if inlets is not None:
            given = {"--inlets": str(inlets.resolve()), "--share": str(share)}
        lines = [f"job {submit_training(socket, name, folder, walltime, given)}"]
    echo(*lines)


def _of_ring(folder: Path, keep: int, words: JobWords, socket: Place | None, is_job: bool) -> Records:
    """The jobs of the ring, with what has ended since, where there is a cluster agent; a job takes them itself."""
    with _ring(folder, keep) as ring:
        if socket is not None:
            _extract(ring, words, socket)
        records = ring.last(0 if is_job else ring.kept)
        _say_damage(ring)
    return _ended_by(time.time(), records)


def _train_room(registry: Registry, inlets: Path, share: float) -> list[str]:
    from cluster_agent.commands.learning.room_hazard import train_room

    return train_room(registry, inlets, share)


def _train_watts(registry: Registry, records: Records) -> list[str]:
    from cluster_agent.model_service.model_training import train as trained

    version = trained(registry, records)
    metrics = version.metrics
    lines = [f"{registry.path / str(version.card.version)}: trained on {version.card.jobs} jobs"]
    if metrics.error is not None and metrics.nearest_error is not None:
        lines.append(
            f"on the last {metrics.judged}, unseen: error {metrics.error:.4f}, the nearest past jobs"
            f" {metrics.nearest_error:.4f}"
        )
    return lines


def _ended_by(now_s: float, records: Records) -> Records:
    """Without jobs that ended while the clock was ahead: of what comes later, none would be new to the version."""
    is_past = records["ended_s"] <= now_s
    if not is_past.all():
        say(f"the ring of jobs: {int((~is_past).sum())} jobs end later than now and are left out: the clock was ahead")
    return records[is_past]


def _logged(
    log: str, is_pm100: bool, machine: str | None, job_watts: str | None, node_w: float | None
) -> Iterator[EndedJob]:
    from cluster_agent.library.given import World
    from cluster_agent.library.power_logs import read_power_log

    read = read_power_log(World(log, machine=machine, job_watts=job_watts), node_w, is_pm100)
    for finding in read.findings:
        say(f"{log}: {finding}")
    for number, job in enumerate(read.jobs):
        yield EndedJob(f"{log}/{number}", job.submission, job.submit_s, job.end_s, job.watts, job.maximum_w)


@models.command()
@click.argument("name", nargs=-1)
@click.option(
    "--mqtt",
    "broker",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also take jobs from the broker of [mqtt] in these settings, and publish the results there.",
)
@click.option(
    "--lower",
    "lowers",
    is_flag=True,
    help="Lower the budget ahead of a predicted hazard, as far as the cluster agent's [hazard] allows.",
)
@click.option("--promote", "promotes", is_flag=True, help="Promote a candidate as soon as it has proven better.")
@click.option("--metrics", type=click.Path(path_type=Path), metavar="FILE", help="Write figures for Prometheus here.")
@folder_option
@keep_option
@json_option
@socket_option
def run(
    name: tuple[str, ...], broker: Path | None, lowers: bool, promotes: bool, metrics: Path | None, folder: Path,
    keep: int, as_json: bool, socket: Place,
) -> int:  # fmt: skip
    """Judge the models (NAME...; default: all) on the jobs that have ended since, and publish what they predict. Exit
    status 1 if an alarm is on."""
    settings = None if broker is None else read_mqtt_settings(broker)
    with locked(folder):
        registries = [existing(folder, one) for one in dict.fromkeys(name or names(folder))]
        words = JobWords(folder, is_made=True)
        with _ring(folder, keep) as ring:
            new = _extracted(ring, words, socket, settings)
            waiting = _waiting(socket)
            rooms = [one for one in registries if one.kind == HAZARD]
            others = [one for one in registries if one not in rooms]
            found = [model_run.run_model(one, ring, words, waiting, promotes) for one in others]
            _say_damage(ring)
        if rooms or not name:
            from cluster_agent.commands.learning.room_hazard import run_rooms

            found += run_rooms(rooms, folder, socket, lowers)
        if metrics is not None:
            model_run.write_metrics(metrics, found)
    if settings is not None:
        from cluster_agent.commands.learning.model_broker import publish_results

        publish_results(settings, found)
    return _show_run(new, found, as_json)


def _show_run(new: int, found: Sequence[ModelState], as_json: bool) -> int:
    for one in found:
        for line in one.lines:
            say(f"{one.name}: {line}")
    if as_json:
        echo(json_text({"new_jobs": new, "models": [_values(one) for one in found]}))
    else:
        echo(f"{new} jobs have ended since the last run", *map(_in_words, found))
    return 1 if any(one.alarm for one in found) else 0


@contextlib.contextmanager
def _ring(folder: Path, keep: int) -> Iterator[JobRing]:
    hint = max((model_run.read_state(Registry(folder, one))[0].read for one in names(folder)), default=0)
    ring = open_ring(folder, keep, hint)
    try:
        yield ring
    finally:
        ring.close()


def _extracted(ring: JobRing, words: JobWords, socket: Place, settings: MqttSettings | None) -> int:
    """The same, also from a broker, without whom a cluster agent has to answer."""
    if settings is None:
        return _extract(ring, words, socket)
    from cluster_agent.commands.learning.model_broker import take_jobs

    new = 0
    try:
        new = _extract(ring, words, socket)
    except ClusterError as error:
        say(f"{error}: jobs come from the broker alone")
    return new + take_jobs(settings, ring, words)


def _extract(ring: JobRing, words: JobWords, socket: Place) -> int:
    """Put the jobs that the agent has and the ring has not into the ring; how many."""
    newest = ring.last(OVERLAP)
    now_s = time.time()
    rows = rows_since(socket, ListHistory(missing_since(newest, now_s)))
    jobs = (ended_job(row, request(row.user, row.application, row.nodes, row.request_s)) for row in rows)
    found = words.records(one for one in jobs if one is not None)
    new = unknown(found[found["ended_s"] <= now_s], newest)
    if len(new):
        ring.append(new)
    return len(new)


def _waiting(socket: Place) -> list[Waiting]:
    """Our jobs that wait and run; none where the agent runs no jobs."""
    with contextlib.suppress(ClusterError):
        return [
            Waiting(str(row.job), request(row.user, row.title, row.requested or row.nodes, row.walltime_s))
            for row in rows_of(socket, ListJobs())
        ]
    return []


def _say_damage(ring: JobRing) -> None:
    if ring.damaged:
        say(f"the ring of jobs: {ring.damaged} records are damaged and left out")


@models.command()
@click.argument("name", required=False)
@click.option("--job", metavar="JOB", help="What was predicted for this job at the last run, and why.")
@folder_option
@json_option
def status(name: str | None, job: str | None, folder: Path, as_json: bool) -> int:
    """The versions of each model, their errors, and who predicts. Exit status 1 if an alarm is on."""
    registries = [existing(folder, one) for one in ([name] if name else names(folder))]
    found = [model_run.state_of(one) for one in registries]
    if job is not None:
        return _of_job(found, job)
    if as_json:
        echo(json_text([_values(one) | {"versions": _versions(registry)}
                        for one, registry in zip(found, registries, strict=True)]))  # fmt: skip
    elif not found:
        echo(f"{folder}: no models; `clusterctl models train NAME` makes one")
    else:
        for one, registry in zip(found, registries, strict=True):
            echo(*one.lines, _in_words(one))
            echo_block(render(("version", "jobs", "error", "nearest's", "is"), _rows(registry)))
            echo(*(f"  {_change(change, registry.kind)}" for change in registry.champion().changes[:3]))
    return 1 if any(one.alarm for one in found) else 0


def _of_job(found: Sequence[ModelState], job: str) -> int:
    is_found = False
    for one in found:
        for row in one.published.jobs if one.published else ():
            if row.job == job and one.published:
                is_found = True
                echo(
                    f"{one.name} version {one.published.version}: job {job} draws about {row.typical_w:.0f} W, at most"
                    f" about {row.maximum_w:.0f} W; from {row.why}"
                )
    if not is_found:
        echo(f"no model predicted job {job} at its last run: it waited or ran not then, or no model is champion")
    return 0 if is_found else 1


def _versions(registry: Registry) -> list[dict[str, Any]]:
    return [
        {"version": version, "jobs": jobs, "error": error, "nearest_error": nearest, "is": word}
        for version, jobs, error, nearest, word in _read(registry)
    ]


def _rows(registry: Registry) -> list[tuple[str, ...]]:
    return [
        (str(version), "-" if jobs is None else str(jobs), _number(error), _number(nearest), word)
        for version, jobs, error, nearest, word in _read(registry)
    ]


def _read(registry: Registry) -> list[tuple[int, int | None, float | None, float | None, str]]:
    champion, candidate = registry.champion(), candidate_of(registry)
    found = list[tuple[int, int | None, float | None, float | None, str]]()
    for number in registry.versions():
        word = ("champion" if number == champion.version else "candidate" if number == candidate
                else "rolled back" if number in champion.taken_back else "")  # fmt: skip
        try:
            version = registry.version(number)
            found.append((number, version.card.jobs, version.metrics.error, version.metrics.nearest_error, word))
        except ClusterError as error:
            found.append((number, None, None, None, str(error)))
    return found


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4f}"


def _change(change: Change, kind: str) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(change.unix_s))
    forced = " (forced)" if change.is_forced else ""
    return f"{when} {change.by}{forced}: {in_place(change.version, kind)}: {change.why}"


def _values(one: ModelState) -> dict[str, Any]:
    state = one.state
    return {
        "name": one.name, "champion": one.champion, "candidate": one.candidate, "alarm": one.alarm,
        "compared_jobs": state.pairs.jobs, "compared_errors": state.pairs.means(), "gain": state.pairs.gain(),
        "drift": state.drift, "hazard": one.hazard, "run_unix_s": state.ended_s, "lines": one.lines,
        "published": one.published,
    }  # fmt: skip


def _in_words(one: ModelState) -> str:
    words = [f"{one.name}: {in_place(one.champion, one.kind)}"]
    if one.alarm:
        words.append(f"ALARM: {one.alarm}")
    if (drift := one.state.drift) is not None and drift.error is not None:
        most = "" if drift.most_error is None else f" (alarm above {drift.most_error:.3f})"
        index = ", ".join(f"{name} {value:.2f}" for name, value in drift.psi.items())
        of_inputs = f", PSI: {index}" if index else ""
        noun = "hours" if one.kind == HAZARD else "jobs"
        words.append(f"error on the last {drift.jobs} unseen {noun} {drift.error:.4f}{most}{of_inputs}")
    if one.hazard is not None:
        words.append(one.hazard.words)
    if one.candidate:
        gain = (
            gain_in_words(one.champion, one.state.pairs.gain(), one.kind) if one.champion else "waits for a promotion"
        )
        words.append(f"candidate version {one.candidate}: {gain}")
    return "; ".join(words)


@models.command()
@click.argument("name")
@click.argument("version", type=click.IntRange(1), required=False)
@click.option("--force", is_flag=True, help="Also if it has not proven better; the record says so.")
@folder_option
def promote(name: str, version: int | None, force: bool, folder: Path) -> None:
    """Make VERSION (default: the newest) champion. Only if its error on the same unseen jobs is lower, by a 95 %
    interval, than the champion's; the first one has to beat the nearest past jobs."""
    with locked(folder):
        registry = existing(folder, name)
        chosen = registry.version(version or max(registry.versions()))
        was, number = registry.champion().version, chosen.card.version
        if number == was:
            raise WrongUseError(f"{name}: version {number} is champion already")
        state = model_run.state_of(registry).state
        is_compared = not was or (state.champion, state.candidate) == (was, number)
        gain = gain_of(chosen, was, state.pairs) if is_compared else None
        why = gain_in_words(was, gain, registry.kind)
        is_better = gain is not None and gain.low > 0
        if not is_better and not force:
            raise ClusterError(f"{name}: version {number} is not promoted: {why} (--force promotes it)")
        registry.change(Change(number, was, time.time(), getpass.getuser(), why, is_forced=not is_better))
    echo(f"{name}: version {number} predicts now{'' if is_better else ', by force'}: {why}")


@models.command()
@click.argument("name")
@click.option("--to", "version", type=click.IntRange(0), help="A version; 0: none. Default: the one before.")
@click.option("--why", default="by hand", show_default=True, help="The reason, for the record.")
@folder_option
def rollback(name: str, version: int | None, why: str, folder: Path) -> None:
    """Put the champion before back; without one the nearest past jobs predict."""
    with locked(folder):
        registry = existing(folder, name)
        champion = registry.champion()
        to = next(iter(champion.earlier), 0) if version is None else version
        if to == champion.version:
            raise WrongUseError(f"{name}: {in_place(to, registry.kind)} already")
        if to:
            registry.version(to)
        registry.change(Change(to, champion.version, time.time(), getpass.getuser(), why, is_rollback=True))
        kind = registry.kind
    echo(f"{name}: {in_place(to, kind)} now")


@models.command()
@click.argument("user")
@folder_option
def forget(user: str, folder: Path) -> None:
    """Make the kept jobs of USER nobody's. Versions that were trained before know them still: train again."""
    with locked(folder):
        words = JobWords(folder)
        with _ring(folder, DEFAULT_KEPT) as ring:
            count = ring.forget(words.word("user", user))
    echo(f"{count} jobs of {user} are nobody's now; versions that were trained before know them still")
