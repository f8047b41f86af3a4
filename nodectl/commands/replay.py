"""``nodectl replay``: decide a journal again and compare, or export it as a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from foundation.shell.errors import UsageError
from foundation.shell.extension import is_file
from foundation.shell.plain_text import echo, echo_block, json_text
from nodectl.journal import Journal, Record, open_journal
from nodectl.journal.decide_again import ReplayReport
from nodectl.journal.decide_again import replay as decide_again
from nodectl.policies import registry


@click.command()
@click.argument("journal", type=click.Path())
@click.option("--export", "target", metavar="FILE", help="Write FILE (.csv or .parquet) instead of replaying.")
@click.option("--cpu-policy", metavar="FILE.py[:NAME]", help="The file of the CPU policy, if it came from one.")
@click.option("--gpu-policy", metavar="FILE.py[:NAME]", help="The file of the GPU policy, if it came from one.")
@click.option(
    "--policy",
    "others",
    metavar="DOMAIN=FILE.py[:NAME]",
    multiple=True,
    help="The file of another domain's policy (uncore, epp), if it came from one; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    journal: str,
    target: str | None,
    cpu_policy: str | None,
    gpu_policy: str | None,
    others: tuple[str, ...],
    as_json: bool,
) -> int:
    """Decide every tick of JOURNAL (a directory, or one segment) again from its recorded sweeps.

    Decisions are compared byte for byte. Exit status 1 if any differs (the first record and field that does is named)
    or if the journal is damaged. The end of a killed run, which may be cut short, is only reported. So is a policy of
    your own whose file is not the one recorded.
    """
    recorded = open_journal(journal)
    if target:
        return _export(recorded, target, as_json)
    files = {side: file for side, file in (("cpu", cpu_policy), ("gpu", gpu_policy)) if file is not None}
    for side, file in files.items():
        if not is_file(file):
            raise UsageError(f"--{side}-policy {file}: not FILE.py[:NAME]")
    for other in others:
        domain, _, file = other.partition("=")
        if domain not in registry.DOMAINS or not is_file(file):
            raise UsageError(
                f"--policy {other}: not DOMAIN=FILE.py[:NAME], where DOMAIN is one of {', '.join(registry.DOMAINS)}"
            )
        files[domain] = file
    with _progress(recorded, "replaying") as advance:
        report = decide_again(recorded, advance, files)
    _tell(report.problems)
    if as_json:
        fields = {**msgspec.to_builtins(report), "equal": report.is_equal, "speed": report.speed}
        echo(json_text(fields))
    else:
        echo_block(_lines(report))
    return 0 if report.is_equal and not report.loss.is_damage else 1


def _export(recorded: Journal, target: str, as_json: bool) -> int:
    from nodectl.journal.export import export  # pyarrow is large, and only needed here

    with _progress(recorded, "exporting") as advance:
        count = export(recorded, target, advance)
    _tell(recorded.problems)
    fields = {"records": count, "file": target, "problems": recorded.problems, "loss": recorded.loss}
    loss = f"; {recorded.loss}" if str(recorded.loss) else ""
    echo(json_text(fields) if as_json else f"{target}: {count} records{loss}")
    return 1 if recorded.loss.is_damage else 0


def _lines(report: ReplayReport) -> str:
    pace = (
        f"{report.records} records, {report.recorded_s:.1f} s recorded, replayed in {report.replay_s:.2f} s"
        f" ({report.speed:.0f} times faster)"
    )
    if str(report.loss):
        pace = f"{report.loss}\n{pace}"
    if not report.decided:
        return f"{pace}\nno decisions in this journal: it was recorded in monitor mode"
    if report.is_equal:
        return f"{pace}\nall {report.decided} decisions of {', '.join(report.policies)} are the same, byte for byte"
    return f"{pace}\n{report.differing} of {report.decided} decisions differ; the first: {report.first}"


def _tell(problems: list[str]) -> None:
    for problem in problems:
        echo(problem, to_stderr=True)


@contextmanager
def _progress(recorded: Journal, label: str) -> Iterator[Callable[[Record], None]]:
    """A bar on a terminal, nothing in a pipe. It counts bytes: records are not known before they are read."""
    if not sys.stderr.isatty():
        yield lambda record: None
        return
    with click.progressbar(length=recorded.size, label=label, file=sys.stderr) as bar:
        shown = 0

        def advance(record: Record) -> None:
            nonlocal shown
            bar.update(recorded.position - shown)
            shown = recorded.position

        yield advance
