"""``clusterctl predict``: what a job, or the partition, will draw; and how well that was predicted on any log."""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Sequence
from typing import Any, Final, get_args

import click
import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.commands.learning.past_jobs import PastJob, past_jobs, waiting_and_running
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place
from cluster_agent.history.watts_ahead import request
from cluster_agent.jobs.job import LONGEST_S
from cluster_agent.library.given import World
from cluster_agent.library.power_logs import Part, hours_of, read_power_log
from cluster_agent.prediction.evaluation import Coverage, Errors, Evaluation, SumErrors, evaluate
from cluster_agent.prediction.job_power import METERED_AFTER_S, PowerPredictor, Prediction, Submission
from cluster_agent.prediction.models import Model, find_model
from cluster_agent.prediction.on_line import Forecast, OnLinePower
from cluster_agent.prediction.system_forecast import Hour, Runs, forecasts, kept
from foundation.shell.command_line import FloatRange
from foundation.shell.duration import seconds, shown
from foundation.shell.extension import Extension
from foundation.shell.plain_text import echo, echo_block, json_text, say
from foundation.shell.text_table import render

J_PER_KWH: Final = 3.6e6
PART_WORDS: Final = {"cpu": "processors", "memory": "memory", "gpu": "GPUs"}
COVERAGE_ROWS: Final = 12
"""Ours: users in the printed table of coverage; JSON has all."""


@click.group()
def predict() -> None:
    """What a job or the partition will draw, learned from the jobs that have ended (docs/predictions.md)."""


@predict.command("job")
@click.option("-N", "--nodes", type=click.IntRange(1), default=1, show_default=True, help="How many nodes.")
@click.option("-t", "--time", "walltime", default="01:00:00", show_default=True, metavar="TIME", help="Its walltime.")
@click.option("-J", "--name", default="", help="Its name, as you would submit it.")
@click.option("--user", default="", help="Whose job; default: yours.")
@click.option("--price", type=FloatRange(0), metavar="PER_KWH", help="What a kWh costs, to have the costs too.")
@click.option("--model", metavar="FILE.py|FOLDER", help="Who predicts in place of the nearest past jobs.")
@json_option
@socket_option
def of_job(
    nodes: int, walltime: str, name: str, user: str, price: float | None, model: str | None, as_json: bool,
    socket: Place,
) -> None:  # fmt: skip
    """What a job will draw and use, before it is submitted: from your last jobs, or from others with such a request."""
    walltime_s, user = seconds(walltime), user or getpass.getuser()
    if not 1 <= walltime_s <= LONGEST_S:
        raise WrongUseError(f"--time {walltime}: a job needs some time, and at most {LONGEST_S // 86_400} days")
    past, (alive, _) = past_jobs(socket), waiting_and_running(socket)
    chosen = find_model(model) if model else None
    power, _ = _learned([*past, *alive], chosen)
    submission = request(user, name, nodes, walltime_s)
    found = power.predict(-1, submission)
    own = [job for job in past if job.submission.user == user and job.watts is not None]
    mostly_s, parts = _mostly_s(own, walltime_s), _by_part(past, submission)
    if as_json:
        echo(json_text(_job_values(found, walltime_s, mostly_s, len(own), price) | ({"parts": parts} if parts else {})))
        return
    by = chosen.value.why(submission) if chosen and found.origin == "model" else ""
    lines = _job_words(found, walltime_s, mostly_s, (user, len(own)), price, by)
    if parts and math.isfinite(found.expected_w):
        each = (f"{PART_WORDS[part]} {one.typical_w:.0f} (at most {one.maximum_w:.0f})" for part, one in parts.items())
        lines.insert(1, f"of these watts about: {', '.join(each)}")
    echo(*lines)


def _by_part(past: Sequence[PastJob], submission: Submission) -> dict[str, Prediction]:
    """What each part with meters of its own will draw, from the jobs whose nodes have such meters."""
    found = {}
    for part in PART_WORDS:
        nearest = PowerPredictor(lambda submission: math.nan)
        for job in past:
            if part in job.parts:
                nearest.learn(job.submission, *job.parts[part])
        said = nearest.predict(submission)
        if math.isfinite(said.typical_w):
            found[part] = said
    return found


def _learned(past: Sequence[PastJob], chosen: Extension[Model] | None = None) -> tuple[OnLinePower, list[float]]:
    """What these jobs teach, in this order, as far as they are metered: those that run, too, since jobs come in bursts
    that are alike, and the first of a burst has not ended yet. And the watts that were expected of each, NaN for
    nothing."""
    model, expected_w = OnLinePower(lambda submission: math.nan, model=chosen), list[float]()
    for number, job in enumerate(past):
        expected_w.append(model.predict(number, job.submission).expected_w)
        if job.watts is not None:
            model.learn(number, job.submission, job.watts, job.maximum_w)
    return model, expected_w


