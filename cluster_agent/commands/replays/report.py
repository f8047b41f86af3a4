"""``clusterctl report``: replays side by side, as Markdown, as one HTML file and as figures for a paper."""

from __future__ import annotations

import os

import click

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay import written_whole
from cluster_agent.replay.compare import find
from cluster_agent.reports import conditions, tables
from cluster_agent.reports.conditions import Comparison
from cluster_agent.reports.effects import Effect
from foundation.shell.command_line import distribution
from foundation.shell.plain_text import echo_block

SIMULATED = "Simulated: every figure comes from replaying a job log, not from a machine."
INTERVALS = (
    "Each interval is a 95 % one by itself, so of twenty policies that change nothing one will seem to. It says how far"
    " the figure may be off for other weeks of these logs, other seeds or other logs; another site may differ more."
)


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path())
@click.option("--baseline", metavar="POLICY", help="What the others are compared with (default: the first).")
@click.option("--html", "html_file", metavar="FILE", help="Write one self-contained HTML file with pictures.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the tables as Markdown, not to stdout.")
@click.option("--figures", metavar="DIR", help="Write each picture as SVG and PDF, with its numbers as CSV.")
def report(
    folders: tuple[str, ...],
    baseline: str | None,
    html_file: str | None,
    markdown_file: str | None,
    figures: str | None,
) -> int:
    """Compare the replays in and below each DIR (the --out of `clusterctl replay` or `campaign`).

    Replays of one trace, machine and cap are compared with each other, job by job with the baseline; their seeds count
    together.
    """
    if html_file and markdown_file and os.path.realpath(html_file) == os.path.realpath(markdown_file):
        raise WrongUseError(f"--html and --markdown: both are {html_file}; give each a file of its own")
    found = conditions.compare(find(folders), baseline, conditions.published_figures(folders))
    if html_file:
        from cluster_agent.reports.page import page  # only here, as below: Markdown needs neither

        _write(html_file, page(found, _about(found), in_a_sentence(found)), "--html")
    if figures:
        _figures(found, figures)
    if markdown_file:
        _write(markdown_file, _markdown(found) + "\n", "--markdown")
    elif not (html_file or figures):
        echo_block(_markdown(found))
    return 0


def in_a_sentence(found: Comparison) -> str:
    """The policy with the shortest mean slowdown, or the only other one, and how sure that is."""
    if not found.against:
        if len(found.policies) > 1:
            return f"No other policy started jobs where {found.baseline} did: there is nothing to compare it with."
        return f"Only {found.baseline} was replayed: there is nothing to compare it with."
    policy, one = min(found.against.items(), key=lambda each: each[1].slowdown.value)
    lower = one.slowdown.value < 1
    much = tables.change(one.slowdown.value).lstrip("−+")
    more = "lower" if lower else "higher" if one.slowdown.value < 2 else "that"
    best = "Best of all: w" if lower else f"None is better than {found.baseline}: w"
    best = best if len(found.against) > 1 else "W"
    than = f"than with {found.baseline}" if more != "that" else f"of {found.baseline}"
    return f"{best}ith {policy} the mean bounded slowdown is {much} {more} {than} ({_sure(one.slowdown)})."


def _sure(one: Effect) -> str:
    within = tables.interval(one, tables.change)
    if not within or one.low is None or one.high is None:
        return f"95 % interval: {one.over}"
    doubt = "" if one.high < 1 or one.low > 1 else ", so there may be no difference"
    return f"95 %: {within}, {one.over}{doubt}"


def _about(found: Comparison) -> list[str]:
    """How many replays there are, and what the intervals are over."""
    over = dict.fromkeys(one.slowdown.over for one in found.against.values())
    lacks = [one.name for one in found.conditions if found.baseline not in one.runs and len(found.conditions) > 1]
    runs = [run for one in found.conditions for run in one.all_runs]
    counts = {"replays": len(runs), "policies": len(found.policies), "conditions": len(found.conditions)}
    counts |= {"logs": len({run.log for run in runs}), "seeds": len({run.seed for run in runs})}
    made = ", ".join(f"{what}: {n}" for what, n in counts.items())
    lines = [f"{SIMULATED} {made[0].upper()}{made[1:]}."]
    lines += [INTERVALS] if any(one.slowdown.low is not None for one in found.against.values()) else []
    lines += [f"Intervals: {'; '.join(over)}."] if over else []
    lines += [f"Not compared, since {found.baseline} was not replayed there: {'; '.join(lacks)}."] if lacks else []
    return lines


def _markdown(found: Comparison) -> str:
    parts = ["# Replays", in_a_sentence(found), *_about(found)]
    if len(found.conditions) > 1 and found.against:
        parts += ["## All conditions together", tables.markdown([tables.overall(found)])]
    for one in found.conditions:
        parts += [f"## {one.name}", *tables.left_out(one)]
        parts.append(tables.markdown([tables.results(found, one), tables.differences(found, one)]))
    return "\n\n".join(parts)


def _figures(found: Comparison, directory: str) -> None:
    if not any(run.job for one in found.conditions for run in one.all_runs):
        raise ClusterError("--figures: nothing to draw, since no replay has started a job")
    try:
        from cluster_agent.reports import paper_figures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ClusterError(f"--figures: they need matplotlib (pip install '{distribution()}[plots]')") from None
    with written_whole.folder(directory, "--figures") as made:
        paper_figures.write(found, made)


def _write(path: str, text: str, option: str) -> None:
    with written_whole.one_file(path, option) as made:
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
