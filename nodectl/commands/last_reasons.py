"""``nodectl why``: what each policy requested last, and for what reason, from the journal of the agent."""

from __future__ import annotations

import datetime
from collections import defaultdict
from pathlib import Path

import click

from foundation.shell.errors import NodectlError
from foundation.shell.number_ranges import with_ranges
from foundation.shell.plain_text import echo, echo_block
from foundation.shell.text_table import render
from nodectl.commands import config_option, state_dir_option
from nodectl.commands.run import configure
from nodectl.journal import Journal, Record, open_journal
from nodectl.journal.format import SEGMENT_PATTERN
from nodectl.policies import registry

UNITS = {"cpu": "kHz", "gpu": "MHz"}


@click.command()
@config_option
@state_dir_option
@click.option("--journal", metavar="DIR", help="Where the journal is.")
def why(file: Path | None, state_dir: str | None, journal: str | None) -> None:
    """Print what each policy requested last, and why; also whether phases of an earlier run decide."""
    given = {("state_dir",): ("--state-dir", state_dir), ("journal", "dir"): ("--journal", journal)}
    config = configure(file, {path: option for path, option in given.items() if option[1] is not None})
    record = last_decided(newest(Path(config.journal_dir)))
    keyframe = record.keyframe
    unix_s = (keyframe.wall_time_ns + record.raw.time_ns - keyframe.monotonic_ns) / 1e9
    when = datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(sep=" ", timespec="seconds")
    echo(f"last decision: {when}")
    rows = _rows(record)
    echo_block(render(("policy", "of", "request", "why"), rows) if rows else "no policy decides")


def newest(directory: Path) -> Journal:
    """The newest segment of the journal in this directory."""
    segments = sorted(directory.glob(SEGMENT_PATTERN)) if directory.is_dir() else []
    return open_journal(segments[-1] if segments else directory)


def last_decided(journal: Journal) -> Record:
    """The last record in which policies decided; ``NodectlError`` without any."""
    last: Record | None = None
    for record in journal:
        if record.has_decided:
            last = record
    if last is None:
        raise NodectlError(f"{journal.place}: no policy has decided in it")
    return last


def _rows(record: Record) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for recorded, request in zip(record.keyframe.policies, record.requests, strict=True):
        domain, reasons = _reasons(record, recorded.name)
        alike: dict[tuple[int, int], list[str]] = defaultdict(list)
        for index, pair in enumerate(zip(request.target.tolist(), request.reason.tolist(), strict=True)):
            alike[pair].append(f"{domain}{index}")
        for (target, code), names in alike.items():
            wanted = f"{target} {UNITS.get(domain, '')}".strip() if target else "free"
            why = reasons[code] if code < len(reasons) else str(code)
            rows.append((recorded.name, with_ranges(names), wanted, why))
    return rows


def _reasons(record: Record, name: str) -> tuple[str, tuple[str, ...]]:
    if added := record.keyframe.added.get(name):
        return added.domain, added.reasons
    for domain in registry.DOMAINS:
        try:
            return domain, registry.recorded(name, domain).reasons
        except registry.PolicyError:
            continue
    return "", ()