def _mostly_s(own: Sequence[PastJob], walltime_s: float) -> float | None:
    """How long such a job runs, if it uses the share of its walltime that the user's jobs mostly do."""
    shares = [job.run_s / job.submission.request_s for job in own if job.submission.request_s > 0]
    return None if not shares else min(float(np.median(shares)), 1.0) * walltime_s


def _job_values(
    found: Forecast, walltime_s: float, mostly_s: float | None, own: int, price: float | None
) -> dict[str, Any]:
    if not math.isfinite(found.expected_w):
        return {"own_jobs": own, "similar": 0}
    values: dict[str, Any] = msgspec.to_builtins(found)
    values |= {"own_jobs": own, "most_kwh": found.expected_w * walltime_s / J_PER_KWH, "run_s": mostly_s}
    if mostly_s is not None:
        values["kwh"] = found.expected_w * mostly_s / J_PER_KWH
    if price is not None:
        values["most_cost"] = values["most_kwh"] * price
    return values


def _job_words(
    found: Forecast, walltime_s: float, mostly_s: float | None, own: tuple[str, int], price: float | None, by: str
) -> list[str]:
    user, count = own
    if not math.isfinite(found.expected_w):
        return [
            f"nothing is known of such a job: none of {user}'s, and none with such a request, has ended here with"
            " metered watts"
        ]

    def used(run_s: float) -> str:
        kwh = found.expected_w * run_s / J_PER_KWH
        return f"{kwh:.3g} kWh" + (f" ({kwh * price:.2f} at {price:g} a kWh)" if price is not None else "")

    lines = [f"draws about {found.typical_w:.0f} W, at most about {found.maximum_w:.0f} W"]
    if found.low_w is not None and found.high_w is not None:
        lines.append(f"nine of ten such jobs draw between {found.low_w:.0f} and {found.high_w:.0f} W")
    if mostly_s is not None:
        lines.append(f"uses about {used(mostly_s)}, if it runs as long as {user}'s jobs mostly do ({shown(mostly_s)})")
    lines.append(f"uses about {used(walltime_s)}, if it runs for all of its {shown(walltime_s)}")
    if found.origin == "model":
        return [*lines, f"by {by}; {user} has {count} jobs with metered watts here"]
    source = f"{user}'s own" if found.origin == "user" else "of others, with the same request"
    lines.append(f"from {found.similar} similar jobs, {source}; {user} has {count} jobs with metered watts here")
    return lines


@predict.command("system")
@click.option("--hours", type=click.IntRange(1, 24), default=6, show_default=True, help="How far ahead.")
@click.option("--days", type=click.IntRange(1, 60), default=7, show_default=True, help="How much of the past counts.")
@json_option
@socket_option
def of_system(hours: int, days: int, as_json: bool, socket: Place) -> None:
    """The watts of the partition's jobs in the next hours, with a band that nine of ten hours stay within. Jobs that
    nobody has submitted yet are included; idle nodes are not."""
    now_s = time.time()
    past = [job for job in past_jobs(socket) if job.ended_s > now_s - 86_400 * days]
    alive, remarks = waiting_and_running(socket)
    for remark in remarks:
        say(remark)
    runs = _runs(past, alive)
    if not len(runs.submit_s):
        echo("no job has run in that time, and none runs or waits: nothing can be said")
        return
    begun_s = min(float(runs.submit_s.min()), now_s)
    found = forecasts(runs, max(begun_s, now_s - 86_400 * days), now_s, [3600.0 * hour for hour in range(1, hours + 1)])
    coming, turned_out = found[-hours:], kept(found)
    if as_json:
        echo(json_text({"hours": coming, "kept": turned_out}))
        return
    echo(f"now {coming[0].now_w:.0f} W")
    echo_block(render(("in", "expected W", "nine of ten", "of it runs now"), [_cells(one) for one in coming]))
    count = sum(one.forecasts for one in turned_out)
    if count:
        within = sum(one.within * one.forecasts for one in turned_out) / count
        echo(f"of {count} such bands of the past {100 * within:.0f} % were right")
    else:
        echo("too few hours have been seen to give bands")


def _cells(one: Hour) -> tuple[str, ...]:
    band = "-" if one.low_w is None or one.high_w is None else f"{one.low_w:.0f} to {one.high_w:.0f}"
    return shown(one.at_s - one.made_s), f"{one.expected_w:.0f}", band, f"{one.lasting_w:.0f}"


def _runs(past: Sequence[PastJob], alive: Sequence[PastJob]) -> Runs:
    """Columns of jobs that ended, run and wait. A job that is not metered counts with what was expected of it."""
    jobs = [*past, *alive]
    said = _expected_w(past, alive)
    watts = np.array([np.nan if job.watts is None else job.watts for job in jobs], np.float64)
    return Runs.of(
        [(job.submitted_s, job.started_s, job.ended_s) for job in jobs], [job.submission.request_s for job in jobs],
        np.where(np.isfinite(watts), watts, said), said,
    )  # fmt: skip


