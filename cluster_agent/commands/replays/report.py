"""``clusterctl report``: replays side by side, as Markdown and as one HTML file that contains its plots."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from cluster_agent.commands.replays.campaign import Published
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.compare import BLOCKS, Run, find, name_of, paired
from foundation.shell.plain_text import echo_block

NOTE = (
    "Simulated: every figure comes from replaying a job log, not from a machine. Intervals are 95 %, from a bootstrap"
    f" over {BLOCKS} blocks of consecutive jobs; one that contains 0 shows no difference on this log."
)
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
    "td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}h2{margin-top:2.5rem}.note{color:#555}"
)


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path())
@click.option("--baseline", metavar="POLICY", help="What the others are compared with (default: the first).")
@click.option("--html", "html_file", metavar="FILE", help="Write one self-contained HTML file with plots.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the tables as Markdown, not to stdout.")
def report(folders: tuple[str, ...], baseline: str | None, html_file: str | None, markdown_file: str | None) -> int:
    """Compare the replays in and below each DIR (the --out of `clusterctl replay` or `campaign`).

    Replays of one trace, machine and cap are compared with each other, job by job with the baseline.
    """
    runs = find(folders)
    if baseline is not None and baseline not in [run.policy for run in runs]:  # as printed, or as it was chosen
        baseline = name_of(baseline)
    if baseline is not None and baseline not in [run.policy for run in runs]:
        have = ", ".join(dict.fromkeys(run.policy for run in runs))
        raise WrongUseError(f"--baseline {baseline}: no replay of it here; there are {have}")
    published = _published(folders)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    tables = [(group, *_tables(of_group, baseline, published)) for group, of_group in groups.items()]
    if html_file:
        _write(html_file, _html(tables, groups), "--html")
    parts = [f"# Replays\n\n{NOTE}"]
    for group, *found in tables:
        parts += [f"## {group}", *_left_out(groups[group]), _markdown(found)]
    text = "\n\n".join(parts)
    if markdown_file:
        _write(markdown_file, text + "\n", "--markdown")
    elif not html_file:
        echo_block(text)
    return 0


def _tables(
    runs: Sequence[Run], baseline: str | None, published: dict[tuple[str, str], Published]
) -> tuple[list[list[str]], list[list[str]]]:
    """The results of each replay, and how they differ from the baseline."""
    has_watts = any(run.metrics.get("energy_j") is not None for run in runs)
    wanted = [_published_of(run, published) for run in runs]
    has_published = any(value is not None for value in wanted)
    title = ["policy", "bounded slowdown", *(["published"] if has_published else []), "median", "p95", "max"]
    title += ["mean wait s", "p95 wait s", "utilisation %"]
    title += ["energy kWh", "over cap W s", "kills"] if has_watts else []
    rows = [title]
    for run, value in zip(runs, wanted, strict=True):
        slowdown, metrics = run.slowdown, run.metrics
        used = metrics["utilisation"]
        cells = [run.policy, _number(float(slowdown.mean())), *([_number(value)] if has_published else [])]
        cells += [_number(float(one)) for one in (*np.percentile(slowdown, [50, 95]), slowdown.max())]
        cells += [_number(float(run.wait_s.mean())), _number(float(np.percentile(run.wait_s, 95)))]
        cells.append(_number(100 * (used["cores"] if isinstance(used, dict) else used)))
        if has_watts:
            energy_j = metrics.get("energy_j")
            cells += [_number(None if energy_j is None else energy_j / 3.6e6)]
            cells += [_number(metrics.get("over_cap_ws", metrics.get("above_cap_ws"))), _number(metrics.get("kills"))]
        rows.append(cells)
    base = next((run for run in runs if run.policy == baseline), runs[0])
    differences = [[f"against {base.policy}", "bounded slowdown", "95 %", "wait s", "95 %", "jobs"]]
    for run in runs:
        if run is base:
            continue
        found = [
            paired(mine.astype(np.float64), run.job, theirs.astype(np.float64), base.job)
            for mine, theirs in ((run.slowdown, base.slowdown), (run.wait_s, base.wait_s))
        ]
        cells = [run.policy]
        for one in found:
            cells += ["", ""] if one is None else [f"{one.mean:+.4g}", f"{one.low:+.4g} to {one.high:+.4g}"]
        differences.append([*cells, str(found[0].jobs if found[0] else 0)])
    return rows, differences


def _left_out(runs: Sequence[Run]) -> list[str]:
    """A line about what jobs of the log state and the replays do not look at, or none."""
    found = {what: jobs for run in runs for what, jobs in run.not_modelled.items()}
    if not found:
        return []
    return ["Not modelled: jobs that " + ", ".join(f"{what} ({jobs:,})" for what, jobs in found.items()) + "."]


def _published_of(run: Run, published: dict[tuple[str, str], Published]) -> float | None:
    """What was published for this replay; None for another cut of the log, or under other conditions."""
    one = published.get((run.trace, run.policy))
    return one.AVEbsld if one and run.is_plain and one.jobs in (0, run.metrics["jobs"]) else None


def _published(folders: Sequence[str]) -> dict[tuple[str, str], Published]:
    """Published values by trace and policy, from campaigns that list some."""
    found: dict[tuple[str, str], Published] = {}
    for folder in folders:
        path = Path(folder) / "published.json"
        if not path.exists():
            continue
        try:
            for one in msgspec.json.decode(path.read_bytes(), type=list[Published]):
                found[one.trace, name_of(one.policy)] = one
        except OSError as error:
            raise ClusterError(f"{path}: {error.strerror}; run the campaign again") from None
        except (msgspec.DecodeError, UnicodeDecodeError, WrongUseError):
            raise ClusterError(f"{path}: not as a campaign writes it; run the campaign again") from None
    return found


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _markdown(tables: Sequence[list[list[str]]]) -> str:
    return "\n\n".join(
        "\n".join(
            [
                "| " + " | ".join(rows[0]) + " |",
                "|---" + "|---:" * (len(rows[0]) - 1) + "|",
                *("| " + " | ".join(row) + " |" for row in rows[1:]),
            ]
        )
        for rows in tables
        if len(rows) > 1
    )


def _html(tables: Sequence[tuple[str, list[list[str]], list[list[str]]]], groups: dict[str, list[Run]]) -> str:
    try:
        from cluster_agent.replay import report_plots
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ClusterError("--html: plots need matplotlib (pip install 'nodectl[plots]')") from None
    body = [f"<h1>Replays</h1><p class=note>{html.escape(NOTE)}</p>"]
    for group, *found in tables:
        body.append(f"<h2>{html.escape(group)}</h2>")
        body += [f"<p class=note>{html.escape(line)}</p>" for line in _left_out(groups[group])]
        body += [_html_table(rows) for rows in found if len(rows) > 1]
        for title, image in report_plots.of_group(groups[group]):
            alt = html.escape(title)
            body.append(f'<h3>{alt}</h3><img alt="{alt}" src="data:image/png;base64,{image}">')
    head = f"<meta charset=utf-8><title>Replays (simulated)</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>\n"


def _html_table(rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(rows[0], "th") + "".join(line(row, "td") for row in rows[1:]) + "</table>"


def _write(path: str, text: str, option: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}; choose another {option}") from None