def _expected_w(past: Sequence[PastJob], alive: Sequence[PastJob]) -> npt.NDArray[np.float64]:
    """What was expected of each at its submission; where nothing was, the mean of a node."""
    _, expected = _learned([*past, *alive])
    units = np.array([job.submission.units for job in (*past, *alive)], np.float64)
    metered = [(job.watts, job.submission.units) for job in past if job.watts is not None]
    node_w = sum(watts for watts, _ in metered) / sum(nodes for _, nodes in metered) if metered else 0.0
    said: npt.NDArray[np.float64] = np.where(np.isfinite(expected), expected, node_w * units)
    return said


# --- of a log


@predict.command("evaluate")
@click.argument("log", type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "pm100"]),
    default="auto",
    show_default=True,
    help="pm100: the job table of PM100 (Marconi100), as Parquet or CSV.",
)
@click.option("--machine", metavar="NAME|FILE", help="What nodes draw, as for a replay.")
@click.option("--node-w", type=float, metavar="WATTS", help="What a node draws at full load, without a machine file.")
@click.option("--job-watts", metavar="FILE|generated", help="Watts of the jobs of a log of processors.")
@click.option("--instance", metavar="NAME", help="Of a table that has several.")
@click.option("--part", type=click.Choice(get_args(Part)), default="node", show_default=True, help="Whose watts.")
@click.option(
    "--from",
    "judged_from",
    type=FloatRange(0, 0.99),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Jobs before this share of the log are learned from, but not judged.",
)
@click.option("--running", is_flag=True, help="Learn from running jobs, too, once they have been metered for a minute.")
@click.option("--model", metavar="FILE.py|FOLDER", help="Who predicts in place of the nearest past jobs.")
@json_option
def of_log(
    log: str, form: str, judged_from: float, running: bool, model: str | None, as_json: bool, **given: Any
) -> None:
    """How well each job's power would have been predicted at its submission, and the partition's in the hours to come,
    by what had ended until then. LOG: a job log (SWF), sacct's text, a table of Eurora's jobs, or PM100's."""
    world = World(log, machine=given["machine"], job_watts=given["job_watts"], instance=given["instance"])
    read = read_power_log(world, given["node_w"], form == "pm100", given["part"])
    for finding in read.findings:
        say(f"{log}: {finding}")
    chosen = find_model(model) if model else None
    found = evaluate(
        OnLinePower(read.tdp_w, model=chosen), read.jobs, judged_from, METERED_AFTER_S if running else None
    )
    hours = hours_of(read, chosen)
    turned_out = kept(hours, read.jobs[int(len(read.jobs) * judged_from)].submit_s)
    if as_json:
        echo(json_text({"evaluation": found, "hours_ahead": turned_out}))
        return
    _show(found)
    if turned_out:
        echo("", "hours ahead: the partition's watts, said every quarter of an hour")
        rows = [
            (shown(one.ahead_s), str(one.forecasts), f"{100 * one.within:.1f}", f"{one.error_pct:.1f}",
             f"{one.unchanged_pct:.1f}")
            for one in turned_out
        ]  # fmt: skip
        echo_block(render(("ahead", "forecasts", "within band %", "mean |error| %", "as now %"), rows))


def _show(found: Evaluation) -> None:
    origins = ", ".join(f"{origin} {count}" for origin, count in found.origins.items())
    cold = 100 * found.origins.get("TDP", 0) / found.judged
    echo(f"{found.judged} of {found.jobs} jobs judged; from {origins}: {cold:.1f} % cold starts, which are included")
    rows = [_errors("a job's mean", found.average)]
    if found.maximum is not None:
        rows.append(_errors("a job's maximum", found.maximum))
    echo_block(render(("watts of", "jobs", "median %", "MAPE %", "weighted %", "all jobs %"), rows))
    sums = [
        _sum("expected", found.expected_sum),
        _sum("typical, for comparison", found.typical_sum),
        _sum("expected, metered after a minute", found.metered_sum),
    ]
    echo("", "the sum of running jobs, minute by minute")
    echo_block(render(("from what is", "its mean %", "its maximum %", "mean |error| %"), sums))
    if found.coverage:
        echo("", f"bands for nine of ten jobs; {found.without_band} jobs had none")
        more = len(found.coverage) - COVERAGE_ROWS
        echo_block(
            render(("user", "jobs", "within %", "high / low"), [_within(one) for one in found.coverage[:COVERAGE_ROWS]])
        )
        if more > 0:
            echo(f"and {more} users more (--json has them)")


def _errors(name: str, one: Errors) -> tuple[str, ...]:
    return (
        name, str(one.jobs), f"{one.median_pct:.1f}", f"{one.mape_pct:.1f}", f"{one.weighted_pct:.1f}",
        f"{one.bias_pct:+.1f}",
    )  # fmt: skip


def _sum(name: str, one: SumErrors) -> tuple[str, ...]:
    return name, f"{one.mean_pct:+.1f}", f"{one.maximum_pct:+.1f}", f"{one.absolute_pct:.1f}"


def _within(one: Coverage) -> tuple[str, ...]:
    return one.user or "(unknown)", str(one.jobs), f"{100 * one.share:.1f}", f"{one.median_ratio:.2f}"
